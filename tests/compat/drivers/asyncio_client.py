"""aiokafka."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import BrokerResponseError, for_code

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

STRATEGIES = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Listener(ConsumerRebalanceListener):
    """Tells the member."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._member.assigned([name(each) for each in assigned], incremental=False)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._member.revoked([name(each) for each in revoked])


class Member(base.Member):
    """An `AIOKafkaConsumer` that subscribes, on an event loop that runs only during polls."""

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        membership = self.membership
        self._consumer = AIOKafkaConsumer(
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
        await self._consumer.start()

    def poll(self) -> None:
        for records in self._loop.run_until_complete(self._consumer.getmany(timeout_ms=100)).values():
            for record in records:
                self.received(record_of(record))

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def leave(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


class IdempotentStream(Stream):
    """An `AIOKafkaProducer` configured to be idempotent."""

    def stream(self) -> None:
        asyncio.run(self._stream())

    async def _stream(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.address,
            enable_idempotence=True,
            linger_ms=2,
            # The client fails a record after its partition has been leaderless for this long; it waits as long for a
            # lost answer.
            request_timeout_ms=PATIENCE_S * 1000,
        )
        await producer.start()
        while not self.stopping.is_set():
            if self.is_full:
                await asyncio.sleep(0.005)
                continue
            number = self.sent
            future = await producer.send(self.topic, value=self.value(), partition=0)
            future.add_done_callback(lambda future, number=number: self._answered(future, number))
        await producer.flush()
        await producer.stop()

    def _answered(self, future: asyncio.Future[Any], number: int) -> None:
        if (error := future.exception()) is None:
            self.acknowledged.append(number)
        else:
            self.failures.append(f"{number}: {error!r}")


class Aiokafka(Driver):
    """The driver."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._transactions_loop = asyncio.new_event_loop()

    def error_code(self, error: Exception) -> int | None:
        return error.errno if isinstance(error, BrokerResponseError) else None

    def new_member(self, membership: Membership) -> base.Member:
        if membership.strategy not in STRATEGIES:
            raise Unsupported(membership.strategy)
        return Member(self.address, membership)

    def new_stream(self, topic: str) -> Stream:
        return IdempotentStream(self.address, topic)

    def produce(self, topic: str, records: list[dict[str, Plain]], codec: str, acks: str) -> Plain:
        return asyncio.run(self._produce(topic, records, codec, acks))

    async def _produce(self, topic: str, records: list[dict[str, Plain]], codec: str, acks: str) -> Plain:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all",
            linger_ms=20,
            max_request_size=base.MAX_REQUEST_BYTES,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    partition=each.partition,
                    timestamp_ms=each.timestamp_ms,
                    headers=each.headers,
                )
                for each in map(outgoing, records)
            ]
            answers = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        finally:
            await producer.stop()
        return [[-1, -1] if answer is None else [answer.partition, answer.offset] for answer in answers]

    def consume(self, topic: str, partition: int, at: str | int, timestamp: int, count: int) -> Plain:
        return asyncio.run(self._consume(TopicPartition(topic, partition), at, timestamp, count))

    async def _consume(self, target: TopicPartition, at: str | int, timestamp: int, count: int) -> Plain:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address, max_partition_fetch_bytes=base.MAX_REQUEST_BYTES, enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([target])
        if at == "earliest":
            await consumer.seek_to_beginning(target)
        elif at == "latest":
            await consumer.seek_to_end(target)
        elif at == "timestamp":
            found = (await consumer.offsets_for_times({target: timestamp}))[target]
            end = (await consumer.end_offsets([target]))[target]
            consumer.seek(target, end if found is None else found.offset)
        else:
            consumer.seek(target, int(at))
        position = await consumer.position(target)
        records: list[Any] = []
        patience = Patience()
        while len(records) < count:
            left_ms = int(patience.left_s(f"only {len(records)} of {count} records came") * 1000)
            batch = await consumer.getmany(timeout_ms=left_ms, max_records=count - len(records))
            records += batch.get(target, [])
        await consumer.stop()
        return {"position": position, "records": [record_of(record) for record in records]}

    # Transactional producers live on an event loop that runs only during commands.

    def begin(self, transactional_id: str) -> Plain:
        self._transactions_loop.run_until_complete(self._begin(transactional_id))

    async def _begin(self, transactional_id: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.address, transactional_id=transactional_id)
        await producer.start()
        await producer.begin_transaction()
        self._producers[transactional_id] = producer

    def write(self, transactional_id: str, topic: str, values: list[str]) -> Plain:
        self._transactions_loop.run_until_complete(self._write(self._producers[transactional_id], topic, values))

    async def _write(self, producer: AIOKafkaProducer, topic: str, values: list[str]) -> None:
        for future in [await producer.send(topic, value.encode(), partition=0) for value in values]:
            await future

    def send_offset(self, transactional_id: str, group: str, topic: str, offset: int) -> Plain:
        producer = self._producers[transactional_id]
        self._transactions_loop.run_until_complete(
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group)
        )

    def end(self, transactional_id: str, *, commit: bool, again: bool) -> Plain:
        self._transactions_loop.run_until_complete(self._end(self._producers[transactional_id], commit, again))

    async def _end(self, producer: AIOKafkaProducer, commit: bool, again: bool) -> None:
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        if again:
            await producer.begin_transaction()

    def admin(self, call: str, **arguments: Plain) -> Plain:
        calls: dict[str, Callable[..., Coroutine[Any, Any, Plain]]] = {
            "create_topic": create_topic,
            "delete_topic": delete_topic,
            "partitions": partitions,
            "topics": topics,
            "create_partitions": create_partitions,
            "describe_config": describe_config,
            "alter_config": alter_config,
            "groups": groups,
            "describe_group": describe_group,
            "committed": committed,
            "delete_records": delete_records,
            "describe_cluster": describe_cluster,
        }
        if call not in calls:
            raise Unsupported(call)
        return asyncio.run(self._admin(calls[call], arguments))

    async def _admin(self, call: Callable[..., Coroutine[Any, Any, Plain]], arguments: dict[str, Plain]) -> Plain:
        client = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await client.start()
        try:
            return await call(client, **arguments)
        finally:
            await client.close()


def check(code: int) -> None:
    """Raise the error codes in the answers, which this admin client does not check."""
    if code:
        raise for_code(code)


async def create_topic(client: AIOKafkaAdminClient, topic: str, partitions: int, configs: dict[str, str]) -> None:
    """Create and wait."""
    response = await client.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
    check(response.topic_errors[0][1])


async def delete_topic(client: AIOKafkaAdminClient, topic: str) -> None:
    """Delete and wait."""
    response = await client.delete_topics([topic])
    check(response.topic_error_codes[0][1])


async def partitions(client: AIOKafkaAdminClient, topic: str) -> int:
    """The number of partitions of a topic."""
    (found,) = await client.describe_topics([topic])
    check(found["error_code"])
    return len(found["partitions"])


async def topics(client: AIOKafkaAdminClient) -> list[str]:
    """All topics."""
    return sorted(await client.list_topics())


async def create_partitions(client: AIOKafkaAdminClient, topic: str, count: int) -> None:
    """Add partitions up to `count`."""
    response = await client.create_partitions({topic: NewPartitions(count)})
    check(response.topic_errors[0][1])


async def describe_config(client: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    """All configs of a topic."""
    (response,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((code, _, _, _, entries),) = response.resources
    check(code)
    return {entry[0]: entry[1] for entry in entries}


async def alter_config(client: AIOKafkaAdminClient, topic: str, key: str, value: str) -> None:
    """Set one config and reset the others, as this client's call does."""
    (response,) = await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {key: value})])
    check(response.resources[0][0])


