"""A Spark session that works on request: a JSON object per line on standard input, a response per line.

`{"do": "read", "address": A, "topic": T}` reads a topic to its end, `write` fills one, `copy` starts a streaming query
from one topic to another that runs until `stop`. The response contains records and seconds. It uses two cores and the
connector's defaults, to measure the first job of a typical user.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
"""Partitions of each topic, one for each core."""


def read(spark: SparkSession, address: str, topic: str) -> int:
    """Read the topic to its end; returns the number of records."""
    from pyspark.sql import functions as sql

    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .load()
        .agg(sql.count("value").alias("records"), sql.sum(sql.length("value")))
        .first()
    )
    return int(records["records"]) if records is not None else 0


def write(spark: SparkSession, address: str, topic: str, records: int, size: int) -> int:
    """Write `records` of `size` bytes to an existing topic; returns the number that it then has."""
    from pyspark.sql import functions as sql

    (
        spark.range(0, records, 1, PARTITIONS)
        .select(sql.lit(bytearray(size)).alias("value"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("topic", topic)
        .save()
    )
    with KafkaAdmin(spark, address, {}) as admin:
        return sum(admin.offsets({topic: PARTITIONS}, "latest")[topic].values())


def copy(spark: SparkSession, address: str, topic: str, to: str, trigger: str) -> int:
    """Start a query that copies new records of `topic`, with a batch each `trigger`, until `stop`."""
    (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("topic", to)
        .option("checkpointLocation", tempfile.mkdtemp(dir=os.environ.get("SPARK_LOCAL_DIRS")))
        .trigger(processingTime=trigger)
        .start()
    )
    return 0


def stop(spark: SparkSession) -> int:
    """Stop the query of `copy`; raises its error if it failed."""
    for query in spark.streams.active:
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure
    return 0


WORK: dict[str, Callable[..., int]] = {"read": read, "write": write, "copy": copy, "stop": stop}


def main() -> int:
    """Serve requests until standard input ends."""
    spark = build_session("odradek-bench", master=f"local[{PARTITIONS}]")
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.monotonic()
        records = WORK[asked.pop("do")](spark, **asked)
        print(json.dumps({"records": records, "seconds": time.monotonic() - began}), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
