"""Move a log in one call; the broker needs several."""

from __future__ import annotations

from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.relocation.future_log_tasks import AdjustTask, CopyTask
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import (
    T0,
    TOPIC_ID,
    TP,
    append,
    checkpoint_high_watermarks,
    open_manager,
)

A, B, C = "/a", "/b", "/c"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=90, file_delete_delay_ms=10)
MANY_BYTES = 1 << 30


def value(number: int) -> bytes:
    return b"value %d " % number + b"." * 60


def opened(file_system: MemoryFileSystem, *directories: str) -> LogManager:
    return open_manager(file_system, CONFIG, *(directories or (A, B)))[0]


def filled(manager: LogManager, count: int = 10) -> UnifiedLog:
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    for number in range(count):
        append(log, value(number))
    return log


def adjust(manager: LogManager, now_ms: int = T0) -> int:
    """Adjust a move like a broker before it copies; returns how often the copy was truncated."""
    count = 0
    while (task := manager.futures.adjust(manager.logs[TP], now_ms)) is not None:
        task.run()
        task.complete()
        count += isinstance(task, AdjustTask)
    return count


def step(manager: LogManager, max_bytes: int = MANY_BYTES) -> CopyTask:
    log = manager.logs[TP]
    adjust(manager)
    task = CopyTask(log, manager.futures.logs[TP], max_bytes, T0)
    task.run()
    return task


def finish(manager: LogManager) -> UnifiedLog:
    """Finish a move from its current state, like a broker."""
    flush_copy(manager)
    while not manager.futures.catch_up(manager.logs[TP], T0):
        assert step(manager).error is None
        flush_copy(manager)
    log = manager.replace_with_future(TP)
    log.flush(T0)
    manager.checkpoints.write_log_start_offsets()
    checkpoint_high_watermarks(manager, {})
    directory = manager.futures.retire(TP, T0)
    assert directory is not None
    task = manager.directories.sync_task(directory)
    task.run()
    task.complete()
    return log


def flush_copy(manager: LogManager) -> None:
    manager.futures.logs[TP].flush(T0)
    manager.checkpoints.write_recovery_points()


def move(manager: LogManager, target: str = B) -> UnifiedLog:
    manager.futures.create(manager.logs[TP], manager.futures.directory_at(target), T0)
    step(manager)
    return finish(manager)


def directories(file_system: MemoryFileSystem, path: str) -> list[str]:
    return sorted(info.name for info in file_system.list_dir(path) if info.is_dir)


def values(count: int, start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(number, value(number)) for number in range(start, count)]
