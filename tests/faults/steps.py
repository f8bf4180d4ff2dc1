"""The steps of scenarios: each is one request of a broker to its logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT, CheckpointTask
from storage.directory.log_directories import CLEAN_SHUTDOWN_FILE
from storage.directory.meta_properties import LogDirError
from storage.io.file_system import is_disk_full
from storage.log.log_validator import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.faults.history import Violation
from tests.faults.rows import Row
from tests.faults.trial import OTHER, Spec, Trial, make_batch, observe
from tests.kit.memory_file_system import SimulatedCrash
from tests.storage.compaction.cleaning import clean_log
from tests.storage.support import DIR, TOPIC_ID, TP, batches_at, close_cleanly, delete_expired, flush_dirty

Step = Callable[[Trial], None]


def with_log(step: Callable[[Trial, LogManager, UnifiedLog], None]) -> Step:
    """A step that is skipped without a working log, when its directory refuses everything."""

    def run(trial: Trial) -> None:
        if trial.log is not None and trial.manager is not None and trial.is_online():
            step(trial, trial.manager, trial.log)

    run.__name__ = step.__name__
    return run


# -- starting and stopping --------------------------------------------------------------------------------------------


def adopt(trial: Trial) -> None:
    """Adopt a compacted log of a Kafka broker, all of it on stable storage and above the recovery point: neither the
    first segment nor the log ends with a record.
    """
    history = trial.history
    with trial.in_peace():
        manager, _ = trial.load(trial.file_system)
        log = manager.get_or_create(TP, TOPIC_ID, trial.config, trial.now_ms)
        for number in range(6):
            data, rows = trial.place(Spec(size=100))
            history.sending(rows)
            log.append_as_leader(data, leader_epoch=0, now_ms=trial.now_ms)
            history.acknowledged()
            if number == 2:
                compacted, size = rows, len(data)
                log.roll(trial.now_ms)
        log.appender.skip_to(log.log_end_offset + 4, trial.now_ms)
        log.flush(trial.now_ms)
        first = log.segments[0]
        first.truncate_file(first.size - size)
        history.now.rows = [row for row in history.now.rows if row not in compacted]
        history.now.end = history.now.acked_end = history.now.flushed_end = log.log_end_offset
        trial.file_system.write_file(f"{DIR}/{RECOVERY_POINT_CHECKPOINT}", b"0\n1\nt 0 0\n")
        trial.file_system.sync_file(f"{DIR}/{RECOVERY_POINT_CHECKPOINT}")
    trial.end_process()


def start(trial: Trial) -> None:
    """Start the process; an unusable directory ends it with one line."""
    trial.log = None
    trial.settle()
    try:
        trial.manager, _ = trial.load(trial.file_system)
    except LogDirError as error:
        if not any(path in str(error) for path in trial.directories):
            raise Violation(f"no directory is named in '{error}'") from None
        raise SimulatedCrash from None
    # A failed directory is left unchanged, and may still have the marker.
    trial.may_be_clean = trial.may_be_clean and any(directory.failure for directory in trial.manager.directories)
    trial.lost_power = False
    trial.epoch += 1  # a replica that was down leads or follows in another epoch
    trial.attempt(lambda: take_role(trial))


def take_role(trial: Trial) -> None:
    """The only replica takes its role, even with a truncated log (see TruncatedLogs). A missing log is created."""
    assert trial.manager is not None
    trial.manager.checkpoints.truncated_below.clear()
    trial.log = trial.manager.get_or_create(TP, TOPIC_ID, trial.config, trial.now_ms, is_new=False)


def stop(trial: Trial) -> None:
    """Shut the process down cleanly, as far as the disk allows it."""
    manager, log = trial.manager, trial.log
    if manager is None or log is None:
        trial.end_process()
        return
    checkpoint_high_watermark(trial, manager, log)
    trial.may_be_clean = True
    mark = trial.history.begin_flush()
    close_cleanly(manager, broker_epoch=7)
    with trial.in_peace():
        is_marked = trial.file_system.exists(f"{log.directory.path}/{CLEAN_SHUTDOWN_FILE}")
    if is_marked:
        trial.history.flushed(mark)
        trial.history.starts_at(log.log_start_offset, is_checkpointed=True)
    trial.end_process()


def kill(trial: Trial) -> None:
    """Kill the process."""
    trial.end_process()


# -- appending --------------------------------------------------------------------------------------------------------


def append(**options: object) -> Step:
    """Append one batch as the leader; `options` are those of Spec."""
    return appending(Spec(**options))  # type: ignore[arg-type]


def appending(spec: Spec) -> Step:
    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        data, rows = trial.place(spec)
        again = bytes(data)
        trial.history.sending(rows)
        by = AppendOrigin.COORDINATOR if spec.is_transactional or spec.marker is not None else AppendOrigin.CLIENT
        if not trial.attempt(
            lambda: log.append_as_leader(data, leader_epoch=trial.epoch, now_ms=trial.now_ms, origin=by)
        ):
            if trial.is_online():  # a full disk
                trial.history.refused()
            return
        trial.history.acknowledged()
        if spec.is_idempotent:
            _send_again(trial, log, again, rows)

    return run


def _send_again(trial: Trial, log: UnifiedLog, data: bytes, rows: tuple[Row, ...]) -> None:
    info = log.append_as_leader(memoryview(bytearray(data)), leader_epoch=trial.epoch, now_ms=trial.now_ms)
    if (info.first_offset, info.last_offset, info.duplicate) != (rows[0].offset, rows[-1].offset, True):
        raise Violation(f"{rows} sent again was answered {info}")


def follow(*sizes: int, gap: int = 0, between: int = 0) -> Step:
    """Append batches of these record counts as a follower, after a gap of `gap` offsets, with gaps of `between` between
    them.
    """

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        rows: list[Row] = []
        batches = []
        end = trial.history.end + gap
        for size in sizes:
            trial.serial += 1
            data, made = make(trial, Spec(values=size), end)
            batches.append((end, memoryview(data)))
            rows += made
            end += size + between
        trial.history.sending(rows)
        sent = batches_at(*batches, epoch=trial.epoch)
        if trial.attempt(lambda: log.append_as_follower(sent, now_ms=trial.now_ms)):
            trial.history.acknowledged()
        elif trial.is_online():
            trial.history.refused()

    return run


def make(trial: Trial, spec: Spec, base: int) -> tuple[bytes, tuple[Row, ...]]:
    return make_batch(spec, -1, trial.serial, trial.now_ms, base, trial.epoch)


@with_log
def new_epoch(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Start another leader epoch at the log end."""
    trial.epoch += 1
    trial.attempt(lambda: log.assign_epoch_start_offset(trial.epoch))


