"""Topics with flush.messages: no record is acknowledged or readable before its fsync, and few fsyncs suffice."""

from __future__ import annotations

import asyncio
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchResponse
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetCommitResponse
from protocol.messages.produce import ProduceResponse
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Response
from storage.log_config import UNLIMITED
from tests.broker.logs.held_flushes import HeldFlushesBroker, outcomes, request, values
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut
from tests.kit.waiting import turns
from tests.kit.wire_requests import fetch, values_in
from tests.storage.support import open_manager


@pytest.mark.parametrize("acks", [1, -1])
def test_nothing_is_acknowledged_or_shown_before_it_is_on_disk(acks: int) -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            wire = await broker.topic("t", flush_messages="1")
            reader = broker.connect()
            waiting = asyncio.create_task(reader.ask(fetch("t", 0, max_wait_ms=60_000), 12))
            producing = broker.produce(request("t", b"a", b"b", acks=acks))
            await turns()
            assert broker.disk.is_flushing
            assert (producing.done(), waiting.done()) == (False, False)
            assert await broker.latest("t") == (ErrorCode.NONE, 0)
            assert await values(wire, "t") == []
            await broker.disk.finish()
            assert outcomes(await producing) == [(ErrorCode.NONE, 0)]
            assert values_in(await waiting) == [b"a", b"b"]
            assert await broker.latest("t") == (ErrorCode.NONE, 2)

    asyncio.run(scenario())


def test_acks_all_is_waited_for_no_longer_than_the_producer_wants() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages="1")
            impatient = request("t", b"a", acks=-1)
            impatient.timeout_ms = 20
            late, patient = broker.produce(impatient), broker.produce(request("t", b"b", acks=1))
            assert outcomes(await late) == [(ErrorCode.REQUEST_TIMED_OUT, 0)]
            assert not patient.done()
            await broker.disk.finish()
            assert outcomes(await patient) == [(ErrorCode.NONE, 1)]
            assert await values(broker.connect(), "t") == [b"a", b"b"], "what was late is there all the same"

    asyncio.run(scenario())


def test_without_a_limit_nothing_waits() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            wire = await broker.topic("t")
            assert outcomes(await broker.produce(request("t", b"a", acks=-1))) == [(ErrorCode.NONE, 0)]
            assert await values(wire, "t") == [b"a"]
            assert broker.disk.rounds == []

    asyncio.run(scenario())


def test_who_comes_during_a_flush_shares_the_next_one() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages="1")
            first = broker.produce(request("t", b"first"))
            await turns()
            others = [broker.produce(request("t", b"%d" % number)) for number in range(20)]
            await turns()
            await broker.disk.finish()
            assert first.done()
            assert not any(other.done() for other in others)
            await broker.disk.finish()
            answers = [outcomes(await other)[0] for other in others]
            assert sorted(answers) == [(ErrorCode.NONE, offset) for offset in range(1, 21)]
            assert broker.disk.rounds == [1, 1]
            assert not broker.disk.is_flushing

    asyncio.run(scenario())


def test_partitions_are_flushed_together() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", partitions=30, flush_messages="1")
            await broker.topic("u", partitions=2, flush_messages="1")
            many = broker.produce(request("t", b"a", partitions=30))
            few = broker.produce(request("u", b"a", partitions=2))
            await turns()
            await broker.disk.finish()
            assert outcomes(await many) == [(ErrorCode.NONE, 0)] * 30
            assert outcomes(await few) == [(ErrorCode.NONE, 0)] * 2
            assert broker.disk.rounds == [32]

    asyncio.run(scenario())


def test_producers_do_not_wait_for_what_nobody_waits_for() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker(log_flush_scheduler_interval_ms="100000") as broker:
            await broker.topic("t", flush_messages="1")
            await broker.topic("huge")
            await broker.produce(request("huge", b"a"))
            huge = broker.log("huge")
            broker.server.serving.logs.replicas.group_commit.request(huge)
            await turns()
            assert broker.disk.is_flushing_of(huge)
            producing = broker.produce(request("t", b"a"))
            await turns()
            await broker.disk.finish(broker.log("t"))
            assert outcomes(await producing) == [(ErrorCode.NONE, 0)]
            assert broker.disk.is_flushing_of(huge)

    asyncio.run(scenario())


