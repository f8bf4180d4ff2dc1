"""The log directories of a broker: their locks, their disks and what is to be removed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from storage.directory.directory_lock import lock_directory
from storage.directory.disk_reserve import DiskReserve, SpaceTask
from storage.directory.log_directory import DeletionTask, DirectorySyncTask, LogDirectory
from storage.directory.meta_properties import LogDirError
from storage.io.file_system import FileSystem, Lock


class LogDirectories(Sequence[LogDirectory]):
    """The log directories in the order of `log.dirs`, failed ones included. Owned by the thread that owns the logs."""

    def __init__(self, file_system: FileSystem, directories: Sequence[LogDirectory]) -> None:
        self._file_system = file_system
        self._directories = tuple(directories)
        self._locks: list[Lock] = []

    @overload
    def __getitem__(self, index: int) -> LogDirectory: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LogDirectory]: ...
    def __getitem__(self, index: int | slice) -> LogDirectory | Sequence[LogDirectory]:
        return self._directories[index]

    def __len__(self) -> int:
        return len(self._directories)

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    @property
    def online(self) -> list[LogDirectory]:
        """The directories that have not failed."""
        return [directory for directory in self._directories if directory.failure is None]

    def lock(self) -> None:
        """Create the directories where missing and lock them against other brokers. One that cannot be used is offline.

        Raises LogDirError when another broker has one, or none can be used.
        """
        reasons = {}
        for directory in self.online:
            path = directory.path
            try:
                self._locks.append(lock_directory(self._file_system, path))
            except OSError as error:
                reasons[path] = f"Log directory {path} cannot be used: {error.strerror or error}"
        if all(directory.path in reasons for directory in self.online):
            raise LogDirError("; ".join(reasons.values()))
        for path, reason in reasons.items():
            self.take_offline(path, reason)

    def unlock(self) -> None:
        """Release the locks."""
        while self._locks:
            self._locks.pop().release()

    def take_offline(self, path: str, reason: str) -> None:
        """Take the log directory at `path` offline."""
        for directory in self._directories:
            if directory.path == path:
                directory.take_offline(reason)

    def reading_failed(self, path: str, error: OSError) -> None:
        """Take the directory of the log file at `path`, which cannot be read, offline."""
        holding = [directory for directory in self._directories if path.startswith(f"{directory.path}/")]
        for directory in sorted(holding, key=lambda each: len(each.path))[-1:]:
            directory.fail(error, f"Exception while reading from {path}")

    def expired_deletions(self, now_ms: int) -> list[DeletionTask]:
        """Tasks that remove expired files; any thread may run them. See `LogDirectory.take_expired`."""
        return [
            DeletionTask(self._file_system, directory, deletion)
            for directory in self.online
            for deletion in directory.take_expired(now_ms)
        ]

    def keep_reserve(self, reserve_bytes: int, on_change: Callable[[LogDirectory], None]) -> None:
        """Keep `reserve_bytes` of every disk free of client data. See `DiskReserve` for `on_change`."""
        for directory in self._directories:
            directory.reserve = DiskReserve(self._file_system, directory, reserve_bytes, len(self), on_change)

    def space_tasks(self) -> list[SpaceTask]:
        """Tasks that ask every disk for its free space; any thread may run them."""
        return [SpaceTask(directory, directory.reserve) for directory in self.online if directory.reserve is not None]

    def sync_task(self, directory: LogDirectory) -> DirectorySyncTask:
        """A task that fsyncs the names in a directory; any thread may run it."""
        return DirectorySyncTask(self._file_system, directory)
