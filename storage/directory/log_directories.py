"""The log directories of a broker: their locks, their disks, the clean shutdown markers (Kafka class
`CleanShutdownFileHandler`), and pending deletions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from protocol.value import Value
from storage.directory.checkpoints import write_atomically
from storage.directory.disk_reserve import DiskReserve, SpaceTask
from storage.directory.log_directory import DeletionTask, DirectorySyncTask, LogDirectory
from storage.directory.meta_properties import LogDirError
from storage.io.file_system import FileSystem, Lock

LOCK_FILE = ".lock"


def lock_directory(file_system: FileSystem, path: str) -> Lock:
    """Create the directory if missing and lock it against other brokers.

    Raises LogDirError when another broker has it, OSError when it cannot be used.
    """
    _make_durable(file_system, path)
    try:
        return file_system.lock(f"{path}/{LOCK_FILE}")
    except BlockingIOError:
        raise LogDirError(
            f"Failed to acquire lock on file {LOCK_FILE} in {path}. "
            "A Kafka instance in another process or thread is using this directory."
        ) from None


def _make_durable(file_system: FileSystem, path: str) -> None:
    """Create `path` if missing, durably: a power cut must not remove it and everything below it."""
    # Sync the parent even if `path` exists: the process that created it may have died before the fsync.
    parents = [_parent_of(path)]
    while not file_system.exists(parents[-1]):
        parents.append(_parent_of(parents[-1]))
    file_system.make_dirs(path)
    for parent in parents:
        try:
            file_system.sync_dir(parent)
        except PermissionError:
            continue  # a directory that we may not open is not one that we created


def _parent_of(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")


class LogDirectories(Sequence[LogDirectory]):
    """The log directories in the order of `log.dirs`, failed ones included. They belong to the thread that owns the
    logs.
    """

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
        """Create missing directories and lock all against other brokers. An unusable one goes offline.

        Raises LogDirError when another broker holds one, or when all are unusable.
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
        """Take the directory of the unreadable log file at `path` offline."""
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


CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"


class CleanShutdown(Value):
    """The last run shut down cleanly, with this broker epoch (-1: unknown)."""

    broker_epoch: int


def take_clean_shutdown(file_system: FileSystem, directory: str) -> CleanShutdown | None:
    """Read the file and remove it at once, so that a later crash does not look clean. None if the file is missing."""
    path = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
    try:
        content = file_system.read_file(path)
    except FileNotFoundError:
        # The previous process may have died between the removal and the fsync; a power cut would restore the file.
        file_system.sync_dir(directory)
        return None
    file_system.remove(path)
    file_system.sync_dir(directory)
    try:
        return CleanShutdown(int(json.loads(content)["brokerEpoch"]))
    except (ValueError, KeyError, TypeError):
        # Releases before Kafka 3.7 leave the file empty.
        return CleanShutdown(-1)


def write_clean_shutdown(file_system: FileSystem, directory: str, broker_epoch: int) -> None:
    """Write the marker: every log in `directory` is flushed and closed. Raises OSError."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(file_system, f"{directory}/{CLEAN_SHUTDOWN_FILE}", content.encode())
