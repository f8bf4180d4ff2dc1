"""One clean, done in whatever process or thread this is called in."""

from __future__ import annotations

from collections.abc import Callable

from broker.cleaner_failure import FailureKind, WorkerFailure
from protocol.errors import ApiError
from storage.clean_source import CorruptSegmentError
from storage.clean_task import CleanResult, CleanTask
from storage.file_system import FileSystem
from storage.log_cleaner import LogCleaningAbortedError, clean


def do_clean(file_system: FileSystem, task: CleanTask, throttle: Callable[[int], None]) -> CleanResult:
    """`storage.log_cleaner.clean`. Raises WorkerFailure, whatever went wrong."""
    try:
        return clean(file_system, task, throttle)
    except CorruptSegmentError as error:
        damage = error.base_offset, error.position
        raise WorkerFailure(str(error), FailureKind.RECORDS, damage=damage) from error
    except ApiError as error:
        raise WorkerFailure(str(error), FailureKind.RECORDS) from error
    except LogCleaningAbortedError as error:
        raise WorkerFailure(str(error), FailureKind.ABORTED) from error
    except OSError as error:
        raise WorkerFailure(str(error), FailureKind.DISK, error.errno) from error
    except Exception as error:
        raise WorkerFailure(f"{type(error).__name__}: {error}", FailureKind.BUG) from error
