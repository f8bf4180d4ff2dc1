"""Putting cleaned segments in the place of those they were made from (Kafka: `LocalLog.replaceSegments`).

The `.cleaned` files become `.swap` first: from here on a start after a crash completes what follows, before it would
have undone it (`LogLoader`). Then the old segments become `.deleted`, and the new ones lose their suffix. Whoever still
reads the old ones goes on: their files stay for `file.delete.delay.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from protocol.errors import detached
from storage.compaction.clean_task import CleanedGroup, CleanResult, CleanTask, SegmentSize
from storage.log.unified_log import UnifiedLog
from storage.segment.log_segment import LogSegment, put_in_place, segment_index
from storage.segment.segment_files import CLEANED_SUFFIX, DELETED_SUFFIX, SEGMENT_SUFFIXES, file_name


def is_unchanged(log: UnifiedLog, task: CleanTask) -> bool:
    """Whether `log` is still as it was when `task` was made, apart from segments dropped at its start. Otherwise the
    result or error of the task is void.
    """
    return log.directory.failure is None and log.path == task.path and log.truncations == task.truncations


class ReplacementTask:
    """The result of a cleaning in its log. Made by the owner of the logs, which renames the files; `run` waits for the
    disk and may be called on any thread; `complete` belongs to the owner again. Until then the log may not be cleaned
    again.
    """

    def __init__(self, log: UnifiedLog, task: CleanTask, result: CleanResult) -> None:
        """Put what `storage.compaction.cleaner.clean` made of `task` in the place of its sources: as many groups of
        `result` as the log still has the sources of, none when it was truncated meanwhile. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        self._file_system = log.local.file_system
        self._log = log
        self._path = log.path
        self._truncations = task.truncations
        self._end_offset = result.end_offset
        self._error: OSError | None = None
        self._thrown_away = list(result.groups) if log.path == task.path else []
        self.is_used = False
        """Whether all of the result became the log."""
        if not is_unchanged(log, task):
            return
        try:
            # In order, and none behind one that does not fit: later ones hold what earlier ones have dropped.
            while self._thrown_away and self._replace(self._thrown_away[0]):
                del self._thrown_away[0]
        except OSError as error:
            doing = f"Error while replacing segments of {log.topic_partition} in dir {log.directory.path}"
            raise log.local.fail(error, doing) from error
        self.is_used = not self._thrown_away

    def _replace(self, group: CleanedGroup) -> bool:
        log = self._log
        first = segment_index(log.segments, group.base_offset)
        old = log.segments[first : first + len(group.sources)]
        found = [SegmentSize(segment.base_offset, segment.size) for segment in old]
        if found != group.sources or old[-1] is log.active_segment:
            return False
        new = [
            LogSegment(self._file_system, log.path, *each, old[-1].created_ms, suffix=CLEANED_SUFFIX)
            for each in group.targets
        ]
        after = log.segments[first + len(old) :]
        for segment, following in pairwise([*new, after[0]]):
            segment.batches.limit_offset = following.base_offset
        put_in_place(new, lambda: self._take_away(old))
        log.local.segments = (*log.segments[:first], *new, *after)
        log.durability.has_unsynced_names = True
        # The one at the base of the first still is right. Those between mark places that recovery no longer starts at.
        log.local.defer_deletion(log.producer_state.mark_deleted(segment.base_offset for segment in old[1:]))
        return True

    def _take_away(self, old: Sequence[LogSegment]) -> None:
        log = self._log
        log.replacements += 1
        for segment in old:
            # Of one base there may be several until their delay is over; none may take the file of another.
            log.local.defer_deletion(segment.change_suffix(f".{log.replacements}{DELETED_SUFFIX}"), [segment])

    def run(self) -> None:
        """Make the new names durable, remove what is not used; an error is kept for `complete`."""
        try:
            self._file_system.sync_dir(self._path)
            for base_offset, _ in chain.from_iterable(group.targets for group in self._thrown_away):
                for suffix in SEGMENT_SUFFIXES:
                    self._remove(f"{self._path}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}")
        except FileNotFoundError:
            return  # the log was deleted or moved, and with it everything there was to do
        except OSError as error:
            self._error = detached(error)

    def _remove(self, path: str) -> None:
        if self._file_system.exists(path):
            self._file_system.remove(path)

    def complete(self) -> None:
        """Note how far the log is clean. Raises ApiError KAFKA_STORAGE_ERROR; the directory is offline then."""
        log = self._log
        if self._error is not None:
            doing = f"Error while replacing segments of {log.topic_partition} in dir {log.directory.path}"
            raise log.local.fail(self._error, doing) from self._error
        if self.is_used and log.truncations == self._truncations:
            log.cleaner_checkpoint = self._end_offset
