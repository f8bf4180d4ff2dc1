"""Fetch: which requests wait, what wakes them, and what happens if the client or the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from broker.handlers.fetch import PARTITIONS_AT_ONCE
from cluster.replication.partition import Partition
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.produce import ProduceRequest
from protocol.records.batch import Record, build_batch
from tests.kit.environment import CountedSlices, InlineExecutor
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.waiting import turns
from tests.kit.wire_requests import fetch, new_topic, produce, produce_batch, values_in

T = TypeVar("T")


class HeldReads(InlineExecutor):
    """Runs everything at once, except for reads of records, which never end while `held`."""

    def __init__(self) -> None:
        self.held = False
        self.reads = 0

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        is_read = "read" in getattr(getattr(function, "func", function), "__name__", "")
        if not (self.held and is_read):
            return super().run(function, *args)
        self.reads += 1
        return asyncio.get_running_loop().create_future()


class ShortSlices(CountedSlices):
    """Slices that end early and never treat a request as too large."""

    def elements_at_once(self, most: int) -> int:
        return most


def fetch_all(topic: str, partitions: int, *, max_wait_ms: int = 60_000, min_bytes: int = 1) -> FetchRequest:
    """Read `partitions` partitions from their beginning."""
    asked = [
        FetchRequest.FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=1 << 20)
        for at in range(partitions)
    ]
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=asked)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics)


def produce_to(topic: str, partition: int, value: bytes) -> ProduceRequest:
    return produce_batch(topic, build_batch([Record(0, 1_700_000_000_000, None, value, [])]), partition=partition)


def told(response: object) -> dict[int, tuple[int, int]]:
    """(high watermark, bytes of records) of each partition."""
    assert isinstance(response, FetchResponse)
    (topic,) = response.responses
    return {each.partition_index: (each.high_watermark, len(each.records or b"")) for each in topic.partitions}


def waiting_fetches(broker: InProcessBroker) -> int:
    return broker.server.serving.logs.replicas.delayed_fetches.size


async def make_cold(broker: InProcessBroker) -> Wire:
    """A topic of 50 batches whose records and indexes are not in the page cache, and whose cold reads never end."""
    wire = broker.connect()
    await wire.ask(new_topic("t"), 7)
    for number in range(50):
        await wire.ask(produce("t", [b"%d" % number] * 10), 11)
    broker.file_system.is_cold = lambda path, position: True
    return wire


def test_a_cold_fetch_does_not_outlive_its_connection() -> None:
    async def scenario() -> None:
        broker = InProcessBroker()
        broker.executor = executor = HeldReads()
        async with broker:
            await make_cold(broker)
            executor.held = True
            for wire in [broker.connect() for _ in range(20)]:
                wire.send(fetch("t", 123, max_wait_ms=2_000_000_000, min_bytes=1 << 20), 12)
                await turns()
                wire.close()
            assert executor.reads == 20
            await turns()
            assert waiting_fetches(broker) == 0
            await asyncio.wait_for(broker.server.serving.dispatcher.drain(), 5)

    asyncio.run(scenario())


def test_a_cold_fetch_does_not_outlive_its_broker() -> None:
    async def scenario() -> None:
        broker = InProcessBroker()
        broker.executor = executor = HeldReads()
        async with broker:
            wire = await make_cold(broker)
            executor.held = True
            wire.send(fetch("t", 123, max_wait_ms=2_000_000_000, min_bytes=1 << 20), 12)
            await turns()
            assert executor.reads == 1
            await asyncio.wait_for(broker.server.shutdown(), 5)
            await broker.__aenter__()

    asyncio.run(scenario())


def test_a_cold_fetch_that_found_too_little_waits_and_leaves_with_its_client() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            await make_cold(broker)
            tries = 0

            def is_cold(path: str, position: int) -> bool:
                nonlocal tries
                tries += 1
                return tries == 1

            broker.file_system.is_cold = is_cold
            wire = broker.connect()
            wire.send(fetch("t", 123, max_wait_ms=2_000_000_000, min_bytes=1 << 20), 12)
            await turns()
            assert not wire.transport.written
            assert waiting_fetches(broker) == 1
            wire.close()
            await turns()
            assert waiting_fetches(broker) == 0

    asyncio.run(scenario())


def test_a_wake_up_reads_what_changed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire, other = broker.connect(), broker.connect()
            await wire.ask(new_topic("t", 150), 7)
            waiting = asyncio.ensure_future(wire.ask(fetch_all("t", 150, min_bytes=300), 12))
            await turns()
            read: list[int] = []
            really_read = Partition.read

            def counted(self: Partition, *args: object, **options: object) -> object:
                read.append(self.topic_partition.partition)
                return really_read(self, *args, **options)  # type: ignore[arg-type]

            monkeypatch.setattr(Partition, "read", counted)
            await other.ask(produce_to("t", 77, b"x" * 50), 11)
            await other.ask(produce_to("t", 12, b"x" * 50), 11)
            await turns()
            assert read == [77, 12]
            assert not waiting.done()
            await other.ask(produce_to("t", 9, b"x" * 150), 11)
            found = told(await waiting)
            # The data found before is looked up again: its file may be gone.
            assert read == [77, 12, 9, 12, 77]
            assert sum(size for _, size in found.values()) >= 300
            assert {at for at, (_, size) in found.items() if size} == {9, 12, 77}
            assert len(found) == 150

    asyncio.run(scenario())


def test_many_partitions_are_read_in_slices_and_nothing_in_between_is_missed() -> None:
    count = 60

    async def scenario() -> None:
        broker = InProcessBroker()
        broker.clock = CountedSlices(20)
        async with broker:
            wire, other = broker.connect(), broker.connect()
            await wire.ask(new_topic("t", count), 7)
            waiting = asyncio.ensure_future(wire.ask(fetch_all("t", count), 12))
            for _ in range(2):
                await asyncio.sleep(0)
            # By now the first partitions were read, and the last were not.
            await other.ask(produce_to("t", 0, b"early"), 11)
            found = told(await asyncio.wait_for(waiting, 10))
            assert found[0] == (1, 73)
            assert len(found) == count

    asyncio.run(scenario())


def test_requests_of_a_session_that_are_read_in_slices_keep_their_order() -> None:
    count = 60

    async def scenario() -> None:
        broker = InProcessBroker()
        broker.clock = ShortSlices(20)
        async with broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", count), 7)
            request = fetch_all("t", count, max_wait_ms=0)
            request.session_epoch = 0
            first = await wire.ask(request, 12)
            assert isinstance(first, FetchResponse)
            assert first.session_id
            assert len(told(first)) == count
            waiting = []
            for epoch in (1, 2, 3):
                request = fetch_all("t", count, max_wait_ms=0)
                request.session_id, request.session_epoch = first.session_id, epoch
                waiting.append(asyncio.ensure_future(wire.ask(request, 12)))
            for response in await asyncio.gather(*waiting):
                assert isinstance(response, FetchResponse)
                assert (response.error_code, response.session_id) == (0, first.session_id)

    asyncio.run(scenario())


def test_records_are_shared_out_within_the_bytes_of_a_request() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", 3), 7)
            for partition in range(3):
                for _ in range(4):
                    await wire.ask(produce_to("t", partition, b"x" * 932), 11)
            request = fetch_all("t", 3)
            request.max_bytes = 6500
            sizes = {at: size // 1000 for at, (_, size) in told(await wire.ask(request, 12)).items()}
            assert sizes == {0: 4, 1: 2, 2: 0}
            request.max_bytes = 10
            sizes = {at: size // 1000 for at, (_, size) in told(await wire.ask(request, 12)).items()}
            assert sizes == {0: 1, 1: 0, 2: 0}, "the first batch is given whatever its size"

    asyncio.run(scenario())


def test_an_error_ends_the_wait() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t"), 7)
            waiting = asyncio.ensure_future(wire.ask(fetch("t", 0, max_wait_ms=60_000), 12))
            await turns()
            broker.server.serving.logs.replicas.hosted.directory_failed("/data")
            response = await asyncio.wait_for(waiting, 10)
            assert isinstance(response, FetchResponse)
            assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR

    asyncio.run(scenario())


def test_min_bytes_above_max_bytes_ask_for_max_bytes() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t"), 7)
            for _ in range(4):
                await wire.ask(produce("t", [b"x" * 932]), 11)
            request = fetch("t", 0, max_wait_ms=60_000, min_bytes=10_000)
            request.max_bytes = 1000
            assert len(values_in(await asyncio.wait_for(wire.ask(request, 12), 10))) == 1

    asyncio.run(scenario())


def test_a_large_fetch_is_answered_as_a_small_one_but_without_a_session() -> None:
    """It is read in shares; its byte limits apply to all shares together."""

    def fetch_of(*topics: tuple[str, int], max_bytes: int = 1 << 20) -> FetchRequest:
        asked = [
            FetchRequest.FetchTopic(
                topic=name,
                partitions=[
                    FetchRequest.FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=1 << 20)
                    for at in range(count)
                ],
            )
            for name, count in topics
        ]
        return FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=max_bytes, session_epoch=0, topics=asked)

    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            for name in "ab":
                await wire.ask(new_topic(name, 1), 7)
                await wire.ask(produce(name, [b"value"]), 11)
            for max_bytes, expected in ((1 << 20, [True, True]), (1, [True, False])):
                request = fetch_of(("a", 1), ("unknown", PARTITIONS_AT_ONCE), ("b", 1), max_bytes=max_bytes)
                response = await wire.ask(request, 11)
                assert isinstance(response, FetchResponse)
                assert response.session_id == 0
                assert [topic.topic for topic in response.responses] == ["a", "unknown", "b"]
                first, unknown, last = (topic.partitions for topic in response.responses)
                assert [each.partition_index for each in unknown] == list(range(PARTITIONS_AT_ONCE))
                assert {each.error_code for each in unknown} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
                assert [bool(each.records) for each in (*first, *last)] == expected

    asyncio.run(scenario())
