"""The segments of a log, its log start and its log end (Kafka class `LocalLog`).

It does not know producers or leader epochs: `UnifiedLog` owns those, and decides what is appended and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.log_directory import DeferredDeletion, LogDirectory
from storage.io.file_system import FileSystem, is_disk_full
from storage.log_config import LogConfig
from storage.segment.log_segment import LogSegment
from storage.segment.segment_files import DELETED_SUFFIX, LOG_SUFFIX, file_name

if TYPE_CHECKING:
    from storage.log.log_flush import LogDurability
    from storage.log.truncation import TruncationTask


_REMEMBERED_BOUNDARIES = 64
"""The number of newest boundaries that are always kept; the cache holds at most twice as many."""


class LocalLog:
    """See the module's docstring. Any thread may read; everything else belongs to the log's owner."""

    __slots__ = (
        "_boundaries",
        "active_segment",
        "config",
        "directory",
        "durability",
        "file_system",
        "log_end_offset",
        "log_start_offset",
        "path",
        "segments",
        "topic_partition",
        "truncation",
        "truncations",
    )

    def __init__(
        self,
        *,
        file_system: FileSystem,
        directory: LogDirectory,
        path: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        segments: Sequence[LogSegment],
        log_start_offset: int,
        log_end_offset: int,
        durability: LogDurability,
    ) -> None:
        self.file_system = file_system
        self.directory = directory
        self.path = path
        self.topic_partition = topic_partition
        self.config = config
        """May be replaced at any time; takes effect from the next call on."""
        self.segments = tuple(segments)
        """Every change makes a new tuple, because other threads may be reading it."""
        self.active_segment = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.durability = durability
        self._boundaries: dict[int, tuple[LogSegment, int]] | None = None
        """Segment and position where a batch begins, by offset. It is None until first used, as in most logs."""
        self.truncations = 0
        """The number of truncations so far. The result of a flush or a read that began before a truncation must be
        ignored.
        """
        self.truncation: TruncationTask | None = None
        """The truncation in progress, if any."""

    @property
    def flush_limit_offset(self) -> int:
        """Records from this offset on must not be acknowledged or shown yet, because of flush.messages: fewer than that
        many records below it are not on stable storage. With flush.messages=1 it is the recovery point; without a limit
        it is the log end.

        It bounds the high watermark, and the fetch offset that a follower sends to its leader.
        """
        return min(self.log_end_offset, self.durability.recovery_point + self.config.flush_messages - 1)

    def use_path(self, path: str) -> None:
        """Follow a rename of the log's directory to `path`; open files stay open."""
        self.path = path
        for segment in self.segments:
            segment.files.use_directory(path)

    def remember_boundary(self, offset: int, segment: LogSegment, position: int) -> None:
        """Remember that the batch with base offset `offset` is, or will be, at `position` of `segment`, because an
        append or a read ended there. Compaction may leave stale entries, which do no harm.
        """
        boundaries = self._boundaries
        if boundaries is None:
            boundaries = self._boundaries = {}
        boundaries[offset] = segment, position
        if len(boundaries) >= 2 * _REMEMBERED_BOUNDARIES:
            for oldest in list(boundaries)[:_REMEMBERED_BOUNDARIES]:
                boundaries.pop(oldest, None)  # another thread may have been faster

    def known_boundary(self, offset: int, segment: LogSegment) -> int | None:
        """The remembered position in `segment` of the batch with `offset`, if any."""
        boundaries = self._boundaries
        known = None if boundaries is None else boundaries.get(offset)
        return known[1] if known is not None and known[0] is segment else None

    def forget_boundaries(self) -> None:
        """Forget all remembered positions before they change."""
        self._boundaries = None

    def begin_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        """Begin a new segment at `base_offset`. Raises OSError and then has changed nothing."""
        self.file_system.create(f"{self.path}/{file_name(base_offset, LOG_SUFFIX)}")
        segment = LogSegment(self.file_system, self.path, base_offset, 0, now_ms, is_new=True)
        self.segments = (*self.segments, segment)
        self.active_segment = segment
        self.log_end_offset = base_offset
        self.durability.has_unsynced_names = True
        self.durability.has_unflushed_sealed_segments = True
        return segment

    def defer_deletion(self, paths: Iterable[str], readers: Iterable[LogSegment] = ()) -> None:
        """Remove the files at `paths` after file.delete.delay.ms, because `readers` may still use them."""
        files = tuple(paths)
        if files:
            self.directory.deferred_deletions.append(
                DeferredDeletion(
                    files, is_tree=False, delay_ms=self.config.file_delete_delay_ms, readers=tuple(readers)
                )
            )

    # -- failing ------------------------------------------------------------------------------------------------------

    def fail(self, error: OSError, doing: str) -> ApiError:
        """Take the directory offline because of `error`; if a file of the log is missing, only this log, because that
        says nothing about the disk. Returns the error to raise. Any thread may call it.
        """
        directory = self.directory
        is_missing = isinstance(error, FileNotFoundError) and directory.failure is None
        if not is_missing or not self.file_system.exists(directory.path):
            return directory.fail(error, doing)
        reason = f"{doing}: {error}. A file was removed; the next start loads what is left of this log"
        self.directory = directory.fail_log(self.path, reason)
        return self.directory.offline_error()

    def failed(self, error: OSError, doing: str) -> ApiError:
        """The error to raise for a disk error that left the log unchanged. Unless the disk is only full, the directory
        goes offline.
        """
        if is_disk_full(error):
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}")
        return self.fail(error, doing)

    def append_failed(self, error: OSError, segment: LogSegment) -> ApiError:
        """Undo a failed append. A full disk leaves the log unchanged; any other error, or one in the clean-up, takes
        the directory offline.
        """
        doing = f"Error while appending records to {self.topic_partition} in dir {self.directory.path}"
        if is_disk_full(error):
            try:
                segment.discard_unwritten()
            except OSError as second_error:
                return self.fail(second_error, doing)
        return self.failed(error, doing)

    def read_failed(self, error: OSError) -> ApiError:
        """As `fail`, after a failed read."""
        return self.fail(error, f"Exception while reading from {self.topic_partition}")

    def refuse_offline(self) -> None:
        """Raises ApiError KAFKA_STORAGE_ERROR when the directory is offline."""
        if self.directory.failure is not None:
            raise self.directory.offline_error()

    def refuse_while_truncated(self) -> None:
        """Raises RuntimeError while a TruncationTask is in progress: the owner must wait for it."""
        if self.truncation is not None:
            raise RuntimeError(f"{self.topic_partition} is being truncated")

    def report_corrupt_ranges(self, segment: LogSegment) -> None:
        """Report the corrupt ranges found in `segment`, each once. Any thread may call it.

        Findings during a truncation are ignored. The order of the checks matters: a truncation replaces the segment
        before it resets `truncation`.
        """
        if self.truncation is not None or segment not in self.segments:
            return
        for corrupt_range in segment.batches.corrupt_ranges:
            lost = f"offsets {corrupt_range.first_offset} to {corrupt_range.end_offset - 1}"
            at = f"{segment.path} is corrupt at byte {corrupt_range.start}"
            message = f"{at} ({corrupt_range.reason}): {lost} cannot be read"
            self.directory.report_corruption(segment.path, corrupt_range.start, message)


def rename_to_deleted(segments: Iterable[LogSegment]) -> list[str]:
    """Rename the files of `segments` out of the way; returns the new paths, to be removed later. Raises OSError."""
    paths: list[str] = []
    for segment in segments:
        try:
            paths += segment.change_suffix(DELETED_SUFFIX)
        except OSError as error:
            if not is_disk_full(error):
                raise
            segment.files.remove()  # a longer name may need disk space that only a removal frees
    return paths
