"""A log directory fails under a broker: its replicas report it, the others work on, and so does the next start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from functools import partial

import pytest

from broker.logs import directory_failures
from broker.logs.directory_failures import DirectoryFailures
from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchResponse
from protocol.messages.groups import HeartbeatRequest
from protocol.messages.metadata import MetadataResponse
from protocol.messages.produce import ProduceResponse
from protocol.topic_partition import TopicPartition
from tests.kit import in_process
from tests.kit.group_requests import commit
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.memory_file_system import Fault
from tests.kit.waiting import eventually_on_loop, turns
from tests.kit.wire_requests import (
    delete_records,
    delete_topics,
    fetch,
    list_offsets,
    metadata,
    new_topic,
    produce,
    values_in,
)
from zookeeper.coordination import ConnectionLossError

A, B = "/a", "/b"
"""The journal of the embedded coordination is in the first."""


play = partial(in_process.play, log_dirs=f"{A},{B}", offsets_topic_num_partitions="1")


def break_disk(broker: InProcessBroker, path: str = B) -> None:
    """Make every write to a directory fail."""
    broker.file_system.inject = lambda operation, at: (
        Fault(errno.EIO) if at.startswith(path) and operation not in {"lock", "exists"} else None
    )


def repair(broker: InProcessBroker) -> None:
    broker.file_system.inject = lambda _operation, _path: None


async def errors(wire: Wire, topic: str) -> tuple[ErrorCode, ErrorCode]:
    """The errors of Produce and Fetch."""
    produced, fetched = await wire.ask(produce(topic, [b"x"]), 11), await wire.ask(fetch(topic, 0), 12)
    assert isinstance(produced, ProduceResponse)
    assert isinstance(fetched, FetchResponse)
    return (
        ErrorCode(produced.responses[0].partition_responses[0].error_code),
        ErrorCode(fetched.responses[0].partitions[0].error_code),
    )


async def leader(wire: Wire, topic: str) -> tuple[int, ErrorCode, list[int]]:
    """Leader, error and offline replicas in Metadata."""
    response = await wire.ask(metadata(topic), 9)
    assert isinstance(response, MetadataResponse)
    partition = response.topics[0].partitions[0]
    return partition.leader_id, ErrorCode(partition.error_code), list(partition.offline_replicas)


BROKEN = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
SOUND = (ErrorCode.NONE, ErrorCode.NONE)


async def begin(broker: InProcessBroker, wire: Wire) -> None:
    """`one` is in the first directory, `two` in the second, which breaks."""
    for topic in ("one", "two"):
        await wire.ask(new_topic(topic), 7)
        await wire.ask(produce(topic, [b"before"]), 11)
    assert broker.file_system.exists(f"{B}/two-0")
    break_disk(broker)
    await wire.ask(produce("two", [b"fails"]), 11)
    await turns()


def test_its_replicas_are_offline_and_the_others_go_on() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await begin(broker, wire)
        assert await errors(wire, "two") == BROKEN
        assert await leader(wire, "two") == (-1, ErrorCode.LEADER_NOT_AVAILABLE, [0])
        assert await errors(wire, "one") == SOUND
        assert await leader(wire, "one") == (0, ErrorCode.NONE, [])
        for number in range(3):
            await wire.ask(new_topic(f"new{number}"), 7)
            assert broker.file_system.exists(f"{A}/new{number}-0")
        assert not broker.server.failed.is_set()
        repair(broker)

    play(scenario)


def test_a_fetch_that_waits_is_told() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        for topic in ("one", "two"):
            await wire.ask(new_topic(topic), 7)
        waiting = asyncio.ensure_future(broker.connect().ask(fetch("two", 0, max_wait_ms=60_000), 12))
        await asyncio.sleep(0)
        break_disk(broker)
        await wire.ask(produce("two", [b"fails"]), 11)
        response = await waiting
        assert isinstance(response, FetchResponse)
        assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        repair(broker)

    play(scenario)


def test_the_next_start_has_it_back() -> None:
    async def after(broker: InProcessBroker, wire: Wire) -> None:
        assert await errors(wire, "two") == SOUND
        assert await leader(wire, "two") == (0, ErrorCode.NONE, [])
        assert values_in(await wire.ask(fetch("two", 0), 12)) == [b"before", b"x"]

    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await begin(broker, wire)
        repair(broker)

    play(scenario, after)


def test_a_start_with_a_directory_that_cannot_be_read() -> None:
    async def before(broker: InProcessBroker, wire: Wire) -> None:
        for topic in ("one", "two"):
            await wire.ask(new_topic(topic), 7)
            await wire.ask(produce(topic, [b"before"]), 11)
        broker.file_system.faults_in_reads = True
        break_disk(broker)

    async def without(broker: InProcessBroker, wire: Wire) -> None:
        await turns()
        assert await errors(wire, "one") == SOUND
        assert await errors(wire, "two") == BROKEN
        assert await leader(wire, "two") == (-1, ErrorCode.LEADER_NOT_AVAILABLE, [0])
        assert not broker.file_system.exists(f"{A}/two-0"), "it is in the other directory"
        broker.file_system.faults_in_reads = False
        repair(broker)

    async def after(broker: InProcessBroker, wire: Wire) -> None:
        assert values_in(await wire.ask(fetch("two", 0), 12)) == [b"before"]

    play(before, without, after)


def test_a_topic_is_deleted_and_made_again_while_its_disk_is_away() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await begin(broker, wire)
        await wire.ask(delete_topics("two"), 5)
        await wire.ask(new_topic("two"), 7)
        assert await errors(wire, "two") == SOUND
        repair(broker)

    async def after(broker: InProcessBroker, wire: Wire) -> None:
        assert values_in(await wire.ask(fetch("two", 0), 12)) == [b"x"]
        names = [info.name for info in broker.file_system.list_dir(B) if info.is_dir]
        assert [name.rpartition("-")[2] for name in names] == ["stray"]

    play(scenario, after)


@pytest.mark.parametrize("calls", [40, 200, 400])
def test_a_disk_that_fails_while_a_topic_is_created(calls: int) -> None:
    """Every new partition has a leader with a log in a live directory; the old ones on that disk are leaderless."""

    def fail_after(broker: InProcessBroker) -> None:
        left = calls

        def inject(operation: str, path: str) -> Fault | None:
            nonlocal left
            if not path.startswith(B) or operation in {"lock", "exists"}:
                return None
            left -= 1
            return Fault(errno.EIO) if left < 0 else None

        broker.file_system.inject = inject

    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("old", partitions=2), 7)
        fail_after(broker)
        await wire.ask(new_topic("t", partitions=300), 7)
        await turns()
        response = await wire.ask(metadata("t"), 9)
        assert isinstance(response, MetadataResponse)
        assert len(response.topics[0].partitions) == 300
        for each in response.topics[0].partitions:
            partition = broker.server.serving.logs.replicas.partition(TopicPartition("t", each.partition_index))
            assert partition.log.directory.path == A
            assert partition.is_leader
            assert (each.leader_id, each.error_code, each.offline_replicas) == (0, ErrorCode.NONE, [])
        assert sorted(
            each.leader for each in broker.server.serving.coordination.metadata.image.topics["old"].partitions
        ) == [-1, 0]
        repair(broker)

    play(scenario)


def test_the_groups_of_a_lost_partition_have_no_coordinator() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("one"), 7)
        await broker.server.serving.member.auto_topics.ensure_internal_topic("__consumer_offsets")
        assert broker.file_system.exists(f"{B}/__consumer_offsets-0")
        await turns()
        answer = await wire.ask(commit("g", [("one", 0, 5)]), 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
        break_disk(broker)
        await wire.ask(commit("g", [("one", 0, 6)]), 8)
        await turns()
        found = await wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE  # type: ignore[attr-defined]
        answer = await wire.ask(commit("g", [("one", 0, 6)]), 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]
        beat = await wire.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
        assert beat.error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]
        repair(broker)

    play(scenario)


def test_without_any_directory_left_the_broker_stops() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await begin(broker, wire)
        assert not broker.server.failed.is_set()
        broker.file_system.inject = lambda operation, path: (
            Fault(errno.EIO) if operation == "append" and "journal" not in path else None
        )
        await wire.ask(produce("one", [b"fails"]), 11)
        await asyncio.wait_for(broker.server.failed.wait(), 30)
        repair(broker)

    play(scenario)


@pytest.mark.parametrize("error", [ConnectionLossError("lost"), KeyError("bug")])
def test_the_controller_is_told_in_the_end(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is reachable again, whatever went wrong before."""
    monkeypatch.setattr(directory_failures, "PAUSE_AFTER_BUG_S", 0.01)

    async def scenario() -> None:
        losses, told = [error] * 2, asyncio.Event()

        async def tell() -> None:
            if losses:
                raise losses.pop()
            told.set()

        failures = DirectoryFailures(asyncio.Event())
        await failures.serve(lambda _path: None, tell)
        failures.replicas_changed()
        await eventually_on_loop("it is told", told.is_set, pause_s=0.01)
        await failures.close()

    asyncio.run(scenario())


