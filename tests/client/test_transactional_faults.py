"""Our producer's transactions across cut connections and a killed broker: complete, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import admin, groups
from client.errors import ClientTimeoutError, IllegalStateError
from client.groups import GroupMetadata, OffsetAndMetadata
from protocol.topic_partition import TopicPartition
from tests.client.clients import client_of, read_all, run
from tests.client.proxy import proxy
from tests.client.transactional import SETTINGS, await_values, producer_of, values_of
from tests.kit.broker_process import BrokerProcess, free_port


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, SETTINGS)
    broker.start()
    yield broker
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_a_broker_that_is_killed_amid_a_transaction(own_broker: BrokerProcess, is_committed: bool) -> None:
    """The broker is killed in each step of the transaction; the producer only notices a pause."""
    steps = ["begun", "queued", "flushed", "offsets sent", "ending", "ended"]
    broker, topic, partition = own_broker, "t", TopicPartition("source", 0)

    async def test() -> None:
        async with client_of(broker.address, retry_backoff_ms="20") as client, producer_of(client, "id") as producer:
            for name in (topic, "source"):
                await admin.create_topic(client, name, partitions=1)
            await producer.init_transactions()
            for number, killed_at in enumerate(steps):
                ending: asyncio.Task[None] | None = None
                for step in steps:
                    if step == "begun":
                        producer.begin_transaction()
                    elif step == "queued":
                        for part in range(20):
                            await producer.send(topic, b"%d %d" % (number, part))
                    elif step == "flushed":
                        await producer.flush()
                    elif step == "offsets sent":
                        await producer.send_offsets_to_transaction(
                            {partition: OffsetAndMetadata(number)}, GroupMetadata("group")
                        )
                    elif step == "ending":
                        end = producer.commit_transaction if is_committed else producer.abort_transaction
                        ending = asyncio.create_task(end())
                    elif ending is not None:
                        await ending
                    if step == killed_at:
                        broker.kill()
                        await asyncio.to_thread(broker.start)
            expected = [b"%d %d" % (number, part) for number in range(len(steps)) for part in range(20)]
            await await_values(client, topic, expected if is_committed else [])
            assert await values_of(client, topic, committed=False) == expected
            offsets = await groups.fetch_offsets(client, "group", [partition], require_stable=True)
            assert [each.offset for each in offsets.values()] == ([len(steps) - 1] if is_committed else [])

    run(test)


def test_transactions_are_whole_through_cut_connections(tmp_path: Path) -> None:
    port = free_port()
    broker = BrokerProcess(tmp_path, {**SETTINGS, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})

    async def test() -> None:
        async with proxy(port, broker.address) as way, client_of(f"127.0.0.1:{port}", retry_backoff_ms="5") as client:
            await admin.create_topic(client, "t", partitions=2)
            expected: dict[int, list[bytes]] = {0: [], 1: []}
            async with producer_of(client, "id", batch_size="200") as producer:
                await producer.init_transactions()
                for number in range(60):
                    producer.begin_transaction()
                    values = [b"%d %d" % (number, part) for part in range(40)]
                    for part, value in enumerate(values):
                        await producer.send("t", value, partition=part % 2)
                        if number % 3 == 0 and part == number % 40:
                            way.cut()
                    if number % 5 == 4:
                        await producer.abort_transaction()
                        continue
                    if number % 3 == 1:
                        ending = asyncio.create_task(producer.commit_transaction())
                        await asyncio.sleep(0.001 * (number % 7))
                        way.cut()
                        await ending
                    else:
                        await producer.commit_transaction()
                    for parity in expected:
                        expected[parity] += values[parity::2]
            found: dict[int, list[bytes | None]] = {}
            while found != expected:
                records = await read_all(client, "t", 2, isolation_level="read_committed")
                found = {parity: [each.value for each in records[parity]] for parity in records}
                assert all(len(found[parity]) <= len(expected[parity]) for parity in expected)

    broker.start()
    try:
        run(test)
    finally:
        broker.kill()


def test_a_commit_that_timed_out_is_waited_for_again(own_broker: BrokerProcess) -> None:
    broker = own_broker

    async def test() -> None:
        async with client_of(broker.address) as client, producer_of(client, "id", max_block_ms="2000") as producer:
            await admin.create_topic(client, "t", partitions=1)
            while True:
                try:
                    await producer.init_transactions()
                    break
                except ClientTimeoutError:
                    continue
            producer.begin_transaction()
            await (await producer.send("t", b"v"))
            broker.kill()
            with pytest.raises(ClientTimeoutError, match=r"2000ms while awaiting EndTxn\(true\)"):
                await producer.commit_transaction()
            with pytest.raises(IllegalStateError, match="the previous call to `commitTransaction` timed out"):
                await producer.abort_transaction()
            with pytest.raises(IllegalStateError, match="the previous call to `commitTransaction` timed out"):
                producer.begin_transaction()
            await asyncio.to_thread(broker.start)
            while True:
                try:
                    await producer.commit_transaction()
                    break
                except ClientTimeoutError:
                    continue
            await await_values(client, "t", [b"v"])

    run(test)
