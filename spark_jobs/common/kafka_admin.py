"""Kafka's own Admin client, in the driver's JVM: it takes every client property that the sources take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.errors import TopicMissingError, one_line
from spark_jobs.common.session import java_class

REQUEST_TIMEOUT_MS = 30_000

BOUND_TO_A_CLUSTER = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Topic settings about replicas, which another cluster has other ones of."""


def _cause(failure: Py4JJavaError) -> str:
    """The class of Kafka's exception, or an empty string."""
    thrown = failure.java_exception.getCause()
    return "" if thrown is None else str(thrown.getClass().getSimpleName())


class KafkaAdmin:
    """A client of one cluster; close it. Methods raise Py4JJavaError with Kafka's exception as its cause.

    To enter it raises OSError when no broker answers.
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
        """Partition counts of the topics `names`, or of those whose name matches `pattern`, without internal ones.

        Raises TopicMissingError for a topic of `names` that does not exist, and PermissionError for one that the client
        may not describe.
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
        """Partition counts of those of `names` that exist."""
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

        A partition without a record at or after that time has its end.
        """
        spec = self._class("clients.admin.OffsetSpec")
        named = {"earliest": spec.earliest, "latest": spec.latest}
        wanted = named[at]() if isinstance(at, str) else spec.forTimestamp(at)
        level = self._class("common.IsolationLevel").valueOf(isolation_level.upper())
        asked = java_class(self._spark, "java.util.HashMap")()
        # Read by these keys: a Java iterator ends in an exception, and PySpark spends long on each.
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
        """Bytes of the logs of these topics' partitions, at their leaders, as they are on disk."""
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
        """How many partitions a topic has and its id (None where it has none); None when there is no such topic."""
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
        """Ids of those of the topics that exist and have one."""
        known = {topic: self.partitions_and_id(topic) for topic in topics}
        return {topic: found[1] for topic, found in known.items() if found is not None and found[1] is not None}

    def topic_configs(self, topic: str) -> dict[str, str]:
        """Every configuration of a topic, defaults included."""
        asked = self._topic_resource(topic)
        described = self._admin.describeConfigs(self._java_list([asked])).all().get()[asked]
        entries = java_class(self._spark, "java.util.ArrayList")(described.entries())
        return {str(entry.name()): str(entry.value()) for entry in entries if entry.value() is not None}

    def commit(self, group: str, offsets: Offsets, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Commit `offsets` as those of the consumer group `group`, which must have no members.

        Raises TimeoutError when the group has no coordinator, or it does not answer, for `timeout_ms`.
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
            # Kafka's own message tells of the attempt that was cut off in the end.
            raise TimeoutError(
                f"no coordinator of the group {group} answers within {timeout_ms / 1000:g} s "
                "(is offsets.topic.replication.factor above the number of brokers?)"
            ) from None

    def committed(self, group: str) -> Offsets:
        """The offsets that the consumer group `group` has committed; empty when it has none or does not exist."""
        answer = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        found: Offsets = {}
        for key in answer:
            if answer[key] is not None:
                found.setdefault(key.topic(), {})[str(key.partition())] = answer[key].offset()
        return found

    def consumer_groups(self) -> list[str]:
        """Names of all consumer groups, those without members included."""
        return [str(listed.groupId()) for listed in self._admin.listConsumerGroups().all().get()]

    def assigned_partitions(self, group: str) -> set[tuple[str, int]] | None:
        """The partitions that members of the consumer group have now; None when there is no such group."""
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
        """First offsets and ends, uncommitted records included, of those of `partitions` that are there with a leader.

        A client waits for the others until its time is over, so that nobody is asked for them.
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
        """The id of the cluster; raises ValueError when it has none (before Kafka 0.10.1)."""
        found = self._admin.describeCluster().clusterId().get()
        if not found:
            raise ValueError(f"the cluster at {self._bootstrap_servers} has no id")
        return str(found)

    def topic_settings(self, topic: str) -> dict[str, str]:
        """Settings of `topic` itself, without defaults and without those about replicas."""
        resource = self._topic_resource(topic)
        config = self._admin.describeConfigs(self._java_list([resource])).all().get()[resource]
        return {
            entry.name(): entry.value()
            for entry in config.entries().toArray()
            if str(entry.source()) == "DYNAMIC_TOPIC_CONFIG" and entry.name() not in BOUND_TO_A_CLUSTER
        }

    def create_topic(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        """Create `topic`, with the cluster's default replication factor; one that is there stays as it is."""
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
        """Let `topic` have `partitions` partitions in all."""
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
