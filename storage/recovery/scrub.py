"""Reading sealed segments again and again, to find what the disk has changed before somebody needs it.

What was checked when it was first read, or written by this process, is read once more in every pass: bits flip at any
time. The position is kept in memory only; a broker that starts again begins a new pass.
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
    """A piece of one segment, from `place` (None: its begin) on. `run` on any thread, then `complete` by the logs'
    owner; then `place` is where to go on, None when the disk could not read.
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
        """Check about so many bytes as the task was made for; an error is kept for `complete`."""
        begin = 0 if self.place is None else self.place.position
        try:
            self.place = self.segment.batches.check_again(self.place, begin + self._size)
            self.checked_bytes = self.place.position - begin
        except OSError as error:
            self._error = detached(error)
            self.place = None

    def complete(self) -> None:
        """Report the corrupt ranges found. A disk that cannot be read takes its directory offline."""
        if self.segment in self.log.segments:  # otherwise it was deleted or compacted meanwhile, and proves nothing
            if self._error is not None:
                self.log.local.fail(self._error, f"Exception while reading from {self.log.topic_partition}")
            self.log.local.report_corrupt_ranges(self.segment)


class ScrubTask(SegmentCheck):
    """The next piece of a pass, which remembers where to go on."""

    __slots__ = ("_scrub",)

    def __init__(self, scrub: Scrub, log: UnifiedLog, segment: LogSegment, place: Place | None, size: int) -> None:
        super().__init__(log, segment, place, size)
        self._scrub = scrub

    def complete(self) -> None:
        super().complete()
        self._scrub.came_to(self.segment, self.place, self.checked_bytes)


class Scrub:
    """Where the pass through all sealed segments is."""

    def __init__(self) -> None:
        self.checked_bytes = 0
        """In all passes of this process."""
        self.last_pass_ended_ms: int | None = None
        """When every sealed segment had been read to its end; None before the first time."""
        self._waiting: list[TopicPartition] | None = None
        """Partitions that this pass has not come to, the next one last; None between passes."""
        self._partition: TopicPartition | None = None
        self._done_below = -1
        """Segments of `_partition` with lower base offsets are through."""
        self._place: Place | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a pass is."""
        return self._waiting is not None

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin a new pass."""
        self._waiting = sorted(partitions, reverse=True)
        self._next_partition()

    def _next_partition(self) -> None:
        self._partition = self._waiting.pop() if self._waiting else None
        self._done_below, self._place = -1, None

    def next_task(self, logs: Mapping[TopicPartition, UnifiedLog], size: int, now_ms: int) -> ScrubTask | None:
        """The next piece of about `size` bytes; None when the pass is over."""
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

    def came_to(self, segment: LogSegment, place: Place | None, checked_bytes: int) -> None:
        """A task has read up to `place`; None when it could not."""
        self.checked_bytes += checked_bytes
        if place is None or place.position >= segment.size:
            self._done_below, self._place = segment.base_offset + 1, None
        else:
            self._done_below, self._place = segment.base_offset, place
