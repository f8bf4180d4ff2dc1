"""What can become of a clean that does not succeed. Apart from the worker, so that its process imports no asyncio."""

from __future__ import annotations

from enum import Enum

from protocol.errors import ApiError
from storage.log_cleaner import LogCleaningAbortedError


class FailureKind(Enum):
    """Whose fault it was, which decides what comes of the partition."""

    RECORDS = "records"
    """The log cannot be read: the partition is set aside until the broker starts again."""
    DISK = "disk"
    """An OSError: a full disk gets another attempt, anything else takes the log directory offline."""
    ABORTED = "aborted"
    """The log changed meanwhile: another attempt."""
    BUG = "bug"
    """Anything else: the partition is set aside, too."""


class WorkerFailure(Exception):
    """The task failed, the worker goes on. `errno` is the one of an OSError."""

    def __init__(self, message: str, kind: FailureKind, errno: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.errno = errno

    @classmethod
    def of(cls, error: Exception) -> WorkerFailure:
        """What `storage.log_cleaner.clean` raised."""
        if isinstance(error, ApiError):
            return cls(str(error), FailureKind.RECORDS)
        if isinstance(error, OSError):
            return cls(str(error), FailureKind.DISK, error.errno)
        if isinstance(error, LogCleaningAbortedError):
            return cls(str(error), FailureKind.ABORTED)
        return cls(f"{type(error).__name__}: {error}", FailureKind.BUG)
