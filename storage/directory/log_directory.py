"""One entry of `log.dirs`: whether it still works, and what is waiting to be removed from it.

A directory goes offline with the first write or fsync that fails, and stays so until the broker is started again:
after a failed fsync the kernel may have dropped the pages and would call the next one a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from storage.io.file_system import FileSystem

if TYPE_CHECKING:
    from storage.directory.disk_reserve import DiskReserve


class NoRoomError(ApiError):
    """KAFKA_STORAGE_ERROR: the disk is too full to create a log. The creation is repeated once there is space."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class Closable(Protocol):
    """An object that holds descriptors, a segment for example."""

    def close(self) -> None:
        """Close them."""


class DeferredDeletion(Value, frozen=False):
    """Files (or one tree) already renamed out of the way, to be removed `delay_ms` after they were first seen as
    such.
    """

    paths: tuple[str, ...]
    is_tree: bool
    delay_ms: int
    readers: Sequence[Closable] = ()
    """Closed when the files go: as long as one of their descriptors is open, the disk has no more room than before."""
    due_ms: int | None = None


NO_LIMIT = 2**63 - 1
"""Headroom of a directory that keeps no reserve."""


class LogDirectory:
    """A log directory. `failure` is None while it works; afterwards it says what failed."""

    __slots__ = (
        "_on_corruption",
        "_on_failure",
        "_refused_checkpoints",
        "_stale_entries",
        "corruptions",
        "deferred_deletions",
        "deleted_logs",
        "failure",
        "headroom_bytes",
        "is_reserve_reached",
        "log_count",
        "path",
        "reserve",
        "total_bytes",
        "usable_bytes",
        "written_checkpoints",
    )

    def __init__(
        self,
        path: str,
        on_failure: Callable[[str, str], None],
        on_corruption: Callable[[str], None] = lambda _message: None,
    ) -> None:
        """`on_failure` is called once, with path and reason, when the directory goes offline, and for each log in it
        that fails alone, with the path of the log. `on_corruption` is called on any thread with a line for each corrupt
        range.
        """
        self.path = path
        self.failure: str | None = None
        self.deferred_deletions: list[DeferredDeletion] = []
        self.log_count = 0
        """Logs and future logs here: a new log goes to where the fewest are."""
        self.headroom_bytes = NO_LIMIT
        """Bytes that clients may append before the disk is asked (`storage.directory.disk_reserve`); every append is
        counted.
        """
        self.is_reserve_reached = False
        self.reserve: DiskReserve | None = None
        self.total_bytes = self.usable_bytes = -1
        """Sizes of the disk when it was last asked; -1 before."""
        self.written_checkpoints: dict[str, int] = {}
        """Hash of what each checkpoint file holds since this process wrote it, so that an idle one writes nothing."""
        self.corruptions: dict[tuple[str, int], str] = {}
        """The corrupt ranges found, by file and byte position."""
        self.deleted_logs = 0
        """Logs that were taken out of the checkpoints so far."""
        self._stale_entries: dict[str, dict[TopicPartition, int]] = {}
        """Of each checkpoint file, logs it may still know although they are gone; the number that each of them was."""
        self._refused_checkpoints: dict[str, None] = {}
        """Checkpoints that a full disk refused when they were due."""
        self._on_failure = on_failure
        self._on_corruption = on_corruption

    def report_corruption(self, path: str, position: int, message: str) -> None:
        """Report `message` about the file at `path`, once for each position. Any thread may call it."""
        if self.corruptions.setdefault((path, position), message) is message:
            self._on_corruption(message)

    def note_stale(self, topic_partition: TopicPartition, checkpoints: Iterable[str]) -> None:
        """The log is gone, and the files called `checkpoints` may still know it."""
        self.deleted_logs += 1
        for name in checkpoints:
            self._stale_entries.setdefault(f"{self.path}/{name}", {})[topic_partition] = self.deleted_logs

    def checkpoint_written(self, path: str, fingerprint: int, deleted_logs: int) -> None:
        """The checkpoint file at `path` holds what it was to hold when there had been `deleted_logs`."""
        self.written_checkpoints[path] = fingerprint
        self._refused_checkpoints.pop(path, None)
        stale = self._stale_entries.pop(path, {})
        left = {partition: number for partition, number in stale.items() if number > deleted_logs}
        if left:
            self._stale_entries[path] = left

    def checkpoint_refused(self, path: str) -> None:
        """The disk is too full for the checkpoint file at `path`."""
        self._refused_checkpoints[path] = None

    @property
    def has_stale_checkpoints(self) -> bool:
        """Whether a checkpoint file that could not be written still knows a log which is gone."""
        return any(path in self._stale_entries for path in self._refused_checkpoints)

    def stale_checkpoint(self, topic: str) -> str | None:
        """A checkpoint that could not be written and still has an entry of a deleted log of the topic. After a crash
        the entry would be applied to another log of that name.
        """
        for path in self._refused_checkpoints:
            if any(partition.topic == topic for partition in self._stale_entries.get(path, ())):
                return path
        return None

    def admit(self, size: int) -> None:
        """A client wants to append more than `headroom_bytes`. Raises ApiError KAFKA_STORAGE_ERROR when the disk has
        not that much to spare.
        """
        if self.reserve is not None:
            self.reserve.admit(size)

    def fail(self, error: OSError, doing: str) -> ApiError:
        """Take the directory offline because of `error`; returns what to raise."""
        self.take_offline(f"{doing}: {error}")
        return self.offline_error()

    def take_offline(self, reason: str) -> None:
        """Stop using this directory. Only the first reason is kept."""
        if self.failure is None:
            self.failure = reason
            self._on_failure(self.path, reason)

    def fail_log(self, path: str, reason: str) -> FailedLog:
        """Stop using the log at `path` alone; gives what it has from now on in place of this directory."""
        failed = FailedLog(self, path, reason)
        self._on_failure(path, reason)
        return failed

    def defer_tree(self, path: str, delay_ms: int) -> None:
        """Remove a directory, already renamed out of the way, after `delay_ms`."""
        self.deferred_deletions.append(DeferredDeletion((path,), is_tree=True, delay_ms=delay_ms))

    def take_expired(self, now_ms: int) -> list[DeferredDeletion]:
        """The deletions whose time has come; each is handed out once.

        `now_ms` counts from anywhere, but always from there: a clock that can be set back would keep the files.
        """
        expired: list[DeferredDeletion] = []
        waiting: list[DeferredDeletion] = []
        for deletion in self.deferred_deletions:
            if deletion.due_ms is None:
                deletion.due_ms = now_ms + deletion.delay_ms
            (waiting if deletion.due_ms > now_ms else expired).append(deletion)
        self.deferred_deletions = waiting
        return expired

    def offline_error(self) -> ApiError:
        """The error for every access to a log of an offline directory."""
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory {self.path} is offline ({self.failure})")


