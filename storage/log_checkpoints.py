"""Writing the offset checkpoints of a log directory without holding up the thread that owns the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.checkpoints import format_offset_checkpoint, write_atomically
from storage.file_system import FileSystem, is_disk_full
from storage.log_directory import LogDirectory
from storage.log_state import LogState


class CheckpointTask:
    """The new content of one checkpoint file.

    `run` may be called on any thread, but not twice at a time for one file; `complete` belongs to the owner of the
    logs.
    """

    __slots__ = ("_data", "_directory", "_error", "_file_system", "_path", "refusal")

    def __init__(self, file_system: FileSystem, directory: LogDirectory, name: str, data: bytes) -> None:
        self._file_system = file_system
        self._directory = directory
        self._path = f"{directory.path}/{name}"
        self._data = data
        self._error: OSError | None = None
        self.refusal: ApiError | None = None
        """Why the file is still the old one although the directory works: the disk is full. Another task may follow."""

    def run(self) -> None:
        """Replace the file, durably; an error is kept for `complete`."""
        try:
            write_atomically(self._file_system, self._path, self._data)
        except OSError as error:
            self._error = error

    def complete(self) -> None:
        """Take the directory offline if the disk refused, unless it is only full."""
        doing = f"Error while writing to checkpoint file {self._path}"
        if self._error is not None and is_disk_full(self._error):
            self.refusal = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {self._error}")
        elif self._error is not None:
            self._directory.fail(self._error, doing)
        else:
            self._directory.written_checkpoints[self._path] = hash(self._data)


def checkpoint_tasks(
    file_system: FileSystem,
    directories: Sequence[LogDirectory],
    logs: Iterable[LogState],
    name: str,
    value: Callable[[LogState], int | None],
) -> list[CheckpointTask]:
    """A task for each directory whose checkpoint `name` has changed; `value` gives a log's entry, None for no entry."""
    offsets: dict[str, dict[TopicPartition, int]] = {directory.path: {} for directory in directories}
    for log in logs:
        offset = value(log)
        if offset is not None:
            offsets[log.directory.path][log.topic_partition] = offset
    tasks = []
    for directory in directories:
        data = format_offset_checkpoint(offsets[directory.path])
        known = directory.written_checkpoints.get(f"{directory.path}/{name}")
        if directory.failure is None and hash(data) != known:
            tasks.append(CheckpointTask(file_system, directory, name, data))
    return tasks
