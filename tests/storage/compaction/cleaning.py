"""Clean a log in one call; the broker's cleaner needs several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.records.batch import CompressionType, Record, RecordBatch, build_batch
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.compaction.cleanable_log import CleanableLog, cleanable_log, plan_cleaning
from storage.compaction.cleaner import clean
from storage.compaction.segment_replacement import ReplacementTask
from storage.io.file_system import FileSystem
from storage.log.log_appender import LogAppendInfo
from storage.log.log_validator import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import T0, TOPIC_ID, TP, open_manager, read_all

COMPACT = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1000,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1000,
    file_delete_delay_ms=100,
)
ENOUGH_KEYS = 1_000_000


def nothing() -> None:
    """Happens meanwhile."""


def clean_log(
    file_system: FileSystem,
    manager: LogManager,
    log: UnifiedLog,
    now_ms: int = T0,
    *,
    high_watermark: int | None = None,
    map_capacity: int = ENOUGH_KEYS,
    before_clean: Callable[[], None] = nothing,
    before_replace: Callable[[], None] = nothing,
) -> tuple[CleanableLog, CleanResult] | None:
    """Clean everything to the end, checkpoint included; returns None if the log is clean."""
    bound = log.log_end_offset if high_watermark is None else high_watermark
    cleanable = cleanable_log(log, bound, now_ms)
    if cleanable is None or cleanable.cleanable_bytes == 0:
        return None
    task = plan_cleaning(cleanable, now_ms, map_capacity)
    write_cleaner_offsets(manager)
    if not write_recovery_points(manager):
        return None
    before_clean()
    # Through JSON, as to a worker process and back.
    result = CleanResult.from_json(clean(file_system, CleanTask.from_json(task.to_json())).to_json())
    before_replace()
    replacement = ReplacementTask(log, task, result)
    replacement.run()
    replacement.complete()
    write_cleaner_offsets(manager)
    return cleanable, result


def write_cleaner_offsets(manager: LogManager) -> None:
    for task in manager.checkpoints.cleaner_offset_tasks():
        task.run()
        task.complete()


def write_recovery_points(manager: LogManager) -> bool:
    """Write the recovery points; returns whether the disk had room."""
    tasks = manager.checkpoints.recovery_point_tasks()
    for task in tasks:
        task.run()
        task.complete()
    return not any(task.refusal for task in tasks)


def put(
    log: UnifiedLog,
    *rows: tuple[bytes | None, bytes | None],
    now_ms: int = T0,
    timestamps: Sequence[int] | None = None,
    compression: CompressionType = CompressionType.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> LogAppendInfo:
    """Append one batch of (key, value)."""
    times = [now_ms] * len(rows) if timestamps is None else timestamps
    batch = build_batch(
        [Record(0, at, key, value) for at, (key, value) in zip(times, rows, strict=True)],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    origin = AppendOrigin.COORDINATOR if is_transactional else AppendOrigin.CLIENT
    return log.append_as_leader(memoryview(bytearray(batch)), leader_epoch=0, now_ms=now_ms, origin=origin)


def end_transaction(log: UnifiedLog, producer_id: int, epoch: int, kind: ControlRecordType, now_ms: int = T0) -> int:
    """Append a marker; returns its offset."""
    marker = build_end_txn_marker(
        EndTxnMarker(kind, 0), timestamp=now_ms, producer_id=producer_id, producer_epoch=epoch
    )
    info = log.append_as_leader(
        memoryview(bytearray(marker)), leader_epoch=0, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
    )
    return info.last_offset


def data_in(batches: Sequence[RecordBatch]) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records except markers."""
    return [
        (record.offset, record.key, record.value)
        for batch in batches
        if not batch.is_control
        for record in batch.records()
    ]


class Stand:
    """A compacted log and everything it needs."""

    def __init__(self, config: LogConfig = COMPACT) -> None:
        self.config = config
        self.file_system = MemoryFileSystem()
        self.manager, _ = open_manager(self.file_system, config)
        self.log = self.manager.get_or_create(TP, TOPIC_ID, config, T0)

    def segments(self, *segments: list[tuple[bytes | None, bytes | None]], now_ms: int = T0) -> UnifiedLog:
        """Write one sealed segment for each list, and one batch for each record."""
        for rows in segments:
            for row in rows:
                put(self.log, row, now_ms=now_ms)
            self.log.roll(now_ms)
        self.log.flush(now_ms)
        return self.log

    def cleanable(self, now_ms: int = T0, high_watermark: int | None = None) -> CleanableLog:
        bound = self.log.log_end_offset if high_watermark is None else high_watermark
        found = cleanable_log(self.log, bound, now_ms)
        assert found is not None
        return found

    def task(self, now_ms: int = T0, map_capacity: int = ENOUGH_KEYS) -> CleanTask:
        return plan_cleaning(self.cleanable(now_ms), now_ms, map_capacity)

    def clean(self, now_ms: int = T0, map_capacity: int = ENOUGH_KEYS) -> None:
        done = clean_log(self.file_system, self.manager, self.log, now_ms, map_capacity=map_capacity)
        assert done is not None, "there was nothing to clean"

    def names(self) -> list[str]:
        return sorted(info.name for info in self.file_system.list_dir(self.log.path))

    def restart(self) -> LogManager:
        self.file_system.kill_process()
        self.manager, report = open_manager(self.file_system, self.config)
        assert not report.refused
        self.log = self.manager.logs[TP]
        return self.manager


def rows_of(log: UnifiedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return data_in(read_all(log))


def keys(text: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(letter.encode(), b"value") for letter in text]
