"""Header with the origin of a copied record: cluster, topic, partition, offset and timestamp.

Each hop appends one, so that a record carries its whole path, the latest origin last. It also preserves the record's
timestamp, which Spark's Kafka sink cannot write: the target broker assigns a new one.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

MIRROR_SOURCE = "mirror.source"
"""Header key; its value is JSON: cluster (an id), topic, partition, offset, timestamp (milliseconds)."""

REPLAY_SOURCE = "replay.source"
"""The same for a replayed record, but without the cluster: replays cannot form a loop."""

SOURCE_SCHEMA = "cluster STRING, topic STRING, partition INT, offset BIGINT, timestamp BIGINT"

HEADERS_TYPE = "array<struct<key: string, value: binary>>"


def headers_or_empty(headers: Column) -> Column:
    """`headers`, or an empty array if null."""
    return sql.coalesce(headers, sql.array().cast(HEADERS_TYPE))


def with_header(headers: Column, key: str, value: Column) -> Column:
    """`headers` with one more appended; its value is the text `value` in UTF-8."""
    added = sql.struct(sql.lit(key).alias("key"), sql.encode(value, "UTF-8").alias("value"))
    return sql.concat(headers_or_empty(headers), sql.array(added).cast(HEADERS_TYPE))


def source_text(cluster: str | None) -> Column:
    """The header's value, from the connector's columns topic, partition, offset and timestamp."""
    named = [] if cluster is None else [sql.lit(cluster).alias("cluster")]
    position = [sql.col("topic"), sql.col("partition"), sql.col("offset")]
    return sql.to_json(sql.struct(*named, *position, sql.unix_millis("timestamp").alias("timestamp")))


def passed(headers: Column, cluster: str) -> Column:
    """Whether the record has already passed through `cluster`."""
    return sql.exists(
        headers_or_empty(headers),
        lambda header: (
            (header["key"] == MIRROR_SOURCE)
            & sql.coalesce(
                sql.get_json_object(header["value"].cast("string"), "$.cluster") == sql.lit(cluster), sql.lit(False)
            )
        ),
    )


def has_header(headers: Column, key: str) -> Column:
    """Whether the record has a header `key`."""
    return sql.exists(headers_or_empty(headers), lambda header: header["key"] == key)


def last_value(headers: Column, key: str) -> Column:
    """The value of the last header `key` as text, or null."""
    found = sql.filter(headers_or_empty(headers), lambda header: header["key"] == key)
    return sql.try_element_at(found, sql.lit(-1))["value"].cast("string")


def nearest_source(headers: Column) -> Column:
    """The last `MIRROR_SOURCE` as a struct of `SOURCE_SCHEMA`, or null."""
    return sql.from_json(last_value(headers, MIRROR_SOURCE), SOURCE_SCHEMA)
