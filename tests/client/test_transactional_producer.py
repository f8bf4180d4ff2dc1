"""Our producer's transactions against our broker and Apache Kafka: what other clients see of them, and which producers
are fenced.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping

import pytest

from client import admin, groups
from client.consumer import Consumer
from client.errors import ClientError, IllegalStateError, TransactionError
from client.groups import GroupMetadata, OffsetAndMetadata
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ConsumerSettings, ProducerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.client.clients import client_of, now_ms, read_all, run
from tests.client.transactional import SETTINGS, await_values, producer_of, values_of
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess


@pytest.fixture(scope="module", params=["odradek", pytest.param("apache-kafka", marks=pytest.mark.java)])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    if request.param == "apache-kafka":
        kafka = ApacheKafka(directory, SETTINGS)
        kafka.start()
        yield kafka.address
        kafka.stop()
        return
    broker = BrokerProcess(directory, SETTINGS)
    broker.start()
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("[", "-").replace("]", "")


def test_others_see_what_was_committed(address: str, topic: str) -> None:
    async def test() -> None:
        async with client_of(address) as client, producer_of(client, topic) as producer:
            await admin.create_topic(client, topic, partitions=1)
            await producer.init_transactions()
            for number, is_committed in enumerate([True, False, False, True, True]):
                producer.begin_transaction()
                await producer.send(topic, b"%d a" % number)
                await producer.flush()
                await producer.send(topic, b"%d b" % number)
                await (producer.commit_transaction() if is_committed else producer.abort_transaction())
            await await_values(client, topic, [b"0 a", b"0 b", b"3 a", b"3 b", b"4 a", b"4 b"])
            every = await values_of(client, topic, committed=False)
            assert [value for value in every if value and value.endswith(b"a")] == [b"%d a" % n for n in range(5)]
            assert producer._transactions is not None
            assert producer._transactions.producer.epoch == 0, "an abort alone needs no other epoch"

    run(test)


def test_a_transaction_without_records_ends(address: str, topic: str) -> None:
    async def test() -> None:
        async with client_of(address) as client, producer_of(client, topic) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.commit_transaction()
            producer.begin_transaction()
            await producer.abort_transaction()

    run(test)


def test_closing_aborts_what_is_open(address: str, topic: str) -> None:
    async def test() -> None:
        async with client_of(address) as client:
            await admin.create_topic(client, topic, partitions=1)
            async with producer_of(client, topic) as producer:
                await producer.init_transactions()
                producer.begin_transaction()
                await producer.send(topic, b"a")
            async with Producer(client, ProducerSettings.parse({}), now_ms) as plain:
                await plain.send(topic, b"behind it")
            await await_values(client, topic, [b"behind it"])
            assert await values_of(client, topic, committed=False) == [b"a", b"behind it"]

    run(test)


def test_calls_out_of_turn_are_refused(address: str, topic: str) -> None:
    async def test() -> None:
        async with client_of(address) as client, producer_of(client, topic) as producer:
            await admin.create_topic(client, topic, partitions=1)
            with pytest.raises(IllegalStateError, match="from state UNINITIALIZED to state IN_TRANSACTION"):
                producer.begin_transaction()
            with pytest.raises(IllegalStateError, match="before completing a call to initTransactions"):
                await producer.send(topic, b"v")
            await producer.init_transactions()
            with pytest.raises(IllegalStateError, match="from state READY to state INITIALIZING"):
                await producer.init_transactions()
            with pytest.raises(IllegalStateError, match="while in state  READY"):
                await producer.send_batch(topic, [b"v"])
            with pytest.raises(IllegalStateError, match="from state READY to state COMMITTING_TRANSACTION"):
                await producer.commit_transaction()
            with pytest.raises(IllegalStateError, match="from state READY to state ABORTING_TRANSACTION"):
                await producer.abort_transaction()
            producer.begin_transaction()
            with pytest.raises(ClientError, match=r"member\.id unknown"):
                await producer.send_offsets_to_transaction(
                    {TopicPartition(topic, 0): OffsetAndMetadata(1)}, GroupMetadata(topic, 7)
                )
            await (await producer.send(topic, b"v"))
            await producer.commit_transaction()
            async with Producer(client, ProducerSettings.parse({}), now_ms) as plain:
                with pytest.raises(IllegalStateError, match="without enabling transactions"):
                    plain.begin_transaction()

    run(test)


# -- offsets -----------------------------------------------------------------------------------------------------------


async def committed_offset(client: KafkaClient, group: str, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    return (await groups.fetch_offsets(client, group, [partition], require_stable=True))[partition].offset


def test_offsets_are_committed_with_the_records(address: str, topic: str) -> None:
    """Read, process, write: each record is processed once, though half of the transactions are aborted."""
    source, count = f"source-of-{topic}", 40

    async def test() -> None:
        async with client_of(address) as client, producer_of(client, topic) as producer:
            for name in (source, topic):
                await admin.create_topic(client, name, partitions=1)
            async with Producer(client, ProducerSettings.parse({}), now_ms) as plain:
                await plain.send_batch(source, [b"%d" % number for number in range(count)])
            await producer.init_transactions()
            settings = ConsumerSettings.parse(
                {
                    "group.id": topic,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": "false",
                    "max.poll.records": "5",
                    "isolation.level": "read_committed",
                }
            )
            partition = TopicPartition(source, 0)
            async with Consumer(client, settings) as consumer:
                consumer.subscribe([source])
                position = 0
                for is_committed in itertools.cycle([False, True]):
                    while not (polled := await consumer.poll(5)):
                        pass
                    producer.begin_transaction()
                    for record in polled[partition]:
                        await producer.send(topic, record.value)
                    reached = consumer.position(partition)
                    assert reached is not None
                    await producer.send_offsets_to_transaction(
                        {partition: OffsetAndMetadata(reached, "noted")}, consumer.group_metadata
                    )
                    if is_committed:
                        await producer.commit_transaction()
                        position = reached
                        assert await committed_offset(client, topic, source) == reached
                    else:
                        await producer.abort_transaction()
                        consumer.seek(partition, position)
                    if position == count:
                        break
            await await_values(client, topic, [b"%d" % number for number in range(count)])

    run(test)


def test_a_consumer_waits_for_an_offset_that_may_be_committed(address: str, topic: str) -> None:
    """It would reread records that the transaction has processed (KIP-447)."""

    async def test() -> None:
        partition = TopicPartition(topic, 0)
        async with client_of(address) as client, producer_of(client, topic) as producer:
            await admin.create_topic(client, topic, partitions=1)
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send_batch(topic, [b"%d" % number for number in range(10)])
            await producer.send_offsets_to_transaction({partition: OffsetAndMetadata(7)}, GroupMetadata(topic))
            settings = ConsumerSettings.parse({"group.id": topic, "auto.offset.reset": "earliest"})
            async with Consumer(client, settings) as consumer:
                consumer.assign([partition])
                for _ in range(3):
                    assert await consumer.poll(0.3) == {}
                assert consumer.position(partition) is None
                await producer.commit_transaction()
                while not (polled := await consumer.poll(5)):
                    pass
                assert [record.value for record in polled[partition]] == [b"7", b"8", b"9"]

    run(test)


def test_a_zombie_of_a_group_is_fenced(address: str, topic: str) -> None:
    """Its transaction fails, but the producer can continue (KIP-447)."""

    async def test() -> None:
        async with client_of(address) as client, producer_of(client, topic) as producer:
            await admin.create_topic(client, topic, partitions=1)
            await producer.init_transactions()
            consumer = Consumer(client, ConsumerSettings.parse({"group.id": topic}))
            assert consumer.group_metadata == GroupMetadata(topic)
            consumer.subscribe([topic])
            while not consumer.assignment:
                await consumer.poll(0.1)
            member = consumer.group_metadata
            offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1)}
            zombies = {
                member._replace(generation=member.generation + 1): ErrorCode.ILLEGAL_GENERATION,
                member._replace(member_id="unknown"): ErrorCode.UNKNOWN_MEMBER_ID,
            }
            for zombie, code in zombies.items():
                producer.begin_transaction()
                await producer.send(topic, b"of the zombie")
                with pytest.raises(TransactionError) as refused:
                    await producer.send_offsets_to_transaction(offsets, zombie)
                assert not refused.value.is_fatal
                assert isinstance(refused.value.cause, ApiError)
                assert refused.value.cause.error_code == code
                with pytest.raises(TransactionError, match="in an error state"):
                    await producer.commit_transaction()
                await producer.abort_transaction()
            producer.begin_transaction()
            await producer.send(topic, b"of the member")
            await producer.send_offsets_to_transaction(offsets, member)
            await producer.commit_transaction()
            assert await committed_offset(client, topic, topic) == 1
            await await_values(client, topic, [b"of the member"])
            await consumer.close()

    run(test)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["begun", "written", "flushed"])
def test_a_successor_fences_a_producer(address: str, topic: str, step: str) -> None:
    async def test() -> None:
        async with client_of(address) as client, client_of(address) as another:
            await admin.create_topic(client, topic, partitions=1)
            zombie = producer_of(client, topic)
            await zombie.init_transactions()
            zombie.begin_transaction()
            if step != "begun":
                await zombie.send(topic, b"of the zombie")
            if step == "flushed":
                await zombie.flush()
            async with producer_of(another, topic) as successor:
                await successor.init_transactions()
                if step == "begun":
                    await zombie.send(topic, b"too late")
                with pytest.raises(TransactionError) as fenced:
                    await zombie.commit_transaction()
                if not fenced.value.is_fatal:  # the leader's error; the coordinator's is fatal
                    with pytest.raises(TransactionError) as fenced:
                        await zombie.abort_transaction()
                assert fenced.value.is_fatal
                assert "has been fenced by another producer with the same transactionalId" in str(fenced.value)
                for call in (zombie.send(topic, b"v"), zombie.abort_transaction(), zombie.commit_transaction()):
                    with pytest.raises(TransactionError, match="has been fenced"):
                        await call
                await zombie.close()
                successor.begin_transaction()
                await successor.send(topic, b"new")
                await successor.commit_transaction()
            await await_values(client, topic, [b"new"])

    run(test)


def test_a_producer_whose_transaction_timed_out_is_fenced(address: str, topic: str) -> None:
    async def test() -> None:
        async with client_of(address) as client:
            await admin.create_topic(client, topic, partitions=1)
            async with producer_of(client, topic, transaction_timeout_ms="300") as producer:
                await producer.init_transactions()
                producer.begin_transaction()
                await (await producer.send(topic, b"v"))
                while await values_of(client, topic, committed=False) and await _is_open(client, topic):
                    await asyncio.sleep(0.05)
                with pytest.raises(TransactionError, match="has been fenced") as fenced:
                    await producer.commit_transaction()
                assert fenced.value.is_fatal
            assert await values_of(client, topic) == []

    run(test)


async def _is_open(client: KafkaClient, topic: str) -> bool:
    """Whether the last stable offset is below the end."""
    partition = TopicPartition(topic, 0)
    ends = [
        (await admin.list_offsets(client, {partition: admin.LATEST_TIMESTAMP}, isolation_level=level))[partition]
        for level in (0, 1)
    ]
    return ends[0] != ends[1]


def test_a_transaction_with_a_record_that_is_refused_is_aborted(address: str, topic: str) -> None:
    """The producer continues under a higher epoch, as it does not know the broker's sequence numbers."""

    async def test() -> None:
        async with client_of(address) as client, producer_of(client, topic) as producer:
            await admin.create_topic(client, topic, partitions=2, configs={"max.message.bytes": "1000"})
            await producer.init_transactions()
            producer.begin_transaction()
            fine = await producer.send(topic, b"fine", partition=1)
            too_large = await producer.send(topic, bytes(2000), partition=0)
            behind = await producer.send(topic, bytes(20_000), partition=0)
            outcomes = await asyncio.gather(fine, too_large, behind, return_exceptions=True)
            assert [isinstance(each, ApiError) for each in outcomes] == [False, True, True]
            with pytest.raises(TransactionError, match="MESSAGE_TOO_LARGE") as failed:
                await producer.commit_transaction()
            assert not failed.value.is_fatal
            with pytest.raises(TransactionError):
                await producer.send(topic, b"v")
            await producer.abort_transaction()
            producer.begin_transaction()
            for partition in (0, 1):
                await producer.send(topic, b"next", partition=partition)
            await producer.commit_transaction()
            assert producer._transactions is not None
            assert producer._transactions.producer.epoch > 0
            seen: Mapping[int, list[bytes | None]] = {}
            while seen != {0: [b"next"], 1: [b"next"]}:
                found = await read_all(client, topic, 2, isolation_level="read_committed")
                seen = {number: [record.value for record in records] for number, records in found.items()}

    run(test)


def test_a_timeout_that_the_broker_does_not_allow_is_told(address: str, topic: str) -> None:
    async def test() -> None:
        async with (
            client_of(address) as client,
            producer_of(client, topic, transaction_timeout_ms="900001") as producer,
        ):
            with pytest.raises(TransactionError, match="INVALID_TRANSACTION_TIMEOUT") as refused:
                await producer.init_transactions()
            assert refused.value.is_fatal

    run(test)
