"""Steps of scenarios about a second topic that comes and goes."""

from __future__ import annotations

from dataclasses import replace

from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.faults.life import NEIGHBOUR_START, OTHER, Life, Spec
from tests.faults.steps import checkpoint, checkpoint_high_watermark, checkpoint_log_start, make, with_log
from tests.storage.support import delete_expired


def create_neighbour(life: Life) -> None:
    """A second topic is made and written to."""
    if life.manager is None:
        return
    manager, before = life.manager, life.neighbour
    if manager.get(OTHER) is not None:
        return
    number = max([before.generation, *before.written]) + 1
    now = life.neighbour = replace(
        before, there=before.there | {number}, may_be_missing=True, generation=number, flushed_end=0
    )

    def create() -> None:
        log = manager.get_or_create(OTHER, now.topic_id, life.config, life.now_ms)
        data, rows = make(life, Spec(), 0)
        now.writing(rows)
        log.append_as_leader(memoryview(bytearray(data)), leader_epoch=life.epoch, now_ms=life.now_ms)
        log.flush(life.now_ms)

    if life.attempt(create):
        now.there, now.may_be_missing, now.flushed_end = frozenset({number}), False, 1


def use_neighbour(life: Life) -> None:
    """The second topic is written to, and its log start moves; so the checkpoints know it."""
    log = None if life.manager is None else life.manager.get(OTHER)
    if life.manager is None or log is None or log.directory.failure is not None:
        return
    manager, neighbour = life.manager, life.neighbour

    def use() -> None:
        for _ in range(4):
            data, rows = make(life, Spec(size=300), log.log_end_offset)
            neighbour.writing(rows)
            log.append_as_leader(memoryview(bytearray(data)), leader_epoch=life.epoch, now_ms=life.now_ms)
        neighbour.shortened |= {neighbour.generation}
        log.delete_records_before(NEIGHBOUR_START, log.log_end_offset)
        log.flush(life.now_ms)
        neighbour.flushed_end = log.log_end_offset
        manager.checkpoint_recovery_points()

    life.attempt(use)


def delete_neighbour(life: Life) -> None:
    """And deleted, which leaves nothing of it."""
    log = None if life.manager is None else life.manager.get(OTHER)
    if life.manager is None or log is None:
        return
    manager = life.manager
    before = life.neighbour
    life.neighbour = replace(
        before,
        may_be_missing=True,
        returning=before.returning | before.there,
        deleted=before.deleted | before.there,
    )
    was_online = log.directory.failure is None  # otherwise it is found again, and belongs to no topic then
    if life.attempt(lambda: manager.delete(OTHER, life.now_ms)) and was_online and not life.disk_stays_full:
        life.neighbour.there = frozenset()
    delete_expired(manager, life.now_ms)
    life.now_ms += 1000
    delete_expired(manager, life.now_ms)


@with_log
def settle_deletions(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """Settle deletions as a broker does before a topic is made again: no file tells of the old one any more."""
    is_written = checkpoint(life, manager.recovery_point_tasks())
    is_written = checkpoint_log_start(life, manager, log) and is_written
    is_written = checkpoint_high_watermark(life, manager, log) and is_written
    for directory in manager.directories:
        if directory.failure is None:
            task = manager.directory_sync_task(directory)
            task.run()
            task.complete()
    if is_written and life.is_online():
        life.neighbour.returning &= life.neighbour.there