class FailedLog(LogDirectory):
    """Takes the place of the directory for a log that alone cannot be used, and refuses every access to it."""

    __slots__ = ("_log_path", "directory")

    def __init__(self, directory: LogDirectory, log_path: str, reason: str) -> None:
        super().__init__(directory.path, lambda _path, _reason: None)
        self.failure = reason
        self.directory = directory
        """Where the log is; the other logs there go on."""
        self._log_path = log_path

    def offline_error(self) -> ApiError:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log {self._log_path} is offline ({self.failure})")


class DirectorySyncTask:
    """The fsync of a log directory itself. `run` may be called on any thread, `complete` belongs to the owner."""

    __slots__ = ("_directory", "_error", "_file_system")

    def __init__(self, file_system: FileSystem, directory: LogDirectory) -> None:
        self._file_system = file_system
        self._directory = directory
        self._error: OSError | None = None

    def run(self) -> None:
        """Make what was created, renamed and removed durable; an error is kept for `complete`."""
        try:
            self._file_system.sync_dir(self._directory.path)
        except OSError as error:
            self._error = detached(error)

    def complete(self) -> None:
        """Take the directory offline if the disk refused."""
        if self._error is not None:
            self._directory.fail(self._error, f"Error while flushing {self._directory.path}")


class DeletionTask:
    """One deferred deletion whose time has come. `run` may be called on any thread, `complete` belongs to the owner."""

    __slots__ = ("_deletion", "_directory", "_error", "_file_system")

    def __init__(self, file_system: FileSystem, directory: LogDirectory, deletion: DeferredDeletion) -> None:
        self._file_system = file_system
        self._directory = directory
        self._deletion = deletion
        self._error: OSError | None = None

    def run(self) -> None:
        """Remove the files; an error is kept for `complete`."""
        remove = self._file_system.remove_tree if self._deletion.is_tree else self._file_system.remove
        for path in self._deletion.paths:
            try:
                remove(path)
            except FileNotFoundError:
                continue  # gone with its directory: nothing is wrong with the disk
            except OSError as error:
                self._error = detached(error)
                return

    def complete(self) -> None:
        """Give the room back; take the directory offline if the disk refused."""
        for reader in self._deletion.readers:
            reader.close()
        if self._error is not None:
            self._directory.fail(self._error, f"Error while removing {', '.join(self._deletion.paths)}")
