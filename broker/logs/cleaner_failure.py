"""The ways in which a cleaning can fail."""

from __future__ import annotations

from enum import Enum


class FailureKind(Enum):
    """The cause of a failed cleaning, which decides what happens to the partition."""

    RECORDS = "records"
    """The log cannot be read: the partition is set aside until the broker starts again."""
    DISK = "disk"
    """An OSError: a full disk gets another attempt, anything else takes the log directory offline."""
    ABORTED = "aborted"
    """The log changed meanwhile: another attempt."""
    BUG = "bug"
    """Anything else: the partition is set aside, too."""


class WorkerFailure(Exception):
    """The task failed, the worker goes on. `errno` is the one of an OSError, `corrupt_range` tells where a segment is
    damaged: its base offset and the byte position in its `.log` file.
    """

    def __init__(
        self, message: str, kind: FailureKind, errno: int | None = None, corrupt_range: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.errno = errno
        self.corrupt_range = corrupt_range
