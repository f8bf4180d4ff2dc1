"""Steps of scenarios that shorten a log: DeleteRecords, retention and truncation."""

from __future__ import annotations

from itertools import pairwise

from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.faults.history import Violation
from tests.faults.steps import Step, checkpoint_log_start, with_log
from tests.faults.trial import Trial


def delete_records(count: int) -> Step:
    """Move the log start up by `count` offsets."""

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        offset = min(log.log_start_offset + count, log.log_end_offset)
        trial.high_watermark = max(trial.high_watermark, offset)
        trial.history.starting_at(offset)
        if trial.attempt(lambda: log.delete_records_before(offset, trial.high_watermark)):
            trial.history.starts_at(offset, is_checkpointed=False)
        checkpoint_log_start(trial, manager, log)
        trial.attempt(log.delete_old_segments)

    return run


def retain(passing_ms: int) -> Step:
    """Advance the time, and let retention delete old or excess segments."""

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        trial.now_ms += passing_ms
        trial.file_system.now_ms = trial.now_ms
        trial.history.starting_at(trial.high_watermark)
        before = log.log_start_offset
        if trial.attempt(lambda: log.expire_segments(trial.now_ms, trial.high_watermark)):
            _check_retention(trial, log, before)
        checkpoint_log_start(trial, manager, log)
        trial.attempt(log.delete_old_segments)

    return run


def _check_retention(trial: Trial, log: UnifiedLog, before: int) -> None:
    """Check that exactly the expired segments were deleted."""
    config, start = log.config, log.log_start_offset
    if not config.is_deleted:
        if start != before:
            raise Violation(f"retention moved the start of a log that is only compacted from {before} to {start}")
        return
    size = sum(segment.size for segment in log.segments if segment.base_offset >= start)
    optional = trial.history.optional  # compaction may have removed them before, and the newest timestamp with them
    gone = [row for row in trial.history.now.rows if before <= row.offset < start and row.offset not in optional]
    too_old = trial.now_ms - config.retention_ms
    if config.retention_bytes < 0 and any(row.timestamp >= too_old for row in gone):
        raise Violation(f"retention took a record that is not too old: {gone}")
    if start > trial.high_watermark:
        raise Violation(f"retention went to {start}, beyond the high watermark {trial.high_watermark}")
    for segment, following in pairwise(log.segments):
        if start < following.base_offset <= trial.high_watermark:
            stamps = [
                row.timestamp
                for row in trial.history.now.rows
                if segment.base_offset <= row.offset < following.base_offset
            ]
            if stamps and max(stamps) < too_old:
                raise Violation(f"retention left {segment}, which is too old")
            if 0 <= config.retention_bytes <= size - segment.size:
                raise Violation(f"retention left {segment} of {size} bytes")
            return


def truncate(batches: int) -> Step:
    """Truncate the last batches, like a follower that diverges from a new leader."""

    @with_log
    def run(trial: Trial, manager: LogManager, log: UnifiedLog) -> None:
        bases = sorted({row.batch_base for row in trial.history.now.rows if row.batch_base >= log.log_start_offset})
        if len(bases) <= batches:
            return
        offset = bases[-batches]
        if offset < trial.high_watermark and trial.history.is_compacted:
            return  # committed records are never truncated, and compaction relies on it
        trial.history.shortening(
            max((row.batch_end for row in trial.history.now.rows if row.batch_end <= offset), default=0)
        )
        if trial.attempt(lambda: log.truncate_to(offset, trial.now_ms)):
            trial.history.shortened(log.log_end_offset, offset)
            manager.checkpoints.write_recovery_points()
        elif trial.is_online():  # a full disk
            trial.history.not_shortened()

    return run
