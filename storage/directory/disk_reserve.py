"""Keeping a reserve of disk space free (`log.dir.reserve.bytes`, an Odradek setting).

Clients may write to a log directory until only the reserve of its disk is free. The broker keeps the reserve for
itself: internal topics, replication, compaction, checkpoints and the coordination journal. So groups, reads and
deletions keep working, and space can be freed.

The free space is measured regularly; in between, the appends to the directory's logs are counted
(`LogDirectory.headroom_bytes`), so a fast producer cannot use up the reserve. Directories that may share a disk split
the free space until the next measurement.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import ApiError, ErrorCode, detached
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem

_RESUMES_AT = 16
"""Clients may write again once the free space exceeds the reserve by this fraction of it, which avoids flapping."""
_SMALLEST_SHARE_BYTES = 1 << 20
_DEFAULT_BYTES = 64 << 20
_DEFAULT_PART = 10


class DiskReserveError(ApiError):
    """A client's write would use the reserve. Retriable: space may be freed."""


class DiskReserve:
    """The reserve of one log directory. Only the owner of the logs may use it, except for `measure`."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: LogDirectory,
        reserve_bytes: int,
        share: int,
        on_change: Callable[[LogDirectory], None],
    ) -> None:
        """`reserve_bytes` 0 keeps nothing, -1 keeps 64 MiB, or a tenth of a disk smaller than 640 MiB. `share`
        directories may be on one disk. `on_change` is called when the reserve is reached and when it is free again.
        """
        self._file_system = file_system
        self._directory = directory
        self._configured_bytes = reserve_bytes
        self._reserve_bytes = max(reserve_bytes, 0)
        self._share = share
        self._on_change = on_change
        self._refused_bytes = 0
        """Size of the batch that was refused when the reserve was reached. Clients may write again once it fits."""

    def measure(self) -> tuple[int, int]:
        """(total, usable) bytes of the disk. Any thread may call it. Raises OSError."""
        return self._file_system.disk_space(self._directory.path)

    def take(self, total_bytes: int, usable_bytes: int) -> None:
        """Use these sizes from now on."""
        directory = self._directory
        directory.total_bytes, directory.usable_bytes = total_bytes, usable_bytes
        if self._configured_bytes < 0:
            self._reserve_bytes = min(_DEFAULT_BYTES, total_bytes // _DEFAULT_PART)
        if not self._reserve_bytes:
            return
        spare = usable_bytes - self._reserve_bytes
        if directory.is_reserve_reached:
            self._set_reached(spare < max(self._reserve_bytes // _RESUMES_AT, self._refused_bytes))
        else:
            self._set_reached(spare <= 0)
        if not directory.is_reserve_reached:
            share = spare // self._share
            directory.headroom_bytes = share if share >= _SMALLEST_SHARE_BYTES else spare

    def _set_reached(self, is_reached: bool, refused_bytes: int = 0) -> None:
        directory = self._directory
        if is_reached:
            directory.headroom_bytes = 0
        if is_reached != directory.is_reserve_reached:
            self._refused_bytes = refused_bytes
            directory.is_reserve_reached = is_reached
            self._on_change(directory)

    def admit(self, size: int) -> None:
        """Measure the disk for an append of `size` bytes that exceeds the known headroom. Raises DiskReserveError."""
        directory = self._directory
        if not directory.is_reserve_reached:
            try:
                self.take(*self.measure())
            except OSError as error:
                raise directory.fail(error, f"Error while asking for the space in {directory.path}") from error
        if size > directory.headroom_bytes:
            self._set_reached(True, size)
            raise DiskReserveError(ErrorCode.KAFKA_STORAGE_ERROR, self.describe())

    def describe(self) -> str:
        """The reason why clients cannot write, in one sentence."""
        directory = self._directory
        return (
            f"Log directory {directory.path} has {max(directory.usable_bytes, 0)} of {directory.total_bytes} bytes "
            f"left, and log.dir.reserve.bytes={self._reserve_bytes} are kept free"
        )


class SpaceTask:
    """Measures the free space of a disk. Any thread may call `run`; the owner of the logs creates the task and calls
    `complete`.
    """

    __slots__ = ("_directory", "_error", "_found", "_headroom_bytes", "_reserve")

    def __init__(self, directory: LogDirectory, reserve: DiskReserve) -> None:
        self._directory = directory
        self._reserve = reserve
        self._headroom_bytes = directory.headroom_bytes
        self._found: tuple[int, int] | None = None
        self._error: OSError | None = None

    def run(self) -> None:
        """Measure the disk. An error is kept for `complete`."""
        try:
            self._found = self._reserve.measure()
        except OSError as error:
            self._error = detached(error)

    def complete(self) -> None:
        """Use the measurement. A directory whose disk fails goes offline."""
        directory = self._directory
        if self._error is not None:
            directory.fail(self._error, f"Error while asking for the space in {directory.path}")
        elif self._found is not None:
            total_bytes, usable_bytes = self._found
            # The measurement may or may not include the bytes appended since the task was made.
            appended = max(self._headroom_bytes - directory.headroom_bytes, 0)
            self._reserve.take(total_bytes, usable_bytes - appended)
