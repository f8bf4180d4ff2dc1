"""`move_group`: commit a consumer group's offsets at the target of a mirror.

    python -m spark_jobs.jobs.move_group --bootstrap-servers a:9092 --target-bootstrap-servers b:9092 \
        --offset-topic mirror-offsets --group billing

Stop the group's members first. Guarantee: no mirrored record is left out; records of a batch that the mirror repeated
may come twice. Records that the group read before they were mirrored come again after they are mirrored.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.cli import add_session_options
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.runner import guarded, parser_of, session_of
from spark_jobs.common.sink import KafkaSink
from spark_jobs.common.source import read_client_properties
from spark_jobs.copies.offset_map import map_entries, translate
from spark_jobs.copies.ranges import Ranges, read_ranges
from spark_jobs.copies.target import add_target_options, target_sink

NAME = "move-group"


def translated(
    spark: SparkSession, target: KafkaSink, offset_topic: str, offsets: Offsets, source_cluster: str
) -> Offsets:
    """Where a consumer at `offsets` of `source_cluster` continues at `target`, as `offset_map.translate` says.

    Raises ValueError if the offset topic does not exist.
    """
    with target.admin(spark) as admin:
        topics = admin.topics(names=[offset_topic])
        ranges = Ranges(admin.offsets(topics, "earliest"), admin.offsets(topics, "latest"))
    records = read_ranges(spark, target.options(), ranges)
    return {} if records is None else translate(spark, map_entries(records), offsets, source_cluster)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the clusters, the map and the group."""
    clusters = parser.add_argument_group("clusters")
    clusters.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="the mirror's source")
    clusters.add_argument("--command-config", metavar="FILE", help="Kafka client properties of the source")
    add_target_options(clusters, required=True)
    clusters.add_argument("--offset-topic", required=True, metavar="TOPIC", help="the mirror's, at the target")
    parser.add_argument("--group", required=True, metavar="GROUP")
    parser.add_argument("--dry-run", action="store_true", help="print the offsets and commit nothing")


def main(argv: Sequence[str] | None = None) -> int:
    """Move one group; 0 once its offsets are committed, 1 after one line about a failure, 2 for bad options."""
    parser = parser_of(NAME, "Commit a consumer group's offsets at the target of a mirror.")
    add_options(parser)
    add_session_options(parser)
    arguments = parser.parse_args(argv)

    def body() -> int:
        properties = read_client_properties(arguments.command_config) if arguments.command_config else {}
        target = target_sink(arguments)
        with (
            session_of(NAME, arguments) as spark,
            KafkaAdmin(spark, arguments.bootstrap_servers, properties) as source,
            target.admin(spark) as target_admin,
        ):
            offsets = source.committed(arguments.group)
            if not offsets:
                raise ValueError(f"group {arguments.group} has no offsets at {arguments.bootstrap_servers}")
            moved = translated(spark, target, arguments.offset_topic, offsets, source.cluster_id())
            if not moved:
                raise ValueError(f"nothing that group {arguments.group} reads is in the map {arguments.offset_topic}")
            for topic, numbers in sorted(moved.items()):
                for number, offset in sorted(numbers.items(), key=lambda item: int(item[0])):
                    print(f"{topic}-{number}: {offset}")
            if not arguments.dry_run:
                target_admin.commit(arguments.group, moved)
        return 0

    return guarded(NAME, body)


if __name__ == "__main__":
    sys.exit(main())
