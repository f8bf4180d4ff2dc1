"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.drivers import base
from tests.compat.drivers.base import (
    PATIENCE_S,
    Driver,
    Membership,
    Patience,
    Plain,
    Stream,
    Unsupported,
    incoming,
    name,
    outgoing,
)

STRATEGIES = {"range": "range", "roundrobin": "roundrobin", "cooperative": "cooperative-sticky"}


def record_of(message: Message) -> dict[str, Plain]:
    """A consumed message; raises its error if it has one."""
    if (error := message.error()) is not None:
        raise KafkaException(error)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return incoming(
        partition, offset, message.timestamp()[1], message.key(), message.value(), list(message.headers() or [])
    )


class Member(base.Member):
    """A `Consumer` that subscribes."""

    def open(self) -> None:
        membership = self.membership
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "group.id": membership.group,
            "partition.assignment.strategy": STRATEGIES[membership.strategy],
            "session.timeout.ms": membership.session_timeout_ms,
            "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": base.METADATA_MAX_AGE_MS,
            "allow.auto.create.topics": True,
        }
        if membership.instance is not None:
            settings["group.instance.id"] = membership.instance
        incremental = membership.strategy == "cooperative"
        self._consumer = Consumer(settings)
        self._consumer.subscribe(
            membership.topics,
            on_assign=lambda _, partitions: self.assigned([name(each) for each in partitions], incremental=incremental),
            on_revoke=lambda _, partitions: self.revoked([name(each) for each in partitions]),
        )

    def poll(self) -> None:
        for message in self._consumer.consume(1000, timeout=0.1):
            error = message.error()
            if error is None:
                self.received(record_of(message))
            # A topic that this consumer auto-creates is reported missing first.
            elif error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def leave(self) -> None:
        self._consumer.close()


class IdempotentStream(Stream):
    """A `Producer` that retries forever."""

    def stream(self) -> None:
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 2})
        while not self.stopping.is_set():
            if self.is_full:
                producer.poll(0.01)
            else:
                producer.produce(self.topic, value=self.value(), partition=0, on_delivery=self._delivered)
                producer.poll(0)
        producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is None:
            self.acknowledged.append(int(value))
        else:
            self.failures.append(f"{value!r}: {error}")


