"""One entry of `log.dirs`: whether it still works, and its pending deletions.

A directory goes offline at the first failed write or fsync, and stays offline until the broker restarts: after a failed
fsync the kernel may have dropped the pages and would call the next one a success.
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
    """KAFKA_STORAGE_ERROR: the disk is too full to create a log. The creation is retried once space is free."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class Closable(Protocol):
    """An object that holds file descriptors, such as a segment."""

    def close(self) -> None:
        """Close them."""


class DeferredDeletion(Value, frozen=False):
    """Files (or one tree), already renamed, that are removed `delay_ms` after `take_expired` first saw them."""

    paths: tuple[str, ...]
    is_tree: bool
    delay_ms: int
    readers: Sequence[Closable] = ()
    """Closed before the files are removed: an open descriptor would keep the disk space in use."""
    due_ms: int | None = None


NO_LIMIT = 2**63 - 1
"""Headroom of a directory without a reserve."""


class LogDirectory:
    """A log directory. `failure` is None while it works, then the reason why it went offline."""

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
        """`on_failure` is called once, with path and reason, when the directory goes offline, and for each single log
        in it that fails, with the path of the log. `on_corruption` is called on any thread, with one line for each
        corrupt range.
        """
        self.path = path
        self.failure: str | None = None
        self.deferred_deletions: list[DeferredDeletion] = []
        self.log_count = 0
        """Logs and future logs here: a new log goes to the directory with the fewest."""
        self.headroom_bytes = NO_LIMIT
        """Bytes that clients may append until the next measurement (`storage.directory.disk_reserve`); every append is
        counted.
        """
        self.is_reserve_reached = False
        self.reserve: DiskReserve | None = None
        self.total_bytes = self.usable_bytes = -1
        """Sizes from the last measurement of the disk; -1 before the first."""
        self.written_checkpoints: dict[str, int] = {}
        """Hash of the content of each checkpoint file this process wrote, so that unchanged files are not rewritten."""
        self.corruptions: dict[tuple[str, int], str] = {}
        """The messages about corrupt ranges, by file and byte position."""
        self.deleted_logs = 0
        """Number of logs removed from the checkpoints so far."""
        self._stale_entries: dict[str, dict[TopicPartition, int]] = {}
        """Deleted logs that each checkpoint file may still list, each with its value of `deleted_logs`."""
        self._refused_checkpoints: dict[str, None] = {}
        """Checkpoints that could not be written because the disk was full."""
        self._on_failure = on_failure
        self._on_corruption = on_corruption

    def report_corruption(self, path: str, position: int, message: str) -> None:
        """Report `message` about the file at `path`, once for each position. Any thread may call it."""
        if self.corruptions.setdefault((path, position), message) is message:
            self._on_corruption(message)

    def note_stale(self, topic_partition: TopicPartition, checkpoints: Iterable[str]) -> None:
        """Note that the log is gone, and that the files called `checkpoints` may still list it."""
        self.deleted_logs += 1
        for name in checkpoints:
            self._stale_entries.setdefault(f"{self.path}/{name}", {})[topic_partition] = self.deleted_logs

    def checkpoint_written(self, path: str, fingerprint: int, deleted_logs: int) -> None:
        """Note that the checkpoint file at `path` now has the content computed when the counter stood at
        `deleted_logs`.
        """
        self.written_checkpoints[path] = fingerprint
        self._refused_checkpoints.pop(path, None)
        stale = self._stale_entries.pop(path, {})
        left = {partition: number for partition, number in stale.items() if number > deleted_logs}
        if left:
            self._stale_entries[path] = left

    def checkpoint_refused(self, path: str) -> None:
        """Note that the disk was too full for the checkpoint file at `path`."""
        self._refused_checkpoints[path] = None

    @property
    def has_stale_checkpoints(self) -> bool:
        """Whether a checkpoint file that could not be written still lists a deleted log."""
        return any(path in self._stale_entries for path in self._refused_checkpoints)

    def stale_checkpoint(self, topic: str) -> str | None:
        """A checkpoint that could not be written and still lists a deleted log of the topic. After a crash the entry
        would be applied to a new log of that name.
        """
        for path in self._refused_checkpoints:
            if any(partition.topic == topic for partition in self._stale_entries.get(path, ())):
                return path
        return None

    def admit(self, size: int) -> None:
        """Check a client's append of more than `headroom_bytes`. Raises ApiError KAFKA_STORAGE_ERROR when the disk
        lacks the space.
        """
        if self.reserve is not None:
            self.reserve.admit(size)

    def fail(self, error: OSError, doing: str) -> ApiError:
        """Take the directory offline because of `error`; returns the error to raise."""
        self.take_offline(f"{doing}: {error}")
        return self.offline_error()

    def take_offline(self, reason: str) -> None:
        """Stop using this directory. Only the first reason is kept."""
        if self.failure is None:
            self.failure = reason
            self._on_failure(self.path, reason)

    def fail_log(self, path: str, reason: str) -> FailedLog:
        """Stop using only the log at `path`. Returns the stand-in that replaces the directory for this log."""
        failed = FailedLog(self, path, reason)
        self._on_failure(path, reason)
        return failed

    def defer_tree(self, path: str, delay_ms: int) -> None:
        """Remove a directory, already renamed out of the way, after `delay_ms`."""
        self.deferred_deletions.append(DeferredDeletion((path,), is_tree=True, delay_ms=delay_ms))

    def take_expired(self, now_ms: int) -> list[DeferredDeletion]:
        """The deletions that are due; each is returned once.

        `now_ms` must come from a monotonic clock: if the clock were set back, the files would stay.
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
    """Stands in for the directory of a single failed log and refuses every access to the log."""

    __slots__ = ("_log_path", "directory")

    def __init__(self, directory: LogDirectory, log_path: str, reason: str) -> None:
        super().__init__(directory.path, lambda _path, _reason: None)
        self.failure = reason
        self.directory = directory
        """The real directory; its other logs still work."""
        self._log_path = log_path

    def offline_error(self) -> ApiError:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log {self._log_path} is offline ({self.failure})")


class DirectorySyncTask:
    """The fsync of a log directory itself. Any thread may call `run`; the owner calls `complete`."""

    __slots__ = ("_directory", "_error", "_file_system")

    def __init__(self, file_system: FileSystem, directory: LogDirectory) -> None:
        self._file_system = file_system
        self._directory = directory
        self._error: OSError | None = None

    def run(self) -> None:
        """Make created, renamed and removed names durable; an error is kept for `complete`."""
        try:
            self._file_system.sync_dir(self._directory.path)
        except OSError as error:
            self._error = detached(error)

    def complete(self) -> None:
        """Take the directory offline if the fsync failed."""
        if self._error is not None:
            self._directory.fail(self._error, f"Error while flushing {self._directory.path}")


class DeletionTask:
    """One deferred deletion that is due. Any thread may call `run`; the owner calls `complete`."""

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
                continue  # removed together with its directory: not a disk failure
            except OSError as error:
                self._error = detached(error)
                return

    def complete(self) -> None:
        """Account for the freed space; take the directory offline if the removal failed."""
        for reader in self._deletion.readers:
            reader.close()
        if self._error is not None:
            self._directory.fail(self._error, f"Error while removing {', '.join(self._deletion.paths)}")
