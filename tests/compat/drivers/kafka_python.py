"""kafka-python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from tests.compat.drivers import base
from tests.compat.drivers.base import (
    PATIENCE_S,
    Driver,
    Membership,
    Patience,
    Plain,
    Stream,
    Unsupported,
    name,
    outgoing,
    record_of,
)

STRATEGIES = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative": CooperativeStickyAssignor,
}


class Listener(ConsumerRebalanceListener):
    """Tells the member."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._member.assigned([name(each) for each in assigned], incremental=self._member.is_cooperative)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._member.revoked([name(each) for each in revoked])


class Member(base.Member):
    """A `KafkaConsumer` that subscribes."""

    def open(self) -> None:
        membership = self.membership
        self.is_cooperative = membership.strategy == "cooperative"
        self._consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=membership.group,
            group_instance_id=membership.instance,
            partition_assignment_strategy=[STRATEGIES[membership.strategy]],
            session_timeout_ms=membership.session_timeout_ms,
            heartbeat_interval_ms=500,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=base.METADATA_MAX_AGE_MS,
        )
        self._consumer.subscribe(membership.topics, listener=Listener(self))

    def poll(self) -> None:
        for records in self._consumer.poll(timeout_ms=100).values():
            for record in records:
                self.received(record_of(record))
        # kafka-python 3.0 loses a rejoin triggered by new metadata when `poll` times out during it. The join continues
        # in the background and renews the snapshot that triggered it, so the next poll finds nothing to do: it never
        # applies the assignment, nor restarts the heartbeats. A requested rejoin waits for the pending join.
        coordinator = self._consumer._coordinator
        if coordinator._join_task is not None:
            coordinator.request_rejoin()

    def commit(self) -> None:
        self._consumer.commit()

    def leave(self) -> None:
        self._consumer.close()


class IdempotentStream(Stream):
    """A `KafkaProducer`, which is idempotent by default."""

    def stream(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self.address, linger_ms=2)
        while not self.stopping.is_set():
            if self.is_full:
                self.stopping.wait(0.005)
                continue
            number = self.sent
            future = self._send(producer, self.value())
            future.add_callback(lambda _, number=number: self.acknowledged.append(number))
            future.add_errback(lambda error, number=number: self.failures.append(f"{number}: {error!r}"))
        producer.flush(PATIENCE_S)
        producer.close()

    def _send(self, producer: KafkaProducer, value: bytes) -> Any:
        while True:
            try:
                return producer.send(self.topic, value=value, partition=0)
            except ValueError:
                # kafka-python waits until it knows the topic and then looks it up again: if the topic was deleted
                # meanwhile, the partition is unknown, and the record is rejected.
                if self.stopping.wait(0.005):
                    raise


class KafkaPython(Driver):
    """The driver."""

    def error_code(self, error: Exception) -> int | None:
        return error.errno if isinstance(error, BrokerResponseError) else None

    def new_member(self, membership: Membership) -> base.Member:
        return Member(self.address, membership)

    def new_stream(self, topic: str) -> Stream:
        return IdempotentStream(self.address, topic)

    def produce(self, topic: str, records: list[dict[str, Plain]], codec: str, acks: str) -> Plain:
        producer = KafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all",
            linger_ms=20,
            max_request_size=base.MAX_REQUEST_BYTES,
        )
        futures = [
            producer.send(
                topic,
                value=each.value,
                key=each.key,
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
                headers=each.headers,
            )
            for each in map(outgoing, records)
        ]
        producer.flush(PATIENCE_S)
        answers = [future.get(PATIENCE_S) for future in futures]
        producer.close()
        return [[answer.partition, answer.offset] for answer in answers]

    def consume(self, topic: str, partition: int, at: str | int, timestamp: int, count: int) -> Plain:
        consumer = KafkaConsumer(bootstrap_servers=self.address, max_partition_fetch_bytes=base.MAX_REQUEST_BYTES)
        target = TopicPartition(topic, partition)
        consumer.assign([target])
        if at == "earliest":
            consumer.seek_to_beginning(target)
        elif at == "latest":
            consumer.seek_to_end(target)
        elif at == "timestamp":
            found = consumer.offsets_for_times({target: timestamp})[target]
            consumer.seek(target, consumer.end_offsets([target])[target] if found is None else found.offset)
        else:
            consumer.seek(target, int(at))
        position = consumer.position(target)
        records: list[Any] = []
        patience = Patience()
        while len(records) < count:
            left_ms = patience.left_s(f"only {len(records)} of {count} records came") * 1000
            records += consumer.poll(timeout_ms=left_ms, max_records=count - len(records)).get(target, [])
        consumer.close()
        return {"position": position, "records": [record_of(record) for record in records]}

    def begin(self, transactional_id: str) -> Plain:
        producer = KafkaProducer(bootstrap_servers=self.address, transactional_id=transactional_id)
        producer.init_transactions()
        producer.begin_transaction()
        self._producers[transactional_id] = producer

    def write(self, transactional_id: str, topic: str, values: list[str]) -> Plain:
        producer = self._producers[transactional_id]
        for future in [producer.send(topic, value.encode(), partition=0) for value in values]:
            future.get(PATIENCE_S)

    def send_offset(self, transactional_id: str, group: str, topic: str, offset: int) -> Plain:
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self._producers[transactional_id].send_offsets_to_transaction(offsets, group)

    def end(self, transactional_id: str, *, commit: bool, again: bool) -> Plain:
        producer = self._producers[transactional_id]
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        if again:
            producer.begin_transaction()

    def admin(self, call: str, **arguments: Plain) -> Plain:
        calls: dict[str, Callable[..., Plain]] = {
            "create_topic": create_topic,
            "delete_topic": lambda client, topic: client.delete_topics([topic]) and None,
            "partitions": partitions,
            "topics": lambda client: sorted(client.list_topics()),
            "create_partitions": lambda client, topic, count: client.create_partitions({topic: count}) and None,
            "describe_config": describe_config,
            "alter_config": alter_config,
            "groups": lambda client: [each["group_id"] for each in client.list_groups()],
            "describe_group": describe_group,
            "delete_group": lambda client, group: expect_ok(client.delete_groups([group])[group]),
            "committed": lambda client, group: {
                name(partition): found.offset for partition, found in client.list_group_offsets(group)[group].items()
            },
            "delete_records": delete_records,
            "list_offset": list_offset,
            "describe_cluster": describe_cluster,
            "describe_log_dirs": describe_log_dirs,
        }
        if call not in calls:
            raise Unsupported(call)
        client = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            return calls[call](client, **arguments)
        finally:
            client.close()


