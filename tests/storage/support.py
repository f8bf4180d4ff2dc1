"""Helpers for the storage tests: logs and batches."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import ApiError
from protocol.records.batch import Record, RecordBatch, build_batch, read_batches
from protocol.topic_partition import TopicPartition
from storage.io.file_system import FileSystem
from storage.log.log_appender import LogAppendInfo
from storage.log.log_flush import run_together
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.log_directory_survey import LoadReport
from tests.kit.environment import uuid_of
from tests.kit.memory_file_system import Fault, MemoryFileSystem

TP = TopicPartition("t", 0)
TOPIC_ID = uuid_of(0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
DIR = "/logs"
T0 = 1_700_000_000_000


def batch_of(
    *values: bytes | None,
    timestamps: Sequence[int] | None = None,
    key: bytes | None = b"k",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    **options: object,
) -> memoryview:
    """A writable batch as a client sends it, one record per value."""
    times = timestamps or [T0] * len(values)
    records = [Record(0, at, key, value) for at, value in zip(times, values, strict=True)]
    return memoryview(
        bytearray(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                **options,  # type: ignore[arg-type]
            )
        )
    )


def batches_at(*batches: tuple[int, memoryview], epoch: int = 1) -> memoryview:
    """Batches as a leader sends them to a follower, with their offsets."""
    joined = bytearray()
    for offset, data in batches:
        one = bytearray(data)
        one[0:8] = offset.to_bytes(8, "big")
        one[12:16] = epoch.to_bytes(4, "big")
        joined += one
    return memoryview(joined)


def open_manager(
    file_system: FileSystem, config: LogConfig | None = None, *directories: str, now_ms: int = T0
) -> tuple[LogManager, LoadReport]:
    """A manager with locked and loaded directories."""
    manager = LogManager(file_system, directories or (DIR,), config or LogConfig())
    manager.directories.lock()
    configs = dict.fromkeys(("t", "other"), manager.default_config)
    return manager, load_logs(manager, now_ms, configs)


def load_logs(manager: LogManager, now_ms: int, topic_configs: Mapping[str, LogConfig] | None = None) -> LoadReport:
    """Open every log in every directory, on this thread."""
    loads = manager.begin_load(now_ms, topic_configs)
    for each in loads:
        each.work()
    return manager.complete_load(loads)


def close_cleanly(manager: LogManager, broker_epoch: int = -1) -> None:
    """Close every log, waiting for the disk on this thread."""
    tasks = manager.begin_close(manager.logs_to_close())
    run_together(tasks)
    manager.complete_close(tasks, broker_epoch)


def new_log(config: LogConfig | None = None, file_system: FileSystem | None = None) -> UnifiedLog:
    """A new empty log."""
    manager, _ = open_manager(MemoryFileSystem() if file_system is None else file_system, config)
    return manager.get_or_create(TP, TOPIC_ID, manager.default_config, T0)


def reopen(file_system: MemoryFileSystem, config: LogConfig | None = None) -> UnifiedLog:
    """The log as the next process finds it; deleted files that were still open are gone."""
    file_system.kill_process()
    manager, report = open_manager(file_system, config)
    assert not report.refused, report.refused
    return manager.logs[TP]


def flush_dirty(manager: LogManager, now_ms: int) -> None:
    """Execute the due flushes. A directory that fails goes offline."""
    tasks = [log.prepare_flush(now_ms, offset) for log, offset in manager.due_flushes(now_ms)]
    run_together(tasks)
    for task in tasks:
        with contextlib.suppress(ApiError):
            task.complete()


def delete_expired(manager: LogManager, now_ms: int) -> int:
    """Remove the files whose delay has expired; returns how many deletions are left."""
    for task in manager.directories.expired_deletions(now_ms):
        task.run()
        task.complete()
    return sum(len(directory.deferred_deletions) for directory in manager.directories)


def checkpoint_high_watermarks(manager: LogManager, high_watermarks: Mapping[TopicPartition, int]) -> None:
    """Write the high watermarks; those of other logs keep their loaded values."""
    for task in manager.checkpoints.high_watermark_tasks(high_watermarks):
        task.run()
        task.complete()


def delete_old_segments(manager: LogManager, now_ms: int, high_watermark: int | None = None) -> list[str]:
    """A round of retention over all logs, like the broker's; returns the reasons. The high watermark defaults to the
    log end.
    """
    reasons: list[str] = []
    for log in manager.online_logs():
        expiry = log.expire_segments(now_ms, log.log_end_offset if high_watermark is None else high_watermark)
        reasons += expiry.reasons
    manager.checkpoints.write_log_start_offsets()
    for log in manager.online_logs():
        log.delete_old_segments()
    return reasons


def append(
    log: UnifiedLog, *values: bytes | None, epoch: int = 0, now_ms: int = T0, **options: object
) -> LogAppendInfo:
    """Append one batch of `values` as the leader."""
    return log.append_as_leader(batch_of(*values, **options), leader_epoch=epoch, now_ms=now_ms)  # type: ignore[arg-type]


def read_all(log: UnifiedLog, offset: int | None = None, max_bytes: int = 1 << 20) -> list[RecordBatch]:
    """All batches from `offset` (default: the log start), fetched as a consumer does."""
    at = log.log_start_offset if offset is None else offset
    found: list[RecordBatch] = []
    while at < log.log_end_offset:
        info = log.read(at, max_bytes)
        if info.file is None:
            break
        data = info.file.pread(info.position, info.size)
        assert len(data) == info.size
        batches = list(read_batches(memoryview(data)))
        assert sum(batch.size_in_bytes for batch in batches) == info.size, "a read ends on a batch boundary"
        assert batches[0].last_offset >= at
        for batch in batches:
            batch.ensure_valid()
        found += batches
        at = batches[-1].next_offset
    return found


def values_in(log: UnifiedLog, offset: int | None = None) -> list[tuple[int, bytes | None]]:
    """(offset, value) of all records from `offset` on."""
    start = log.log_start_offset if offset is None else offset
    return [
        (record.offset, record.value)
        for batch in read_all(log, offset)
        for record in batch.records()
        if record.offset >= start
    ]


@dataclass
class Countdown:
    """Kill the process at the `left`th call that changes something."""

    left: int
    calls: list[str] = field(default_factory=list)

    def __call__(self, operation: str, path: str) -> Fault | None:
        self.calls.append(f"{operation} {path}")
        self.left -= 1
        return Fault(crash_after=True) if self.left == 0 else None
