"""The log of one replica: segments, producer state and leader epochs under one owner (Kafka classes `UnifiedLog`,
`LocalLog`).

All methods belong to one thread, and none of them waits for an fsync but `flush`. To flush on another thread:
`prepare_flush` here, `FlushTask.run` there, `FlushTask.complete` here again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from protocol.errors import ApiError, ErrorCode
from storage.directory.log_directory import DeferredDeletion, LogDirectory
from storage.io.file_system import WouldWaitError, is_disk_full
from storage.log.appendable_log import NO_EPOCH_WRITTEN, AppendableLog
from storage.log.leader_epoch import EpochEntry
from storage.log.log_files import DELETED_SUFFIX
from storage.log.log_reader import (
    FetchDataInfo,
    offset_for_timestamp,
    offset_of_max_timestamp,
    read,
)
from storage.log.log_segment import LogSegment, TimestampAndOffset
from storage.log.retention import Expiry, find_expired
from storage.log.segment_search import segment_index
from storage.log.truncation import TruncationTask

T = TypeVar("T")

_NO_TIMESTAMP = -1


class UnifiedLog(AppendableLog):
    """See the module's docstring. Made by `storage.recovery.log_loader` (existing directories) and
    `storage.log_manager` (new ones).
    """

    __slots__ = ()

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upper_bound_offset: int | None = None, min_one_message: bool = True
    ) -> FetchDataInfo:
        """Where the batches from the one that reaches `offset` are: at most `max_bytes`, in one segment, all below
        `upper_bound_offset` (the log end by default).

        With `min_one_message` the first batch is given even when it is larger than `max_bytes`. May wait for the
        disk, and may be called on any thread. Raises ApiError OFFSET_OUT_OF_RANGE for an offset outside [log
        start, log end], CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        return self._of_one_moment(
            partial(read, self, offset, max_bytes, upper_bound_offset, min_one_message=min_one_message, may_wait=True)
        )

    def try_read(
        self, offset: int, max_bytes: int, upper_bound_offset: int | None = None, min_one_message: bool = True
    ) -> FetchDataInfo | None:
        """As `read`, or None when the disk would have to be waited for to find out. For the log's owner only."""
        try:
            return read(self, offset, max_bytes, upper_bound_offset, min_one_message=min_one_message, may_wait=False)
        except WouldWaitError:
            return None
        except OSError as error:
            raise self._read_failed(error) from error

    def _of_one_moment(self, look: Callable[[], T]) -> T:
        """What `look` finds, on any thread, in a log whose end nobody has cut off meanwhile."""
        has_missed = False
        while True:
            truncations = self.truncations
            try:
                found = look()
            except (ApiError, OSError) as error:
                if self.truncations != truncations:
                    continue
                if isinstance(error, FileNotFoundError) and not has_missed:
                    # The owner was just giving the segment another name. By now it has, or the log begins behind it.
                    has_missed = True
                    continue
                if isinstance(error, OSError):
                    raise self._read_failed(error) from error
                raise
            if self.truncations == truncations:
                return found

    def offset_after_corrupt_range(self, offset: int) -> int | None:
        """The first offset that can be read again, when a damage that was found has taken `offset`, else None."""
        corrupt_range = self.segments[segment_index(self.segments, offset)].corrupt_range_of(offset)
        return None if corrupt_range is None else corrupt_range.end_offset

    def _read_failed(self, error: OSError) -> ApiError:
        return self.directory.fail(error, f"Exception while reading from {self.topic_partition}")

    # -- looking up ---------------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp: int, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record from the log start on whose timestamp (ms) is at least `timestamp`; None if that is not
        below `upper_bound_offset`. May wait for the disk, and may be called on any thread. Raises ApiError
        CORRUPT_MESSAGE, OFFSET_NOT_AVAILABLE while the end is being cut off.
        """
        return self._of_one_moment(partial(offset_for_timestamp, self, timestamp, upper_bound_offset))

    def offset_of_max_timestamp(self, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of the log; None if that is not below `upper_bound_offset`.

        May wait for the disk, and may be called on any thread. Raises ApiError CORRUPT_MESSAGE, OFFSET_NOT_AVAILABLE
        while the end is being cut off.
        """
        return self._of_one_moment(partial(offset_of_max_timestamp, self, upper_bound_offset))

    def earliest(self) -> TimestampAndOffset:
        """The log start, and the epoch of the record there."""
        offset = self.log_start_offset
        return TimestampAndOffset(_NO_TIMESTAMP, offset, self.leader_epochs.epoch_for_offset(offset))

    def latest_epoch(self) -> int:
        """The newest leader epoch of this log; -1 when there is none."""
        return self.leader_epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """The largest known epoch not above `epoch` and its end offset (KIP-101, KIP-279); (-1, -1) when not known."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- shortening ---------------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int, high_watermark: int) -> int:
        """Move the log start to `offset`; returns the log start. The segments below go with `delete_old_segments`.

        Raises ApiError OFFSET_OUT_OF_RANGE when that would reach beyond the high watermark.
        """
        if offset < 0:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"The offset {offset} for partition {self.topic_partition} is not valid"
            )
        if offset > high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition {self.topic_partition} "
                f"since it is larger than the high watermark {high_watermark}",
            )
        self._move_log_start(offset)
        return self.log_start_offset

    def _move_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            if self._leader_epochs is not None:  # otherwise they are cut when they are read
                self._leader_epochs.truncate_from_start(offset)

    def expire_segments(self, now_ms: int, high_watermark: int) -> Expiry:
        """Move the log start behind the segments that retention no longer keeps; when these are all, a new one is begun
        first.

        Their files stay until `delete_old_segments`, so that the new log start can be made durable before it. Raises
        ApiError CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        if self.directory.failure is not None:
            raise self.directory.offline_error()
        if self.truncation is not None:
            return Expiry(0, [], None)
        try:
            expiry = find_expired(self, now_ms, high_watermark)
        except OSError as error:
            raise self._read_failed(error) from error
        if expiry.expired == len(self.segments):
            self.roll(now_ms, sealed_is_kept=False)
        if expiry.expired:
            self._move_log_start(self.segments[expiry.expired].base_offset)
        return expiry

    def delete_old_segments(self, limit: int | None = None) -> list[LogSegment]:
        """Drop the oldest segments that lie wholly below the log start, at most `limit` of them; returns them.

        After a power cut some of them may be back, and others not. So the log start has to be durable before, or
        recovery would take what is missing between them for a loss. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        if self.directory.failure is not None:
            raise self.directory.offline_error()
        if self.truncation is not None:
            return []
        count = segment_index(self.segments, self.log_start_offset)
        dropped = self.segments[: count if limit is None else min(count, limit)]
        if dropped:
            self._drop_segments(dropped)
            self.segments = self.segments[len(dropped) :]
        return dropped

    def _drop_segments(self, dropped: Sequence[LogSegment]) -> None:
        """Rename them out of the way; the files go after `file_delete_delay_ms`, as readers may still be at it."""
        try:
            paths: list[str] = []
            for segment in dropped:
                try:
                    paths += segment.change_suffix(DELETED_SUFFIX)
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    segment.remove()  # even a longer name may need room that only this gives back
            paths += self.producer_state.mark_deleted(segment.base_offset for segment in dropped)
        except OSError as error:
            doing = f"Error while deleting segments for {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        if paths:
            self.directory.deferred_deletions.append(
                DeferredDeletion(
                    tuple(paths), is_tree=False, delay_ms=self.config.file_delete_delay_ms, readers=dropped
                )
            )
        self.boundaries.forget()

    def prepare_truncation(self, offset: int, now_ms: int) -> TruncationTask:
        """Dropping everything at or above `offset`, batches that reach beyond it included; see `TruncationTask` for
        what its owner has to heed. The log ends with its last batch then, below `offset` if offsets were skipped there.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        return TruncationTask(self.file_system, self, offset, now_ms)

    def prepare_new_start(self, offset: int, now_ms: int) -> TruncationTask:
        """Dropping everything, so that the log is empty and begins at `offset`; as `prepare_truncation`."""
        return TruncationTask(self.file_system, self, offset, now_ms, fully=True)

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Do `prepare_truncation` at once, waiting for the disk; whether anything was dropped. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        task = self.prepare_truncation(offset, now_ms)
        task.run()
        task.complete()
        return task.is_needed

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Do `prepare_new_start` at once, waiting for the disk. Raises ApiError KAFKA_STORAGE_ERROR."""
        task = self.prepare_new_start(offset, now_ms)
        task.run()
        task.complete()

    def forget_epochs_from(self, offset: int) -> None:
        """Nothing at or above `offset` is in the log; an epoch that was to begin there has none."""
        self.leader_epochs.truncate_from_end(offset)
        self._written_epoch = -1

    def expect_new_epoch(self) -> None:
        """Look at everything that is due before a batch of a new epoch when the next one comes."""
        self._written_epoch = NO_EPOCH_WRITTEN

    # -- letting go ---------------------------------------------------------------------------------------------------

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers silent for that long; returns how many. State that was not read yet is left alone."""
        return 0 if self._producer_state is None else self._producer_state.remove_expired(now_ms, expiration_ms)

    def discard(self) -> None:
        """The partition is being deleted: let go of all files, and refuse every access from now on."""
        self.release_files()
        gone = LogDirectory(self.directory.path, lambda _path, _reason: None)
        gone.failure = f"{self.topic_partition} has been deleted"
        self.directory = gone

    def close(self) -> None:
        """Write everything that spares the next start a recovery. To be flushed afterwards. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        self.refuse_while_truncated()
        try:
            # A segment whose records were all deleted is appended to after the next start, as any other.
            is_empty = self.log_end_offset == self.log_start_offset and not self.active_segment.size
            if not is_empty and not self.is_as_loaded:
                self.active_segment.seal()
                self.producer_state.take_snapshot()
            if self._leader_epochs is not None:
                self._leader_epochs.write_if_changed()
        except OSError as error:
            raise self.failed(error, f"Error while closing {self.topic_partition}") from error

    def release_files(self) -> None:
        """Let go of all descriptors; they are opened again when needed."""
        for segment in self.segments:
            segment.close()

    def __repr__(self) -> str:
        return f"UnifiedLog({self.path}, offsets {self.log_start_offset}..{self.log_end_offset})"
