"""Making a future log fit its log again, where the disk has to be waited for."""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import ApiError, detached
from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.value import Value
from storage.log.unified_log import UnifiedLog


class Cut(Value):
    """A truncation of a future log to `offset`. One that `is_full` leaves it empty, and beginning there."""

    offset: int
    is_full: bool = False
    cleaner_checkpoint: int | None = None
    """How far the log is clean where the copy begins anew because of a cleaning."""


class AdjustTask:
    """Cuts off the end of a future log, so that it can be appended to again.

    Made and completed by the owner of the logs; `run` may be called on any thread, and nobody else uses the future log
    meanwhile.
    """

    __slots__ = ("_cut", "_future", "_on_complete", "_truncation")

    def __init__(self, future: UnifiedLog, cut: Cut, now_ms: int, on_complete: Callable[[], None]) -> None:
        self._future = future
        self._cut = cut
        self._on_complete = on_complete
        prepare = future.prepare_new_start if cut.is_full else future.prepare_truncation
        self._truncation = prepare(cut.offset, now_ms)

    def run(self) -> None:
        """Cut the files; an error is kept for `complete`."""
        self._truncation.run()

    def complete(self) -> None:
        """Let the future log go on behind the cut. Raises ApiError KAFKA_STORAGE_ERROR, also when it was dropped."""
        self._truncation.complete()
        if self._cut.cleaner_checkpoint is not None:
            self._future.cleaner_checkpoint = self._cut.cleaner_checkpoint
        self._on_complete()


class Begin(Value):
    """A copy of a log begins at `offset` as long as its log start and the count of its truncations are these."""

    log_start_offset: int
    truncations: int
    offset: int


class BeginTask:
    """Reads where a copy of a log has to begin: at its log start, or at the base of the batch that this lies in.

    Made and completed by the owner of the logs; `run` may be called on any thread.
    """

    __slots__ = ("_error", "_found", "_log", "_on_found")

    def __init__(self, log: UnifiedLog, on_found: Callable[[Begin], None]) -> None:
        self._log = log
        self._on_found = on_found
        self._found: Begin | None = None
        self._error: ApiError | None = None

    def run(self) -> None:
        """Read the header of the first batch; an error is kept for `complete`."""
        log = self._log
        start, truncations = log.log_start_offset, log.truncations
        try:
            self._found = Begin(start, truncations, self._first_base_offset(start))
        except ApiError as error:
            self._error = detached(error)

    def _first_base_offset(self, start: int) -> int:
        log = self._log
        info = log.read(start, 1)
        if info.file is None:
            return start
        try:
            header = RecordBatch(memoryview(info.file.pread(info.position, HEADER_BYTES)))
        except OSError as error:
            raise log.local.fail(error, f"Error while reading {log.topic_partition}") from error
        return min(header.base_offset, start)

    def complete(self) -> None:
        """Tell what was found. Raises ApiError CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE."""
        if self._error is not None:
            raise detached(self._error)
        if self._found is not None:
            self._on_found(self._found)
