"""Copying a log to its future log, off the thread that owns the logs."""

from __future__ import annotations

from protocol.errors import ApiError, ErrorCode, detached
from protocol.records.batch import read_batches
from storage.log.unified_log import UnifiedLog

READ_BYTES = 1 << 20
"""Read from the log at a time."""
INDEXED_BYTES = 16 << 10
"""Appended to the future log at a time: an append makes one index entry at most."""


class CopyTask:
    """One step of a move: some bytes of `log` to the end of `future`.

    Made and completed by the owner of the logs; `run` may be called on any thread, and nobody else uses the future
    log meanwhile. `error` is what ended it: the log start has moved on, the future log was dropped, a disk failed.
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
        """Copy until the end of the log, or `max_bytes` (a batch at least)."""
        log, future = self._log, self._future
        try:
            while future.log_end_offset < log.log_end_offset and self.copied_bytes < self._max_bytes:
                end_offset = log.log_end_offset
                wanted = min(READ_BYTES, self._max_bytes - self.copied_bytes)
                info = log.read(max(future.log_end_offset, log.log_start_offset), wanted, end_offset)
                if info.file is None:
                    # Compaction has removed the records that were there.
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
        """Raises ApiError when something has ended the copying."""
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
