"""The steps of scenarios: each is one thing that a broker asks of its logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.directory.checkpoint_tasks import CheckpointTask
from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT
from storage.directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from storage.io.file_system import is_disk_full
from storage.log.producer_state import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogDirError, LogManager
from tests.faults.history import Violation
from tests.faults.life import OTHER, Life, Spec, make_batch, observe
from tests.faults.rows import Row
from tests.kit.memory_file_system import SimulatedCrash
from tests.storage.compaction.cleaning import clean_log
from tests.storage.support import DIR, TOPIC_ID, TP, batches_at, close_cleanly, delete_expired, flush_dirty

Step = Callable[[Life], None]


def with_log(step: Callable[[Life, LogManager, UnifiedLog], None]) -> Step:
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
    checkpoint_high_watermark(life, manager, log)
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
    @with_log
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

    @with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        rows: list[Row] = []
        batches = []
        end = life.history.end + gap
        for size in sizes:
            life.serial += 1
            data, made = make(life, Spec(values=size), end)
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


def make(life: Life, spec: Spec, base: int) -> tuple[bytes, tuple[Row, ...]]:
    return make_batch(spec, -1, life.serial, life.now_ms, base, life.epoch)


@with_log
def new_epoch(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """Another leader epoch begins at the log end."""
    life.epoch += 1
    life.attempt(lambda: log.assign_epoch_start_offset(life.epoch))


@with_log
def roll(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """The active segment is sealed."""
    life.attempt(lambda: log.roll(life.now_ms))


# -- stable storage ---------------------------------------------------------------------------------------------------


@with_log
def flush(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """Everything is fsynced."""
    mark = life.history.begin_flush()
    if life.attempt(lambda: log.flush(life.now_ms)):
        life.history.flushed(mark)


def flush_during(*steps: Step) -> Step:
    """A flush on another thread, while the log goes on with `steps`; its recovery points are checkpointed after it."""

    @with_log
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


@with_log
def background(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """Do one round of a broker's background work."""
    life.now_ms += 100
    life.file_system.now_ms = life.now_ms
    life.attempt(lambda: flush_dirty(manager, life.now_ms))
    manager.checkpoint_recovery_points()
    checkpoint_log_start(life, manager, log)
    checkpoint_high_watermark(life, manager, log)
    delete_expired(manager, life.now_ms)


def lag(count: int) -> Step:
    """The other replicas are so many offsets behind from now on."""

    def run(life: Life) -> None:
        life.lag = count

    return run


def checkpoint_log_start(life: Life, manager: LogManager, log: UnifiedLog) -> bool:
    is_written = checkpoint(life, manager.log_start_offset_tasks())
    if is_written:
        life.history.starts_at(log.log_start_offset, is_checkpointed=True)
    return is_written


def checkpoint(life: Life, tasks: Sequence[CheckpointTask]) -> bool:
    """Whether all was written; a full disk refuses, and everything goes on."""
    for task in tasks:
        task.run()
        task.complete()
    return life.is_online() and not any(task.refusal for task in tasks)


def checkpoint_high_watermark(life: Life, manager: LogManager, log: UnifiedLog) -> bool:
    life.high_watermark = max(life.history.end - life.lag, log.log_start_offset)
    life.history.checkpointing(life.high_watermark)
    high_watermarks = {TP: life.high_watermark}
    other = manager.get(OTHER)
    if other is not None:
        high_watermarks[OTHER] = other.log_end_offset
    is_written = checkpoint(life, manager.high_watermark_tasks(high_watermarks))
    if is_written:
        life.history.checkpointed()
    return is_written


# -- compaction -------------------------------------------------------------------------------------------------------


def compact(*meanwhile: Step, passing_ms: int = 0) -> Step:
    """The log is cleaned, while it goes on with the steps `meanwhile`."""

    @with_log
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


# -- looking ----------------------------------------------------------------------------------------------------------


@with_log
def look(life: Life, manager: LogManager, log: UnifiedLog) -> None:
    """A consumer reads and searches."""
    rows = [row for row in life.history.now.rows if row.offset >= log.log_start_offset]

    def search() -> None:
        for row in rows[::3]:
            log.read(row.offset, 100)
            log.offset_for_timestamp(row.timestamp)

    life.attempt(search)
