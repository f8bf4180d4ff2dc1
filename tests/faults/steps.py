"""What a scenario is made of: each step is one thing that a broker asks of its logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from storage.directory.checkpoint_tasks import CheckpointTask
from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT
from storage.directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from storage.io.file_system import is_disk_full
from storage.log.producer_state import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogDirError, LogManager
from storage.relocation.copy_task import CopyTask
from tests.faults.history import Row, Violation
from tests.faults.life import NEIGHBOUR_START, OTHER, Life, Spec, make_batch, observe
from tests.kit.memory_file_system import SimulatedCrash
from tests.storage.compaction.cleaning import clean_log
from tests.storage.support import DIR, TOPIC_ID, TP, batches_at, close_cleanly, delete_expired, flush_dirty

Step = Callable[[Life], None]


def _with_log(step: Callable[[Life, LogManager, UnifiedLog], None]) -> Step:
    """A step that is left out while there is no log that works; its directory refuses everything then."""

    def run(life: Life) -> None:
        if life.log is not None and life.manager is not None and life.is_online():
            step(life, life.manager, life.log)

    run.__name__ = step.__name__
    return run


# -- starting and stopping --------------------------------------------------------------------------------------------


def adopt(life: Life) -> None:
    """A broker of Kafka's has left a compacted log, all of it on stable storage and above the recovery point: the first
    segment ends before the second begins, and the log without a record.
    """
    history = life.history
    with life.in_peace():
        manager, _ = life.load(life.file_system)
        log = manager.get_or_create(TP, TOPIC_ID, life.config, life.now_ms)
        for number in range(6):
            data, rows = life.place(Spec(size=100))
            history.sending(rows)
            log.append_as_leader(data, leader_epoch=0, now_ms=life.now_ms)
            history.acknowledged()
            if number == 2:
                compacted, size = rows, len(data)
                log.roll(life.now_ms)
        log.appender.skip_to(log.log_end_offset + 4, life.now_ms)
        log.flush(life.now_ms)
        first = log.segments[0]
        first.cut(first.size - size)
        history.now.rows = [row for row in history.now.rows if row not in compacted]
        history.now.end = history.now.acked_end = history.now.flushed_end = log.log_end_offset
        life.file_system.write_file(f"{DIR}/{RECOVERY_POINT_CHECKPOINT}", b"0\n1\nt 0 0\n")
        life.file_system.sync_file(f"{DIR}/{RECOVERY_POINT_CHECKPOINT}")
    life.end_process()


def start(life: Life) -> None:
    """The process starts; a directory that cannot be used ends it with one line."""
    life.log = None
    life.settle()
    try:
        life.manager, _ = life.load(life.file_system)
    except LogDirError as error:
        if not any(path in str(error) for path in life.directories):
            raise Violation(f"no directory is named in '{error}'") from None
        raise SimulatedCrash from None
    # A directory that failed is left as it was, and so may be the marker in it.
    life.may_be_clean = life.may_be_clean and any(directory.failure for directory in life.manager.directories)
    life.lost_power = False
    life.epoch += 1  # a replica that was away leads or follows in another epoch
    life.attempt(lambda: find_log(life))


def find_log(life: Life) -> None:
    """The partition's log, made if there is none."""
    assert life.manager is not None
    life.log = life.manager.get_or_create(TP, TOPIC_ID, life.config, life.now_ms, is_new=False)


def stop(life: Life) -> None:
    """The process ends in order, as far as the disk lets it."""
    manager, log = life.manager, life.log
    if manager is None or log is None:
        life.end_process()
        return
    _checkpoint_high_watermark(life, manager, log)
    life.may_be_clean = True
    mark = life.history.begin_flush()
    close_cleanly(manager, broker_epoch=7)
    with life.in_peace():
        is_marked = life.file_system.exists(f"{log.directory.path}/{CLEAN_SHUTDOWN_FILE}")
    if is_marked:
        life.history.flushed(mark)
        life.history.starts_at(log.log_start_offset, is_checkpointed=True)
    life.end_process()


def kill(life: Life) -> None:
    """The process is killed."""
    life.end_process()


# -- appending --------------------------------------------------------------------------------------------------------


def append(**options: object) -> Step:
    """One batch as the leader; `options` are those of Spec."""
    return appending(Spec(**options))  # type: ignore[arg-type]


def appending(spec: Spec) -> Step:
    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        data, rows = life.place(spec)
        again = bytes(data)
        life.history.sending(rows)
        by = AppendOrigin.COORDINATOR if spec.is_transactional or spec.marker is not None else AppendOrigin.CLIENT
        if not life.attempt(lambda: log.append_as_leader(data, leader_epoch=life.epoch, now_ms=life.now_ms, origin=by)):
            if life.is_online():  # a full disk
                life.history.refused()
            return
        life.history.acknowledged()
        if spec.is_idempotent:
            _send_again(life, log, again, rows)

    return run


