"""Steps of scenarios that move a log to another directory."""

from __future__ import annotations

from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.relocation.copy_task import CopyTask
from tests.faults.life import Life
from tests.faults.steps import Step, checkpoint_high_watermark, checkpoint_log_start, flush, with_log
from tests.storage.support import TP


@with_log
def begin_move(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """The log is to be in the other directory."""
    targets = [each for each in manager.directories if each is not log.directory and each.failure is None]
    if targets and TP not in manager.futures.logs:
        life.attempt(lambda: manager.futures.create(log, targets[0], life.now_ms))


def copy(max_bytes: int) -> Step:
    """Some of the log is copied."""

    @with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        if TP in manager.futures.logs:
            life.attempt(lambda: _copy(life, manager, log, max_bytes))

    return run


def _copy(life: Life, manager: LogManager, log: UnifiedLog, max_bytes: int) -> None:
    while (adjustment := manager.futures.adjust(log, life.now_ms)) is not None:
        adjustment.run()
        adjustment.complete()
    task = CopyTask(log, manager.futures.logs[TP], max_bytes, life.now_ms)
    task.run()
    if task.error is not None:
        raise task.error


@with_log
def end_move(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """The copy takes the place of the log."""
    if TP not in manager.futures.logs:
        return

    def take_the_place() -> None:
        _flush_copy(life, manager)
        while not manager.futures.catch_up(log, life.now_ms):
            _copy(life, manager, log, 1 << 20)
            _flush_copy(life, manager)
        life.log = manager.replace_with_future(TP)

    if not life.attempt(take_the_place):
        return
    flush(life)
    moved = life.log
    if moved is None or not life.is_online():
        return
    if checkpoint_log_start(life, manager, moved) and checkpoint_high_watermark(life, manager, moved):
        life.attempt(lambda: _retire(life, manager))


def _flush_copy(life: Life, manager: LogManager) -> None:
    manager.futures.logs[TP].flush(life.now_ms)
    tasks = manager.recovery_point_tasks()
    for task in tasks:
        task.run()
        task.complete()
        if task.refusal is not None:
            raise task.refusal


def _retire(life: Life, manager: LogManager) -> None:
    directory = manager.futures.retire(TP, life.now_ms)
    if directory is not None:
        task = manager.directory_sync_task(directory)
        task.run()
        task.complete()