async def groups(client: AIOKafkaAdminClient) -> list[str]:
    """All groups."""
    return [group for group, *_ in await client.list_consumer_groups()]


async def describe_group(client: AIOKafkaAdminClient, group: str) -> Plain:
    """State, assignor and the assignment of every member."""
    (response,) = await client.describe_consumer_groups([group])
    ((code, _, state, _, assignor, members, *_),) = response.groups
    check(code)
    return {
        "state": state,
        "assignor": assignor,
        "members": [
            sorted(map(name, ConsumerProtocolMemberAssignment.decode(member[-1]).partitions())) for member in members
        ],
    }


async def committed(client: AIOKafkaAdminClient, group: str) -> dict[str, int]:
    """Committed offsets by partition."""
    found = await client.list_consumer_group_offsets(group)
    return {name(partition): each.offset for partition, each in found.items()}


async def delete_records(client: AIOKafkaAdminClient, topic: str, partition: int, before: int) -> int:
    """Returns the new log start."""
    target = TopicPartition(topic, partition)
    return (await client.delete_records({target: RecordsToDelete(before)}))[target]


async def describe_cluster(client: AIOKafkaAdminClient) -> Plain:
    """Cluster id, controller, and `host:port` of the brokers."""
    found = await client.describe_cluster()
    return {
        "cluster_id": found["cluster_id"],
        "controller": found["controller_id"],
        "brokers": [f"{each['host']}:{each['port']}" for each in found["brokers"]],
    }


if __name__ == "__main__":
    Aiokafka(sys.argv[1]).serve()