def test_a_log_that_is_flushed_in_the_background_is_not_flushed_twice_at_a_time() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages="2")
            await broker.produce(request("t", b"a"))
            log = broker.log("t")
            broker.server.serving.logs.replicas.group_commit.request(log)
            await turns()
            assert broker.disk.is_flushing_of(log)
            producing = broker.produce(request("t", b"b", b"c"))
            await turns()
            assert not producing.done()
            await broker.disk.finish()
            assert not producing.done()
            await broker.disk.finish()
            assert outcomes(await producing) == [(ErrorCode.NONE, 1)]
            assert not broker.disk.is_flushing

    asyncio.run(scenario())


def test_every_third_record_waits_for_a_flush() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            wire = await broker.topic("t", flush_messages="3")
            for offset in range(2):
                assert outcomes(await broker.produce(request("t", b"%d" % offset))) == [(ErrorCode.NONE, offset)]
            assert broker.disk.rounds == []
            third = broker.produce(request("t", b"2"))
            await turns()
            fourth, fifth, sixth = (broker.produce(request("t", b"%d" % offset)) for offset in (3, 4, 5))
            await turns()
            assert await values(wire, "t") == [b"0", b"1"]
            await broker.disk.finish()
            # Three records are on disk now, so two more may be acknowledged without being flushed.
            assert [each.done() for each in (third, fourth, fifth, sixth)] == [True, True, True, False]
            assert await values(wire, "t") == [b"0", b"1", b"2", b"3", b"4"]
            await broker.disk.finish()
            assert outcomes(await sixth) == [(ErrorCode.NONE, 5)]
            assert broker.disk.rounds == [1, 1]

    asyncio.run(scenario())


def test_the_limit_may_change_at_any_time() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t")
            log = broker.log("t")
            await broker.produce(request("t", b"a", b"b"))
            log.config = log.config.replace(flush_messages=1)
            assert await broker.latest("t") == (ErrorCode.NONE, 2), "the high watermark fell"
            waiting = broker.produce(request("t", b"c"))
            await turns()
            assert await broker.latest("t") == (ErrorCode.NONE, 2)
            log.config = log.config.replace(flush_messages=UNLIMITED)
            assert outcomes(await broker.produce(request("t", b"d"))) == [(ErrorCode.NONE, 3)]
            assert await broker.latest("t") == (ErrorCode.NONE, 4)
            assert not waiting.done()
            await broker.disk.finish()
            assert outcomes(await waiting) == [(ErrorCode.NONE, 2)]

    asyncio.run(scenario())


def test_a_failed_flush_is_answered_and_never_tried_again() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker(log_dirs="/data,/other") as broker:
            wire = await broker.topic("t", partitions=2, flush_messages="1")
            logs = broker.server.serving.logs.log_manager.logs  # type: ignore[union-attr]
            bad = logs[TopicPartition("t", 0)].directory.path
            assert logs[TopicPartition("t", 1)].directory.path != bad
            flushes: list[str] = []

            def inject(operation: str, path: str) -> Fault | None:
                if operation != "flush" or "/t-" not in path:
                    return None
                flushes.append(path)
                return Fault(errno.EIO) if path.startswith(f"{bad}/") else None

            broker.disk.held = False
            broker.file_system.inject = inject
            later = [broker.produce(request("t", b"x", partitions=2)) for _ in range(2)]
            first, second = [outcomes(await each) for each in later]
            assert first == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (ErrorCode.NONE, 0)]
            assert second == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (ErrorCode.NONE, 1)]
            assert len([path for path in flushes if path.startswith(bad)]) == 1
            refused = await wire.ask(fetch("t", 0), 12)
            assert isinstance(refused, FetchResponse)
            answered = refused.responses[0].partitions[0]
            assert (answered.error_code, answered.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
            assert outcomes(await broker.produce(request("t", b"y", partitions=2))) == [
                (ErrorCode.KAFKA_STORAGE_ERROR, -1),
                (ErrorCode.NONE, 2),
            ]

    asyncio.run(scenario())


def test_with_acks_0_silence_and_a_flush_or_hanging_up() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker(log_dirs="/data,/other") as broker:
            wire = await broker.topic("t", flush_messages="1")
            wire.send(request("t", b"a", acks=0), 11)
            await turns()
            assert await broker.latest("t") == (ErrorCode.NONE, 0)
            await broker.disk.finish()
            assert await broker.latest("t") == (ErrorCode.NONE, 1)
            broker.disk.held = False
            broker.file_system.inject = lambda operation, path: (
                Fault(errno.EIO) if operation == "flush" and "/t-0/" in path else None
            )
            wire.send(request("t", b"b", acks=0), 11)
            await turns()
            assert wire.is_closed

    asyncio.run(scenario())


def test_a_repeated_batch_waits_for_the_flush_of_the_first() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages="1")
            first = broker.produce(request("t", b"a", sequence=0))
            await turns()
            again = broker.produce(request("t", b"a", sequence=0))
            await turns()
            assert not again.done()
            await broker.disk.finish()
            assert outcomes(await first) == outcomes(await again) == [(ErrorCode.NONE, 0)]
            assert outcomes(await broker.produce(request("t", b"a", sequence=0))) == [(ErrorCode.NONE, 0)]

    asyncio.run(scenario())


