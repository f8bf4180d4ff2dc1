"""Finding the segments that retention deletes (Kafka: `UnifiedLog.deleteOldSegments` and its three rules).

Only whole segments below the high watermark are deleted, the oldest first, and each rule stops at the first segment
that it keeps. This module only decides; `UnifiedLog.expire_segments` and `UnifiedLog.delete_old_segments` delete.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from storage.io.file_system import FileSystem
from storage.log.local_log import LocalLog
from storage.segment.indexes import TimeIndex, TimestampOffset
from storage.segment.log_segment import LogSegment, segment_index
from storage.segment.segment_files import TIME_INDEX_SUFFIX

UNLIMITED_RETENTION = -1
"""Any negative limit means no limit."""


class Expiry(Value):
    """The first `expired` segments of a log have expired. `reasons` say why, in Kafka's words; `warning` names records
    whose future timestamps keep other segments from expiring.
    """

    expired: int
    reasons: Sequence[str]
    warning: str | None


class _Rules:
    """Applies the rules in order; `count` segments have expired so far."""

    def __init__(self, log: LocalLog, high_watermark: int) -> None:
        self._log = log
        self._segments = segments = log.segments
        self.count = 0
        self.reasons: list[str] = []
        self.warning: str | None = None
        if high_watermark >= log.log_end_offset:
            self._deletable = len(segments) if segments[-1].size else len(segments) - 1
        else:
            self._deletable = segment_index(segments, high_watermark)

    def log_start(self) -> None:
        """Expire the segments that lie wholly below the log start."""
        start = self._log.log_start_offset
        self.count = min(segment_index(self._segments, start), self._deletable)
        if self.count:
            names = ",".join(describe(segment) for segment in self._segments[: self.count])
            self.reasons.append(f"Deleting segments due to log start offset {start} breach: {names}")

    def size(self, retention_bytes: int) -> None:
        """Expire the oldest segments that fit into the excess over `retention_bytes`."""
        left = sum(segment.size for segment in self._segments[self.count :])
        if retention_bytes <= UNLIMITED_RETENTION or left < retention_bytes:
            return
        while self.count < self._deletable and left - self._segments[self.count].size >= retention_bytes:
            segment = self._segments[self.count]
            left -= segment.size
            self.count += 1
            self.reasons.append(
                f"Deleting segment {describe(segment)} due to log retention size {retention_bytes} breach. "
                f"Log size after deletion will be {left}."
            )

    def time(self, retention_ms: int, now_ms: int) -> None:
        """Expire the segments whose newest record is older than `retention_ms`. A segment without timestamps uses the
        modification time of its file.
        """
        if retention_ms <= UNLIMITED_RETENTION:
            return
        while self.count < self._deletable:
            segment = self._segments[self.count]
            recorded = segment.max_timestamp_and_offset.timestamp
            latest = recorded if recorded >= 0 else segment.modified_ms
            if now_ms - latest <= retention_ms:
                if latest > now_ms:
                    self.warning = (
                        f"{describe(segment)} contains future timestamp(s), making it ineligible to be deleted"
                    )
                return
            self.count += 1
            basis = "largest record timestamp in" if recorded >= 0 else "last modified time of"
            self.reasons.append(
                f"Deleting segment {describe(segment)} due to log retention time {retention_ms}ms breach "
                f"based on the {basis} the segment"
            )


def check_new_start(name: TopicPartition, offset: int, high_watermark: int) -> None:
    """Raises ApiError OFFSET_OUT_OF_RANGE unless the records of partition `name` before `offset` may be deleted."""
    if offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"The offset {offset} for partition {name} is not valid")
    if offset > high_watermark:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Cannot increment the log start offset to {offset} of partition {name} "
            f"since it is larger than the high watermark {high_watermark}",
        )


def find_expired(log: LocalLog, now_ms: int, high_watermark: int) -> Expiry:
    """Find the segments that have expired. In a log without cleanup.policy `delete`, only segments below the log start
    expire.

    May wait for the disk unless a `TimestampLookup` ran before. Raises ApiError CORRUPT_MESSAGE, OSError.
    """
    rules = _Rules(log, high_watermark)
    rules.log_start()
    config = log.config
    if config.is_deleted:
        rules.size(config.retention_bytes)
        rules.time(config.retention_ms, now_ms)
    return Expiry(rules.count, rules.reasons, rules.warning)


def describe(segment: LogSegment) -> str:
    """A segment as Kafka's log lines name it. May wait for the disk; raises OSError."""
    return (
        f"LogSegment(baseOffset={segment.base_offset}, size={segment.size}, lastModifiedTime={segment.modified_ms}, "
        f"largestRecordTimestamp={segment.max_timestamp_and_offset.timestamp})"
    )


class TimestampLookup:
    """The largest timestamps that `find_expired` would have to read from the disk, for many logs.

    The owner of the logs creates and completes it; any thread may call `run`, which changes nothing, so the log may be
    appended to meanwhile.
    """

    __slots__ = ("_file_system", "_found", "_unknown")

    def __init__(self, file_system: FileSystem, logs: Sequence[LocalLog], now_ms: int) -> None:
        self._file_system = file_system
        self._unknown = [
            (log.segments, now_ms - log.config.retention_ms)
            for log in logs
            if log.config.is_deleted
            and log.config.retention_ms > UNLIMITED_RETENTION
            and not log.segments[0].has_max_timestamp
        ]
        self._found: list[tuple[LogSegment, TimestampOffset]] = []

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._unknown)

    def run(self) -> None:
        """Read the ends of the time indexes, for each log up to the first segment that stays.

        Unreadable indexes are left to `find_expired`, which repairs or reports them.
        """
        for segments, oldest_ms in self._unknown:
            for segment in segments:
                if segment.has_max_timestamp:
                    break
                index = TimeIndex(self._file_system, segment.files.path_of(TIME_INDEX_SUFFIX), segment.base_offset)
                try:
                    if not len(index) or not index.is_sound():
                        break
                    found = index.last()
                except (OSError, ApiError):
                    break
                finally:
                    index.close()
                self._found.append((segment, found))
                if found.timestamp >= oldest_ms:
                    break

    def complete(self) -> None:
        """Store the timestamps in the segments, unless they have newer ones by now."""
        for segment, found in self._found:
            segment.learn_max_timestamp(found)
