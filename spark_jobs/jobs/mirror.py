"""`mirror`: copy topics from cluster to cluster, with keys, headers and partitions as they are.

    python -m spark_jobs.jobs.mirror --bootstrap-servers a:9092 --target-bootstrap-servers b:9092 \
        --pattern 'shop-.*' --create-topics --offset-topic mirror-offsets --checkpoint /mirror/a-to-b --trigger 5s

Guarantee: at least once, in order within each partition. A repeated batch writes its records again with the same
(query, batch, partition, row) headers; `spark_jobs.common.sink` explains how readers drop the copies.

Each copy gets one more header, `mirror.source`, with cluster id, topic, partition, offset and timestamp. Records that
have been at the target cluster are not copied, so that mirrors in both directions, or around a ring, do not loop. Only
this header keeps the record's timestamp: Spark's Kafka sink cannot write it, so the target broker assigns a new one.

`--offset-topic` (at the target) receives the offset map; `python -m spark_jobs.jobs.move_group` moves a consumer group
with it. For the map, each batch is read back from the target: this needs space for one batch, and doubles the reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.cli import RunConfig
from spark_jobs.common.errors import patiently
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.provenance import (
    MIRROR_SOURCE,
    has_header,
    last_value,
    passed,
    source_text,
    with_header,
)
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.sink import KafkaSink, query_id
from spark_jobs.common.source import SourceConfig, read_stream
from spark_jobs.copies.offset_map import MAP_HEADER, map_records, mirrored_ranges
from spark_jobs.copies.ranges import Ranges, read_ranges
from spark_jobs.copies.target import add_target_options, check_topics_like, create_topics_like, target_sink

SAME_NAME = "{topic}"
ROW_PARTITION, ROW = PLACE = ("source_partition", "source_offset")
"""Columns that identify a batch's rows, even among other records that are read with them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MirrorConfig:
    """One mirror. `rename` makes the topic's name at the target from `{topic}`, its name at the source, and `{source}`.

    `source_name` is the value of `{source}`, by default the cluster id. The cluster ids are None until `with_clusters`
    has looked them up.
    """

    source: SourceConfig
    run: RunConfig
    target: KafkaSink
    rename: str = SAME_NAME
    source_name: str | None = None
    create_topics: bool = False
    offset_topic: str | None = None
    source_cluster: str | None = None
    target_cluster: str | None = None

    def __post_init__(self) -> None:
        unknown = set(re.findall(r"\{[^}]*\}", self.rename)) - {SAME_NAME, "{source}"}
        if unknown or SAME_NAME not in self.rename:
            raise ValueError(f"--rename {self.rename}: must hold {{topic}}, and may hold {{source}}")

    def name_at_target(self, topic: str) -> str:
        """The name of `topic` at the target."""
        return self._prefix_filled().replace(SAME_NAME, topic)

    def _prefix_filled(self) -> str:
        return self.rename.replace("{source}", self.source_name or self.clusters()[0])

    def clusters(self) -> tuple[str, str]:
        """The ids of source and target; raises ValueError before `with_clusters`."""
        if self.source_cluster is None or self.target_cluster is None:
            raise ValueError("the clusters' ids are not known yet")
        return self.source_cluster, self.target_cluster


def with_clusters(config: MirrorConfig, source: KafkaAdmin, target: KafkaAdmin) -> MirrorConfig:
    """`config` with the ids of both clusters; raises ValueError if a topic would be copied onto itself."""
    found = dataclasses.replace(config, source_cluster=source.cluster_id(), target_cluster=target.cluster_id())
    if found.source_cluster == found.target_cluster and found.name_at_target("") == "":
        raise ValueError("source and target are the same cluster: --rename has to give the topics another name")
    return found


def transform(df: DataFrame, config: MirrorConfig) -> DataFrame:
    """The connector's rows as rows of the Kafka sink, without records that have been at the target."""
    source_cluster, target_cluster = config.clusters()
    before, after = config.name_at_target("\0").split("\0", 1)
    headers = sql.col("headers")
    return df.where(~passed(headers, target_cluster) & ~has_header(headers, MAP_HEADER)).select(
        sql.concat(sql.lit(before), "topic", sql.lit(after)).alias("topic"),
        "partition",
        sql.concat_ws("-", "topic", "partition").alias(ROW_PARTITION),
        sql.col("offset").alias(ROW),
        "key",
        "value",
        with_header(headers, MIRROR_SOURCE, source_text(source_cluster)).alias("headers"),
    )


