"""Replacing source segments with the cleaned ones (Kafka: `LocalLog.replaceSegments`).

The `.cleaned` files become `.swap` first: from then on a start after a crash completes the replacement, and before that
it undoes it (`LogLoader`). Then the old segments become `.deleted`, and the new ones lose their suffix. Readers of the
old segments can continue: the files stay for `file.delete.delay.ms`.
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
    """Whether `log` is unchanged since `task` was made, except for segments dropped at its start. Otherwise the result
    or error of the task must be ignored.
    """
    return log.directory.failure is None and log.path == task.path and log.truncations == task.truncations


class ReplacementTask:
    """Applies the result of a cleaning to its log. The owner of the logs creates it, which renames the files; any
    thread may call `run`, which waits for the disk; the owner calls `complete`. Until then the log must not be cleaned
    again.
    """

    def __init__(self, log: UnifiedLog, task: CleanTask, result: CleanResult) -> None:
        """Replace the sources of `task` with the `result` of `storage.compaction.cleaner.clean`. Only groups whose
        sources the log still has are replaced; none after a truncation. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        self._file_system = log.local.file_system
        self._log = log
        self._path = log.path
        self._truncations = task.truncations
        self._end_offset = result.end_offset
        self._error: OSError | None = None
        self._thrown_away = list(result.groups) if log.path == task.path else []
        self.is_used = False
        """Whether all groups of the result were applied."""
        if not is_unchanged(log, task):
            return
        try:
            # Stop at the first group that does not fit: a later group holds the newer values of keys that an earlier
            # one dropped.
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
        put_in_place(new, lambda: self._rename_old(old))
        log.local.segments = (*log.segments[:first], *new, *after)
        log.durability.has_unsynced_names = True
        # The snapshot at the base of the first source is still valid. Recovery no longer starts at those in between.
        log.local.defer_deletion(log.producer_state.mark_deleted(segment.base_offset for segment in old[1:]))
        return True

    def _rename_old(self, old: Sequence[LogSegment]) -> None:
        log = self._log
        log.replacements += 1
        for segment in old:
            # Several deleted segments may have the same base until their delay is over; each needs its own file name.
            log.local.defer_deletion(segment.change_suffix(f".{log.replacements}{DELETED_SUFFIX}"), [segment])

    def run(self) -> None:
        """Make the new names durable and remove unused files; an error is kept for `complete`."""
        try:
            self._file_system.sync_dir(self._path)
            for base_offset, _ in chain.from_iterable(group.targets for group in self._thrown_away):
                for suffix in SEGMENT_SUFFIXES:
                    self._remove(f"{self._path}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}")
        except FileNotFoundError:
            return  # the log was deleted or moved: nothing is left to do
        except OSError as error:
            self._error = detached(error)

    def _remove(self, path: str) -> None:
        if self._file_system.exists(path):
            self._file_system.remove(path)

    def complete(self) -> None:
        """Record how far the log is clean. Raises ApiError KAFKA_STORAGE_ERROR; the directory is offline then."""
        log = self._log
        if self._error is not None:
            doing = f"Error while replacing segments of {log.topic_partition} in dir {log.directory.path}"
            raise log.local.fail(self._error, doing) from self._error
        if self.is_used and log.truncations == self._truncations:
            log.cleaner_checkpoint = self._end_offset
