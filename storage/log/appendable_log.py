"""The end of a log: what is appended to it, segments begun there, and flushing it (Kafka classes `UnifiedLog`,
`LocalLog`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch, TimestampType, read_batches
from storage.io.file_system import is_disk_full
from storage.log.leader_epoch import EpochEntry
from storage.log.log_files import LOG_SUFFIX, file_name
from storage.log.log_flush import FlushTask
from storage.log.log_segment import MAX_RELATIVE_OFFSET, LogSegment
from storage.log.log_state import LogState
from storage.log.log_validator import validate_produced
from storage.log.producer_state import AppendOrigin, CompletedTxn
from storage.log.transaction_index import aborted_by

_NO_TIMESTAMP = -1
ANY_EPOCH = 2**31 - 1
NO_EPOCH_WRITTEN = -2
"""Below every epoch that a batch can have, so that the next one passes `AppendableLog._write_epoch`."""


@dataclass(slots=True)
class LogAppendInfo:
    """What became of an append. `log_append_time_ms` is -1 unless the topic uses LogAppendTime.

    Of a duplicate, the offsets (and time) are those of the batch that was appended first.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    is_acknowledged: bool = True
    """Whether the producer may be told. Set by the `Partition`, which knows what has to happen first."""


class AppendableLog(LogState):
    """What of a `UnifiedLog` makes it longer; the rest is there."""

    __slots__ = ()

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_as_leader(
        self, records: memoryview, *, leader_epoch: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> LogAppendInfo:
        """Give the one batch in `records` the next offsets and append it; they are written into `records` if it is
        writable.

        Raises ApiError: those of `log_validator.validate_produced`, INVALID_PRODUCER_EPOCH,
        OUT_OF_ORDER_SEQUENCE_NUMBER, and KAFKA_STORAGE_ERROR when it could not be written; after none of them has
        anything changed.
        """
        directory = self.directory
        if directory.failure is not None:
            raise directory.offline_error()
        if directory.headroom_bytes < len(records) and origin is AppendOrigin.CLIENT:
            directory.admit(len(records))
        if records.readonly:
            records = memoryview(bytearray(records))
        config = self.config
        batch, latest = validate_produced(records, self.topic_partition, config, origin, now_ms)
        first_offset = self.log_end_offset
        state = self._producer_state
        if state is None:
            state = self.producer_state
        if batch.producer_id >= 0:
            original = state.check(batch, first_offset, origin)
            if original is not None:
                return LogAppendInfo(
                    original.first_offset,
                    original.last_offset,
                    original.timestamp,
                    self.log_start_offset,
                    duplicate=True,
                )
        last_offset = first_offset + batch.last_offset_delta
        if config.message_timestamp_type is TimestampType.CREATE_TIME:
            append_time_ms = None
            max_timestamp = batch.max_timestamp if latest is None else latest
        else:
            append_time_ms = max_timestamp = now_ms
        batch.assign_offsets(first_offset, leader_epoch, append_time_ms, latest)
        if leader_epoch != self._written_epoch:
            self._write_epoch(leader_epoch, first_offset, now_ms)
        self._write(batch.buffer, last_offset, max_timestamp, last_offset, now_ms)
        if batch.producer_id >= 0:
            completed = state.update(batch, first_offset, max_timestamp)
            if completed is not None:
                self._end_transaction(completed, batch)
        state.map_end_offset = last_offset + 1
        return LogAppendInfo(
            first_offset,
            last_offset,
            -1 if append_time_ms is None else append_time_ms,
            self.log_start_offset,
        )

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int = ANY_EPOCH
    ) -> LogAppendInfo | None:
        """Append batches as the leader sent them; an incomplete one at the end is left out. None when there is no
        whole one.

        `leader_epoch` is the one that they were fetched in. A batch of a higher one is left out with all behind it: the
        leader had lost its role when it read them, and may have cut off what lies before (KAFKA-18723).

        Raises ApiError CORRUPT_MESSAGE (CRC, sizes), OFFSET_OUT_OF_RANGE (offsets that do not follow the log end),
        KAFKA_STORAGE_ERROR.
        """
        if self.directory.failure is not None:
            raise self.directory.offline_error()
        batches = list(takewhile(lambda batch: batch.partition_leader_epoch <= leader_epoch, read_batches(records)))
        if not batches:
            return None
        if batches[-1].last_offset - batches[0].base_offset > MAX_RELATIVE_OFFSET and len(batches) > 1:
            return self._append_one_by_one(batches, now_ms)
        size, max_timestamp, max_timestamp_offset = self._check_copied(batches)
        state = self.producer_state
        first, last = batches[0].base_offset, batches[-1].last_offset
        try:
            for batch in batches:
                if batch.partition_leader_epoch > self._written_epoch:
                    self._write_epoch(batch.partition_leader_epoch, batch.base_offset, now_ms)
            self._write(records[:size], last, max_timestamp, max_timestamp_offset, now_ms)
        except ApiError:
            self._forget_epochs_behind_the_end()
            raise
        for batch in batches:
            if batch.producer_id >= 0:
                completed = state.update(batch, batch.base_offset, batch.max_timestamp)
                if completed is not None:
                    self._end_transaction(completed, batch)
        state.map_end_offset = last + 1
        return LogAppendInfo(first, last, -1, self.log_start_offset)

    def _check_copied(self, batches: Sequence[RecordBatch]) -> tuple[int, int, int]:
        """Their size in bytes, their largest timestamp, and the last offset of the first batch that has it. Raises as
        `append_as_follower`.
        """
        expected = self.log_end_offset
        max_timestamp, max_timestamp_offset, size = _NO_TIMESTAMP, -1, 0
        for batch in batches:
            batch.ensure_valid()
            if batch.base_offset < expected:
                raise ApiError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"Batch at offset {batch.base_offset} cannot be appended to {self.topic_partition}, "
                    f"where offset {expected} is expected",
                )
            expected = batch.next_offset
            size += batch.size_in_bytes
            if batch.max_timestamp > max_timestamp:
                max_timestamp, max_timestamp_offset = batch.max_timestamp, batch.last_offset
        return size, max_timestamp, max_timestamp_offset

    def _end_transaction(self, completed: CompletedTxn, batch: RecordBatch) -> None:
        """Note the transaction that `batch`, just appended, has ended, if it was aborted."""
        entry = aborted_by(batch, completed)
        if entry is None:
            return
        try:
            is_new = self.active_segment.transactions.append(entry)
        except OSError as error:
            doing = f"Error while writing the transaction index of {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        self.has_unsynced_names = self.has_unsynced_names or is_new

    def _append_one_by_one(self, batches: Sequence[RecordBatch], now_ms: int) -> LogAppendInfo:
        """They come out of a segment that reaches further than one of ours may."""
        for batch in batches:
            self.append_as_follower(batch.buffer, now_ms=now_ms)
        return LogAppendInfo(batches[0].base_offset, batches[-1].last_offset, -1, self.log_start_offset)

    def _forget_epochs_behind_the_end(self) -> None:
        """Those of batches that a full disk did not take; they began behind a gap, or behind each other."""
        if self.directory.failure is None:
            self.leader_epochs.truncate_from_end(self.log_end_offset + 1)
            self._written_epoch = -1

    def _write(
        self,
        data: memoryview,
        last_offset: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        now_ms: int,
    ) -> None:
        segment = self.active_segment
        config = self.config
        try:
            jitter_ms = self._jitter_ms(segment) if config.segment_jitter_ms else 0
            if segment.should_roll(len(data), last_offset, max_timestamp, now_ms, config, jitter_ms):
                is_far = last_offset - self.log_end_offset > MAX_RELATIVE_OFFSET
                segment = self.roll(now_ms, RecordBatch(data).base_offset if is_far else None)
            segment.append(data, last_offset, max_timestamp, max_timestamp_offset, config.index_interval_bytes)
        except OSError as error:
            raise self._append_failed(error, segment) from error
        self.directory.headroom_bytes -= len(data)
        self.log_end_offset = last_offset + 1
        self.boundaries.remember(last_offset + 1, segment, segment.size)

    def _append_failed(self, error: OSError, segment: LogSegment) -> ApiError:
        """A full disk leaves the log as it was; any other error, or one in cleaning up, takes the directory offline."""
        doing = f"Error while appending records to {self.topic_partition} in dir {self.directory.path}"
        if is_disk_full(error):
            try:
                segment.discard_unwritten()
            except OSError as second_error:
                return self.directory.fail(second_error, doing)
        return self.failed(error, doing)

    def _jitter_ms(self, segment: LogSegment) -> int:
        """A share of `segment_jitter_ms` that is this segment's own, so that logs do not all roll together."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.max_segment_ms)
        if jitter_ms <= 0:
            return 0
        return zlib.crc32(segment.path.encode()) % jitter_ms

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """To be called on becoming leader: `leader_epoch` begins at the log end. In the file before its first record
        is.

        Only remembered here: in most partitions nothing happens in most epochs.
        """
        if leader_epoch >= 0:
            self._led_from = EpochEntry(leader_epoch, self.log_end_offset)

    def _write_epoch(self, leader_epoch: int, offset: int, now_ms: int) -> None:
        """Whatever has to be on disk before a batch of an epoch that the one before did not have."""
        self.refuse_while_truncated()
        if self.has_unsynced_cut:
            self.flush(now_ms)  # the process before died amid it
        if leader_epoch < 0:
            return
        epochs = self.leader_epochs
        epochs.assign(leader_epoch, offset)
        try:
            epochs.write_if_changed()
        except OSError as error:
            doing = f"Error while writing the leader epochs of {self.topic_partition}"
            raise self.failed(error, doing) from error
        self._written_epoch = leader_epoch

    def roll(self, now_ms: int, base_offset: int | None = None, *, sealed_is_kept: bool = True) -> LogSegment:
        """Seal the active segment and begin a new one at the log end; an empty active segment stays.

        It begins there even if offsets are to be skipped, so that recovery can tell a gap from a loss; only what is
        about to be written too far off for an index gets a `base_offset` of its own. What is sealed is flushed later:
        `has_unflushed_sealed_segments` remembers it. With `sealed_is_kept` False it is about to be deleted, and nothing
        is fsynced for its sake. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        self.refuse_while_truncated()
        active = self.active_segment
        if base_offset is None:
            base_offset = self.log_end_offset
        if active.size == 0 and active.base_offset == base_offset:
            return active
        state = self.producer_state
        try:
            active.seal()
            state.map_end_offset = base_offset
            state.take_snapshot()
            if sealed_is_kept and self.highest_recovery_point >= self.log_end_offset:
                # Recovery will not look at the sealed segment again, so its records and its indexes must be safe.
                for file in active.files_to_flush(with_indexes=True):
                    file.flush()
                self.file_system.sync_dir(self.path)
            self.file_system.create(f"{self.path}/{file_name(base_offset, LOG_SUFFIX)}")
        except OSError as error:
            doing = f"Error while rolling log segment for {self.topic_partition} in dir {self.directory.path}"
            raise self.failed(error, doing) from error
        segment = LogSegment(self.file_system, self.path, base_offset, 0, now_ms, is_new=True)
        self.segments = [*self.segments, segment]
        self.active_segment = segment
        self.log_end_offset = base_offset
        self.has_unsynced_names = True
        self.has_unflushed_sealed_segments = True
        return segment

    def skip_to(self, offset: int, now_ms: int) -> None:
        """Go on at `offset`, above the log end: compaction has left nothing in between. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        if self.directory.failure is not None:
            raise self.directory.offline_error()
        self.refuse_while_truncated()
        before, self.log_end_offset = self.log_end_offset, offset
        try:
            self.roll(now_ms)
        except ApiError:
            self.log_end_offset = before
            raise
        self.gaps_end = offset

    # -- stable storage -----------------------------------------------------------------------------------------------

    def prepare_flush(self, now_ms: int, offset: int | None = None) -> FlushTask:
        """The fsyncs that make everything below `offset` (default: the log end) safe. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        return FlushTask(self.file_system, self, self.log_end_offset if offset is None else offset, now_ms)

    def flush(self, now_ms: int, offset: int | None = None) -> None:
        """Return once everything below `offset` (default: the log end) is on stable storage.

        Raises ApiError KAFKA_STORAGE_ERROR; the directory is offline then.
        """
        task = self.prepare_flush(now_ms, offset)
        task.run()
        task.complete()