def expect_ok(result: str) -> None:
    """Raise the errors that some calls return as texts."""
    assert result == "OK", result


def create_topic(client: KafkaAdminClient, topic: str, partitions: int, configs: dict[str, str]) -> None:
    """Create and wait."""
    client.create_topics(
        {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}}, wait_for_metadata=False
    )


def partitions(client: KafkaAdminClient, topic: str) -> int:
    """The number of partitions of a topic."""
    (found,) = client.describe_topics([topic])
    if found["error_code"]:
        raise UnknownTopicOrPartitionError(topic)
    return len(found["partitions"])


def describe_config(client: KafkaAdminClient, topic: str) -> dict[str, str]:
    """All configs of a topic."""
    found = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {key: data["value"] for key, data in found["topic"][topic].items()}


def alter_config(client: KafkaAdminClient, topic: str, key: str, value: str) -> None:
    """Set one config."""
    found = client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {key: value})])
    expect_ok(found["topic"][topic])


def describe_group(client: KafkaAdminClient, group: str) -> Plain:
    """State, assignor and the assignment of every member."""
    found = client.describe_groups([group])[group]
    return {
        "state": found["group_state"],
        "assignor": found["protocol_data"],
        "members": [
            sorted(
                f"{topic['topic']}-{partition}"
                for topic in member["member_assignment"]["assigned_partitions"]
                for partition in topic["partitions"]
            )
            for member in found["members"]
        ],
    }


def delete_records(client: KafkaAdminClient, topic: str, partition: int, before: int) -> int:
    """Returns the new log start."""
    target = TopicPartition(topic, partition)
    low: int = client.delete_records({target: before})[target]["low_watermark"]
    return low


def list_offset(client: KafkaAdminClient, topic: str, partition: int, at: str, timestamp: int) -> int:
    """One offset by its specification."""
    specification = {
        "earliest": OffsetSpec.EARLIEST,
        "latest": OffsetSpec.LATEST,
        "max_timestamp": OffsetSpec.MAX_TIMESTAMP,
        "timestamp": timestamp,
    }[at]
    target = TopicPartition(topic, partition)
    offset: int = client.list_partition_offsets({target: specification})[target].offset
    return offset


def describe_cluster(client: KafkaAdminClient) -> Plain:
    """Cluster id, controller, and `host:port` of the brokers."""
    found = client.describe_cluster()
    return {
        "cluster_id": found["cluster_id"],
        "controller": found["controller_id"],
        "brokers": [f"{each['host']}:{each['port']}" for each in found["brokers"]],
    }


def describe_log_dirs(client: KafkaAdminClient, topic: str) -> Plain:
    """Sizes of a topic's partitions."""
    (broker,) = client.describe_log_dirs()
    return {
        f"{found['name']}-{partition['partition_index']}": partition["partition_size"]
        for directory in broker["log_dirs"]
        for found in directory["topics"]
        if found["name"] == topic
        for partition in found["partitions"]
    }


if __name__ == "__main__":
    KafkaPython(sys.argv[1]).serve()
