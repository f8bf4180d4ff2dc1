"""Flushing a log without holding up the thread that owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.file_system import File, FileSystem

if TYPE_CHECKING:
    from storage.unified_log import UnifiedLog


class FlushTask:
    """The fsyncs that make a log safe up to `offset`.

    `run` may be called on any thread and touches nothing of the log; `complete` belongs to the owner of the log again.
    """

    __slots__ = ("_error", "_file_system", "directories", "files", "log", "offset", "optional_paths")

    def __init__(self, file_system: FileSystem, log: UnifiedLog, offset: int) -> None:
        self._file_system = file_system
        self.log = log
        self.offset = offset
        self.files: list[File] = []
        self.optional_paths: list[str] = []
        """Files that may have been removed meanwhile, or never existed."""
        self.directories: list[str] = []
        self._error: OSError | None = None

    def run(self) -> None:
        """Fsync everything; an error is kept for `complete`."""
        try:
            for file in self.files:
                file.flush()
            for path in self.optional_paths:
                try:
                    self._file_system.sync_file(path)
                except FileNotFoundError:
                    continue
            for path in self.directories:
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
        log.recovery_point = max(log.recovery_point, min(self.offset, log.log_end_offset))
        log.last_flushed_ms = now_ms
