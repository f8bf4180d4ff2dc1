"""The disk work of moving a log, off the thread that owns the logs: copying a log to its future log, and adjusting a
future log after changes to its log.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import ApiError, ErrorCode, detached
from protocol.records.batch import HEADER_BYTES, RecordBatch, read_batches
from protocol.value import Value
from storage.log.unified_log import UnifiedLog

READ_BYTES = 1 << 20
"""Bytes per read from the log."""
INDEXED_BYTES = 16 << 10
"""Bytes per append to the future log: an append adds at most one index entry."""


class CopyTask:
    """One step of a move: copy some bytes of `log` to the end of `future`.

    The owner of the logs creates and completes it; any thread may call `run`, while nothing else uses the future log.
    `error` is the reason why the copying ended: the log start has moved, the future log was dropped, a disk failed.
    """

    __slots__ = ("_future", "_log", "_max_bytes", "_now_ms", "copied_bytes", "error")

    def __init__(self, log: UnifiedLog, future: UnifiedLog, max_bytes: int, now_ms: int) -> None:
        self._log = log
        self._future = future
        self._max_bytes = max_bytes
        self._now_ms = now_ms
        self.copied_bytes = 0
        self.error: ApiError | None = None

    def run(self) -> None:
        """Copy up to the end of the log or `max_bytes` (at least one batch)."""
        log, future = self._log, self._future
        try:
            while future.log_end_offset < log.log_end_offset and self.copied_bytes < self._max_bytes:
                end_offset = log.log_end_offset
                wanted = min(READ_BYTES, self._max_bytes - self.copied_bytes)
                info = log.read(max(future.log_end_offset, log.log_start_offset), wanted, end_offset)
                if info.file is None:
                    # Compaction has removed the records in between.
                    future.appender.skip_to(end_offset, self._now_ms)
                    return
                try:
                    data = memoryview(info.file.pread(info.position, info.size))
                except OSError as error:
                    raise log.local.fail(error, f"Error while reading {log.topic_partition}") from error
                self._append(data)
        except ApiError as error:
            self.error = detached(error)

    def complete(self) -> None:
        """Raises ApiError if an error ended the copying."""
        if self.error is not None:
            raise detached(self.error)

    def _append(self, data: memoryview) -> None:
        start = end = 0
        for batch in read_batches(data):
            end += batch.size_in_bytes
            if end - start >= INDEXED_BYTES:
                self._future.append_as_follower(data[start:end], now_ms=self._now_ms)
                start = end
        if end > start:
            self._future.append_as_follower(data[start:end], now_ms=self._now_ms)
        if end == 0:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self._log.path} holds no whole batch where one is expected")
        self.copied_bytes += end


class FutureTruncation(Value):
    """A truncation of a future log to `offset`. With `is_full` the future log restarts empty at `offset`."""

    offset: int
    is_full: bool = False
    cleaner_checkpoint: int | None = None
    """The cleaner checkpoint of the log when a cleaning forces the copy to restart."""


class AdjustTask:
    """Truncates a future log, so that it can be appended to again.

    The owner of the logs creates and completes it; any thread may call `run`, while nothing else uses the future log.
    """

    __slots__ = ("_future", "_on_complete", "_target", "_truncation")

    def __init__(
        self, future: UnifiedLog, target: FutureTruncation, now_ms: int, on_complete: Callable[[], None]
    ) -> None:
        self._future = future
        self._target = target
        self._on_complete = on_complete
        prepare = future.prepare_full_truncation if target.is_full else future.prepare_truncation
        self._truncation = prepare(target.offset, now_ms)

    def run(self) -> None:
        """Truncate the files; an error is kept for `complete`."""
        self._truncation.run()

    def complete(self) -> None:
        """Apply the truncation to the future log. Raises ApiError KAFKA_STORAGE_ERROR, also if the log was dropped."""
        self._truncation.complete()
        if self._target.cleaner_checkpoint is not None:
            self._future.cleaner_checkpoint = self._target.cleaner_checkpoint
        self._on_complete()


class CopyStart(Value):
    """A copy of a log begins at `offset` as long as the log still has this log start and number of truncations."""

    log_start_offset: int
    truncations: int
    offset: int


class CopyStartTask:
    """Finds the offset where a copy of a log begins: its log start, or the base of the batch that contains it.

    The owner of the logs creates and completes it; any thread may call `run`.
    """

    __slots__ = ("_error", "_found", "_log", "_on_found")

    def __init__(self, log: UnifiedLog, on_found: Callable[[CopyStart], None]) -> None:
        self._log = log
        self._on_found = on_found
        self._found: CopyStart | None = None
        self._error: ApiError | None = None

    def run(self) -> None:
        """Read the header of the first batch; an error is kept for `complete`."""
        log = self._log
        start, truncations = log.log_start_offset, log.truncations
        try:
            self._found = CopyStart(start, truncations, self._first_base_offset(start))
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
        """Pass on the offset found. Raises ApiError CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE."""
        if self._error is not None:
            raise detached(self._error)
        if self._found is not None:
            self._on_found(self._found)
