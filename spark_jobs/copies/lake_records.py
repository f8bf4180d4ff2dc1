"""Records of a table that the job `lake` wrote, with the Kafka connector's columns."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, StructType

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.copies.ranges import At, Ranges
from spark_jobs.lakes.layout import check_parquet

OWN_COLUMNS = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers", "topic", "date")
INFER_PARTITION_TYPES = "spark.sql.sources.partitionColumnTypeInference.enabled"


def read_lake(spark: SparkSession, path: str, schema: StructType | None) -> DataFrame:
    """The records of the table at `path`: topic, partition, offset, timestamp, key, value and headers.

    A lake without a schema stored the values unchanged. A lake with one stored their fields: they become a JSON object
    without the null fields. `schema` is that of the lake, needed if the table is partitioned by fields that are not
    strings. Raises ValueError for a table without a lake's columns, or in another format.
    """
    check_parquet(spark, path)
    inferred = spark.conf.get(INFER_PARTITION_TYPES)
    # Do not infer types: a topic named 007 is not a number.
    spark.conf.set(INFER_PARTITION_TYPES, "false")
    try:
        table = spark.read.parquet(path)
    finally:
        spark.conf.set(INFER_PARTITION_TYPES, str(inferred))
    missing = [name for name in OWN_COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(f"{path} is not a table of the job lake: it lacks the column {', '.join(missing)}")
    fields = [name for name in table.columns if name not in {*OWN_COLUMNS, "batch_id"}]
    if schema is not None:
        value = sql.to_json(sql.struct(*(sql.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in schema)))
    elif fields == ["value"] and table.schema["value"].dataType == BinaryType():
        value = sql.col("value")
    else:
        value = sql.to_json(sql.struct(*(sql.col(f"`{name}`") for name in fields)))
    return table.select(
        "topic",
        sql.col("kafka_partition").alias("partition"),
        sql.col("kafka_offset").alias("offset"),
        sql.col("kafka_timestamp").alias("timestamp"),
        sql.col("kafka_key").alias("key"),
        value.cast("binary").alias("value"),
        sql.col("kafka_headers").alias("headers"),
    )


class LakePositions:
    """Offsets of a lake's records."""

    def __init__(self, records: DataFrame) -> None:
        self._records = records

    def offsets(self, at: At) -> Offsets:
        """Offsets of every partition that has records, as `KafkaAdmin.offsets` returns them."""
        offset, end = sql.col("offset"), sql.max("offset") + 1
        if at == "earliest":
            found = sql.min(offset)
        elif at == "latest":
            found = end
        else:
            found = sql.coalesce(sql.min(sql.when(sql.unix_millis("timestamp") >= at, offset)), end)
        asked: Offsets = {}
        for row in self._records.groupBy("topic", "partition").agg(found.alias("at")).collect():
            asked.setdefault(row["topic"], {})[str(row["partition"])] = row["at"]
        return asked


def within(records: DataFrame, ranges: Ranges) -> DataFrame | None:
    """The `records` in `ranges`, each partition in offset order, or None if all ranges are empty."""
    wanted = [row for row in ranges.rows() if row[2] < row[3]]
    if not wanted:
        return None
    spark = records.sparkSession
    limits = spark.createDataFrame(wanted, "topic STRING, partition INT, start BIGINT, stop BIGINT")
    inside = records.join(sql.broadcast(limits), ["topic", "partition"]).where(
        (sql.col("offset") >= sql.col("start")) & (sql.col("offset") < sql.col("stop"))
    )
    # One task gets a whole partition: it writes the records in their order.
    return inside.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
