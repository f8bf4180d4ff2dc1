"""Writing the offset checkpoints of a log directory without holding up the thread that owns the logs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.checkpoints import WHOLE_SEGMENTS, format_offset_checkpoint, write_atomically
from storage.file_system import FileSystem, is_disk_full
from storage.log_directory import LogDirectory
from storage.log_state import LogState


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
            self._error = error

    def complete(self) -> None:
        """Take the directory offline if the disk refused, unless it is only full."""
        doing = f"Error while writing to checkpoint file {self._path}"
        if self._error is not None and is_disk_full(self._error):
            self.refusal = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {self._error}")
            self.directory.checkpoint_refused(self._path)
        elif self._error is not None:
            self.directory.fail(self._error, doing)
        else:
            self.directory.checkpoint_written(self._path, _fingerprint(self._offsets), self._deleted_logs)


def checkpoint_tasks(
    file_system: FileSystem,
    directories: Sequence[LogDirectory],
    logs: Iterable[LogState],
    name: str,
    value: Callable[[LogState], int | None],
    marks: Mapping[str, Mapping[TopicPartition, int]] | None = None,
) -> list[CheckpointTask]:
    """A task for each directory whose checkpoint `name` has changed; `value` gives a log's entry, None for no entry.
    `marks` are entries besides, by path of the directory.
    """
    offsets: dict[str, dict[TopicPartition, int]] = {
        directory.path: dict((marks or {}).get(directory.path, {})) for directory in directories
    }
    for log in logs:
        offset = value(log)
        if offset is not None:
            offsets[log.directory.path][log.topic_partition] = offset
    tasks = []
    for directory in directories:
        content, path = offsets[directory.path], f"{directory.path}/{name}"
        fingerprint = _fingerprint(content)
        if directory.failure is None and fingerprint != directory.written_checkpoints.get(path):
            tasks.append(CheckpointTask(file_system, directory, name, content))
        elif directory.failure is None:
            directory.checkpoint_written(path, fingerprint, directory.deleted_logs)
    return tasks


def _fingerprint(offsets: Mapping[TopicPartition, int]) -> int:
    # Not of the items: 10,000 pairs would have the garbage collector walk over all there is.
    return hash((tuple(offsets), tuple(offsets.values())))


def whole_segment_marks(
    directories: Sequence[LogDirectory], logs: Iterable[LogState], unsure: Container[str]
) -> dict[str, dict[TopicPartition, int]]:
    """The entry WHOLE_SEGMENTS for each directory that may have it, by path: none of its logs has a gap above its
    recovery point that is no loss, and its path is not among the `unsure`.
    """
    gapped = {log.directory.path for log in logs if log.gaps_end > log.recovery_point}
    return {
        directory.path: {WHOLE_SEGMENTS: 0}
        for directory in directories
        if directory.path not in gapped and directory.path not in unsure
    }
