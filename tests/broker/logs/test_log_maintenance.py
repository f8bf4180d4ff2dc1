"""Log maintenance waits for the disk on other threads, and a shutdown waits for the maintenance."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from broker.logs.group_commit import GroupCommit
from broker.logs.log_maintenance import LogMaintenance
from broker.supervisor import Supervisor
from environment.system import ThreadExecutor
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.environment import CountedSlices, ManualClock
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.support import DIR, TP, append, open_manager

LONG_MS = 3_600_000
WAITING = {"flush", "sync_file", "sync_dir", "remove", "remove_dir"}
"""Calls that wait for the disk; the others are done when the kernel has the bytes."""


class Disk(MemoryFileSystem):
    """Records the calls of WAITING made on the event loop's thread; a call on any other thread waits for `free`."""

    def __init__(self) -> None:
        super().__init__()
        self.loop_thread = threading.get_ident()
        self.on_the_loop: list[str] = []
        self.reached = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def watch(self) -> None:
        self.inject = self._note

    def _note(self, operation: str, path: str) -> Fault | None:
        if threading.get_ident() == self.loop_thread:
            if operation in WAITING:
                self.on_the_loop.append(f"{operation} {path}")
        else:
            self.reached.set()
            assert self.free.wait(60)
        return None


class Fixture:
    """Logs on a watched disk, and their maintenance."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.clock: ManualClock = ManualClock()
        self.executor = ThreadExecutor(2)
        self.logs: LogManager = open_manager(self.disk, LogConfig(segment_bytes=200, file_delete_delay_ms=10))[0]
        self.group_commit = GroupCommit(self.executor, self.clock, lambda log: None, lambda log, error: None)
        self.moved: list[tuple[UnifiedLog, str]] = []
        self.maintenance = self.maintenance_of(lambda: {TP: 2})
        self.log = self.logs.get_or_create(TP, None, self.logs.default_config, self.clock.ms)

    def maintenance_of(self, high_watermarks: Callable[[], Mapping[TopicPartition, int]]) -> LogMaintenance:
        return LogMaintenance(
            self.logs,
            high_watermarks,
            self.clock,
            self.executor,
            self.group_commit,
            lambda log, cause: self.moved.append((log, cause)),
        )

    def checkpoint(self, name: str) -> dict[TopicPartition, int]:
        return read_offset_checkpoint(self.disk, f"{DIR}/{name}")


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    made = Fixture()
    yield made
    made.executor.close()


def test_no_round_waits_for_the_disk_on_the_event_loop(fixture: Fixture) -> None:
    async def scenario() -> None:
        for value in (b"a" * 90, b"b" * 90, b"c" * 90):
            append(fixture.log, value)
        fixture.log.delete_records_before(2, 3)
        gone = fixture.logs.get_or_create(
            TopicPartition("other", 0), None, fixture.logs.default_config, fixture.clock.ms
        )
        fixture.logs.delete(gone.topic_partition, fixture.clock.ms)
        fixture.disk.watch()
        await fixture.maintenance.delete_old_segments()
        await fixture.maintenance.delete_files()  # notices them for the first time
        fixture.clock.ms += 11
        await fixture.maintenance.delete_files()
        await fixture.maintenance.flush()
        await fixture.group_commit.idle()
        await fixture.maintenance.checkpoint_recovery_points()
        await fixture.maintenance.checkpoint_log_start_offsets()
        await fixture.maintenance.checkpoint_high_watermarks()
        assert fixture.disk.on_the_loop == []
        assert fixture.checkpoint("recovery-point-offset-checkpoint")[TP] == 2
        assert fixture.checkpoint("log-start-offset-checkpoint") == {TP: 2}
        assert fixture.checkpoint("replication-offset-checkpoint") == {TP: 2}
        left = [info.name for info in fixture.disk.list_dir(DIR) if info.is_dir]
        assert left == ["t-0"]
        assert not [info.name for info in fixture.disk.list_dir(f"{DIR}/t-0") if info.name.endswith(".deleted")]

    asyncio.run(scenario())


def test_rounds_over_many_logs_leave_the_event_loop_its_turns(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 200
    fixture.clock = CountedSlices(20)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def formatted(offsets: Mapping[TopicPartition, int]) -> bytes:
        assert threading.get_ident() != fixture.disk.loop_thread, "the text of a checkpoint is made on the event loop"
        return format_offset_checkpoint(offsets)

    monkeypatch.setattr("storage.directory.checkpoints.format_offset_checkpoint", formatted)

    async def scenario() -> None:
        nonlocal turns
        logs = [
            fixture.logs.get_or_create(
                TopicPartition("many", number), None, fixture.logs.default_config, fixture.clock.ms
            )
            for number in range(many)
        ]
        for log in logs:
            append(log, b"v", producer_id=1, producer_epoch=0, base_sequence=0, timestamps=[fixture.clock.ms])
        fixture.clock.ms += fixture.logs.producer_id_expiration_ms
        maintenance = fixture.maintenance_of(lambda: dict.fromkeys(fixture.logs.logs, 1))
        counting = asyncio.ensure_future(count_turns())
        for round_ in (maintenance.delete_old_segments, maintenance.expire_producers):
            turns = 0
            await round_()
            assert turns >= many // 20 - 1, "no pause follows the last slice"
        assert not any(log.producer_state.entries for log in logs)
        await maintenance.checkpoint_high_watermarks()
        await maintenance.checkpoint_recovery_points()
        counting.cancel()
        assert fixture.checkpoint("replication-offset-checkpoint") == dict.fromkeys(fixture.logs.logs, 1)

    asyncio.run(scenario())


def test_a_stop_waits_for_the_round_that_runs_and_begins_no_other(fixture: Fixture) -> None:
    async def scenario() -> None:
        append(fixture.log, b"a")
        supervisor = Supervisor()
        fixture.disk.watch()
        fixture.disk.free.clear()
        supervisor.every(LONG_MS, "round", fixture.maintenance.checkpoint_high_watermarks, initial_delay_ms=0)
        supervisor.every(LONG_MS, "sleeping", fixture.maintenance.checkpoint_recovery_points)
        assert await asyncio.to_thread(fixture.disk.reached.wait, 60)
        stopping = asyncio.create_task(supervisor.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.05)
        assert not done, "the stop did not wait for a thread that writes a checkpoint"
        fixture.disk.free.set()
        await asyncio.wait_for(stopping, 60)
        assert fixture.checkpoint("replication-offset-checkpoint") == {TP: 2}
        assert TP not in fixture.checkpoint("recovery-point-offset-checkpoint"), "that is as it was at the start"

    asyncio.run(scenario())
