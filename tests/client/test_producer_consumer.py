"""Producer and consumer against our broker: order and exactly one copy across cut connections and a killed broker;
groups that join, leave, crash and rebalance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client import admin, groups
from client.consumer import Consumer
from client.errors import ClientTimeoutError, FencedError, NoOffsetError
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ConsumerSettings, ProducerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record
from protocol.topic_partition import TopicPartition
from tests.client.clients import PATIENCE_S, client_of, now_ms, read_all, run
from tests.client.proxy import proxy
from tests.kit.broker_process import BrokerProcess, free_port

SETTINGS = {
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "2",
    "num.partitions": "1",
    "log.retention.ms": "-1",  # these records have timestamps of 1970
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS)
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("[", "-").replace("]", "")


# -- producing ---------------------------------------------------------------------------------------------------------


def test_records_arrive_as_they_were_sent(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        async with client_of(broker.address) as client:
            async with Producer(client, ProducerSettings.parse({"linger.ms": "10"}), now_ms) as producer:
                first = await producer.send(topic, b"v", b"k", [("h", b"1"), ("h", None)], timestamp=12345)
                second = await producer.send(topic, None)
                third = await producer.send(topic, b"")
            assert first.result() == (TopicPartition(topic, 0), 0, 12345)
            assert [second.result().offset, third.result().offset] == [1, 2]
            (records,) = (await read_all(client, topic)).values()
            assert records[0] == Record(0, 12345, b"k", b"v", [("h", b"1"), ("h", None)])
            assert [(record.key, record.value) for record in records[1:]] == [(None, None), (None, b"")]

    run(test)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_codec_and_acks(broker: BrokerProcess, topic: str, compression: str, acks: str) -> None:
    async def test() -> None:
        settings = ProducerSettings.parse({"compression.type": compression, "acks": acks, "batch.size": "1000"})
        async with client_of(broker.address) as client:
            async with Producer(client, settings, now_ms) as producer:
                for number in range(200):
                    await producer.send(topic, b"%d" % number)
                batch = await producer.send_batch(topic, [b"x"] * 100)
            assert (batch.result().offset >= 0) == (acks != "0")
            while len((await read_all(client, topic))[0]) < 300:
                await asyncio.sleep(0.01)  # the last ones were never awaited
            (records,) = (await read_all(client, topic)).values()
            assert [record.value for record in records] == [b"%d" % number for number in range(200)] + [b"x"] * 100

    run(test)


def test_what_cannot_be_sent_is_told(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        settings = ProducerSettings.parse({"max.request.size": "2000000"})
        async with client_of(broker.address) as client, Producer(client, settings, now_ms) as producer:
            with pytest.raises(ApiError, match="larger than 2000000"):
                await producer.send(topic, bytes(2_000_001))
            with pytest.raises(ApiError, match="Invalid topics"):
                await producer.send("a/b", b"v")
            too_large = await producer.send(topic, bytes(1_500_000))
            fine = await producer.send(topic, b"behind it")
            with pytest.raises(ApiError) as refused:
                await too_large
            assert refused.value.error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert (await fine).offset == 0, "the gap in the sequence does not stop what follows"
        settings = ProducerSettings.parse({"max.block.ms": "300"})
        async with client_of(f"127.0.0.1:{free_port()}") as client, Producer(client, settings, now_ms) as producer:
            with pytest.raises(ClientTimeoutError, match=r"not present in metadata after 300 ms"):
                await producer.send(topic, b"v")

    run(test)


def test_memory_is_bounded(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        settings = ProducerSettings.parse({"buffer.memory": "20000", "linger.ms": "60000", "batch.size": "100000"})
        async with client_of(broker.address) as client, Producer(client, settings, now_ms) as producer:
            deliveries = [await producer.send(topic, bytes(1000)) for _ in range(100)]
            assert sum(delivery.done() for delivery in deliveries) >= 75, "waiting for room sends what lingers"

    run(test)


def test_exactly_one_copy_in_order_through_cut_connections(tmp_path: Path, topic: str) -> None:
    port = free_port()
    broker = BrokerProcess(tmp_path, {**SETTINGS, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    count = 20_000

    async def test() -> None:
        settings = ProducerSettings.parse({"batch.size": "600", "linger.ms": "1"})
        async with proxy(port, broker.address) as way, client_of(f"127.0.0.1:{port}", retry_backoff_ms="5") as client:
            await admin.create_topic(client, topic, partitions=2)

            async with Producer(client, settings, now_ms) as producer:
                deliveries = []
                for number in range(count):
                    deliveries.append(await producer.send(topic, b"%d" % number, partition=number % 2))
                    if number % 2_000 == 1_000:
                        # The first batch of these is acknowledged, most of them are in flight.
                        await deliveries[-900]
                        way.cut()
                await producer.flush()
            assert all(delivery.exception() is None for delivery in deliveries)
            found = await read_all(client, topic, 2)
            for parity in (0, 1):
                values = [record.value for record in found[parity]]
                assert values == [b"%d" % number for number in range(parity, count, 2)]

    broker.start()
    try:
        run(test)
    finally:
        broker.kill()


def test_exactly_one_copy_in_order_through_a_killed_broker(tmp_path: Path, topic: str) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    count = 30_000

    async def test() -> None:
        async with client_of(broker.address, retry_backoff_ms="20") as client:
            async with Producer(client, ProducerSettings.parse({"batch.size": "2000"}), now_ms) as producer:
                for number in range(count):
                    await producer.send(topic, b"%d" % number)
                    if number in {count // 3, count // 2}:
                        broker.kill()
                        await asyncio.to_thread(broker.start)
                await producer.flush()
            (records,) = (await read_all(client, topic)).values()
            assert [record.value for record in records] == [b"%d" % number for number in range(count)]

    broker.start()
    try:
        run(test)
    finally:
        broker.kill()


# -- consuming ---------------------------------------------------------------------------------------------------------


async def fill(client: KafkaClient, topic: str, count: int, partitions: int = 1) -> None:
    await admin.create_topic(client, topic, partitions=partitions)
    async with Producer(client, ProducerSettings.parse({}), now_ms) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=number % partitions, timestamp=1_000 + number)


def test_positions(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        partition = TopicPartition(topic, 0)
        async with client_of(broker.address) as client:
            await fill(client, topic, 100)
            async with Consumer(client, ConsumerSettings.parse({"max.poll.records": "7"})) as consumer:
                consumer.assign([partition])
                while consumer.position(partition) is None:
                    assert await consumer.poll(0.1) == {}, "from the end on"
                assert consumer.position(partition) == 100
                consumer.seek(partition, 42)
                offsets = [record.offset for record in (await consumer.poll(PATIENCE_S))[partition]]
                assert offsets == list(range(42, 49))
                consumer.seek_to_timestamp(partition, 1_090)
                batches = (await consumer.poll_batches(PATIENCE_S))[partition]
                assert [record.offset for batch in batches for record in batch.records()] == list(range(90, 100))
                consumer.seek_to_timestamp(partition, admin.EARLIEST_TIMESTAMP)
                assert (await consumer.poll(PATIENCE_S))[partition][0].offset == 0
                consumer.seek(partition, 5_000)
                while consumer.position(partition) in {None, 5_000}:
                    assert await consumer.poll(0.1) == {}
                assert consumer.position(partition) == 100, "out of range means the end, as auto.offset.reset says"
            settings = ConsumerSettings.parse({"auto.offset.reset": "none"})
            async with Consumer(client, settings) as consumer:
                consumer.assign([partition])
                with pytest.raises(NoOffsetError, match="no reset policy"):
                    await consumer.poll(PATIENCE_S)
                consumer.seek(partition, 5_000)
                with pytest.raises(ApiError) as out_of_range:
                    await consumer.poll(PATIENCE_S)
                assert out_of_range.value.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(test)


def group_settings(topic: str, **others: str) -> ConsumerSettings:
    values = {
        "group.id": f"group-of-{topic}",
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": "100",
        **{name.replace("_", "."): value for name, value in others.items()},
    }
    return ConsumerSettings.parse(values)


async def poll_until(consumers: list[Consumer], is_done: Callable[[], bool]) -> None:
    while not is_done():
        await asyncio.gather(*(consumer.poll(0.05) for consumer in consumers))


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_shares_its_partitions(broker: BrokerProcess, topic: str, assignor: str) -> None:
    async def test() -> None:
        settings = group_settings(topic, partition_assignment_strategy=assignor)
        async with client_of(broker.address) as client, client_of(broker.address) as another:
            await fill(client, topic, 100, partitions=4)
            first = Consumer(client, settings)
            second = Consumer(another, settings)
            first.subscribe([topic])
            await poll_until([first], lambda: len(first.assignment) == 4)
            second.subscribe([topic])
            await poll_until([first, second], lambda: [len(first.assignment), len(second.assignment)] == [2, 2])
            assert not set(first.assignment) & set(second.assignment)
            await second.close()
            await poll_until([first], lambda: len(first.assignment) == 4)
            await first.close()
            group, _ = await groups.describe_group(client, f"group-of-{topic}")
            assert group.group_state == "Empty"

    run(test)


def test_a_member_that_dies_is_missed_and_its_work_is_taken_over(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        async with client_of(broker.address) as client:
            await fill(client, topic, 60, partitions=2)
            dying = client_of(broker.address)
            settings = group_settings(topic, session_timeout_ms="1000")
            first, second = Consumer(dying, settings), Consumer(client, settings)
            first.subscribe([topic])
            second.subscribe([topic])
            await poll_until([first, second], lambda: len(first.assignment) == len(second.assignment) == 1)
            member = first._member
            assert member is not None
            assert member._heartbeats is not None
            member._heartbeats.cancel()
            dying.close()
            await poll_until([second], lambda: len(second.assignment) == 2)
            await second.close()

    run(test)


def test_offsets_are_committed_and_found_again(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        async with client_of(broker.address) as client:
            await fill(client, topic, 50)
            settings = group_settings(topic, max_poll_records="20", auto_commit_interval_ms="50")
            seen: list[int] = []
            for _ in range(3):
                async with Consumer(client, settings) as consumer:
                    consumer.subscribe([topic])
                    while not (polled := await consumer.poll(1)):
                        assert len(seen) < 50
                    seen += [record.offset for records in polled.values() for record in records]
            assert seen == list(range(50)), "closing commits what was polled"
            committed = await groups.fetch_offsets(client, f"group-of-{topic}")
            assert {partition: each.offset for partition, each in committed.items()} == {TopicPartition(topic, 0): 50}

    run(test)


def test_a_static_member_is_replaced_by_its_successor(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        settings = group_settings(topic, group_instance_id="me")
        async with client_of(broker.address) as client, client_of(broker.address) as another:
            await fill(client, topic, 10)
            old, new = Consumer(client, settings), Consumer(another, settings)
            old.subscribe([topic])
            await poll_until([old], lambda: len(old.assignment) == 1)
            new.subscribe([topic])
            await poll_until([new], lambda: len(new.assignment) == 1)
            with pytest.raises(FencedError):
                await poll_until([old], lambda: False)
            await new.close()
            await old.close()

    run(test)


def test_a_pattern_finds_topics_that_come_later(broker: BrokerProcess, topic: str) -> None:
    import re

    async def test() -> None:
        async with client_of(broker.address, metadata_max_age_ms="100") as client:
            await fill(client, f"{topic}-1", 3)
            async with Consumer(client, group_settings(topic)) as consumer:
                consumer.subscribe_pattern(re.compile(f"{topic}-.*"))
                await poll_until([consumer], lambda: len(consumer.assignment) == 1)
                await fill(client, f"{topic}-2", 3)
                await poll_until([consumer], lambda: len(consumer.assignment) == 2)

    run(test)


def test_groups_from_the_outside(broker: BrokerProcess, topic: str) -> None:
    async def test() -> None:
        group_id = f"group-of-{topic}"
        partition = TopicPartition(topic, 0)
        async with client_of(broker.address) as client:
            await fill(client, topic, 10)
            await groups.alter_offsets(client, group_id, {partition: groups.OffsetAndMetadata(4, "note")})
            assert await groups.fetch_offsets(client, group_id, [partition, TopicPartition(topic, 7)]) == {
                partition: groups.OffsetAndMetadata(4, "note")
            }
            async with Consumer(client, group_settings(topic)) as consumer:
                consumer.subscribe([topic])
                await poll_until([consumer], lambda: (consumer.assignment and consumer.position(partition)) == 10)
                with pytest.raises(ApiError) as not_empty:
                    await groups.delete_group(client, group_id)
                assert not_empty.value.error_code == ErrorCode.NON_EMPTY_GROUP
                outcome = await groups.delete_offsets(client, group_id, [partition])
                assert outcome == {partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
                listed = await groups.list_groups(client, states=["Stable"])
                assert group_id in [group.group_id for group in listed]
            assert await groups.delete_offsets(client, group_id, [partition]) == {partition: ErrorCode.NONE}
            with pytest.raises(ApiError):
                await groups.delete_group(client, group_id)  # its last offset was all that was left of it

    run(test)
