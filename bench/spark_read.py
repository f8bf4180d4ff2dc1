"""A Spark session that reads one topic for each line `ADDRESS TOPIC` on standard input, and prints records and seconds.

Connector defaults, as the figure to compare is what a user's first job does; two cores, two partitions.
"""

from __future__ import annotations

import json
import sys
import time

from spark_jobs.common.session import build_session


def main() -> int:
    """Serve standard input until it ends."""
    from pyspark.sql import functions as sql

    spark = build_session("odradek-bench", master="local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        address, topic = line.split()
        began = time.monotonic()
        records = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("subscribe", topic)
            .load()
            .agg(sql.count("value").alias("records"), sql.sum(sql.length("value")))
            .first()
        )
        count = records["records"] if records is not None else 0
        print(json.dumps({"records": count, "seconds": time.monotonic() - began}), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
