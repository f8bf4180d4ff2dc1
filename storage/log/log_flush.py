"""The recovery point of a log, and flushing the log without blocking the thread that owns it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from protocol.errors import detached
from storage.directory.meta_properties import PARTITION_METADATA
from storage.io.file_system import File, FileSystem
from storage.segment.log_segment import LogSegment, segment_index
from storage.segment.segment_files import SNAPSHOT_SUFFIX, TRUNCATION_MARKER, file_name

if TYPE_CHECKING:
    from storage.log.leader_epoch import LogEpochs
    from storage.log.local_log import LocalLog
    from storage.log.producer_state import LogProducers


class LogDurability:
    """The recovery point of a log, and the state of everything above it. Belongs to the log's owner."""

    __slots__ = (
        "_file_system",
        "flush_in_flight",
        "gaps_end",
        "has_unflushed_sealed_segments",
        "has_unsynced_names",
        "has_unsynced_truncation",
        "highest_recovery_point",
        "last_flushed_ms",
        "recovery_point",
        "truncation_marker",
    )

    def __init__(
        self, file_system: FileSystem, recovery_point: int, log_end_offset: int, now_ms: int, names_are_synced: bool
    ) -> None:
        self._file_system = file_system
        self.recovery_point = min(recovery_point, log_end_offset)
        """Everything below is on stable storage."""
        self.highest_recovery_point = recovery_point
        """The highest value that a checkpoint on disk may hold. Above `recovery_point` after a truncation."""
        self.flush_in_flight: FlushTask | None = None
        """The newest task, until it completes."""
        self.last_flushed_ms = now_ms
        self.has_unsynced_names = not names_are_synced
        """Whether files were created since the directories were fsynced."""
        self.has_unflushed_sealed_segments = False
        """Whether the log rolled since a FlushTask last reached its active segment."""
        self.has_unsynced_truncation = False
        """Whether a power cut could undo the last truncation; until it is durable, nothing may be appended."""
        self.truncation_marker: int | None = None
        """The offset in the name of the TRUNCATION_MARKER, if the file exists. It exists while
        `has_unsynced_truncation`, which the next process must know after a crash, and until `recovery_point` has
        reached `highest_recovery_point` again.
        """
        self.gaps_end = 0
        """Below this offset, a sealed segment may end before the next one begins although nothing was lost. A start
        after a crash cannot know that until the checkpointed recovery point has passed this offset.
        """

    def mark_truncation(self, path: str, recovery_point: int) -> None:
        """Record in the log's directory, `path`, that its end is truncated; everything below `recovery_point` stays,
        and is on stable storage. Raises OSError.
        """
        noted = min(recovery_point, self.recovery_point)
        write_truncation_marker(self._file_system, path, self.truncation_marker, noted)
        self.truncation_marker = noted
        self.gaps_end = min(self.gaps_end, recovery_point)
        self.has_unsynced_names = self.has_unsynced_truncation = True

    def advance(self, offset: int) -> int | None:
        """Advance the recovery point: everything below `offset`, and any truncation, is on stable storage. Returns the
        obsolete truncation marker, if any, for `remove_truncation_marker`.
        """
        self.recovery_point = max(self.recovery_point, offset)
        if self.recovery_point < self.highest_recovery_point:
            return None
        self.highest_recovery_point = self.recovery_point
        if self.has_unsynced_truncation:
            return None
        marker, self.truncation_marker = self.truncation_marker, None
        return marker

    @property
    def known_recovery_point(self) -> int:
        """The offset where recovery would start after a crash, once `recovery_point` is checkpointed."""
        return (
            self.recovery_point if self.truncation_marker is None else min(self.recovery_point, self.truncation_marker)
        )


def truncation_marker_path(path: str, offset: int) -> str:
    """The path of the TRUNCATION_MARKER for `offset`, in the directory `path` of a log."""
    return f"{path}/{TRUNCATION_MARKER}{offset}"


def write_truncation_marker(file_system: FileSystem, path: str, known: int | None, noted: int) -> None:
    """Write the marker for `noted` in the directory `path`; `known` is the offset of the existing marker, if any.
    Raises OSError.
    """
    if known is None:
        file_system.create(truncation_marker_path(path, noted))
    elif known != noted:
        file_system.rename(truncation_marker_path(path, known), truncation_marker_path(path, noted))


