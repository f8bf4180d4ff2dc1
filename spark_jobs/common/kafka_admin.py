"""Kafka's own Admin client, in the driver's JVM; it accepts the same client properties as the sources."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.errors import TopicMissingError, one_line
from spark_jobs.common.session import java_class

REQUEST_TIMEOUT_MS = 30_000

PATIENCE_MS = 10_000
"""How long a job waits for a broker before it starts Spark, unless default.api.timeout.ms says otherwise."""

_CONNECT_S = 3.0
_PAUSE_S = 0.5


def await_broker(
    bootstrap_servers: str, properties: Mapping[str, str], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when one of the servers accepts a connection. If none does at first, say so once on stderr.

    Raises OSError when none has within `PATIENCE_MS`, or `default.api.timeout.ms` of the client's `properties`.
    Addresses that are not `host:port` are left to Kafka's client.
    """
    servers = [_host_and_port(text) for text in bootstrap_servers.split(",")]
    limit = properties.get("default.api.timeout.ms", "")
    patience_s = (int(limit) if limit.isdecimal() else PATIENCE_MS) / 1000
    deadline = time.monotonic() + patience_s
    is_first = True
    while True:
        failures = []
        for server in servers:
            if server is None:
                return
            try:
                socket.create_connection(server, timeout=_CONNECT_S).close()
            except OSError as error:
                failures.append(f"{server[0]}:{server[1]} ({error.strerror or error})")
            else:
                return
        unreachable = ", ".join(failures)
        if time.monotonic() + _PAUSE_S > deadline:
            raise OSError(f"no broker answers at {unreachable}; gave up after {patience_s:g} s")
        if is_first:
            print(f"waiting up to {patience_s:g} s for a broker: {unreachable}", file=sys.stderr, flush=True)
            is_first = False
        sleep(_PAUSE_S)


def _host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of `host:port`, or of `PROTOCOL://[host]:port`, which Kafka's client takes, too."""
    host, _, port = address.strip().rpartition("://")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


BOUND_TO_A_CLUSTER = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Topic settings about replicas: they do not carry over to another cluster."""


def _cause(failure: Py4JJavaError) -> str:
    """The class of Kafka's exception, or an empty string."""
    thrown = failure.java_exception.getCause()
    return "" if thrown is None else str(thrown.getClass().getSimpleName())