def test_what_recovery_found_is_shown_once_it_is_flushed() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages="1")
            acknowledged = broker.produce(request("t", b"a"))
            await turns()
            await broker.disk.finish()
            await acknowledged
            never_answered = broker.produce(request("t", b"b"))
            await turns()
            left = broker.kill()
            never_answered.cancel()
        async with HeldFlushesBroker(left) as broker:
            await turns()
            assert broker.disk.is_flushing
            assert await broker.latest("t") == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
            assert await broker.latest("t", version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            await broker.disk.finish()
            assert await broker.latest("t") == (ErrorCode.NONE, 2)
            assert await values(broker.connect(), "t") == [b"a", b"b"]

    asyncio.run(scenario())


def test_a_deleted_topic_lets_its_producers_go() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages="1")
            producing = [broker.produce(request("t", b"a"))]
            await turns()
            producing.append(broker.produce(request("t", b"b")))
            await turns()
            broker.server.serving.logs.log_manager.delete(TopicPartition("t", 0), broker.clock.ms)  # type: ignore[union-attr]
            await broker.disk.finish()
            assert [outcomes(await each)[0][0] for each in producing] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
            assert await broker.topic("u")  # the directory still works

    asyncio.run(scenario())


def test_offsets_are_committed_as_their_topic_is_flushed() -> None:
    async def scenario() -> None:
        async with HeldFlushesBroker(log_flush_interval_messages="1", offsets_topic_num_partitions="1") as broker:
            wire = await broker.topic("t")
            partition = OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=3, committed_metadata=None
            )
            topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])]
            commit = OffsetCommitRequest(group_id="g", topics=topics)

            async def ask() -> Response:
                return await wire.ask(commit, 8)

            broker.disk.held = False
            await broker.connect().ask(FindCoordinatorRequest(key="g", key_type=0), 2)
            await turns()
            broker.disk.held = True
            committing = asyncio.create_task(ask())
            await turns()
            assert broker.disk.is_flushing
            assert not committing.done()
            await broker.disk.finish()
            answer = await committing
            assert isinstance(answer, OffsetCommitResponse)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            broker.disk.held = False
            broker.file_system.inject = lambda operation, path: (
                Fault(errno.EIO) if operation == "flush" and "/__consumer_offsets-0/" in path else None
            )
            answer = await ask()
            assert isinstance(answer, OffsetCommitResponse)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


def durable_end(disk: MemoryFileSystem) -> int:
    """The end of t-0's log if the power were cut now, in the worst case."""
    left = disk.copy()
    left.cut_power(PowerCut.LOSE, lambda count: 0)
    log = open_manager(left, None, "/data")[0].logs.get(TopicPartition("t", 0))
    return 0 if log is None else log.log_end_offset


@settings(max_examples=40, deadline=None)
@given(limit=st.integers(1, 5), steps=st.lists(st.integers(0, 3), min_size=5, max_size=20))
def test_fewer_records_than_the_limit_are_at_stake(limit: int, steps: list[int]) -> None:
    """Each step is a batch of so many records, or (0) the end of the pending fsync."""

    async def scenario() -> None:
        async with HeldFlushesBroker() as broker:
            await broker.topic("t", flush_messages=str(limit))
            sent = 0
            answers: list[tuple[int, asyncio.Task[ProduceResponse]]] = []
            for records in steps:
                if records:
                    sent += records
                    answers.append((sent, broker.produce(request("t", *[b"x"] * records))))
                    await turns()
                elif broker.disk.is_flushing:
                    await broker.disk.finish()
                at_stake = durable_end(broker.file_system) + limit - 1
                assert max((end for end, answer in answers if answer.done()), default=0) <= at_stake
                assert (await broker.latest("t"))[1] <= at_stake
            while broker.disk.is_flushing:
                await broker.disk.finish()
            assert all(answer.done() for _, answer in answers)
            assert await broker.latest("t") == (ErrorCode.NONE, sent)

    asyncio.run(scenario())