def _send_again(life: Life, log: UnifiedLog, data: bytes, rows: tuple[Row, ...]) -> None:
    info = log.append_as_leader(memoryview(bytearray(data)), leader_epoch=life.epoch, now_ms=life.now_ms)
    if (info.first_offset, info.last_offset, info.duplicate) != (rows[0].offset, rows[-1].offset, True):
        raise Violation(f"{rows} sent again was answered {info}")


def follow(*sizes: int, gap: int = 0, between: int = 0) -> Step:
    """Batches of so many records as a follower gets them, the first `gap` offsets further on, the others `between`."""

    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        rows: list[Row] = []
        batches = []
        end = life.history.end + gap
        for size in sizes:
            life.serial += 1
            data, made = _make(life, Spec(values=size), end)
            batches.append((end, memoryview(data)))
            rows += made
            end += size + between
        life.history.sending(rows)
        sent = batches_at(*batches, epoch=life.epoch)
        if life.attempt(lambda: log.append_as_follower(sent, now_ms=life.now_ms)):
            life.history.acknowledged()
        elif life.is_online():
            life.history.refused()

    return run


def _make(life: Life, spec: Spec, base: int) -> tuple[bytes, tuple[Row, ...]]:
    return make_batch(spec, -1, life.serial, life.now_ms, base, life.epoch)