SEGMENTS = "two-0"
"""The log with several segments, each of one record; `one` has a log in the same directory."""


async def several_segments(broker: InProcessBroker, wire: Wire) -> None:
    await wire.ask(new_topic("one"), 7)
    await wire.ask(new_topic("two", configs={"segment.bytes": "200"}), 7)
    for topic in ("one", "two"):
        for number in range(4):
            await wire.ask(produce(topic, [b"%d" % number * 60]), 11)
    assert len([each for each in broker.file_system.list_dir(f"{A}/{SEGMENTS}") if each.name.endswith(".log")]) == 4


def remove_files(broker: InProcessBroker, *suffixes: str) -> None:
    """Remove the files of the log that the broker has not read since the start."""
    for each in broker.file_system.list_dir(f"{A}/{SEGMENTS}"):
        if each.name.endswith(suffixes):
            broker.file_system.remove(f"{A}/{SEGMENTS}/{each.name}")


def test_a_segment_that_was_removed_takes_its_log_offline_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        remove_files(broker, "01.log")
        assert await errors(wire, "two") == SOUND, "until it is needed"
        response = await wire.ask(fetch("two", 1), 12)
        assert isinstance(response, FetchResponse)
        assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await turns()
        assert await errors(wire, "two") == BROKEN
        assert await leader(wire, "two") == (-1, ErrorCode.LEADER_NOT_AVAILABLE, [0])
        assert "/a/two-0/00000000000000000001.log" in caplog.text
        assert await errors(wire, "one") == SOUND
        assert not broker.server.failed.is_set()
        # Its name is free again.
        await wire.ask(delete_topics("two"), 5)
        await wire.ask(new_topic("two"), 7)
        assert await errors(wire, "two") == SOUND

    async def after(broker: InProcessBroker, wire: Wire) -> None:
        assert values_in(await wire.ask(fetch("two", 0), 12)) == [b"x"]
        assert await errors(wire, "one") == SOUND

    in_process.play(several_segments, scenario, after, log_dirs=A)