class MirrorWriter:
    """Writes each batch for the query: topics, records, offset map, in this order."""

    def __init__(self, spark: SparkSession, config: MirrorConfig) -> None:
        self.config = config
        self._spark = spark
        self._source = KafkaAdmin(spark, config.source.bootstrap_servers, config.source.client_properties)
        self._target = config.target.admin(spark)
        self._query: str | None = None
        self.batches = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Copy one batch."""
        patiently(self.have_topics)
        query = self._query or query_id(self._spark, self.config.run.checkpoint)
        self._query = query
        before = patiently(self._target_ends)
        self.config.target.write(transform(batch, self.config), query, batch_id, place=PLACE)
        if self.config.offset_topic is not None:
            patiently(lambda: self._write_map(before, query, batch_id))
        self.batches += 1

    def have_topics(self) -> None:
        """Create the target's topics, or check that they exist; raises ValueError for a missing one."""
        config = self.config
        names = self._source.topics(names=config.source.topic_names(), pattern=config.source.pattern)
        self._renamed = {name: config.name_at_target(name) for name in names}
        prepare = create_topics_like if config.create_topics else check_topics_like
        prepare(self._source, self._target, self._renamed)
        if config.offset_topic is not None and not self._target.existing_topics([config.offset_topic]):
            self._target.create_topic(config.offset_topic, 1, {"cleanup.policy": "compact"})

    def _target_ends(self) -> Offsets:
        counts = self._target.topics(names=self._renamed.values())
        return self._target.offsets(counts, "latest", "read_uncommitted")

    def _write_map(self, before: Offsets, query: str, batch_id: int) -> None:
        """Read back the batch's copies, written since `before`, and add their positions to the map.

        An attempt that died before this leaves copies outside the map: the next attempt writes the whole batch again,
        and the map has those copies.
        """
        copies = read_ranges(self._spark, self.config.target.options(), Ranges(before, self._target_ends()))
        if copies is None:
            return
        headers = sql.col("headers")
        own = copies.where((last_value(headers, "query") == query) & (last_value(headers, "batch") == str(batch_id)))
        entries = map_records(mirrored_ranges(own, *self.config.clusters()), str(self.config.offset_topic))
        entries.write.format("kafka").options(**self.config.target.options()).save()

    def summary(self) -> str:
        """One line: the batches, and their target."""
        return f"{self.batches:,} batches copied to {self.config.target.bootstrap_servers}"


def resolved(spark: SparkSession, config: MirrorConfig) -> MirrorConfig:
    """`config` with the ids that both clusters report."""
    with (
        KafkaAdmin(spark, config.source.bootstrap_servers, config.source.client_properties) as source,
        config.target.admin(spark) as target,
    ):
        return with_clusters(config, source, target)


def plan(spark: SparkSession, config: MirrorConfig) -> DataFrame:
    """The records that would be written."""
    return transform(read_stream(spark, config.source), resolved(spark, config))


def build_query(spark: SparkSession, config: MirrorConfig) -> Query:
    """The query that copies.

    Raises ValueError if a topic is missing at the target, or would be copied onto itself.
    """
    writer = MirrorWriter(spark, resolved(spark, config))
    writer.have_topics()
    return Query(read_stream(spark, config.source).writeStream.foreachBatch(writer), writer.summary)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the target."""
    target = parser.add_argument_group("target")
    add_target_options(target, required=True)
    target.add_argument(
        "--rename",
        default=SAME_NAME,
        metavar="NAME",
        help="topic name at the target: '{topic}' or '{source}.{topic}' and the like (default: {topic})",
    )
    target.add_argument("--source-name", metavar="NAME", help="what {source} stands for (default: the cluster's id)")
    target.add_argument(
        "--create-topics",
        action="store_true",
        help="create missing topics and partitions, with partition count and settings of the source",
    )
    target.add_argument("--offset-topic", metavar="TOPIC", help="write the map of offsets there, at the target")


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> MirrorConfig:
    """The mirror that the options describe; raises OSError or ValueError with one line about a bad one."""
    return MirrorConfig(
        source=source,
        run=running,
        target=target_sink(arguments),
        rename=arguments.rename,
        source_name=arguments.source_name,
        create_topics=arguments.create_topics,
        offset_topic=arguments.offset_topic,
    )


JOB = Job(
    name="mirror",
    description="Copy topics from cluster to cluster, at least once, in both directions where wanted.",
    add_options=add_options,
    configure=configure,
    plan=plan,
    build_query=build_query,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job, as `spark_jobs.common.runner.run` says."""
    return run(JOB, argv)


if __name__ == "__main__":
    sys.exit(main())
