"""A consumer against our broker: an idle partition beside a busy one, and commits of a member that was forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from client import groups
from client.consumer import Consumer
from client.producer import Producer
from client.settings import ConsumerSettings, ProducerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.client.test_producer_consumer import PATIENCE_S, client_of, fill, group_settings, now_ms, poll_until, run
from tests.kit.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), {"group.min.session.timeout.ms": "500"})
    process.start()
    yield process
    assert process.stop() == 0


@pytest.mark.parametrize("records_a_poll", ["1", "500"])
def test_an_idle_partition_does_not_hold_up_a_busy_one(broker: BrokerProcess, records_a_poll: str) -> None:
    """Each answer brings one batch of two records, and `fetch.max.wait.ms` is longer than all may take."""
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
    """An empty group takes commits without a generation: they are those of an administrator, not of its old members."""
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
