"""Steps of scenarios with a second topic that is created and deleted."""

from __future__ import annotations

from dataclasses import replace

from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.faults.steps import checkpoint, checkpoint_high_watermark, checkpoint_log_start, make, with_log
from tests.faults.trial import NEIGHBOUR_START, OTHER, Spec, Trial
from tests.storage.support import delete_expired


def create_neighbour(trial: Trial) -> None:
    """Create a second topic and write to it."""
    if trial.manager is None:
        return
    manager, before = trial.manager, trial.neighbour
    if manager.get(OTHER) is not None:
        return
    number = max([before.generation, *before.written]) + 1
    now = trial.neighbour = replace(
        before, there=before.there | {number}, may_be_missing=True, generation=number, flushed_end=0
    )

    def create() -> None:
        log = manager.get_or_create(OTHER, now.topic_id, trial.config, trial.now_ms)
        data, rows = make(trial, Spec(), 0)
        now.writing(rows)
        log.append_as_leader(memoryview(bytearray(data)), leader_epoch=trial.epoch, now_ms=trial.now_ms)
        log.flush(trial.now_ms)

    if trial.attempt(create):
        now.there, now.may_be_missing, now.flushed_end = frozenset({number}), False, 1


def use_neighbour(trial: Trial) -> None:
    """Write to the second topic, and move its log start, so that the checkpoints contain it."""
    log = None if trial.manager is None else trial.manager.get(OTHER)
    if trial.manager is None or log is None or log.directory.failure is not None:
        return
    manager, neighbour = trial.manager, trial.neighbour

    def use() -> None:
        for _ in range(4):
            data, rows = make(trial, Spec(size=300), log.log_end_offset)
            neighbour.writing(rows)
            log.append_as_leader(memoryview(bytearray(data)), leader_epoch=trial.epoch, now_ms=trial.now_ms)
        neighbour.shortened |= {neighbour.generation}
        log.delete_records_before(NEIGHBOUR_START, log.log_end_offset)
        log.flush(trial.now_ms)
        neighbour.flushed_end = log.log_end_offset
        manager.checkpoints.write_recovery_points()

    trial.attempt(use)


def delete_neighbour(trial: Trial) -> None:
    """Delete the second topic, with everything that belongs to it."""
    log = None if trial.manager is None else trial.manager.get(OTHER)
    if trial.manager is None or log is None:
        return
    manager = trial.manager
    before = trial.neighbour
    trial.neighbour = replace(
        before,
        may_be_missing=True,
        returning=before.returning | before.there,
        deleted=before.deleted | before.there,
    )
    was_online = log.directory.failure is None  # otherwise it is found again, as a log without a topic
    if trial.attempt(lambda: manager.delete(OTHER, trial.now_ms)) and was_online and not trial.disk_stays_full:
        trial.neighbour.there = frozenset()
    delete_expired(manager, trial.now_ms)
    trial.now_ms += 1000
    delete_expired(manager, trial.now_ms)


@with_log
def complete_deletions(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Complete the deletions as a broker does before a topic is recreated: no file refers to the old one any more."""
    is_written = checkpoint(trial, manager.checkpoints.recovery_point_tasks())
    is_written = checkpoint_log_start(trial, manager, log) and is_written
    is_written = checkpoint_high_watermark(trial, manager, log) and is_written
    for directory in manager.directories:
        if directory.failure is None:
            task = manager.directories.sync_task(directory)
            task.run()
            task.complete()
    if is_written and trial.is_online():
        trial.neighbour.returning &= trial.neighbour.there