def test_the_next_start_loads_what_is_left_of_a_log() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        remove_files(broker, "01.log")
        await wire.ask(fetch("two", 1), 12)
        await turns()
        assert await errors(wire, "two") == BROKEN

    async def after(broker: InProcessBroker, wire: Wire) -> None:
        assert await errors(wire, "two") == SOUND
        assert await errors(wire, "one") == SOUND

    in_process.play(several_segments, scenario, after, log_dirs=A)


def test_a_file_that_is_missing_while_an_answer_is_sent() -> None:
    """If its log still has the file, the log fails; otherwise the file was deleted, which is fine."""

    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        manager = broker.server.serving.logs.log_manager
        missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
        manager.reading_failed(f"{A}/{SEGMENTS}/{0:020}.log.deleted", missing)
        manager.reading_failed(f"{A}/{SEGMENTS}/{1:020}.log", missing)  # the next file of that name
        await turns()
        assert await errors(wire, "two") == SOUND
        remove_files(broker, "01.log")
        manager.reading_failed(f"{A}/{SEGMENTS}/{1:020}.log", missing)
        await turns()
        assert await errors(wire, "two") == BROKEN
        assert await errors(wire, "one") == SOUND

    in_process.play(several_segments, scenario, log_dirs=A)


@pytest.mark.parametrize(
    ("suffixes", "is_unread", "is_served"),
    [
        ((".index", ".timeindex"), True, True),
        ((".snapshot", "leader-epoch-checkpoint", "partition.metadata"), True, True),
        ((".log",), True, False),
        ((".log",), False, True),
        (("",), True, False),
        (("",), False, False),
    ],
)
def test_removed_files_never_take_the_directory_offline(
    suffixes: tuple[str, ...], is_unread: bool, is_served: bool
) -> None:
    """Holds for every later read, write, roll and lookup. Open files are still served."""

    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        remove_files(broker, *suffixes)
        if "" in suffixes:
            broker.file_system.remove_tree(f"{A}/{SEGMENTS}")
        for number in range(3):  # rolls
            await wire.ask(produce("two", [b"%d" % number * 60]), 11)
        for request, version in ((list_offsets("two", 1), 6), (fetch("two", 2), 12), (delete_records("two", 0), 2)):
            wire = broker.connect() if wire.is_closed else wire
            with contextlib.suppress(ConnectionError):
                await wire.ask(request, version)
        await broker.server.serving.logs.maintenance.flush()
        await turns()
        wire = broker.connect()
        assert await errors(wire, "one") == SOUND
        assert all(each.failure is None for each in broker.server.serving.logs.log_manager.directories)
        if is_served:
            assert await errors(wire, "two") == SOUND
        else:
            assert ErrorCode.KAFKA_STORAGE_ERROR in await errors(wire, "two")

    async def before_and_now(broker: InProcessBroker, wire: Wire) -> None:
        await several_segments(broker, wire)
        await scenario(broker, wire)

    in_process.play(*((several_segments, scenario) if is_unread else (before_and_now,)), log_dirs=A)
