"""Replicas move between log directories during writes and reads, and resume after a restart."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from functools import partial

import pytest

from broker.replication import replica_alter_log_dirs
from protocol.errors import ErrorCode
from protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from protocol.messages.produce import ProduceResponse
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import HIGH_WATERMARK_CHECKPOINT, read_offset_checkpoint
from storage.relocation.future_logs import FutureLogs
from tests.kit import in_process
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.memory_file_system import Fault
from tests.kit.waiting import eventually_on_loop
from tests.kit.wire_requests import delete_records, delete_topics, fetch, new_topic, produce, values_in

A, B, C = "/a", "/b", "/c"
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_alter_log_dirs, "STEP_BYTES", 1000)
    monkeypatch.setattr(replica_alter_log_dirs, "RETRY_S", 0.01)


play = partial(in_process.play, log_dirs=f"{A},{B},{C}")


async def alter(wire: Wire, path: str, *partitions: tuple[str, int]) -> list[tuple[str, int, ErrorCode]]:
    topics = [
        AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=name, partitions=[index]) for name, index in partitions
    ]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=topics)])
    response = await wire.ask(request, 2)
    assert isinstance(response, AlterReplicaLogDirsResponse)
    return [
        (topic.topic_name, each.partition_index, ErrorCode(each.error_code))
        for topic in response.results
        for each in topic.partitions
    ]


async def described(wire: Wire) -> dict[str, list[tuple[str, int, bool]]]:
    """By directory: (partition, offset lag, is future), or the error."""
    response = await wire.ask(DescribeLogDirsRequest(topics=None), 4)
    assert isinstance(response, DescribeLogDirsResponse)
    return {
        result.log_dir: [
            (f"{topic.name}-{each.partition_index}", each.offset_lag, each.is_future_key)
            for topic in result.topics
            for each in topic.partitions
        ]
        if result.error_code == ErrorCode.NONE
        else [(ErrorCode(result.error_code).name, 0, False)]
        for result in response.results
    }


def directories(broker: InProcessBroker, path: str) -> list[str]:
    return sorted(info.name for info in broker.file_system.list_dir(path) if info.is_dir)


def is_at(broker: InProcessBroker, path: str, name: str = "t-0") -> Callable[[], bool]:
    return lambda: (
        name in directories(broker, path)
        and not any(
            each.endswith("-future") or (each == name and directory != path)
            for directory in (A, B, C)
            for each in directories(broker, directory)
        )
    )


def test_a_replica_moves_while_it_is_written_and_read() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        sent = []
        for number in range(100):
            sent.append(b"%d" % number)
            await wire.ask(produce("t", [sent[-1]]), 11)
        assert await alter(wire, B, ("t", 0)) == [("t", 0, ErrorCode.NONE)]
        arrived = is_at(broker, B)
        number = 100
        while not arrived() or number < 150:
            sent.append(b"%d" % number)
            response = await wire.ask(produce("t", [sent[-1]]), 11)
            assert isinstance(response, ProduceResponse)
            assert response.responses[0].partition_responses[0].base_offset == number
            number += 1
            await asyncio.sleep(0)  # an immediate answer gives no one else a turn
        await wire.ask(produce("t", [b"last"]), 11)
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [*sent, b"last"]
        assert (await described(wire))[B] == [("t-0", 0, False)]
        (left,) = directories(broker, A)
        assert re.fullmatch(r"t-0\.[0-9a-f]{32}-delete", left)

    play(scenario)


def test_the_new_directory_knows_the_high_watermark_before_the_old_log_goes() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        for number in range(5):
            await wire.ask(produce("t", [b"%d" % number]), 11)
        known = []

        def watch(operation: str, path: str) -> None:
            if operation == "rename" and path == f"{A}/t-0":
                known.append(read_offset_checkpoint(broker.file_system, f"{B}/{HIGH_WATERMARK_CHECKPOINT}"))

        broker.file_system.inject = watch
        await alter(wire, B, ("t", 0))
        await eventually_on_loop("the move", is_at(broker, B))
        assert [offsets[TopicPartition("t", 0)] for offsets in known] == [5]

    play(scenario)


def test_a_fetch_that_waits_is_answered_by_the_moved_replica() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        await wire.ask(produce("t", [b"a"]), 11)
        waiting = asyncio.ensure_future(broker.connect().ask(fetch("t", 1, max_wait_ms=60_000), 12))
        await asyncio.sleep(0)
        await alter(wire, B, ("t", 0))
        await eventually_on_loop("the move", is_at(broker, B))
        assert not waiting.done()
        await wire.ask(produce("t", [b"b"]), 11)
        assert values_in(await waiting) == [b"b"]

    play(scenario)


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_acknowledged_with_flush_messages(flush_messages: str) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        for number in range(40):
            response = await wire.ask(produce("t", [b"%d" % number], acks=-1), 11)
            assert isinstance(response, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            if number == 10:
                await alter(wire, B, ("t", 0))
            await asyncio.sleep(0)
        await eventually_on_loop("the move", is_at(broker, B))
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"%d" % number for number in range(40)]

    play(scenario, log_flush_interval_messages=flush_messages)


def test_a_future_replica_is_described() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        for number in range(20):
            await wire.ask(produce("t", [b"%d" % number * 100]), 11)
        broker.file_system.inject = lambda operation, path: (
            Fault(errno.ENOSPC) if operation == "append" and path.startswith(B) else None
        )
        await alter(wire, B, ("t", 0))
        found = await described(wire)
        assert found == {A: [("t-0", 0, False)], B: [("t-0", 20, True)], C: []}
        broker.file_system.inject = lambda _operation, _path: None
        await eventually_on_loop("the move", is_at(broker, B))
        assert await described(wire) == {A: [], B: [("t-0", 0, False)], C: []}

    play(scenario)


def test_what_can_be_asked_for() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t", 2), 7)
        assert await alter(wire, "/elsewhere", ("t", 0)) == [("t", 0, ErrorCode.LOG_DIR_NOT_FOUND)]
        assert await alter(wire, A, ("t", 0)) == [("t", 0, ErrorCode.NONE)]
        assert await alter(wire, B, ("n" * 230, 0)) == [("n" * 230, 0, ErrorCode.INVALID_TOPIC_EXCEPTION)]
        assert directories(broker, A) == ["t-0"]
        assert directories(broker, B) == ["t-1"]

    play(scenario)


def test_a_replica_that_is_not_here_yet_is_made_where_it_was_wanted() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        ((_, _, error),) = await alter(wire, C, ("t", 0))
        assert error in {ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await wire.ask(new_topic("t"), 7)
        assert directories(broker, C) == ["t-0"]

    play(scenario)


def hold(broker: InProcessBroker, *paths: str) -> None:
    """Stop the progress of future logs in `paths`."""
    broker.file_system.inject = lambda operation, path: (
        Fault(errno.ENOSPC) if operation == "append" and path.startswith(paths) else None
    )


def test_a_second_request_replaces_the_first_and_one_to_where_it_is_cancels() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        for number in range(20):
            await wire.ask(produce("t", [b"%d" % number]), 11)
        hold(broker, B, C)
        await alter(wire, B, ("t", 0))
        await alter(wire, C, ("t", 0))
        found = await described(wire)
        assert (found[B], found[C]) == ([], [("t-0", 20, True)])
        assert directories(broker, B)[0].endswith("-delete")
        await alter(wire, A, ("t", 0))
        assert await described(wire) == {A: [("t-0", 0, False)], B: [], C: []}
        broker.file_system.inject = lambda _operation, _path: None
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"%d" % number for number in range(20)]

    play(scenario)


def test_the_topic_is_deleted_during_a_move() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        await wire.ask(produce("t", [b"a"]), 11)
        hold(broker, B)
        await alter(wire, B, ("t", 0))
        await wire.ask(delete_topics("t"), 5)
        assert all(name.endswith("-delete") for path in (A, B) for name in directories(broker, path))
        broker.file_system.inject = lambda _operation, _path: None
        await wire.ask(new_topic("t"), 7)
        assert values_in(await wire.ask(fetch("t", 0), 12)) == []

    play(scenario)


def test_records_are_deleted_during_a_move() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        for number in range(20):
            await wire.ask(produce("t", [b"%d" % number]), 11)
        hold(broker, B)
        await alter(wire, B, ("t", 0))
        await wire.ask(delete_records("t", 15), 2)
        broker.file_system.inject = lambda _operation, _path: None
        await eventually_on_loop("the move", is_at(broker, B))
        assert values_in(await wire.ask(fetch("t", 15), 12)) == [b"%d" % number for number in range(15, 20)]

    play(scenario)


@pytest.mark.parametrize("clean", [True, False])
def test_a_move_goes_on_after_a_start(clean: bool) -> None:
    async def scenario() -> None:
        first = InProcessBroker(log_dirs=f"{A},{B},{C}")
        await first.__aenter__()
        wire = first.connect()
        moves = first.server.serving.logs.moves
        await wire.ask(new_topic("t"), 7)
        for number in range(50):
            await wire.ask(produce("t", [b"%d" % number]), 11)
        hold(first, B)
        await alter(wire, B, ("t", 0))
        await moves.close()
        first.file_system.inject = lambda _operation, _path: None
        if clean:
            await first.__aexit__()
        else:
            await first.server.abandon()
            first.file_system.kill_process()
        second = InProcessBroker(log_dirs=f"{A},{B},{C}")
        second.file_system = first.file_system
        async with second:
            await eventually_on_loop("the move", is_at(second, B))
            wire = second.connect()
            assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"%d" % number for number in range(50)]

    asyncio.run(scenario())


def test_the_target_fails_during_a_move() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        for number in range(20):
            await wire.ask(produce("t", [b"%d" % number]), 11)
        broker.file_system.inject = lambda operation, path: (
            Fault(errno.EIO) if operation == "append" and path.startswith(B) else None
        )
        await alter(wire, B, ("t", 0))
        moves = broker.server.serving.logs.moves
        await eventually_on_loop("the end of the move", lambda: not moves._moves)
        broker.file_system.inject = lambda _operation, _path: None
        await wire.ask(produce("t", [b"more"]), 11)
        assert values_in(await wire.ask(fetch("t", 20), 12)) == [b"more"]
        found = await described(wire)
        assert found == {A: [("t-0", 0, False)], B: [("KAFKA_STORAGE_ERROR", 0, False)], C: []}
        assert await alter(wire, B, ("t", 0)) == [("t", 0, ErrorCode.KAFKA_STORAGE_ERROR)]

    play(scenario)


def test_a_move_that_cannot_be_given_up_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        for name in ("t", "u"):
            await wire.ask(new_topic(name), 7)
            for _ in range(20):
                await wire.ask(produce(name, [b"v" * 1000]), 11)
        monkeypatch.setattr(FutureLogs, "drop", {}.__getitem__)
        broker.file_system.inject = lambda operation, path: (
            Fault(errno.EIO) if operation == "append" and path.startswith(C) else None
        )
        await alter(wire, C, ("t", 0))
        await alter(wire, A, ("u", 0))
        await eventually_on_loop("the other one arrives", lambda: directories(broker, A) == ["t-0", "u-0"])

    play(scenario)


def test_the_next_move_is_asked_for_before_the_old_log_is_gone() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        await wire.ask(produce("t", [b"a"]), 11)
        for path in (B, A, C, A):
            await alter(wire, path, ("t", 0))
            await eventually_on_loop("the end of the move", lambda path=path: "t-0" in directories(broker, path))  # type: ignore[misc]
            assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"a"]
        await eventually_on_loop("the move", is_at(broker, A))

    play(scenario)
