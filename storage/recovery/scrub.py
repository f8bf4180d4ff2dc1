"""Re-reading sealed segments continuously, to find corruption before a reader does.

Every pass also re-reads batches that were checked before or written by this process: bits flip at any time. The
position is only kept in memory; a restarted broker begins a new pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from protocol.errors import detached
from protocol.topic_partition import TopicPartition
from storage.log.unified_log import UnifiedLog
from storage.segment.batch_walk import Place
from storage.segment.log_segment import LogSegment


class SegmentCheck:
    """The check of a piece of one segment from `place` on (None: its start). Any thread calls `run`, then the logs'
    owner calls `complete`; then `place` is the next position, or None after a read error.
    """

    __slots__ = ("_error", "_size", "checked_bytes", "log", "place", "segment")

    def __init__(self, log: UnifiedLog, segment: LogSegment, place: Place | None, size: int) -> None:
        self.place = place
        self._size = size
        self._error: OSError | None = None
        self.log = log
        self.segment = segment
        self.checked_bytes = 0

    def run(self) -> None:
        """Check about as many bytes as the task was created for; an error is kept for `complete`."""
        begin = 0 if self.place is None else self.place.position
        try:
            self.place = self.segment.batches.check_again(self.place, begin + self._size)
            self.checked_bytes = self.place.position - begin
        except OSError as error:
            self._error = detached(error)
            self.place = None

    def complete(self) -> None:
        """Report the corrupt ranges found. A read error takes the directory offline."""
        if self.segment in self.log.segments:  # otherwise it was deleted or compacted meanwhile
            if self._error is not None:
                self.log.local.fail(self._error, f"Exception while reading from {self.log.topic_partition}")
            self.log.local.report_corrupt_ranges(self.segment)


class ScrubTask(SegmentCheck):
    """The next piece of a pass; the pass remembers its position."""

    __slots__ = ("_scrub",)

    def __init__(self, scrub: Scrub, log: UnifiedLog, segment: LogSegment, place: Place | None, size: int) -> None:
        super().__init__(log, segment, place, size)
        self._scrub = scrub

    def complete(self) -> None:
        super().complete()
        self._scrub.advance_to(self.segment, self.place, self.checked_bytes)


class Scrub:
    """The progress of a pass through all sealed segments."""

    def __init__(self) -> None:
        self.checked_bytes = 0
        """The total of all passes of this process."""
        self.last_pass_ended_ms: int | None = None
        """The time when the last complete pass ended, or None."""
        self._waiting: list[TopicPartition] | None = None
        """Partitions that this pass has not reached yet, the next one last. It is None between passes."""
        self._partition: TopicPartition | None = None
        self._done_below = -1
        """Segments of `_partition` with lower base offsets are done."""
        self._place: Place | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a pass is running."""
        return self._waiting is not None

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin a new pass."""
        self._waiting = sorted(partitions, reverse=True)
        self._next_partition()

    def _next_partition(self) -> None:
        self._partition = self._waiting.pop() if self._waiting else None
        self._done_below, self._place = -1, None

    def next_task(self, logs: Mapping[TopicPartition, UnifiedLog], size: int, now_ms: int) -> ScrubTask | None:
        """The next piece of about `size` bytes, or None when the pass is complete."""
        while self._partition is not None:
            log = logs.get(self._partition)
            if log is not None and log.directory.failure is None:
                for segment, following in pairwise(log.segments):
                    if segment.base_offset >= self._done_below and segment.size:
                        segment.batches.limit_offset = following.base_offset
                        return ScrubTask(self, log, segment, self._place, size)
            self._next_partition()
        if self._waiting is not None:
            self._waiting, self.last_pass_ended_ms = None, now_ms
        return None

    def advance_to(self, segment: LogSegment, place: Place | None, checked_bytes: int) -> None:
        """Record that a task has read up to `place`, which is None after a read error."""
        self.checked_bytes += checked_bytes
        if place is None or place.position >= segment.size:
            self._done_below, self._place = segment.base_offset + 1, None
        else:
            self._done_below, self._place = segment.base_offset, place