def remove_truncation_marker(file_system: FileSystem, path: str, offset: int) -> None:
    """Remove the marker for `offset` if it exists. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        file_system.remove(truncation_marker_path(path, offset))


_MANY_FLUSHES = 64


class FlushTask:
    """The fsyncs that make a log safe up to `offset`: files first, then the directories that hold their names.

    Any thread may call `run` (or `run_together`), which does not touch the log; the log's owner creates the task and
    calls `complete`. The task repeats the fsyncs of an earlier task that is not complete, because a file is marked
    clean when its fsync begins.
    """

    __slots__ = (
        "_now_ms",
        "_truncations",
        "_without_indexes",
        "directories",
        "error",
        "file_system",
        "files",
        "log",
        "offset",
        "optional_paths",
    )

    def __init__(
        self,
        log: LocalLog,
        producers: LogProducers,
        epochs: LogEpochs,
        now_ms: int,
        offset: int | None = None,
        *,
        closing: bool = False,
    ) -> None:
        """See `UnifiedLog.prepare_flush`. Raises ApiError KAFKA_STORAGE_ERROR when buffered data cannot be written."""
        log.refuse_offline()
        durability = log.durability
        self.file_system = log.file_system
        self.log = log
        self.offset = log.log_end_offset if offset is None else min(offset, log.log_end_offset)
        self._now_ms = now_ms
        self._truncations = log.truncations if log.truncation is None else -1
        self._without_indexes: LogSegment | None = None
        self.files: list[File] = []
        self.optional_paths: list[str] = []
        """Files that may have been removed meanwhile, or never existed."""
        self.directories: list[str] = []
        self.error: OSError | None = None
        try:
            # Closing a log that was always empty does not need an fsync: its first flush will do it.
            is_worth_it = (log.active_segment.files.was_used or log.log_end_offset > 0) and not is_unchanged_since_load(
                durability, producers, epochs
            )
            has_work = self.offset > durability.recovery_point or durability.has_unsynced_truncation
            if has_work or (is_worth_it and (closing or durability.has_unsynced_names)):
                self._collect(epochs, closing)
        except OSError as error:
            raise log.failed(error, f"Error while flushing log for {log.topic_partition}") from error
        if durability.flush_in_flight is not None:
            self._take_over(durability.flush_in_flight)
        durability.flush_in_flight = self
        if self.offset >= log.active_segment.base_offset:
            durability.has_unflushed_sealed_segments = False

    def _collect(self, epochs: LogEpochs, closing: bool) -> None:
        log, durability = self.log, self.log.durability
        segments = log.segments
        last = len(segments) - 1
        first = segment_index(segments, durability.recovery_point)
        until = last if self.offset == log.log_end_offset else segment_index(segments, self.offset - 1)
        if until == last and not closing:
            self._without_indexes = log.active_segment
        for at in range(first, until + 1):
            if segments[at].files.was_used or durability.recovery_point < self.offset:
                self.files += segments[at].files_to_flush(with_indexes=closing or at < last)
            if at < last:
                self.optional_paths.append(f"{log.path}/{file_name(segments[at + 1].base_offset, SNAPSHOT_SUFFIX)}")
        if closing:  # the next start trusts this file
            self.optional_paths.append(f"{log.path}/{file_name(log.log_end_offset, SNAPSHOT_SUFFIX)}")
        if durability.has_unsynced_truncation and log.active_segment.file not in self.files:
            self.files.append(log.active_segment.file)
        epoch_path = epochs.take_unsynced()
        if epoch_path is not None:
            self.optional_paths.append(epoch_path)
            self.directories.append(log.path)
        if durability.has_unsynced_names:
            self.optional_paths.append(f"{log.path}/{PARTITION_METADATA}")
            self.directories = [log.path, log.directory.path]
            durability.has_unsynced_names = False

    def _take_over(self, earlier: FlushTask) -> None:
        self.files += [file for file in earlier.files if file not in self.files]
        self.optional_paths += [path for path in earlier.optional_paths if path not in self.optional_paths]
        self.directories += [path for path in earlier.directories if path not in self.directories]

    def run(self) -> None:
        """Fsync everything; an error is kept for `complete`."""
        run_together([self])

    def complete(self) -> None:
        """Advance the recovery point. Raises ApiError KAFKA_STORAGE_ERROR if anything failed; the directory is
        offline then.

        A failed fsync is never tried again: the kernel may have dropped the pages and call the next one a success.
        """
        log, durability = self.log, self.log.durability
        if self.error is not None:
            doing = f"Error while flushing log for {log.topic_partition} in dir {log.directory.path}"
            raise log.fail(self.error, doing) from self.error
        if durability.flush_in_flight is self:
            durability.flush_in_flight = None
        if log.truncations == self._truncations:
            offset, segment = self.offset, self._without_indexes
            if segment is not None and segment is not log.active_segment:
                # It was sealed meanwhile. Recovery must read it until a flush has covered its indexes.
                offset = min(offset, segment.base_offset)
            # Appends wait for an unsynced truncation, so a task that reaches the truncation reaches the end.
            durability.has_unsynced_truncation = durability.has_unsynced_truncation and self.offset < log.log_end_offset
            marker = durability.advance(offset)
            if marker is not None:
                self._remove_marker(marker)
        durability.last_flushed_ms = self._now_ms

    def _remove_marker(self, marker: int) -> None:
        log = self.log
        try:
            remove_truncation_marker(self.file_system, log.path, marker)
        except OSError as error:
            doing = f"Error while removing the truncation marker of {log.topic_partition} in dir {log.directory.path}"
            raise log.fail(error, doing) from error

    def finish(self) -> None:
        """Call `run` and `complete`, which waits for the disk. Raises as `complete`."""
        self.run()
        self.complete()


def is_unchanged_since_load(durability: LogDurability, producers: LogProducers, epochs: LogEpochs) -> bool:
    """Whether the log was not changed since it was opened after a clean stop. Then closing it has nothing to do."""
    return producers.loaded is None and not epochs.is_loaded and not durability.has_unsynced_names


def run_together(tasks: Sequence[FlushTask]) -> None:
    """Call `FlushTask.run` for all tasks, but fsync every directory only once."""
    if len(tasks) > _MANY_FLUSHES:
        tasks[0].file_system.start_sync()
    directories: dict[str, list[FlushTask]] = {}
    for task in tasks:
        try:
            for file in task.files:
                with contextlib.suppress(FileNotFoundError):  # its segment was deleted or replaced meanwhile
                    file.flush()
            for path in task.optional_paths:
                try:
                    task.file_system.sync_file(path)
                except FileNotFoundError:
                    continue
        except OSError as error:
            task.error = detached(error)
        for path in task.directories:
            directories.setdefault(path, []).append(task)
    for path, concerned in directories.items():
        try:
            concerned[0].file_system.sync_dir(path)
        except OSError as error:
            for task in concerned:
                task.error = detached(error)
