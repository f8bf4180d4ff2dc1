"""Flushing a log without holding up the thread that owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.file_system import File, FileSystem
from storage.log_reader import segment_index
from storage.log_segment import SNAPSHOT_SUFFIX, file_name
from storage.partition_metadata import PARTITION_METADATA

if TYPE_CHECKING:
    from storage.unified_log import UnifiedLog


class FlushTask:
    """The fsyncs that make a log safe up to `offset`: files first, then the directories that hold their names.

    `run` may be called on any thread and touches nothing of the log; making the task and `complete` belong to the log's owner.
    """

    __slots__ = ("_directories", "_error", "_file_system", "_files", "_optional_paths", "_truncations", "log", "offset")

    def __init__(self, file_system: FileSystem, log: UnifiedLog, offset: int) -> None:
        """Raises ApiError KAFKA_STORAGE_ERROR when what is still in memory cannot be written."""
        self._file_system = file_system
        self.log = log
        self.offset = min(offset, log.log_end_offset)
        self._truncations = log.truncations
        self._files: list[File] = []
        self._optional_paths: list[str] = []
        self._directories: list[str] = []
        self._error: OSError | None = None
        if self.offset > log.recovery_point:
            try:
                self._collect()
            except OSError as error:
                raise log.failed(error, f"Error while flushing log for {log.topic_partition}") from error

    def _collect(self) -> None:
        log = self.log
        segments = log.segments
        first = segment_index(segments, log.recovery_point)
        for at in range(first, segment_index(segments, self.offset - 1) + 1):
            segment = segments[at]
            is_sealed = at + 1 < len(segments)
            self._files += segment.files_to_flush(is_sealed=is_sealed)
            if is_sealed:
                self._optional_paths.append(f"{log.path}/{file_name(segments[at + 1].base_offset, SNAPSHOT_SUFFIX)}")
        epochs = log.leader_epochs.take_unsynced()
        if epochs is not None:
            self._optional_paths.append(epochs)
            self._directories.append(log.path)
        if log.has_unsynced_names:
            self._optional_paths.append(f"{log.path}/{PARTITION_METADATA}")
            self._directories = [log.path, log.directory.path]
            log.has_unsynced_names = False

    def run(self) -> None:
        """Fsync everything; an error is kept for `complete`."""
        try:
            for file in self._files:
                file.flush()
            for path in self._optional_paths:
                try:
                    self._file_system.sync_file(path)
                except FileNotFoundError:
                    continue
            for path in self._directories:
                self._file_system.sync_dir(path)
        except OSError as error:
            self._error = error

    def complete(self, now_ms: int) -> None:
        """Advance the recovery point. Raises ApiError KAFKA_STORAGE_ERROR if anything failed; the directory is offline then.

        A failed fsync is never tried again: the kernel may have dropped the pages and call the next one a success.
        """
        log = self.log
        if self._error is not None:
            doing = f"Error while flushing log for {log.topic_partition} in dir {log.directory.path}"
            raise log.directory.fail(self._error, doing) from self._error
        if log.truncations == self._truncations:
            log.recovery_point = max(log.recovery_point, self.offset)
        log.last_flushed_ms = now_ms
