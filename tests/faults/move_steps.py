"""Steps of scenarios that move a log to another directory."""

from __future__ import annotations

from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.relocation.future_log_tasks import CopyTask
from tests.faults.steps import Step, checkpoint_high_watermark, checkpoint_log_start, flush, with_log
from tests.faults.trial import Trial
from tests.storage.support import TP


@with_log
def begin_move(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Start moving the log to the other directory."""
    targets = [each for each in manager.directories if each is not log.directory and each.failure is None]
    if targets and TP not in manager.futures.logs:
        trial.attempt(lambda: manager.futures.create(log, targets[0], trial.now_ms))


def copy(max_bytes: int) -> Step:
    """Copy part of the log."""

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        if TP in manager.futures.logs:
            trial.attempt(lambda: _copy(trial, manager, log, max_bytes))

    return run


def _copy(trial: Trial, manager: LogManager, log: UnifiedLog, max_bytes: int) -> None:
    while (adjustment := manager.futures.adjust(log, trial.now_ms)) is not None:
        adjustment.run()
        adjustment.complete()
    task = CopyTask(log, manager.futures.logs[TP], max_bytes, trial.now_ms)
    task.run()
    if task.error is not None:
        raise task.error


@with_log
def end_move(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Replace the log by the copy."""
    if TP not in manager.futures.logs:
        return

    def take_the_place() -> None:
        _flush_copy(trial, manager)
        while not manager.futures.catch_up(log, trial.now_ms):
            _copy(trial, manager, log, 1 << 20)
            _flush_copy(trial, manager)
        trial.log = manager.replace_with_future(TP)

    if not trial.attempt(take_the_place):
        return
    flush(trial)
    moved = trial.log
    if moved is None or not trial.is_online():
        return
    if checkpoint_log_start(trial, manager, moved) and checkpoint_high_watermark(trial, manager, moved):
        trial.attempt(lambda: _retire(trial, manager))


def _flush_copy(trial: Trial, manager: LogManager) -> None:
    manager.futures.logs[TP].flush(trial.now_ms)
    tasks = manager.checkpoints.recovery_point_tasks()
    for task in tasks:
        task.run()
        task.complete()
        if task.refusal is not None:
            raise task.refusal


def _retire(trial: Trial, manager: LogManager) -> None:
    directory = manager.futures.retire(TP, trial.now_ms)
    if directory is not None:
        task = manager.directories.sync_task(directory)
        task.run()
        task.complete()
