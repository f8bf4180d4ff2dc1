"""Appending to a log, as the leader of its partition or as a follower (Kafka: `UnifiedLog.append`)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import takewhile

from protocol.errors import ApiError
from protocol.records.batch import HEADER_BYTES, RecordBatch, read_batches
from protocol.value import Value
from storage.log.leader_epoch import LogEpochs
from storage.log.local_log import LocalLog
from storage.log.log_flush import FlushTask
from storage.log.log_validator import AppendOrigin, VerificationGuard, check_copied, validate_produced
from storage.log.producer_state import LogProducers
from storage.log_config import LogConfig
from storage.segment.log_segment import MAX_RELATIVE_OFFSET, LogSegment
from storage.segment.transaction_index import CompletedTxn, aborted_by


class LogAppendInfo(Value, frozen=False):
    """Where an append went in the log. `log_append_time_ms` is -1 unless the topic uses LogAppendTime.

    For a duplicate, the offsets (and time) are those of the original batch.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    is_acknowledged: bool = True
    """Whether the append may be acknowledged. The `Partition` sets it, because it knows the conditions."""


ANY_EPOCH = 2**31 - 1


class LogAppender:
    """The writer at the end of one log: validates, assigns offsets, and keeps producers and epochs up to date."""

    __slots__ = ("_epochs", "_local", "_producers")

    def __init__(self, local: LocalLog, producers: LogProducers, epochs: LogEpochs) -> None:
        self._local = local
        self._producers = producers
        self._epochs = epochs

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """Assign the next offsets to the one batch in `records` and append it; the offsets are written into `records`
        if it is writable. A client's transactional batch needs a `guard` (`ProducerStateManager.begin_verification`).

        Raises ApiError: those of `log_validator.validate_produced`, of `ProducerStateManager.check`, and
        KAFKA_STORAGE_ERROR when the write failed. After any error the log is unchanged.
        """
        local = self._local
        directory = local.directory
        if directory.failure is not None:
            raise directory.offline_error()
        if records.readonly:
            records = memoryview(bytearray(records))
        config = local.config
        batch, latest = validate_produced(
            records, local.topic_partition, config, origin, now_ms, in_transaction=guard is not None
        )
        first_offset = local.log_end_offset
        state = self._producers.loaded
        if state is None:
            state = self._producers.load(local)
        if directory.headroom_bytes < len(records) and origin is AppendOrigin.CLIENT and not state.has_batch(batch):
            directory.admit(len(records))  # before the sequence is checked: see `has_batch`
        if batch.producer_id >= 0:
            original = state.check(batch, first_offset, origin, guard)
            if original is not None:
                first, last, timestamp = original.first_offset, original.last_offset, original.timestamp
                return LogAppendInfo(first, last, timestamp, local.log_start_offset, duplicate=True)
        last_offset = first_offset + batch.last_offset_delta
        if config.uses_append_time:
            append_time_ms = max_timestamp = now_ms
        else:
            append_time_ms = None
            max_timestamp = batch.max_timestamp if latest is None else latest
        batch.assign_offsets(first_offset, leader_epoch, append_time_ms, latest)
        if leader_epoch != self._epochs.written:
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
            local.log_start_offset,
        )

    def has_batch(self, records: memoryview) -> bool:
        """Whether the one batch in `records` is a duplicate of an earlier batch of its producer. Raises ApiError
        KAFKA_STORAGE_ERROR.

        Duplicates are acknowledged even while other batches are refused (too few in-sync replicas, disk full).
        Librdkafka assumes that a refused batch is not stored, and would store it twice under a new producer epoch. It
        begins a new epoch when the sequence of a later batch is refused, so the sequence is checked only once there is
        room.
        """
        if len(records) < HEADER_BYTES:
            return False
        local = self._local
        local.refuse_offline()
        return self._producers.load(local).has_batch(RecordBatch(records))

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int = ANY_EPOCH
    ) -> LogAppendInfo | None:
        """Append batches as the leader sent them, except for an incomplete last one. Returns None without a whole
        batch.

        `leader_epoch` is the epoch of the fetch. From the first batch with a higher epoch on, all are left out: the
        leader had lost its role when it read them, and may have truncated records before them (KAFKA-18723).

        Raises ApiError CORRUPT_MESSAGE (CRC, sizes), OFFSET_OUT_OF_RANGE (offsets that do not follow the log end),
        KAFKA_STORAGE_ERROR.
        """
        local, epochs = self._local, self._epochs
        local.refuse_offline()
        batches = list(takewhile(lambda batch: batch.partition_leader_epoch <= leader_epoch, read_batches(records)))
        if not batches:
            return None
        if batches[-1].last_offset - batches[0].base_offset > MAX_RELATIVE_OFFSET and len(batches) > 1:
            return self._append_one_by_one(batches, now_ms)
        size, max_timestamp, max_timestamp_offset = check_copied(batches, local.topic_partition, local.log_end_offset)
        state = self._producers.load(local)
        first, last = batches[0].base_offset, batches[-1].last_offset
        try:
            for batch in batches:
                if batch.partition_leader_epoch > epochs.written:
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
        return LogAppendInfo(first, last, -1, local.log_start_offset)

    def _end_transaction(self, completed: CompletedTxn, batch: RecordBatch) -> None:
        """Add an entry to the transaction index if `batch`, just appended, aborted a transaction."""
        entry = aborted_by(batch, completed)
        if entry is None:
            return
        local = self._local
        segment = local.active_segment
        try:
            is_new = segment.files.transactions.append(entry)
        except OSError as error:
            doing = f"Error while writing the transaction index of {segment.path}"
            raise local.fail(error, doing) from error
        if is_new:
            local.durability.has_unsynced_names = True

    def _append_one_by_one(self, batches: Sequence[RecordBatch], now_ms: int) -> LogAppendInfo:
        """Append batches of a segment that spans more offsets than our segments allow."""
        for batch in batches:
            self.append_as_follower(batch.buffer, now_ms=now_ms)
        return LogAppendInfo(batches[0].base_offset, batches[-1].last_offset, -1, self._local.log_start_offset)

    def _forget_epochs_behind_the_end(self) -> None:
        """Forget the epochs of batches that did not fit on a full disk."""
        local = self._local
        if local.directory.failure is None:
            self._epochs.load(local).truncate_from_end(local.log_end_offset + 1)
            self._epochs.written = -1

    def _write(
        self,
        data: memoryview,
        last_offset: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        now_ms: int,
    ) -> None:
        local = self._local
        segment = local.active_segment
        config = local.config
        size = len(data)
        try:
            jitter_ms = _jitter_ms(segment, config) if config.segment_jitter_ms else 0
            if segment.should_roll(size, last_offset, max_timestamp, now_ms, config, jitter_ms):
                is_far = last_offset - local.log_end_offset > MAX_RELATIVE_OFFSET
                segment = self.roll(now_ms, RecordBatch(data).base_offset if is_far else None)
            segment.append(data, last_offset, max_timestamp, max_timestamp_offset, config.index_interval_bytes)
        except OSError as error:
            raise local.append_failed(error, segment) from error
        local.directory.headroom_bytes -= size
        local.log_end_offset = end_offset = last_offset + 1
        local.remember_boundary(end_offset, segment, segment.batches.size)

    def _write_epoch(self, leader_epoch: int, offset: int, now_ms: int) -> None:
        """Write everything that must be on disk before the first batch of a new epoch."""
        local = self._local
        local.refuse_while_truncated()
        if local.durability.has_unsynced_truncation:
            self.prepare_flush(now_ms).finish()  # the previous process died during a truncation
        if leader_epoch < 0:
            return
        epochs = self._epochs.load(local)
        epochs.assign(leader_epoch, offset)
        try:
            epochs.write_if_changed()
        except OSError as error:
            doing = f"Error while writing the leader epochs of {local.topic_partition}"
            raise local.failed(error, doing) from error
        self._epochs.written = leader_epoch

    def roll(self, now_ms: int, base_offset: int | None = None, *, sealed_is_kept: bool = True) -> LogSegment:
        """Seal the active segment and begin a new one at the log end; an empty active segment stays.

        It begins there even if the next batch skips offsets, so that recovery can tell a gap from a loss. A different
        `base_offset` is given only when the batch is too far away for an index. The sealed segment is flushed later
        (`has_unflushed_sealed_segments`). With `sealed_is_kept` False the sealed segment will be deleted, and is not
        fsynced. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        local = self._local
        local.refuse_while_truncated()
        active = local.active_segment
        if base_offset is None:
            base_offset = local.log_end_offset
        if active.size == 0 and active.base_offset == base_offset:
            return active
        state = self._producers.load(local)
        try:
            active.seal()
            state.map_end_offset = base_offset
            state.take_snapshot()
            if sealed_is_kept and local.durability.highest_recovery_point >= local.log_end_offset:
                # Recovery will not read the sealed segment again, so its records and its indexes must be safe.
                for file in active.files_to_flush(with_indexes=True):
                    file.flush()
                local.file_system.sync_dir(local.path)
            return local.begin_segment(base_offset, now_ms)
        except OSError as error:
            doing = f"Error while rolling log segment for {local.topic_partition} in dir {local.directory.path}"
            raise local.failed(error, doing) from error

    def skip_to(self, offset: int, now_ms: int) -> None:
        """Continue at `offset`, above the log end; compaction removed everything in between."""
        local = self._local
        local.refuse_offline()
        local.refuse_while_truncated()
        before, local.log_end_offset = local.log_end_offset, offset
        try:
            self.roll(now_ms)
        except ApiError:
            local.log_end_offset = before
            raise
        local.durability.gaps_end = offset

    def prepare_flush(self, now_ms: int, offset: int | None = None, *, closing: bool = False) -> FlushTask:
        """The fsyncs that make everything below `offset` (default: the log end) safe; with `closing` also the files
        that make recovery at the next start unnecessary. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        return FlushTask(self._local, self._producers, self._epochs, now_ms, offset, closing=closing)


def _jitter_ms(segment: LogSegment, config: LogConfig) -> int:
    """A part of `segment_jitter_ms` specific to this segment, so that logs do not all roll at once."""
    jitter_ms = min(config.segment_jitter_ms, config.max_segment_ms)
    if jitter_ms <= 0:
        return 0
    return zlib.crc32(segment.path.encode()) % jitter_ms
