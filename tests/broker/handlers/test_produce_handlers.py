"""Produce: many partitions in one request, and records in a receive buffer that is reused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.handlers.produce import PARTITIONS_AT_ONCE
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition
from tests.kit.environment import InlineExecutor
from tests.kit.in_process import InProcessBroker
from tests.kit.waiting import turns
from tests.kit.wire_requests import fetch, new_topic, produce, produce_batch, values_in

COUNT = 3 * PARTITIONS_AT_ONCE


def to_each_partition(topics: list[str], count: int, acks: int = 1) -> ProduceRequest:
    """One record to each of `count` partitions of each topic."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=index, records=build_batch([Record(0, 1_700_000_000_000, None, b"v%d" % index, [])])
                    )
                    for index in range(count)
                ],
            )
            for topic in topics
        ],
    )


def outcomes(response: object) -> list[tuple[str, int, int]]:
    assert isinstance(response, ProduceResponse)
    return [
        (topic.name, each.index, each.error_code) for topic in response.responses for each in topic.partition_responses
    ]


def test_many_partitions_are_appended_to_in_slices() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire, other = broker.connect(), broker.connect()
            await wire.ask(new_topic("t", COUNT), 7)
            await wire.ask(new_topic("u"), 7)
            wire.transport.written.clear()
            wire.send(to_each_partition(["t", "missing"], COUNT), 11)
            assert not wire.transport.written, "the event loop had no turn"
            # Meanwhile other connections receive into the same buffer.
            for _ in range(3):
                await other.ask(produce("u", [b"#" * 100_000]), 11)
            await turns()
            for index in (0, 1, PARTITIONS_AT_ONCE, COUNT - 1):
                request = fetch("t", 0)
                request.topics[0].partitions[0].partition = index
                assert values_in(await other.ask(request, 12)) == [b"v%d" % index]

    asyncio.run(scenario())


def test_the_answer_of_many_partitions_is_in_their_order() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", COUNT), 7)
            found = outcomes(await wire.ask(to_each_partition(["t", "missing", "t"], COUNT), 11))
            errors = {"t": int(ErrorCode.NONE), "missing": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
            assert found == [(topic, index, errors[topic]) for topic in ("t", "missing", "t") for index in range(COUNT)]

    asyncio.run(scenario())


def test_the_next_request_sees_all_of_a_large_one() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", COUNT), 7)
            wire.send(to_each_partition(["t"], COUNT), 11)
            last = fetch("t", 0)
            last.topics[0].partitions[0].partition = COUNT - 1
            wire.send(last, 12)
            await turns()
            answers, rest = [], bytes(wire.transport.written)  # the first one is that of CreateTopics
            while rest:
                size = int.from_bytes(rest[:4], "big")
                answers.append(rest[4 : 4 + size])
                rest = rest[4 + size :]
            assert [int.from_bytes(answer[:4], "big") for answer in answers] == [1, 2, 3]
            assert b"v%d" % (COUNT - 1) in answers[2]

    asyncio.run(scenario())


class SlowDisk(InlineExecutor):
    """Does no work between `stop` and `go_on`."""

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] | None = None

    def stop(self) -> None:
        self._held = []

    def go_on(self) -> None:
        held, self._held = self._held or [], None
        for each in held:
            each()

    def run(self, function: Callable[..., Any], /, *args: object) -> Awaitable[Any]:
        if self._held is None:
            return super().run(function, *args)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._held.append(lambda: future.set_result(function(*args)))
        return future


def correlation_ids(replies: bytearray) -> list[int]:
    ids = []
    while replies:
        size = 4 + int.from_bytes(replies[:4], "big")
        ids.append(int.from_bytes(replies[4:8], "big"))
        del replies[:size]
    return ids


def test_only_produce_passes_what_was_appended_in_slices_and_nothing_passes_before() -> None:
    async def scenario() -> None:
        disk = SlowDisk()
        broker = InProcessBroker()
        broker.executor = disk
        async with broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", COUNT, {"flush.messages": "1"}), 5)
            disk.stop()
            wire.transport.written.clear()
            wire.send(to_each_partition(["t"], COUNT), 7)
            batch = build_batch([Record(0, 1_700_000_000_000, None, b"behind", [])])
            wire.send(produce_batch("t", batch, partition=COUNT - 1), 7)
            wire.send(MetadataRequest(topics=None), 8)
            log = broker.server.serving.logs.log_manager.logs[TopicPartition("t", COUNT - 1)]
            assert log.log_end_offset == 0, "it passed appends that were still to be made"
            await turns(20)
            assert log.log_end_offset == 2
            assert not wire.transport.written, "records are acknowledged that were not flushed"
            disk.go_on()
            await turns(20)
            assert correlation_ids(wire.transport.written) == [2, 3, 4]

    asyncio.run(scenario())