class Librdkafka(Driver):
    """The driver."""

    def error_code(self, error: Exception) -> int | None:
        if not isinstance(error, KafkaException):
            return None
        code: int = error.args[0].code()
        return code

    def new_member(self, membership: Membership) -> base.Member:
        return Member(self.address, membership)

    def new_stream(self, topic: str) -> Stream:
        return IdempotentStream(self.address, topic)

    def produce(self, topic: str, records: list[dict[str, Plain]], codec: str, acks: str) -> Plain:
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": acks == "all",
                "linger.ms": 20,
                "message.max.bytes": base.MAX_REQUEST_BYTES,
                "message.timeout.ms": PATIENCE_S * 1000,
                "topic.metadata.refresh.interval.ms": base.METADATA_MAX_AGE_MS,
            }
        )
        answers: list[list[int]] = []
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None:
                answers.append([message.partition() or 0, -1 if offset is None or acks == "0" else offset])
            else:
                errors.append(error)

        for each in map(outgoing, records):
            producer.produce(
                topic,
                value=each.value,
                key=each.key,
                partition=each.partition,
                timestamp=each.timestamp_ms,
                headers=list(each.headers),
                on_delivery=delivered,
            )
        left = producer.flush(PATIENCE_S)
        if errors:
            raise KafkaException(errors[0])
        assert left == 0, f"{left} records were never answered"
        return answers

    def consume(self, topic: str, partition: int, at: str | int, timestamp: int, count: int) -> Plain:
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": base.MAX_REQUEST_BYTES,
            }
        )
        target = TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(target, timeout=PATIENCE_S)
        offset: int
        if at == "timestamp":
            target.offset = timestamp
            (found,) = consumer.offsets_for_times([target], timeout=PATIENCE_S)
            offset = found.offset if found.offset >= 0 else high
        else:
            offset = {"earliest": low, "latest": high}.get(str(at), -1)
            offset = int(at) if offset < 0 else offset
        consumer.assign([TopicPartition(topic, partition, offset)])
        messages: list[Message] = []
        patience = Patience()
        while len(messages) < count:
            left_s = patience.left_s(f"only {len(messages)} of {count} records came")
            messages += consumer.consume(count - len(messages), timeout=left_s)
        consumer.close()
        return {"position": offset, "records": [record_of(message) for message in messages]}

    def begin(self, transactional_id: str) -> Plain:
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": transactional_id})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        self._producers[transactional_id] = producer

    def write(self, transactional_id: str, topic: str, values: list[str]) -> Plain:
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(error)

        producer = self._producers[transactional_id]
        for value in values:
            producer.produce(topic, value=value.encode(), partition=0, on_delivery=delivered)
        assert producer.flush(PATIENCE_S) == 0
        if errors:
            raise KafkaException(errors[0])

    def send_offset(self, transactional_id: str, group: str, topic: str, offset: int) -> Plain:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group})
        try:
            self._producers[transactional_id].send_offsets_to_transaction(
                [TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), PATIENCE_S
            )
        finally:
            consumer.close()

    def end(self, transactional_id: str, *, commit: bool, again: bool) -> Plain:
        producer = self._producers[transactional_id]
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        if again:
            producer.begin_transaction()

    def admin(self, call: str, **arguments: Plain) -> Plain:
        client = AdminClient({"bootstrap.servers": self.address})
        calls: dict[str, Callable[..., Plain]] = {
            "create_topic": create_topic,
            "delete_topic": lambda client, topic: client.delete_topics([topic])[topic].result(PATIENCE_S),
            "partitions": lambda client, topic: len(client.list_topics(topic, PATIENCE_S).topics[topic].partitions),
            "topics": lambda client: sorted(client.list_topics(timeout=PATIENCE_S).topics),
            "create_partitions": lambda client, topic, count: client.create_partitions([NewPartitions(topic, count)])[
                topic
            ].result(PATIENCE_S),
            "describe_config": describe_config,
            "alter_config": alter_config,
            "groups": lambda client: [each.group_id for each in client.list_consumer_groups().result(PATIENCE_S).valid],
            "describe_group": describe_group,
            "delete_group": lambda client, group: client.delete_consumer_groups([group])[group].result(PATIENCE_S),
            "committed": committed,
            "delete_records": delete_records,
            "list_offset": list_offset,
            "describe_cluster": describe_cluster,
        }
        if call not in calls:
            raise Unsupported(call)
        return calls[call](client, **arguments)


def create_topic(client: AdminClient, topic: str, partitions: int, configs: dict[str, str]) -> None:
    """Create and wait."""
    client.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(PATIENCE_S)


def describe_config(client: AdminClient, topic: str) -> dict[str, str]:
    """All configs of a topic."""
    (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {key: entry.value for key, entry in future.result(PATIENCE_S).items()}


def alter_config(client: AdminClient, topic: str, key: str, value: str) -> None:
    """Set one config."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = client.incremental_alter_configs([resource]).values()
    future.result(PATIENCE_S)


def describe_group(client: AdminClient, group: str) -> Plain:
    """State, assignor and the assignment of every member."""
    found = client.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return {
        "state": found.state.name.replace("_", "").title(),
        "assignor": found.partition_assignor,
        "members": [sorted(map(name, each.assignment.topic_partitions)) for each in found.members],
    }


def committed(client: AdminClient, group: str) -> dict[str, int]:
    """Committed offsets by partition."""
    found = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    return {name(each): each.offset for each in found.topic_partitions}


def delete_records(client: AdminClient, topic: str, partition: int, before: int) -> int:
    """Returns the new log start."""
    target = TopicPartition(topic, partition, before)
    (future,) = client.delete_records([target]).values()
    low: int = future.result(PATIENCE_S).low_watermark
    return low


def list_offset(client: AdminClient, topic: str, partition: int, at: str, timestamp: int) -> int:
    """One offset by its specification."""
    specification = {
        "earliest": OffsetSpec.earliest(),
        "latest": OffsetSpec.latest(),
        "max_timestamp": OffsetSpec.max_timestamp(),
        "timestamp": OffsetSpec.for_timestamp(timestamp),
    }[at]
    (future,) = client.list_offsets({TopicPartition(topic, partition): specification}).values()
    offset: int = future.result(PATIENCE_S).offset
    return offset


def describe_cluster(client: AdminClient) -> Plain:
    """Cluster id, controller, and `host:port` of the brokers."""
    found = client.describe_cluster().result(PATIENCE_S)
    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller.id,
        "brokers": [f"{each.host}:{each.port}" for each in found.nodes],
    }


if __name__ == "__main__":
    Librdkafka(sys.argv[1]).serve()
