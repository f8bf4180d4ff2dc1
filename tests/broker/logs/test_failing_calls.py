"""Any single call to a disk fails under a broker: clients get Kafka's error codes.

A connection is closed only where the records that a reply promises cannot be read any more. UNKNOWN_SERVER_ERROR would
be the wrong code: producers take it for final, and applications resend records that may have been written.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.log_dirs import DescribeLogDirsRequest
from protocol.messages.offsets import OffsetForLeaderEpochRequest
from protocol.messages.topics import CreateTopicsRequest
from protocol.wire.schema import Request, Struct
from tests.kit.in_process import InProcessBroker
from tests.kit.memory_file_system import Fault
from tests.kit.wire_requests import delete_records, delete_topics, fetch, list_offsets, new_topic, produce, values_in

A, B = "/a", "/b"
"""The first has the journal of the embedded coordination; the failing calls are in the second."""
CONFIGS = {"segment.bytes": "300", "index.interval.bytes": "1", "flush.messages": "1"}
LARGEST_TIMESTAMP = -3
NEVER_FAIL = {"exists", "disk_space"}
"""`os.path.exists` returns False when it cannot tell. The second is only used for `disk_space`, which is not under
test.
"""
MAY_SAY = {
    ErrorCode.NONE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.OFFSET_OUT_OF_RANGE,  # for deleted records
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


def created(topic: str) -> CreateTopicsRequest:
    return new_topic(topic, configs=CONFIGS)


def epoch_end(topic: str) -> OffsetForLeaderEpochRequest:
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    named = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[wanted])
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[named])


def requests(topic: str) -> Iterator[tuple[Request, int]]:
    """Requests for a topic over its life, before and after the broker's maintenance rounds."""
    for number in range(6):
        yield produce(topic, [b"%d" % number, b"and a value that is longer"]), 11
    yield fetch(topic, 0), 12
    for timestamp in (-2, -1, LARGEST_TIMESTAMP, 1_600_000_000_000, 1_800_000_000_000):
        yield list_offsets(topic, timestamp), 7
    yield epoch_end(topic), 4
    yield delete_records(topic, 5), 2
    yield DescribeLogDirsRequest(topics=None), 4


def codes_in(answer: Any) -> Iterator[ErrorCode]:
    """Every error code of a response."""
    if isinstance(answer, Struct):
        for name in answer.declared_fields:
            value = getattr(answer, name)
            if name == "error_code":
                yield ErrorCode(value)
            else:
                yield from codes_in(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from codes_in(each)


async def live(number: int, *, code: int, forever: bool) -> bool:
    """Run a broker whose disk fails at call `number` to the second directory, and with `forever` at all later ones;
    returns whether it made that many calls.
    """
    broker = InProcessBroker(log_dirs=f"{A},{B}", log_segment_delete_delay_ms="0")
    broker.file_system.faults_in_reads = code == errno.EIO
    calls = 0
    failing: list[str] = []

    def inject(operation: str, path: str) -> Fault | None:
        nonlocal calls
        if not path.startswith(B) or operation in NEVER_FAIL:
            return None
        calls += 1
        if calls != number and not (forever and calls > number):
            return None
        failing.append(operation)
        return Fault(code)

    async with broker:
        wire = broker.connect()
        await wire.ask(new_topic("one"), 7)
        broker.file_system.inject = inject

        async def ask(request: Request, version: int) -> None:
            nonlocal wire
            try:
                seen = set(codes_in(await wire.ask(request, version)))
            except ConnectionError:
                assert isinstance(request, FetchRequest)
                assert failing[-1] in {"pread", "try_pread"}
                wire = broker.connect()
                return
            assert seen <= MAY_SAY, f"{type(request).__name__} with a failing call {number}: {seen}"

        await ask(created("two"), 7)
        maintenance = broker.server.serving.logs.maintenance
        for _ in range(2):
            for request, version in requests("two"):
                await ask(request, version)
            broker.clock.ms += 1000
            for work in (maintenance.flush, maintenance.delete_old_segments, maintenance.delete_files):
                await work()
            for work in (maintenance.checkpoint_recovery_points, maintenance.checkpoint_high_watermarks):
                await work()
        deletion = delete_topics("two")
        await ask(deletion, 5)
        assert set(codes_in(await wire.ask(produce("one", [b"x"]), 11))) == {ErrorCode.NONE}
        assert not broker.server.failed.is_set()
        broker.file_system.inject = lambda _operation, _path: None
    return calls >= number


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_clients_are_told_in_kafkas_words(
    step: int, code: int, forever: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in itertools.count(1, step):
            if not asyncio.run(live(number, code=code, forever=forever)):
                break
            raised = [record.getMessage() for record in caplog.records if record.exc_info]
            assert raised == [], f"call {number}"
            caplog.clear()
    assert number > 60


@pytest.mark.parametrize("waits", [False, True])
def test_a_reply_whose_records_cannot_be_read_ends_the_connection_and_the_disk_is_offline(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """This includes a delayed Fetch, whose errors have no caller to catch them."""

    async def scenario() -> None:
        async with InProcessBroker(log_dirs=f"{A},{B}") as broker:
            wire, other = broker.connect(), broker.connect()
            for topic in ("one", "t"):
                await wire.ask(new_topic(topic), 7)
            if not waits:
                await wire.ask(produce("t", [b"x"]), 11)
            broker.file_system.faults_in_reads = True
            broker.file_system.inject = lambda operation, path: (
                Fault(errno.EIO) if operation in {"pread", "try_pread"} and path.endswith(".log") else None
            )
            asked = asyncio.ensure_future(wire.ask(fetch("t", 0, max_wait_ms=60_000), 12))
            await asyncio.sleep(0)
            if waits:
                await other.ask(produce("t", [b"x"]), 11)
            with pytest.raises(ConnectionError, match="hung up"):
                await asked
            broker.file_system.faults_in_reads = False
            assert list(codes_in(await other.ask(fetch("t", 0), 12)))[-1] is ErrorCode.KAFKA_STORAGE_ERROR
            await other.ask(produce("one", [b"goes on"]), 11)
            assert values_in(await other.ask(fetch("one", 0), 12)) == [b"goes on"]

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 2
    assert "bytes of /b/t-0/00000000000000000000.log at 0 could not be read" in said[0]
    assert "Stopping serving logs in dir /b: Exception while reading from /b/t-0/00000000000000000000.log" in said[1]
