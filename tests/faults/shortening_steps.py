"""Steps of scenarios that make a log shorter: DeleteRecords, retention and truncation."""

from __future__ import annotations

from itertools import pairwise

from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.faults.history import Violation
from tests.faults.life import Life
from tests.faults.steps import Step, checkpoint_log_start, with_log


def delete_records(count: int) -> Step:
    """The log start moves up by `count` offsets."""

    @with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        offset = min(log.log_start_offset + count, log.log_end_offset)
        life.high_watermark = max(life.high_watermark, offset)
        life.history.starting_at(offset)
        if life.attempt(lambda: log.delete_records_before(offset, life.high_watermark)):
            life.history.starts_at(offset, is_checkpointed=False)
        checkpoint_log_start(life, manager, log)
        life.attempt(log.delete_old_segments)

    return run


def retain(passing_ms: int) -> Step:
    """Time passes, and retention gives up what is too old or too much."""

    @with_log
    def run(life: Life, manager: LogManager, log: UnifiedLog) -> None:
        life.now_ms += passing_ms
        life.file_system.now_ms = life.now_ms
        life.history.starting_at(life.high_watermark)
        before = log.log_start_offset
        if life.attempt(lambda: log.expire_segments(life.now_ms, life.high_watermark)):
            _check_retention(life, log, before)
        checkpoint_log_start(life, manager, log)
        life.attempt(log.delete_old_segments)

    return run


def _check_retention(life: Life, log: UnifiedLog, before: int) -> None:
    """Check that exactly the expired segments went."""
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

    @with_log
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