@with_log
def roll(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Seal the active segment."""
    trial.attempt(lambda: log.roll(trial.now_ms))


# -- stable storage ---------------------------------------------------------------------------------------------------


@with_log
def flush(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Everything is fsynced."""
    mark = trial.history.begin_flush()
    if trial.attempt(lambda: log.flush(trial.now_ms)):
        trial.history.flushed(mark)


def flush_during(*steps: Step) -> Step:
    """A flush on another thread while the log continues with `steps`; its recovery points are checkpointed after it."""

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        mark = trial.history.begin_flush()
        tasks = []
        if trial.attempt(lambda: tasks.append(log.prepare_flush(trial.now_ms))):
            for step in steps:
                step(trial)
            tasks[0].run()
            if trial.attempt(tasks[0].complete):
                trial.history.flushed(mark)
        manager.checkpoints.write_recovery_points()

    return run


@with_log
def background(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Do one round of a broker's background work."""
    trial.now_ms += 100
    trial.file_system.now_ms = trial.now_ms
    trial.attempt(lambda: flush_dirty(manager, trial.now_ms))
    manager.checkpoints.write_recovery_points()
    checkpoint_log_start(trial, manager, log)
    checkpoint_high_watermark(trial, manager, log)
    delete_expired(manager, trial.now_ms)


def lag(count: int) -> Step:
    """From now on the other replicas are this many offsets behind."""

    def run(trial: Trial) -> None:
        trial.lag = count

    return run


def checkpoint_log_start(trial: Trial, manager: LogManager, log: UnifiedLog) -> bool:
    is_written = checkpoint(trial, manager.checkpoints.log_start_offset_tasks())
    if is_written:
        trial.history.starts_at(log.log_start_offset, is_checkpointed=True)
    return is_written


def checkpoint(trial: Trial, tasks: Sequence[CheckpointTask]) -> bool:
    """Checkpoint; returns whether everything was written. A full disk refuses it, and work continues."""
    for task in tasks:
        task.run()
        task.complete()
    return trial.is_online() and not any(task.refusal for task in tasks)


def checkpoint_high_watermark(trial: Trial, manager: LogManager, log: UnifiedLog) -> bool:
    trial.high_watermark = max(trial.history.end - trial.lag, log.log_start_offset)
    trial.history.checkpointing(trial.high_watermark)
    high_watermarks = {TP: trial.high_watermark}
    other = manager.get(OTHER)
    if other is not None:
        high_watermarks[OTHER] = other.log_end_offset
    is_written = checkpoint(trial, manager.checkpoints.high_watermark_tasks(high_watermarks))
    if is_written:
        trial.history.checkpointed()
    return is_written


# -- compaction -------------------------------------------------------------------------------------------------------


def compact(*meanwhile: Step, passing_ms: int = 0) -> Step:
    """Clean the log while it continues with the steps `meanwhile`."""

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        trial.now_ms += passing_ms
        if TP in manager.futures.logs:
            return  # the cleaner leaves a log being moved alone
        high_watermark = trial.high_watermark
        bound = min(high_watermark, log.recovery_point, log.active_segment.base_offset)
        trial.history.compacting(bound, trial.now_ms, log.config.delete_retention_ms)

        def go() -> None:
            try:
                done = clean_log(
                    trial.file_system,
                    manager,
                    log,
                    trial.now_ms,
                    high_watermark=high_watermark,
                    before_replace=lambda: [step(trial) for step in meanwhile],
                )
            except OSError as error:  # as the broker does; a full disk gets another attempt
                if not is_disk_full(error):
                    log.directory.fail(error, "Error while cleaning")
                return
            if done is not None and log.cleaner_checkpoint == done[1].end_offset:
                with trial.in_peace():
                    trial.history.must_be_compact(observe(log, 0), done[1].end_offset)

        trial.attempt(go)

    return run


# -- looking ----------------------------------------------------------------------------------------------------------


@with_log
def look(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
    """Read and search like a consumer."""
    rows = [row for row in trial.history.now.rows if row.offset >= log.log_start_offset]

    def search() -> None:
        for row in rows[::3]:
            log.read(row.offset, 100)
            log.offset_for_timestamp(row.timestamp)

    trial.attempt(search)
