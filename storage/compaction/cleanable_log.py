"""Which logs are worth cleaning, and how far each may be (Kafka: `LogToClean`, `LogCleanerManager.cleanableOffsets`).

One thing differs from Kafka: nothing above the recovery point is cleaned. A power cut may take away what is not on
stable storage; if that were the newer value of a key whose older one compaction has dropped, both would be lost. Nor
could recovery tell what compaction has dropped from what the power cut took.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.value import Value
from storage.compaction.clean_task import DEFAULT_READ_BYTES, CleanTask, LastRecord, SegmentSize
from storage.log.unified_log import UnifiedLog
from storage.segment.log_segment import LogSegment, segment_index


class CleanableLog(Value):
    """A compacted log as it is now. Offsets from `first_dirty_offset` on were never cleaned; those from
    `first_uncleanable_offset` on, the base of a segment, may not be yet.
    """

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    max_compaction_delay_ms: int
    """For how long the oldest dirty record is overdue by `max.compaction.lag.ms`; 0 when none is."""
    warning: str | None
    """The reason why the checkpointed first dirty offset was not used, in Kafka's words."""

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The dirty share of all that cleaning would go over; 0 where there is nothing."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the log is dirty enough, or overdue."""
        if self.max_compaction_delay_ms > 0 and self.cleanable_bytes > 0:
            return True
        return self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


def cleanable_log(log: UnifiedLog, high_watermark: int, now_ms: int) -> CleanableLog | None:
    """The part of `log` that can be cleaned; None when it is not compacted, set aside (`uncleanable_reason`) or
    offline.

    A wrong checkpoint is corrected in `log`. May wait for the disk. Raises ApiError, OSError.
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
    if dirty:  # otherwise the producers need not be read for it
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
    """Take everything for dirty where the checkpoint of `log` cannot be right; says why, unless that is usual."""
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
    """The one to be cleaned first; None when none is due."""
    due = [each for each in logs if each.total_bytes > 0 and each.is_due]
    return max(due, key=lambda each: each.cleanable_ratio, default=None)


def plan_cleaning(
    cleanable: CleanableLog, now_ms: int, map_capacity: int, read_bytes: int = DEFAULT_READ_BYTES
) -> CleanTask:
    """The order for `storage.compaction.cleaner.clean`; `map_capacity` in keys, `read_bytes` at a time.

    The first time, the checkpoint of the log is set as well. Before the result is used, that has to be written, and the
    recovery points of this moment: above them, recovery takes the gaps that cleaning leaves for losses. Raises
    ValueError for a map without room, ApiError.
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
