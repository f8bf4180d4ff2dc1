"""Target cluster of a job that writes to another cluster than it reads from: options, topics that have to be there."""

from __future__ import annotations

import argparse

from spark_jobs.common.errors import TopicMissingError
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.sink import KafkaSink
from spark_jobs.common.source import read_client_properties


def add_target_options(group: argparse._ArgumentGroup, *, required: bool) -> None:
    """Options that name the target cluster."""
    group.add_argument("--target-bootstrap-servers", required=required, metavar="HOST:PORT,...")
    group.add_argument("--target-config", metavar="FILE", help="Kafka client properties of the target cluster")


def target_sink(arguments: argparse.Namespace) -> KafkaSink:
    """The cluster that the options name, its records with topics of their own; raises as `read_client_properties`."""
    properties = read_client_properties(arguments.target_config) if arguments.target_config else {}
    return KafkaSink(bootstrap_servers=arguments.target_bootstrap_servers, client_properties=properties)


def create_topics_like(source: KafkaAdmin, target: KafkaAdmin, renamed: dict[str, str]) -> None:
    """Have a topic at `target` for each topic of `renamed` (name at the source: name at the target).

    A topic that is missing is created with the partition count and the settings of its source; one that has fewer
    partitions gets as many.
    """
    there = target.existing_topics(renamed.values())
    for name, partitions in source.topics(names=renamed).items():
        if renamed[name] not in there:
            target.create_topic(renamed[name], partitions, source.topic_settings(name))
        elif there[renamed[name]] < partitions:
            target.add_partitions(renamed[name], partitions)


def check_topics_like(source: KafkaAdmin, target: KafkaAdmin, renamed: dict[str, str]) -> None:
    """Raise ValueError where a topic of `renamed` is missing at `target`, or has fewer partitions than its source."""
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