@_with_log
def new_epoch(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """Another leader epoch begins at the log end."""
    life.epoch += 1
    life.attempt(lambda: log.assign_epoch_start_offset(life.epoch))


@_with_log
def roll(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """The active segment is sealed."""
    life.attempt(lambda: log.roll(life.now_ms))


# -- stable storage ---------------------------------------------------------------------------------------------------


@_with_log
def flush(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """Everything is fsynced."""
    mark = life.history.begin_flush()
    if life.attempt(lambda: log.flush(life.now_ms)):
        life.history.flushed(mark)


def flush_during(*steps: Step) -> Step:
    """A flush on another thread, while the log goes on with `steps`; its recovery points are checkpointed after it."""

    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        mark = life.history.begin_flush()
        tasks = []
        if life.attempt(lambda: tasks.append(log.prepare_flush(life.now_ms))):
            for step in steps:
                step(life)
            tasks[0].run()
            if life.attempt(tasks[0].complete):
                life.history.flushed(mark)
        manager.checkpoint_recovery_points()

    return run


@_with_log
def background(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """What a broker does now and then."""
    life.now_ms += 100
    life.file_system.now_ms = life.now_ms
    life.attempt(lambda: flush_dirty(manager, life.now_ms))
    manager.checkpoint_recovery_points()
    _checkpoint_log_start(life, manager, log)
    _checkpoint_high_watermark(life, manager, log)
    delete_expired(manager, life.now_ms)


def lag(count: int) -> Step:
    """The other replicas are so many offsets behind from now on."""

    def run(life: Life) -> None:
        life.lag = count

    return run


def _checkpoint_log_start(life: Life, manager: LogManager, log: UnifiedLog) -> bool:
    is_written = _checkpoint(life, manager.log_start_offset_tasks())
    if is_written:
        life.history.starts_at(log.log_start_offset, is_checkpointed=True)
    return is_written


def _checkpoint(life: Life, tasks: Sequence[CheckpointTask]) -> bool:
    """Whether all was written; a full disk refuses, and everything goes on."""
    for task in tasks:
        task.run()
        task.complete()
    return life.is_online() and not any(task.refusal for task in tasks)


def _checkpoint_high_watermark(life: Life, manager: LogManager, log: UnifiedLog) -> bool:
    life.high_watermark = max(life.history.end - life.lag, log.log_start_offset)
    life.history.checkpointing(life.high_watermark)
    high_watermarks = {TP: life.high_watermark}
    other = manager.get(OTHER)
    if other is not None:
        high_watermarks[OTHER] = other.log_end_offset
    is_written = _checkpoint(life, manager.high_watermark_tasks(high_watermarks))
    if is_written:
        life.history.checkpointed()
    return is_written


# -- shortening -------------------------------------------------------------------------------------------------------


def delete_records(count: int) -> Step:
    """The log start moves up by `count` offsets."""

    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        offset = min(log.log_start_offset + count, log.log_end_offset)
        life.high_watermark = max(life.high_watermark, offset)
        life.history.starting_at(offset)
        if life.attempt(lambda: log.delete_records_before(offset, life.high_watermark)):
            life.history.starts_at(offset, is_checkpointed=False)
        _checkpoint_log_start(life, manager, log)
        life.attempt(log.delete_old_segments)

    return run


def retain(passing_ms: int) -> Step:
    """Time passes, and retention gives up what is too old or too much."""

    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        life.now_ms += passing_ms
        life.file_system.now_ms = life.now_ms
        life.history.starting_at(life.high_watermark)
        before = log.log_start_offset
        if life.attempt(lambda: log.expire_segments(life.now_ms, life.high_watermark)):
            _check_retention(life, log, before)
        _checkpoint_log_start(life, manager, log)
        life.attempt(log.delete_old_segments)

    return run


def _check_retention(life: Life, log: UnifiedLog, before: int) -> None:
    """What went had to, and what had to went."""
    config, start = log.config, log.log_start_offset
    if not config.is_deleted:
        if start != before:
            raise Violation(f"retention moved the start of a log that is only compacted from {before} to {start}")
        return
    size = sum(segment.size for segment in log.segments if segment.base_offset >= start)
    optional = life.history.optional  # compaction may have taken them before, and with them the newest timestamp
    gone = [row for row in life.history.now.rows if before <= row.offset < start and row.offset not in optional]
    too_old = life.now_ms - config.retention_ms
    if config.retention_bytes < 0 and any(row.timestamp >= too_old for row in gone):
        raise Violation(f"retention took a record that is not too old: {gone}")
    if start > life.high_watermark:
        raise Violation(f"retention went to {start}, beyond the high watermark {life.high_watermark}")
    for segment, following in pairwise(log.segments):
        if start < following.base_offset <= life.high_watermark:
            stamps = [
                row.timestamp
                for row in life.history.now.rows
                if segment.base_offset <= row.offset < following.base_offset
            ]
            if stamps and max(stamps) < too_old:
                raise Violation(f"retention left {segment}, which is too old")
            if 0 <= config.retention_bytes <= size - segment.size:
                raise Violation(f"retention left {segment} of {size} bytes")
            return


def truncate(batches: int) -> Step:
    """The last batches are cut off, as a follower does that has what the new leader has not."""

    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        bases = sorted({row.batch_base for row in life.history.now.rows if row.batch_base >= log.log_start_offset})
        if len(bases) <= batches:
            return
        offset = bases[-batches]
        if offset < life.high_watermark and life.history.is_compacted:
            return  # what is committed is never cut off, and compaction relies on it
        life.history.shortening(
            max((row.batch_end for row in life.history.now.rows if row.batch_end <= offset), default=0)
        )
        if life.attempt(lambda: log.truncate_to(offset, life.now_ms)):
            life.history.shortened(log.log_end_offset, offset)
            manager.checkpoint_recovery_points()
        elif life.is_online():  # a full disk
            life.history.not_shortened()

    return run


# -- compaction -------------------------------------------------------------------------------------------------------


def compact(*meanwhile: Step, passing_ms: int = 0) -> Step:
    """The log is cleaned, while it goes on with the steps `meanwhile`."""

    @_with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        life.now_ms += passing_ms
        if TP in manager.futures.logs:
            return  # what is being moved, the cleaner leaves alone
        high_watermark = life.high_watermark
        bound = min(high_watermark, log.recovery_point, log.active_segment.base_offset)
        life.history.compacting(bound, life.now_ms, log.config.delete_retention_ms)

        def go() -> None:
            try:
                done = clean_log(
                    life.file_system,
                    manager,
                    log,
                    life.now_ms,
                    high_watermark=high_watermark,
                    before_replace=lambda: [step(life) for step in meanwhile],
                )
            except OSError as error:  # as the broker does; a full disk gets another attempt
                if not is_disk_full(error):
                    log.directory.fail(error, "Error while cleaning")
                return
            if done is not None and log.cleaner_checkpoint == done[1].end_offset:
                with life.in_peace():
                    life.history.must_be_compact(observe(log, 0), done[1].end_offset)

        life.attempt(go)

    return run


# -- moves ------------------------------------------------------------------------------------------------------------


@_with_log
def begin_move(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """The log is to be in the other directory."""
    targets = [each for each in manager.directories if each is not log.directory and each.failure is None]
    if targets and TP not in manager.futures.logs:
        life.attempt(lambda: manager.futures.create(log, targets[0], life.now_ms))


def copy(max_bytes: int) -> Step:
    """Some of the log is copied."""

    @_with_log
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


@_with_log
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
    if _checkpoint_log_start(life, manager, moved) and _checkpoint_high_watermark(life, manager, moved):
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


# -- topics -----------------------------------------------------------------------------------------------------------


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
        data, rows = _make(life, Spec(), 0)
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
            data, rows = _make(life, Spec(size=300), log.log_end_offset)
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


@_with_log
def settle_deletions(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """What a broker does before a deleted topic is made again: nothing on disk tells of the old one any more."""
    is_written = _checkpoint(life, manager.recovery_point_tasks())
    is_written = _checkpoint_log_start(life, manager, log) and is_written
    is_written = _checkpoint_high_watermark(life, manager, log) and is_written
    for directory in manager.directories:
        if directory.failure is None:
            task = manager.directory_sync_task(directory)
            task.run()
            task.complete()
    if is_written and life.is_online():
        life.neighbour.returning &= life.neighbour.there


# -- looking ----------------------------------------------------------------------------------------------------------


@_with_log
def look(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """A consumer reads and searches."""
    rows = [row for row in life.history.now.rows if row.offset >= log.log_start_offset]

    def search() -> None:
        for row in rows[::3]:
            log.read(row.offset, 100)
            log.offset_for_timestamp(row.timestamp)

    life.attempt(search)
