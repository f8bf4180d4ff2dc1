"""Writing the offset checkpoints of a log directory without holding up the thread that owns the logs."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import format_offset_checkpoint, write_atomically
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem, is_disk_full


class CheckpointTask:
    """The new content of one checkpoint file.

    `run` may be called on any thread, but not twice at a time for one file; `complete` belongs to the owner of the
    logs. The text is made by `run`: for 10,000 logs that takes longer than all else.
    """

    __slots__ = ("_deleted_logs", "_error", "_file_system", "_offsets", "_path", "directory", "refusal")

    def __init__(
        self, file_system: FileSystem, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        self._file_system = file_system
        self.directory = directory
        self._path = f"{directory.path}/{name}"
        self._offsets = offsets
        self._deleted_logs = directory.deleted_logs
        self._error: OSError | None = None
        self.refusal: ApiError | None = None
        """Why the file is still the old one although the directory works: the disk is full. Another task may follow."""

    def run(self) -> None:
        """Replace the file, durably; an error is kept for `complete`."""
        try:
            write_atomically(self._file_system, self._path, format_offset_checkpoint(self._offsets))
        except OSError as error:
            self._error = detached(error)

    def complete(self) -> None:
        """Take the directory offline if the disk refused, unless it is only full."""
        doing = f"Error while writing to checkpoint file {self._path}"
        if self._error is not None and is_disk_full(self._error):
            self.refusal = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {self._error}")
            self.directory.checkpoint_refused(self._path)
        elif self._error is not None:
            self.directory.fail(self._error, doing)
        else:
            self.directory.checkpoint_written(self._path, fingerprint_of(self._offsets), self._deleted_logs)


def fingerprint_of(offsets: Mapping[TopicPartition, int]) -> int:
    """Changes when they do."""
    # Not of the items: 10,000 pairs would have the garbage collector walk over all there is.
    return hash((tuple(offsets), tuple(offsets.values())))
