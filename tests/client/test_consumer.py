"""A consumer against our broker: idle partitions next to busy ones, expired members, topics deleted during a join."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from client import admin, groups
from client.consumer import Consumer
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ConsumerSettings, ProducerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.client.clients import PATIENCE_S, client_of, now_ms, run
from tests.client.test_producer_consumer import fill, group_settings, poll_until
from tests.kit.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), {"group.min.session.timeout.ms": "500"})
    process.start()
    yield process
    assert process.stop() == 0


@pytest.mark.parametrize("records_a_poll", ["1", "500"])
def test_an_idle_partition_does_not_hold_up_a_busy_one(broker: BrokerProcess, records_a_poll: str) -> None:
    """Each answer has one batch of two records, and `fetch.max.wait.ms` is longer than the time for all of them."""
    topic = f"busy-{records_a_poll}"
    busy, idle = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def test() -> None:
        async with client_of(broker.address) as client:
            await fill(client, topic, 0, partitions=2)
            async with Producer(client, ProducerSettings.parse({"linger.ms": "60000"}), now_ms) as producer:
                for _ in range(10):
                    await producer.send(topic, b"a", partition=0)
                    await producer.send(topic, b"b", partition=0)
                    await producer.flush()
            settings = {
                "max.poll.records": records_a_poll,
                "max.partition.fetch.bytes": "1",
                "fetch.max.wait.ms": str(int(PATIENCE_S * 1000)),
            }
            async with Consumer(client, ConsumerSettings.parse(settings)) as consumer:
                consumer.assign([busy, idle])
                consumer.seek(busy, 0)
                consumer.seek(idle, 0)
                offsets: list[int] = []
                while len(offsets) < 20:
                    offsets += [record.offset for record in (await consumer.poll(PATIENCE_S))[busy]]
                assert offsets == list(range(20))

    run(test)


def test_a_member_that_was_forgotten_commits_nothing(broker: BrokerProcess) -> None:
    """An empty group accepts commits without a generation: those of an administrator, but not of its former members."""
    topic = "forgotten"
    partition = TopicPartition(topic, 0)

    async def test() -> None:
        async with client_of(broker.address) as client:
            await fill(client, topic, 10)
            settings = group_settings(topic, session_timeout_ms="500", enable_auto_commit="false")
            async with Consumer(client, settings) as consumer:
                consumer.subscribe([topic])
                await poll_until([consumer], lambda: (consumer.assignment and consumer.position(partition)) == 10)
                await consumer.commit()
                member = consumer._member
                assert member is not None
                assert member._heartbeats is not None
                member._heartbeats.cancel()
                while (await groups.describe_group(client, f"group-of-{topic}"))[0].group_state != "Empty":
                    await asyncio.sleep(0.02)
                for _ in ("refused by the broker", "not even asked for"):
                    with pytest.raises(ApiError) as refused:
                        await consumer.commit({partition: groups.OffsetAndMetadata(3)})
                    assert refused.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
                committed = await groups.fetch_offsets(client, f"group-of-{topic}", [partition])
                assert committed[partition].offset == 10

    run(test)


class _Owned:
    """A listener that records the partitions that a member owns."""

    def __init__(self) -> None:
        self.partitions: list[TopicPartition] = []

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.partitions.remove(each)

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.partitions += partitions


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_member_that_hears_in_a_join_that_it_was_forgotten_goes_on_where_others_ended(
    broker: BrokerProcess, assignor: str
) -> None:
    """Other members have read on and committed meanwhile: its own position is outdated."""
    topic = f"forgotten-in-a-join-{assignor}"
    partition = TopicPartition(topic, 0)

    async def test() -> None:
        async with client_of(broker.address) as client:
            await fill(client, topic, 10)
            settings = group_settings(
                topic, session_timeout_ms="500", enable_auto_commit="false", partition_assignment_strategy=assignor
            )
            owned = _Owned()
            async with Consumer(client, settings) as consumer:
                consumer.subscribe([topic], owned)
                await poll_until([consumer], lambda: consumer.assignment == [partition])
                consumer.seek(partition, 3)
                member = consumer._member
                assert member is not None
                assert member._heartbeats is not None
                member._heartbeats.cancel()
                while (await groups.describe_group(client, f"group-of-{topic}"))[0].group_state != "Empty":
                    await asyncio.sleep(0.02)
                await groups.alter_offsets(client, f"group-of-{topic}", {partition: groups.OffsetAndMetadata(7)})
                member.needs_join = True
                offsets: list[int] = []
                while not offsets:
                    records = (await consumer.poll(0.05)).get(partition, [])
                    if not member.needs_join:  # until then it may get the records that it had fetched
                        offsets += [each.offset for each in records]
                assert offsets[0] == 7
                assert owned.partitions == [partition]

    run(test)


class _Deletion:
    """A listener that deletes a topic between a member's metadata update and its join."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self._client = client
        self._topic = topic

    async def on_partitions_revoked(self, _partitions: list[TopicPartition]) -> None:
        await admin.delete_topic(self._client, self._topic)

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        pass


def test_a_topic_that_was_away_while_the_group_joined_is_read_when_it_is_back(broker: BrokerProcess) -> None:
    """No fetch can report the topic, because no one was assigned it: the leader must look for it."""
    kept, renewed = TopicPartition("kept", 0), TopicPartition("renewed", 0)

    async def test() -> None:
        async with client_of(broker.address) as client:
            for partition in (kept, renewed):
                await fill(client, partition.topic, 1)
            settings = group_settings("renewed", allow_auto_create_topics="false")
            async with Consumer(client, settings) as consumer:
                consumer.subscribe([kept.topic, renewed.topic], _Deletion(client, renewed.topic))
                await poll_until([consumer], lambda: consumer.assignment == [kept, renewed])
                assert consumer._member is not None
                consumer._member.needs_join = True
                await poll_until([consumer], lambda: consumer.assignment == [kept])
                consumer._listener = None
                await fill(client, renewed.topic, 3)
                await poll_until([consumer], lambda: renewed in consumer.assignment and consumer.position(renewed) == 3)

    run(test)


def test_a_topic_made_again_is_read_from_its_beginning(broker: BrokerProcess) -> None:
    """The new log ends where the old one did, so no fetch from the old position is out of range."""
    partition = TopicPartition("made-again", 0)

    async def test() -> None:
        async with client_of(broker.address) as client:
            await fill(client, partition.topic, 3)
            async with Consumer(client, ConsumerSettings.parse({"auto.offset.reset": "earliest"})) as consumer:
                consumer.assign([partition])
                for _ in ("made", "made again"):
                    offsets: list[int] = []
                    while len(offsets) < 3:
                        offsets += [each.offset for each in (await consumer.poll(PATIENCE_S)).get(partition, [])]
                    assert offsets == [0, 1, 2]
                    await admin.delete_topic(client, partition.topic)
                    await fill(client, partition.topic, 3)

    run(test)
