"""Choosing the logs to clean, and how far to clean each (Kafka: `LogToClean`, `LogCleanerManager.cleanableOffsets`).

One difference from Kafka: nothing above the recovery point is cleaned. A power cut may lose records that are not on
stable storage; if compaction had already dropped the older value of such a key, both values would be lost. Recovery
could not tell the records that compaction dropped from those the power cut lost, either.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.value import Value
from storage.compaction.clean_task import DEFAULT_READ_BYTES, CleanTask, LastRecord, SegmentSize
from storage.log.unified_log import UnifiedLog
from storage.segment.log_segment import LogSegment, segment_index


class CleanableLog(Value):
    """A snapshot of a compacted log. Offsets from `first_dirty_offset` on were never cleaned; those from
    `first_uncleanable_offset` on, the base of a segment, must not be cleaned yet.
    """

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    max_compaction_delay_ms: int
    """How long the oldest dirty record has exceeded `max.compaction.lag.ms`; 0 when no record has."""
    warning: str | None
    """The reason why the checkpointed first dirty offset was not used, in Kafka's words."""

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The dirty share of the bytes that cleaning would read; 0 for an empty log."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the log is dirty enough, or overdue."""
        if self.max_compaction_delay_ms > 0 and self.cleanable_bytes > 0:
            return True
        return self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


def cleanable_log(log: UnifiedLog, high_watermark: int, now_ms: int) -> CleanableLog | None:
    """Find the part of `log` that can be cleaned.

    Returns None when the log is not compacted, marked uncleanable (`uncleanable_reason`) or offline. A wrong checkpoint
    is corrected in `log`. May wait for the disk. Raises ApiError, OSError.
    """
    config = log.config
    if not config.is_compacted or log.uncleanable_reason is not None or log.directory.failure is not None:
        return None
    if log.local.truncation is not None:
        return None
    warning = correct_checkpoint(log)
    first_dirty = log.log_start_offset if log.cleaner_checkpoint is None else log.cleaner_checkpoint
    segments = log.segments
    dirty = segments[segment_index(segments, first_dirty) : -1]
    uncleanable = min(high_watermark, log.durability.known_recovery_point, segments[-1].base_offset)
    if dirty:  # a clean log need not load its producer state
        uncleanable = min(uncleanable, log.last_stable_offset(high_watermark))
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        too_young = (segment.base_offset for segment in dirty if _largest_timestamp(segment) > youngest_ms)
        uncleanable = min(uncleanable, next(too_young, uncleanable))
    # Only whole segments are cleaned.
    end = segments[segment_index(segments, max(first_dirty, uncleanable))].base_offset
    start = min(first_dirty, end)
    return CleanableLog(
        log,
        first_dirty,
        end,
        sum(segment.size for segment in segments if segment.base_offset < first_dirty),
        sum(segment.size for segment in segments[segment_index(segments, start) :] if segment.base_offset < end),
        _overdue_ms(dirty, now_ms - config.max_compaction_lag_ms),
        warning,
    )


def correct_checkpoint(log: UnifiedLog) -> str | None:
    """Fall back to the log start offset when the checkpoint of `log` is impossible; returns the warning to log, if
    any.
    """
    checkpoint, start = log.cleaner_checkpoint, log.log_start_offset
    if checkpoint is None:
        return None
    if checkpoint < start:
        log.cleaner_checkpoint = start
        if log.config.is_deleted:
            return None
        return (
            f"Resetting first dirty offset of {log.topic_partition} to log start offset {start} "
            f"since the checkpointed offset {checkpoint} is invalid."
        )
    if checkpoint > log.log_end_offset:
        log.cleaner_checkpoint = start
        return (
            f"The last checkpoint dirty offset for partition {log.topic_partition} is {checkpoint}, "
            f"which is larger than the log end offset {log.log_end_offset}. "
            f"Resetting to the log start offset {start}."
        )
    return None


def _largest_timestamp(segment: LogSegment) -> int:
    recorded = segment.max_timestamp_and_offset.timestamp
    return recorded if recorded >= 0 else segment.modified_ms


def _overdue_ms(dirty: Iterable[LogSegment], clean_until_ms: int) -> int:
    first_timestamps = [segment.first_timestamp for segment in dirty]
    earliest_ms = min((timestamp for timestamp in first_timestamps if timestamp > 0), default=clean_until_ms)
    return max(clean_until_ms - earliest_ms, 0)


def filthiest(logs: Iterable[CleanableLog]) -> CleanableLog | None:
    """The log to clean first; None when no log is due."""
    due = [each for each in logs if each.total_bytes > 0 and each.is_due]
    return max(due, key=lambda each: each.cleanable_ratio, default=None)


def plan_cleaning(
    cleanable: CleanableLog, now_ms: int, map_capacity: int, read_bytes: int = DEFAULT_READ_BYTES
) -> CleanTask:
    """The task for `storage.compaction.cleaner.clean`; `map_capacity` in keys, `read_bytes` per read.

    The first time, this also sets the cleaner checkpoint of the log. The caller must write that checkpoint and the
    current recovery points before it applies the result: above a recovery point, recovery would mistake the gaps left
    by cleaning for lost records. Raises ApiError, and ValueError for a map that holds no key.
    """
    log = cleanable.log
    if log.cleaner_checkpoint is None:
        log.cleaner_checkpoint = cleanable.first_dirty_offset
    config = log.config
    return CleanTask(
        path=log.path,
        segments=[SegmentSize(segment.base_offset, segment.size) for segment in log.segments],
        log_end_offset=log.log_end_offset,
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        producers=[
            LastRecord(producer_id, entry.producer_epoch, entry.batches[-1].last_offset if entry.batches else -1)
            for producer_id, entry in log.producer_state.entries.items()
        ],
        truncations=log.truncations,
        map_capacity=map_capacity,
        read_bytes=read_bytes,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
    )
