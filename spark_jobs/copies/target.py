"""The target cluster of a job that copies from one cluster to another: its options, and the topics it needs."""

from __future__ import annotations

import argparse

from spark_jobs.common.errors import TopicMissingError
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.sink import KafkaSink
from spark_jobs.common.source import read_client_properties


def add_target_options(group: argparse._ArgumentGroup, *, required: bool) -> None:
    """Add the options of the target cluster."""
    group.add_argument("--target-bootstrap-servers", required=required, metavar="HOST:PORT,...")
    group.add_argument("--target-config", metavar="FILE", help="Kafka client properties of the target cluster")


def target_sink(arguments: argparse.Namespace) -> KafkaSink:
    """The sink of the target cluster; each record names its topic. Raises as `read_client_properties` does."""
    properties = read_client_properties(arguments.target_config) if arguments.target_config else {}
    return KafkaSink(bootstrap_servers=arguments.target_bootstrap_servers, client_properties=properties)


def create_topics_like(source: KafkaAdmin, target: KafkaAdmin, renamed: dict[str, str]) -> None:
    """Create or extend the topics at `target` that `renamed` maps to (source name: target name).

    A missing topic is created with the partition count and settings of its source; a topic with fewer partitions is
    extended to that count.
    """
    there = target.existing_topics(renamed.values())
    for name, partitions in source.topics(names=renamed).items():
        if renamed[name] not in there:
            target.create_topic(renamed[name], partitions, source.topic_settings(name))
        elif there[renamed[name]] < partitions:
            target.add_partitions(renamed[name], partitions)


def check_topics_like(source: KafkaAdmin, target: KafkaAdmin, renamed: dict[str, str]) -> None:
    """Raise ValueError if a topic of `renamed` is missing at `target`, or has fewer partitions than its source."""
    there = target.existing_topics(renamed.values())
    for name, partitions in source.topics(names=renamed).items():
        found = there.get(renamed[name])
        if found is None:
            raise TopicMissingError(
                f"topic {renamed[name]} does not exist at the target: create it, or let --create-topics"
            )
        if found < partitions:
            raise ValueError(
                f"topic {renamed[name]} has {found} partitions, its source {name} has {partitions}: add partitions, "
                "or let --create-topics"
            )
