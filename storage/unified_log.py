"""The log of one replica: segments, producer state and leader epochs under one owner (Kafka classes `UnifiedLog`,
`LocalLog`).

All methods belong to one thread, and none of them waits for an fsync but `flush`. To flush on another thread:
`prepare_flush` here, `FlushTask.run` there, `FlushTask.complete` here again.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ApiError, ErrorCode
from storage.appendable_log import NO_EPOCH_WRITTEN, AppendableLog
from storage.clean_task import CleanResult, CleanTask
from storage.file_system import WouldWaitError, is_disk_full
from storage.leader_epoch import EpochEntry
from storage.log_directory import DeferredDeletion, LogDirectory
from storage.log_files import DELETED_SUFFIX, LOG_SUFFIX, file_name
from storage.log_reader import (
    FetchDataInfo,
    offset_for_timestamp,
    offset_of_max_timestamp,
    read,
)
from storage.log_segment import LogSegment, TimestampAndOffset
from storage.retention import Expiry, find_expired
from storage.segment_replacement import ReplacementTask
from storage.segment_search import segment_index

_NO_TIMESTAMP = -1


class UnifiedLog(AppendableLog):
    """See the module's docstring. Made by `storage.log_loader` (existing directories) and `storage.log_manager` (new
    ones).
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
        try:
            try:
                return read(self, offset, max_bytes, upper_bound_offset, min_one_message=min_one_message, may_wait=True)
            except FileNotFoundError:
                # The owner was just giving the segment another name. By now it has, or `offset` is below the log start.
                return read(self, offset, max_bytes, upper_bound_offset, min_one_message=min_one_message, may_wait=True)
        except OSError as error:
            raise self._read_failed(error) from error

    def try_read(
        self, offset: int, max_bytes: int, upper_bound_offset: int | None = None, min_one_message: bool = True
    ) -> FetchDataInfo | None:
        """As `read`, or None when the disk would have to be waited for to find out."""
        try:
            return read(self, offset, max_bytes, upper_bound_offset, min_one_message=min_one_message, may_wait=False)
        except WouldWaitError:
            return None
        except OSError as error:
            raise self._read_failed(error) from error

    def offset_behind_damage(self, offset: int) -> int | None:
        """The first offset that can be read again, when a damage that was found has taken `offset`, else None."""
        damage = self.segments[segment_index(self.segments, offset)].damage_of(offset)
        return None if damage is None else damage.end_offset

    def _read_failed(self, error: OSError) -> ApiError:
        return self.directory.fail(error, f"Exception while reading from {self.topic_partition}")

    # -- looking up ---------------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp: int, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record from the log start on whose timestamp (ms) is at least `timestamp`; None if that is not
        below `upper_bound_offset`. May wait for the disk. Raises ApiError CORRUPT_MESSAGE.
        """
        try:
            return offset_for_timestamp(self, timestamp, upper_bound_offset)
        except OSError as error:
            raise self._read_failed(error) from error

    def offset_of_max_timestamp(self, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of the log; None if that is not below `upper_bound_offset`.

        May wait for the disk. Raises ApiError CORRUPT_MESSAGE.
        """
        try:
            return offset_of_max_timestamp(self, upper_bound_offset)
        except OSError as error:
            raise self._read_failed(error) from error

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

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drop everything at or above `offset`, batches that reach beyond it included; whether anything was dropped.

        The log ends with its last batch then, below `offset` if offsets were skipped there.

        A power cut could bring back what was cut off, even behind what took its place. So the next append waits for an
        fsync, unless a flush made after this call is complete by then: ask for one. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(offset)
            self._written_epoch = -1
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        keep = segment_index(self.segments, offset) + 1
        self._note_cut(self.segments[keep - 1].base_offset)
        self.leader_epochs.truncate_from_end(offset)
        self._lower_cleaner_checkpoint(offset)
        # The newest first, and for good before the cut: a power cut must not leave a hole below the recovery point.
        dropped = self.segments[: keep - 1 : -1]
        self._drop_segments(dropped)
        self.segments = self.segments[:keep]
        active = self.active_segment = self.segments[-1]
        try:
            if dropped:
                self._file_system.sync_dir(self.path)
            offset = active.truncate_to(offset)
        except OSError as error:
            doing = f"Error while truncating {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        self.boundaries.forget()
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        # Not `offset`: the next flush has to cover the cut itself, or a power cut could undo it behind a later segment.
        self.recovery_point = min(self.recovery_point, active.base_offset)
        self._fill(self.producer_state)
        return True

    def _note_cut(self, recovery_point: int) -> None:
        try:
            self.note_cut(recovery_point)
        except OSError as error:
            raise self.failed(error, f"Error while truncating {self.topic_partition}") from error
        self._written_epoch = NO_EPOCH_WRITTEN

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything; the log is empty and begins at `offset`. See `truncate_to` for what the next append waits
        for. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        state = self.producer_state
        self._note_cut(offset)
        self._lower_cleaner_checkpoint(offset)
        self._drop_segments(self.segments)
        try:
            self._file_system.create(f"{self.path}/{file_name(offset, LOG_SUFFIX)}")
        except OSError as error:
            doing = f"Error while truncating {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        self.active_segment = LogSegment(self._file_system, self.path, offset, 0, now_ms)
        self.segments = [self.active_segment]
        self.leader_epochs.clear()
        self.boundaries.forget()
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        state.clear(offset)

    def _lower_cleaner_checkpoint(self, offset: int) -> None:
        if self.cleaner_checkpoint is not None:
            self.cleaner_checkpoint = min(self.cleaner_checkpoint, offset)

    def replace_segments(self, task: CleanTask, result: CleanResult) -> ReplacementTask:
        """Put what `storage.log_cleaner.clean` made of `task` in the place of its sources, as far as these are still
        there and the log was not truncated meanwhile; the task returned makes it last. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        return ReplacementTask(self._file_system, self, task, result)

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