class KafkaAdmin:
    """A client of one cluster; close it. Methods raise Py4JJavaError with Kafka's exception as its cause.

    Entering the context raises OSError when no broker answers.
    """

    def __init__(self, spark: SparkSession, bootstrap_servers: str, properties: dict[str, str]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._spark = spark
        settings = java_class(spark, "java.util.Properties")()
        given = {"default.api.timeout.ms": str(REQUEST_TIMEOUT_MS), **properties}
        for key, value in {**given, "bootstrap.servers": bootstrap_servers}.items():
            settings.setProperty(key, value)
        self._admin: Any = self._class("clients.admin.Admin").create(settings)

    def __enter__(self) -> Self:
        try:
            self._admin.describeCluster().nodes().get()
        except Py4JJavaError as failure:
            self.close()
            if _cause(failure) == "TimeoutException":
                raise OSError(f"no broker answers at {self._bootstrap_servers}: {one_line(failure)}") from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _class(self, name: str) -> Any:
        return java_class(self._spark, f"org.apache.kafka.{name}")

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def topics(self, *, names: Iterable[str] = (), pattern: str | None = None) -> dict[str, int]:
        """Partition counts of the topics `names`, or of the topics that match `pattern`, without internal ones.

        Raises TopicMissingError if a topic of `names` does not exist, and PermissionError if the client may not
        describe it.
        """
        wanted = list(names)
        if pattern is not None:
            known = [str(name) for name in self._admin.listTopics().names().get()]
            wanted = [
                name for name in known if java_class(self._spark, "java.util.regex.Pattern").matches(pattern, name)
            ]
        described = self._admin.describeTopics(self._java_list(wanted)).topicNameValues()
        return {name: self._partition_count(name, described[name]) for name in wanted}

    def existing_topics(self, names: Iterable[str]) -> dict[str, int]:
        """Partition counts of the topics of `names` that exist."""
        known = {str(name) for name in self._admin.listTopics().names().get()}
        return self.topics(names=[name for name in names if name in known])

    def _partition_count(self, topic: str, described: Any) -> int:
        try:
            return len(described.get().partitions())
        except Py4JJavaError as failure:
            if _is_unknown_topic(failure):
                raise TopicMissingError(f"topic {topic} does not exist at {self._bootstrap_servers}") from None
            if _cause(failure) == "TopicAuthorizationException":
                raise PermissionError(f"topic {topic} at {self._bootstrap_servers}: {one_line(failure)}") from None
            raise

    def offsets(
        self,
        topics: dict[str, int],
        at: Literal["earliest", "latest"] | int,
        isolation_level: str = "read_committed",
    ) -> Offsets:
        """Offsets of every partition: its first, its end, or the first record at or after a time in milliseconds.

        For a partition without a record at or after that time it returns the end.
        """
        spec = self._class("clients.admin.OffsetSpec")
        named = {"earliest": spec.earliest, "latest": spec.latest}
        wanted = named[at]() if isinstance(at, str) else spec.forTimestamp(at)
        level = self._class("common.IsolationLevel").valueOf(isolation_level.upper())
        asked = java_class(self._spark, "java.util.HashMap")()
        # Read by these keys: every Java iterator ends with an exception, and PySpark is slow to handle one.
        keys = [(topic, number, self._partition(topic, number)) for topic in topics for number in range(topics[topic])]
        for _, _, key in keys:
            asked[key] = wanted
        answer = self._admin.listOffsets(asked, self._class("clients.admin.ListOffsetsOptions")(level)).all().get()
        found: Offsets = {topic: {} for topic in topics}
        for topic, number, key in keys:
            found[topic][str(number)] = answer[key].offset()
        if any(offset < 0 for partitions in found.values() for offset in partitions.values()):
            ends = self.offsets(topics, "latest", isolation_level)
            return {
                topic: {number: offset if offset >= 0 else ends[topic][number] for number, offset in partitions.items()}
                for topic, partitions in found.items()
            }
        return found

    def stored_bytes(self, topics: dict[str, int]) -> int:
        """Bytes that the leaders store for these topics' partitions, as on disk."""
        described = self._admin.describeTopics(self._java_list(topics)).allTopicNames().get()
        led: dict[int, list[Any]] = {}
        for topic in topics:
            for partition in described[topic].partitions():
                if partition.leader() is not None:
                    place = self._partition(topic, partition.partition())
                    led.setdefault(partition.leader().id(), []).append(place)
        answer = self._admin.describeLogDirs(self._java_list(led)).allDescriptions().get()
        total = 0
        for broker, places in led.items():
            for directory in answer[broker].values():
                replicas = directory.replicaInfos()
                infos = [replicas[place] for place in places if replicas.containsKey(place)]
                total += sum(info.size() for info in infos if not info.isFuture())
        return total

    def partitions_and_id(self, topic: str) -> tuple[int, str | None] | None:
        """Partition count and id of a topic (id None without one), or None if the topic does not exist."""
        try:
            described = self._admin.describeTopics(self._java_list([topic])).allTopicNames().get()[topic]
        except Py4JJavaError as failure:
            if _is_unknown_topic(failure):
                return None
            raise
        topic_id = described.topicId()
        without = topic_id is None or topic_id.equals(self._class("common.Uuid").ZERO_UUID)
        return len(described.partitions()), None if without else str(topic_id.toString())

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of the topics that exist and have one."""
        known = {topic: self.partitions_and_id(topic) for topic in topics}
        return {topic: found[1] for topic, found in known.items() if found is not None and found[1] is not None}

    def topic_configs(self, topic: str) -> dict[str, str]:
        """Every configuration of a topic, defaults included."""
        asked = self._topic_resource(topic)
        described = self._admin.describeConfigs(self._java_list([asked])).all().get()[asked]
        entries = java_class(self._spark, "java.util.ArrayList")(described.entries())
        return {str(entry.name()): str(entry.value()) for entry in entries if entry.value() is not None}

    def commit(self, group: str, offsets: Offsets, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Commit `offsets` for the consumer group `group`, which must be empty.

        Raises TimeoutError when the coordinator is unknown or does not answer within `timeout_ms`.
        """
        committed = java_class(self._spark, "java.util.HashMap")()
        for topic, partitions in offsets.items():
            for number, offset in partitions.items():
                metadata = self._class("clients.consumer.OffsetAndMetadata")(offset)
                committed[self._partition(topic, int(number))] = metadata
        options = self._class("clients.admin.AlterConsumerGroupOffsetsOptions")().timeoutMs(timeout_ms)
        try:
            self._admin.alterConsumerGroupOffsets(group, committed, options).all().get()
        except Py4JJavaError as failure:
            if _cause(failure) != "TimeoutException":
                raise
            # Kafka's own message describes the last attempt, which ran into the timeout.
            raise TimeoutError(
                f"no coordinator of the group {group} answers within {timeout_ms / 1000:g} s "
                "(is offsets.topic.replication.factor above the number of brokers?)"
            ) from None

    def committed(self, group: str) -> Offsets:
        """The offsets that consumer group `group` has committed; empty if it has none or does not exist."""
        answer = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        found: Offsets = {}
        for key in answer:
            if answer[key] is not None:
                found.setdefault(key.topic(), {})[str(key.partition())] = answer[key].offset()
        return found

    def consumer_groups(self) -> list[str]:
        """Names of all consumer groups, including empty ones."""
        return [str(listed.groupId()) for listed in self._admin.listConsumerGroups().all().get()]

    def assigned_partitions(self, group: str) -> set[tuple[str, int]] | None:
        """The partitions assigned to members of the consumer group, or None if it does not exist."""
        try:
            described = self._admin.describeConsumerGroups(self._java_list([group])).describedGroups()[group].get()
        except Py4JJavaError as failure:
            if _cause(failure) == "GroupIdNotFoundException":
                return None
            raise
        if str(described.state()) == "Dead":
            return None
        owned = [key for member in described.members() for key in member.assignment().topicPartitions()]
        return {(str(key.topic()), int(key.partition())) for key in owned}

    def partition_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """First offsets and ends of the existing `partitions` with a leader, uncommitted records included.

        Other partitions are not asked about: the client would wait for them until its timeout.
        """
        wanted = set(partitions)
        described = self._admin.describeTopics(self._java_list({topic for topic, _ in wanted})).topicNameValues()
        led = set()
        for topic in described:
            try:
                numbers = [
                    info.partition() for info in described[topic].get().partitions() if info.leader() is not None
                ]
            except Py4JJavaError as failure:
                if not _is_unknown_topic(failure):
                    raise
                continue
            led |= {(str(topic), int(number)) for number in numbers}
        spec = self._class("clients.admin.OffsetSpec")
        known = wanted & led
        return self._listed_offsets(known, spec.earliest()), self._listed_offsets(known, spec.latest())

    def _listed_offsets(self, partitions: Iterable[tuple[str, int]], spec: Any) -> dict[tuple[str, int], int]:
        asked = java_class(self._spark, "java.util.HashMap")()
        for topic, number in partitions:
            asked[self._partition(topic, number)] = spec
        answer = self._admin.listOffsets(asked).all().get()
        return {(str(key.topic()), int(key.partition())): int(answer[key].offset()) for key in answer}

    def cluster_id(self) -> str:
        """The cluster id; raises ValueError if the cluster has none (before Kafka 0.10.1)."""
        found = self._admin.describeCluster().clusterId().get()
        if not found:
            raise ValueError(f"the cluster at {self._bootstrap_servers} has no id")
        return str(found)

    def topic_settings(self, topic: str) -> dict[str, str]:
        """The topic's own settings, without defaults and without those about replicas."""
        resource = self._topic_resource(topic)
        config = self._admin.describeConfigs(self._java_list([resource])).all().get()[resource]
        return {
            entry.name(): entry.value()
            for entry in config.entries().toArray()
            if str(entry.source()) == "DYNAMIC_TOPIC_CONFIG" and entry.name() not in BOUND_TO_A_CLUSTER
        }

    def create_topic(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        """Create `topic` with the cluster's default replication factor, unless it exists."""
        optional = java_class(self._spark, "java.util.Optional")
        wanted = self._class("clients.admin.NewTopic")(topic, optional.of(partitions), optional.empty())
        configs = java_class(self._spark, "java.util.HashMap")()
        for name, value in settings.items():
            configs[name] = value
        try:
            self._admin.createTopics(self._java_list([wanted.configs(configs)])).all().get()
        except Py4JJavaError as failure:
            if _cause(failure) != "TopicExistsException":
                raise

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase `topic` to a total of `partitions` partitions."""
        wanted = java_class(self._spark, "java.util.HashMap")()
        wanted[topic] = self._class("clients.admin.NewPartitions").increaseTo(partitions)
        self._admin.createPartitions(wanted).all().get()

    def _partition(self, topic: str, partition: int) -> Any:
        return self._class("common.TopicPartition")(topic, partition)

    def _topic_resource(self, topic: str) -> Any:
        kind = self._class("common.config.ConfigResource$Type").TOPIC
        return self._class("common.config.ConfigResource")(kind, topic)

    def _java_list(self, values: Iterable[Any]) -> Any:
        made = java_class(self._spark, "java.util.ArrayList")()
        for value in values:
            made.add(value)
        return made


def _is_unknown_topic(failure: Py4JJavaError) -> bool:
    return _cause(failure) == "UnknownTopicOrPartitionException"
