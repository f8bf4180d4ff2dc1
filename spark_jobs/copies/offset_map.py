"""Offset map of a mirror: which target offsets the source offsets became. It moves consumer groups.

One record describes a range of offsets without gaps on both sides:

    {"source": {"cluster": "A", "topic": "t", "partition": 0, "first": 100, "last": 199},
     "target": {"cluster": "B", "topic": "t", "partition": 0, "first": 40, "last": 139}}
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.provenance import HEADERS_TYPE, nearest_source

MAP_HEADER = "mirror.offset-map"
"""Header of the map's records. Mirrors do not copy them: two maps mirrored to each other would grow forever."""

_SIDE = "STRUCT<cluster: STRING, topic: STRING, partition: INT, first: BIGINT, last: BIGINT>"
ENTRY_SCHEMA = f"source {_SIDE}, target {_SIDE}"


def mirrored_ranges(copies: DataFrame, source_cluster: str, target_cluster: str) -> DataFrame:
    """The ranges (columns source and target, as in `ENTRY_SCHEMA`) of records read back from the target.

    Ignores records that did not come from `source_cluster`.
    """
    partition = ["origin.topic", "origin.partition", "topic", "partition"]
    numbered = (
        copies.withColumn("origin", nearest_source(sql.col("headers")))
        .where(sql.col("origin.cluster") == source_cluster)
        .withColumn("row", sql.row_number().over(Window.partitionBy(*partition).orderBy("offset")))
        # Both are constant as long as source and target offsets advance by one.
        .withColumn("shift", sql.col("offset") - sql.col("origin.offset"))
        .withColumn("island", sql.col("offset") - sql.col("row"))
    )
    ranges = numbered.groupBy(
        sql.col("origin.topic").alias("source_topic"),
        sql.col("origin.partition").alias("source_partition"),
        "topic",
        "partition",
        "shift",
        "island",
    ).agg(
        sql.min("origin.offset").alias("source_first"),
        sql.max("origin.offset").alias("source_last"),
        sql.min("offset").alias("first"),
        sql.max("offset").alias("last"),
    )
    return ranges.select(
        sql.struct(
            sql.lit(source_cluster).alias("cluster"),
            sql.col("source_topic").alias("topic"),
            sql.col("source_partition").alias("partition"),
            sql.col("source_first").alias("first"),
            sql.col("source_last").alias("last"),
        ).alias("source"),
        sql.struct(sql.lit(target_cluster).alias("cluster"), "topic", "partition", "first", "last").alias("target"),
    )


def map_records(ranges: DataFrame, topic: str) -> DataFrame:
    """Records of the offset topic; the key is the start of the range at the target, so that compaction keeps all."""
    target = sql.col("target")
    return ranges.select(
        sql.lit(topic).alias("topic"),
        sql.concat_ws("/", target["topic"], target["partition"], target["first"]).cast("binary").alias("key"),
        sql.to_json(sql.struct("source", "target")).cast("binary").alias("value"),
        sql.array(sql.struct(sql.lit(MAP_HEADER).alias("key"), sql.lit(None).cast("binary").alias("value")))
        .cast(HEADERS_TYPE)
        .alias("headers"),
    )


def map_entries(records: DataFrame) -> DataFrame:
    """The ranges in records of the offset topic, columns source and target; ignores records that are not ranges."""
    parsed = sql.from_json(sql.col("value").cast("string"), ENTRY_SCHEMA).alias("entry")
    return records.select(parsed).select("entry.*").where(sql.col("target.first").isNotNull())


def translate(spark: SparkSession, entries: DataFrame, offsets: Offsets, source_cluster: str) -> Offsets:
    """Where a consumer at `offsets` of the source continues at the target.

    Guarantee: every mirrored record from the source offset on lies at or after the returned offset. So none is left
    out, but after a retried batch some may come twice. A consumer that has read all mirrored records gets the offset
    after the last one. Partitions without an entry are left out.
    """
    rows = [(topic, int(number), at) for topic, numbers in offsets.items() for number, at in numbers.items()]
    wanted = spark.createDataFrame(rows, "topic STRING, partition INT, at BIGINT")
    source, target = sql.col("source"), sql.col("target")
    ahead = sql.when(
        source["last"] >= sql.col("at"), target["first"] + sql.greatest(sql.col("at") - source["first"], sql.lit(0))
    )
    found = (
        entries.where(source["cluster"] == source_cluster)
        .join(
            sql.broadcast(wanted),
            (source["topic"] == wanted["topic"]) & (source["partition"] == wanted["partition"]),
        )
        .groupBy(target["topic"].alias("to_topic"), target["partition"].alias("to_partition"))
        .agg(sql.coalesce(sql.min(ahead), sql.max(target["last"]) + 1).alias("to"))
    )
    moved: Offsets = {}
    for row in found.collect():
        moved.setdefault(row["to_topic"], {})[str(row["to_partition"])] = row["to"]
    return moved
