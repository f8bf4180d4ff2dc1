"""The logs' upkeep waits for the disk on other threads, and a stop waits for the upkeep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping

import pytest

from broker.group_commit import GroupCommit
from broker.log_upkeep import LOGS_PER_SLICE, LogUpkeep
from broker.supervisor import Supervisor
from broker.system import ThreadExecutor
from protocol.topic_partition import TopicPartition
from storage.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.memory_file_system import Fault, MemoryFileSystem
from tests.broker.seams import ManualClock
from tests.storage.support import DIR, TP, append, open_manager

LONG_MS = 3_600_000
WAITING = {"flush", "sync_file", "sync_dir", "remove", "remove_dir"}
"""Calls that wait for the disk, where others are done when the kernel has the bytes."""


class Disk(MemoryFileSystem):
    """Notes which calls of WAITING held up the event loop's thread; each call on another one waits for `free`."""

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


class Rig:
    """Logs on a watched disk, and their upkeep."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.clock = ManualClock()
        self.executor = ThreadExecutor(2)
        self.logs: LogManager = open_manager(self.disk, LogConfig(segment_bytes=200, file_delete_delay_ms=10))[0]
        self.group_commit = GroupCommit(self.executor, self.clock, lambda log: None)
        self.upkeep = LogUpkeep(self.logs, lambda: {TP: 2}, self.clock, self.executor, self.group_commit)
        self.log = self.logs.get_or_create(TP, None, self.logs.default_config, self.clock.ms)

    def checkpoint(self, name: str) -> dict[TopicPartition, int]:
        return read_offset_checkpoint(self.disk, f"{DIR}/{name}")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.executor.close()


def test_no_round_waits_for_the_disk_on_the_event_loop(rig: Rig) -> None:
    async def scenario() -> None:
        for value in (b"a" * 90, b"b" * 90, b"c" * 90):
            append(rig.log, value)
        rig.log.delete_records_before(2, 3)
        gone = rig.logs.get_or_create(TopicPartition("other", 0), None, rig.logs.default_config, rig.clock.ms)
        rig.logs.delete(gone.topic_partition, rig.clock.ms)
        rig.disk.watch()
        await rig.upkeep.delete_old_segments()
        await rig.upkeep.delete_files()  # sees them for the first time
        rig.clock.ms += 11
        await rig.upkeep.delete_files()
        await rig.upkeep.flush()
        await rig.group_commit.idle()
        await rig.upkeep.checkpoint_recovery_points()
        await rig.upkeep.checkpoint_log_start_offsets()
        await rig.upkeep.checkpoint_high_watermarks()
        assert rig.disk.on_the_loop == []
        assert rig.checkpoint("recovery-point-offset-checkpoint")[TP] == 2
        assert rig.checkpoint("log-start-offset-checkpoint") == {TP: 2}
        assert rig.checkpoint("replication-offset-checkpoint") == {TP: 2}
        left = [info.name for info in rig.disk.list_dir(DIR) if info.is_dir]
        assert left == ["t-0"]
        assert not [info.name for info in rig.disk.list_dir(f"{DIR}/t-0") if info.name.endswith(".deleted")]

    asyncio.run(scenario())


def test_rounds_over_many_logs_leave_the_event_loop_its_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 10 * LOGS_PER_SLICE
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def formatted(offsets: Mapping[TopicPartition, int]) -> bytes:
        assert threading.get_ident() != rig.disk.loop_thread, "the text of a checkpoint is made on the event loop"
        return format_offset_checkpoint(offsets)

    monkeypatch.setattr("storage.log_checkpoints.format_offset_checkpoint", formatted)

    async def scenario() -> None:
        nonlocal turns
        logs = [
            rig.logs.get_or_create(TopicPartition("many", number), None, rig.logs.default_config, rig.clock.ms)
            for number in range(many)
        ]
        for log in logs:
            append(log, b"v", producer_id=1, producer_epoch=0, base_sequence=0, timestamps=[rig.clock.ms])
        rig.clock.ms += rig.logs.producer_id_expiration_ms
        upkeep = LogUpkeep(rig.logs, lambda: dict.fromkeys(rig.logs.logs, 1), rig.clock, rig.executor, rig.group_commit)
        counting = asyncio.ensure_future(count_turns())
        for round_ in (upkeep.delete_old_segments, upkeep.expire_producers):
            turns = 0
            await round_()
            assert turns >= many // LOGS_PER_SLICE
        assert not any(log.producer_state.entries for log in logs)
        await upkeep.checkpoint_high_watermarks()
        await upkeep.checkpoint_recovery_points()
        counting.cancel()
        assert rig.checkpoint("replication-offset-checkpoint") == dict.fromkeys(rig.logs.logs, 1)

    asyncio.run(scenario())


def test_a_stop_waits_for_the_round_that_runs_and_begins_no_other(rig: Rig) -> None:
    async def scenario() -> None:
        append(rig.log, b"a")
        supervisor = Supervisor()
        rig.disk.watch()
        rig.disk.free.clear()
        supervisor.every(LONG_MS, "round", rig.upkeep.checkpoint_high_watermarks, initial_delay_ms=0)
        supervisor.every(LONG_MS, "sleeping", rig.upkeep.checkpoint_recovery_points)
        assert await asyncio.to_thread(rig.disk.reached.wait, 60)
        stopping = asyncio.create_task(supervisor.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.05)
        assert not done, "the stop did not wait for a thread that writes a checkpoint"
        rig.disk.free.set()
        await asyncio.wait_for(stopping, 60)
        assert rig.checkpoint("replication-offset-checkpoint") == {TP: 2}
        assert TP not in rig.checkpoint("recovery-point-offset-checkpoint"), "that is as it was at the start"

    asyncio.run(scenario())
