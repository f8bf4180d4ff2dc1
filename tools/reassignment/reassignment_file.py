"""The files of kafka-reassign-partitions: replica assignments, and topics to reassign."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from protocol.topic_partition import TopicPartition
from tools.support.common import ToolError
from tools.support.message_json import check_version, json_array, json_object, member, scalar

ANY_LOG_DIR = "any"
"""Lets the broker choose the directory."""

H = TypeVar("H", bound=Hashable)

Assignment = dict[TopicPartition, tuple[int, ...]]
"""Replicas by partition, the preferred leader first."""


class Replica(NamedTuple):
    """One replica of a partition. Sorts by broker first, as Kafka's tool does."""

    broker_id: int
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the replica."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker_id}"


class ReassignmentFile(NamedTuple):
    """The content of a `--reassignment-json-file`. A partition may occur several times."""

    partitions: Sequence[tuple[TopicPartition, tuple[int, ...]]]
    directories: Mapping[Replica, str]
    """The target log directories of replicas; without those that may be in any."""

    @property
    def topics(self) -> list[str]:
        """The names of the topics, in order."""
        return list(dict.fromkeys(name.topic for name, _ in self.partitions))

    def assignment(self) -> Assignment:
        """The replicas by partition. Raises ToolError if `--execute` would refuse the file."""
        if not self.partitions:
            raise ToolError("Partition reassignment list cannot be empty")
        if not all(replicas for _, replicas in self.partitions):
            raise ToolError("Partition replica list cannot be empty")
        twice = duplicates(name for name, _ in self.partitions)
        if twice:
            raise ToolError(f"Partition reassignment contains duplicate topic partitions: {_joined(twice)}")
        repeated = [
            f"{name} contains multiple entries for {_joined(brokers)}"
            for name, replicas in self.partitions
            if (brokers := duplicates(replicas))
        ]
        if repeated:
            raise ToolError(f"Partition replica lists may not contain duplicate entries: {'. '.join(repeated)}")
        return dict(self.partitions)


def parse_reassignment(text: str) -> ReassignmentFile:
    """Parse a `--reassignment-json-file`. Raises ToolError for any other form."""
    try:
        root = json_object(json.loads(text))
    except json.JSONDecodeError as error:
        raise ToolError(f"The reassignment file is not valid JSON: {error}") from None
    check_version(root)
    partitions: list[tuple[TopicPartition, tuple[int, ...]]] = []
    directories: dict[Replica, str] = {}
    for entry in map(json_object, json_array(root.get("partitions", []))):
        name = TopicPartition(scalar(member(entry, "topic"), str), scalar(member(entry, "partition"), int))
        replicas = [scalar(each, int) for each in json_array(member(entry, "replicas"))]
        log_dirs = [scalar(each, str) for each in json_array(entry.get("log_dirs", [ANY_LOG_DIR] * len(replicas)))]
        if len(replicas) != len(log_dirs):
            raise ToolError(
                f"Size of replicas list {replicas} is different from size of log dirs list [{', '.join(log_dirs)}] "
                f"for partition {name}"
            )
        partitions.append((name, tuple(replicas)))
        for broker_id, log_dir in zip(replicas, log_dirs, strict=True):
            if log_dir != ANY_LOG_DIR:
                directories[Replica(broker_id, *name)] = log_dir
    return ReassignmentFile(partitions, directories)


def parse_topics(text: str) -> list[str]:
    """The topics in a `--topics-to-move-json-file`. Raises ToolError, also for a duplicate topic."""
    try:
        root = json_object(json.loads(text))
    except json.JSONDecodeError:
        raise ToolError("The input string is not a valid JSON") from None
    check_version(root)
    topics = [scalar(member(json_object(each), "topic"), str) for each in json_array(root.get("topics", []))]
    twice = duplicates(topics)
    if twice:
        raise ToolError(f"List of topics to reassign contains duplicate entries: [{', '.join(twice)}]")
    return topics


def format_reassignment(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    """An assignment as such a file, on one line; every replica may be in any directory."""
    partitions = [
        {
            "topic": name.topic,
            "partition": name.partition,
            "replicas": list(replicas),
            "log_dirs": [ANY_LOG_DIR] * len(replicas),
        }
        for name, replicas in sorted(assignment.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"), ensure_ascii=False)


def duplicates(items: Iterable[H]) -> list[H]:
    """The items that occur more than once, each once."""
    seen: dict[H, bool] = {}
    for each in items:
        seen[each] = each in seen
    return [each for each, again in seen.items() if again]


def _joined(items: Iterable[object]) -> str:
    return ",".join(map(str, items))
