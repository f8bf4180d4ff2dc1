"""The --topic arguments of kafka-consumer-groups: `topic`, or `topic:0,1,2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client.kafka_client import KafkaClient
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tools.support.options import UsageError


def parse_topic_arguments(arguments: Sequence[str]) -> dict[str, list[int] | None]:
    """Partitions by topic, None for all. Raises UsageError for a partition that is not a number."""
    topics: dict[str, list[int] | None] = {}
    for argument in arguments:
        topic, colon, numbers = argument.partition(":")
        if not colon:
            topics[topic] = None
            continue
        partitions = []
        for number in numbers.split(","):
            if not number.isdigit():
                raise UsageError(f"Invalid partition '{number}' specified in topic arg '{argument}''")
            partitions.append(int(number))
        topics[topic] = partitions
    return topics


async def partitions_of_topics(
    client: KafkaClient, topics: Mapping[str, list[int] | None]
) -> tuple[list[TopicPartition], list[str]]:
    """The partitions that are meant, and the topics of which all were meant and which do not exist."""
    whole = [topic for topic, partitions in topics.items() if partitions is None]
    metadata = await client.describe_topics(whole) if whole else None
    partitions = [TopicPartition(topic, partition) for topic, numbers in topics.items() for partition in numbers or ()]
    unknown = []
    for name in whole:
        topic = metadata.topics.get(name) if metadata else None
        if topic is None or topic.error_code != ErrorCode.NONE:
            unknown.append(name)
        else:
            partitions += [TopicPartition(name, partition) for partition in topic.partitions]
    return partitions, unknown
