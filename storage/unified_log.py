"""The log of one replica: segments, producer state and leader epochs under one owner (Kafka classes `UnifiedLog`, `LocalLog`).

All methods belong to one thread, and none of them waits for an fsync but `flush`. To flush on another thread: `prepare_flush` here,
`FlushTask.run` there, `FlushTask.complete` here again.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from protocol.errors import ApiError, ErrorCode
from protocol.records import RecordBatch, TimestampType, assign_offsets, read_batches
from protocol.topic_partition import TopicPartition
from storage.file_system import File, FileSystem
from storage.leader_epoch import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochFileCache
from storage.log_config import LogConfig
from storage.log_directory import DeferredDeletion, LogDirectory, is_disk_full
from storage.log_flush import FlushTask
from storage.log_segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    LogSegment,
    TimestampAndOffset,
    file_name,
    scan_headers,
)
from storage.log_validator import validate_produced
from storage.producer_state import AppendOrigin, ProducerStateManager

_REMEMBERED_BOUNDARIES = 64
_NO_TIMESTAMP = -1


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


@dataclass(slots=True)
class FetchDataInfo:
    """`size` bytes at `position` of `file` are whole batches, the first of which contains the offset asked for.

    With size 0 there is nothing to read and `file` is None; `first_entry_incomplete` then says that it is only because the first
    batch exceeds the size asked for.
    """

    file: File | None
    position: int
    size: int
    first_entry_incomplete: bool = False


class UnifiedLog:
    """See the module's docstring. Made by `storage.log_loader` (existing directories) and `storage.log_manager` (new ones)."""

    __slots__ = (
        "_boundaries",
        "_config",
        "_file_system",
        "_leader_epochs",
        "_producer_state",
        "_snapshot_offsets",
        "_unsynced_names",
        "_written_epoch",
        "active_segment",
        "directory",
        "last_flushed_ms",
        "log_end_offset",
        "log_start_offset",
        "path",
        "recovery_point",
        "segments",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        *,
        file_system: FileSystem,
        directory: LogDirectory,
        path: str,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
        segments: list[LogSegment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        snapshot_offsets: Sequence[int] = (),
        names_are_synced: bool = True,
        now_ms: int = 0,
    ) -> None:
        self._file_system = file_system
        self.directory = directory
        self.path = path
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._config = config
        self.segments = segments
        self.active_segment = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        """Everything below is on stable storage."""
        self.last_flushed_ms = now_ms
        self._snapshot_offsets = snapshot_offsets
        self._unsynced_names = not names_are_synced
        self._producer_state: ProducerStateManager | None = None
        self._leader_epochs: LeaderEpochFileCache | None = None
        self._written_epoch = -1
        self._boundaries: dict[int, int] | None = None

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """May be set at any time; holds from the next call on."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config

    @property
    def producer_state(self) -> ProducerStateManager:
        """State of the producers up to the log end. Read from snapshot and log on first use."""
        state = self._producer_state
        if state is None:
            name = str(self.topic_partition)
            state = ProducerStateManager(self._file_system, self.path, name, self._snapshot_offsets)
            state.load(self.log_start_offset, self.log_end_offset)
            for _, _, batch in self.headers(state.map_end_offset):
                state.replay(batch)
            state.map_end_offset = self.log_end_offset
            self._producer_state = state
            self._snapshot_offsets = ()
        return state

    @property
    def leader_epochs(self) -> LeaderEpochFileCache:
        """Leader epochs of this log. Read from their checkpoint on first use."""
        epochs = self._leader_epochs
        if epochs is None:
            epochs = self._leader_epochs = LeaderEpochFileCache.load(
                self._file_system, f"{self.path}/{LEADER_EPOCH_CHECKPOINT}", self._epochs_in_batches
            )
        return epochs

    def _epochs_in_batches(self) -> Iterator[EpochEntry]:
        latest = -1
        for _, _, batch in self.headers(self.log_start_offset):
            if batch.partition_leader_epoch > latest:
                latest = batch.partition_leader_epoch
                yield EpochEntry(latest, batch.base_offset)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided; the log end where none is open."""
        first_unstable = self.producer_state.first_unstable_offset
        return self.log_end_offset if first_unstable is None else first_unstable

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def unflushed_messages(self) -> int:
        """Records that a power cut could take away (see `flush_messages`)."""
        return self.log_end_offset - self.recovery_point

    def headers(self, from_offset: int) -> Iterator[tuple[LogSegment, int, RecordBatch]]:
        """(segment, position, header) of the batches that end at or above `from_offset`."""
        for segment in self.segments[self._segment_index(from_offset) :]:
            start = segment.offset_index.lookup(from_offset).position if segment.base_offset < from_offset else 0
            for position, batch in scan_headers(segment.file, start, segment.size):
                if batch.last_offset >= from_offset:
                    yield segment, position, batch

    def _segment_index(self, offset: int) -> int:
        return max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_as_leader(
        self, records: memoryview, *, leader_epoch: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> LogAppendInfo:
        """Give the one batch in `records` the next offsets and append it; they are written into `records` if it is writable.

        Raises ApiError: those of `log_validator.validate_produced`, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, and
        KAFKA_STORAGE_ERROR when it could not be written; after none of them has anything changed.
        """
        directory = self.directory
        if directory.failure is not None:
            raise directory.offline_error()
        if records.readonly:
            records = memoryview(bytearray(records))
        config = self._config
        batch = validate_produced(records, self.topic_partition, config, origin, now_ms)
        first_offset = self.log_end_offset
        state = self._producer_state
        if state is None:
            state = self.producer_state
        if batch.producer_id >= 0:
            original = state.check(batch, first_offset, origin)
            if original is not None:
                return LogAppendInfo(
                    original.first_offset, original.last_offset, original.timestamp, self.log_start_offset, duplicate=True
                )
        last_offset = first_offset + batch.last_offset_delta
        if config.message_timestamp_type is TimestampType.CREATE_TIME:
            append_time_ms = None
            max_timestamp = batch.max_timestamp
        else:
            append_time_ms = max_timestamp = now_ms
        data = batch.buffer
        assign_offsets(data, first_offset, leader_epoch, append_time_ms)
        if leader_epoch != self._written_epoch:
            self._write_epoch(leader_epoch, first_offset)
        self._write(data, first_offset, last_offset, max_timestamp, last_offset, now_ms)
        if batch.producer_id >= 0:
            state.update(batch, first_offset, max_timestamp)
        state.map_end_offset = last_offset + 1
        return LogAppendInfo(
            first_offset, last_offset, -1 if append_time_ms is None else append_time_ms, self.log_start_offset
        )

    def append_as_follower(self, records: memoryview, *, now_ms: int) -> LogAppendInfo | None:
        """Append batches as the leader sent them; an incomplete one at the end is left out. None when there is no whole one.

        Raises ApiError CORRUPT_MESSAGE (CRC, sizes), OFFSET_OUT_OF_RANGE (offsets that do not follow the log end),
        KAFKA_STORAGE_ERROR.
        """
        if self.directory.failure is not None:
            raise self.directory.offline_error()
        batches = list(read_batches(records))
        if not batches:
            return None
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
        state = self.producer_state
        for batch in batches:
            if batch.partition_leader_epoch > self._written_epoch:
                self._write_epoch(batch.partition_leader_epoch, batch.base_offset)
        first, last = batches[0].base_offset, batches[-1].last_offset
        self._write(records[:size], first, last, max_timestamp, max_timestamp_offset, now_ms)
        for batch in batches:
            if batch.producer_id >= 0:
                state.update(batch, batch.base_offset, batch.max_timestamp)
        state.map_end_offset = last + 1
        return LogAppendInfo(first, last, -1, self.log_start_offset)

    def _write(
        self,
        data: memoryview,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        now_ms: int,
    ) -> None:
        segment = self.active_segment
        config = self._config
        if segment.should_roll(len(data), last_offset, max_timestamp, now_ms, config, self._jitter_ms(segment)):
            segment = self.roll(now_ms, first_offset)
        try:
            segment.append(data, last_offset, max_timestamp, max_timestamp_offset, config.index_interval_bytes)
        except OSError as error:
            raise self._append_failed(error, segment) from error
        self.log_end_offset = last_offset + 1
        self._remember_boundary(last_offset + 1, segment.size)

    def _append_failed(self, error: OSError, segment: LogSegment) -> ApiError:
        """A full disk leaves the log as it was; any other error, or one in cleaning up, takes the directory offline."""
        doing = f"Error while appending records to {self.topic_partition} in dir {self.directory.path}"
        if is_disk_full(error):
            try:
                segment.discard_unwritten()
            except OSError as second_error:
                return self.directory.fail(second_error, doing)
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}")
        return self.directory.fail(error, doing)

    def _jitter_ms(self, segment: LogSegment) -> int:
        """A share of `segment_jitter_ms` that is this segment's own, so that logs do not all roll at the same moment."""
        jitter_ms = min(self._config.segment_jitter_ms, self._config.segment_ms)
        if jitter_ms <= 0:
            return 0
        return zlib.crc32(segment.path.encode()) % jitter_ms

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """To be called on becoming leader: `leader_epoch` begins at the log end. In the file before its first record is.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        if leader_epoch >= 0:
            self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def _write_epoch(self, leader_epoch: int, offset: int) -> None:
        if leader_epoch < 0:
            return
        epochs = self.leader_epochs
        epochs.assign(leader_epoch, offset)
        try:
            epochs.write_if_changed()
        except OSError as error:
            doing = f"Error while writing the leader epochs of {self.topic_partition}"
            if is_disk_full(error):
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}") from error
            raise self.directory.fail(error, doing) from error
        self._written_epoch = leader_epoch

    def roll(self, now_ms: int, expected_next_offset: int = 0) -> LogSegment:
        """Seal the active segment and begin a new one at the log end (or further on); an empty active segment stays.

        What is sealed is flushed later: `LogDirectory.rolled_logs` remembers it. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        active = self.active_segment
        base_offset = max(self.log_end_offset, expected_next_offset)
        if active.size == 0 and active.base_offset == base_offset:
            return active
        state = self.producer_state
        try:
            active.seal()
            state.map_end_offset = base_offset
            state.take_snapshot()
            self._file_system.create(f"{self.path}/{file_name(base_offset, LOG_SUFFIX)}")
        except OSError as error:
            doing = f"Error while rolling log segment for {self.topic_partition} in dir {self.directory.path}"
            if is_disk_full(error):
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}") from error
            raise self.directory.fail(error, doing) from error
        segment = LogSegment(self._file_system, self.path, base_offset, 0, now_ms)
        self.segments.append(segment)
        self.active_segment = segment
        self.log_end_offset = base_offset
        self._unsynced_names = True
        self.directory.rolled_logs.add(self)
        return segment

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upper_bound_offset: int | None = None, min_one_message: bool = True
    ) -> FetchDataInfo:
        """Where the batches from the one that contains `offset` are: at most `max_bytes`, all of one segment, all below
        `upper_bound_offset` (the log end by default).

        With `min_one_message` the first batch is given even when it is larger than `max_bytes`. Raises ApiError
        OFFSET_OUT_OF_RANGE for an offset outside [log start, log end], KAFKA_STORAGE_ERROR.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.topic_partition}, but we only have "
                f"log segments upto {end_offset} and starting from {self.log_start_offset}.",
            )
        if self.directory.failure is not None:
            raise self.directory.offline_error()
        bound = end_offset if upper_bound_offset is None else min(upper_bound_offset, end_offset)
        if offset >= bound:
            return FetchDataInfo(None, 0, 0)
        active = self.active_segment
        if offset >= active.base_offset:
            return self._read_segment(active, offset, max_bytes, bound, end_offset, min_one_message)
        for index in range(self._segment_index(offset), len(self.segments)):
            segment = self.segments[index]
            if segment.base_offset >= bound:
                break
            stop = end_offset if segment is active else self.segments[index + 1].base_offset
            info = self._read_segment(segment, offset, max_bytes, bound, stop, min_one_message)
            if info.size or info.first_entry_incomplete:
                return info
        return FetchDataInfo(None, 0, 0)

    def _read_segment(
        self, segment: LogSegment, offset: int, max_bytes: int, bound: int, segment_end: int, min_one_message: bool
    ) -> FetchDataInfo:
        boundaries = self._boundaries
        start = boundaries.get(offset) if boundaries is not None else None
        if offset == segment.base_offset:
            start = 0
        if start is None:
            found = segment.find_batch(offset)
            if found is None:
                return FetchDataInfo(None, 0, 0)
            start = found[0]
        if bound >= segment_end:
            end, next_offset = segment.size, segment_end
        else:
            end, next_offset = self._position_of(segment, bound), bound
        if end - start > max_bytes:
            end, next_offset = self._cut(segment, start, end, max_bytes, min_one_message)
        if end <= start:
            return FetchDataInfo(None, 0, 0, end < start)
        self._remember_boundary(next_offset, end)
        return FetchDataInfo(segment.file, start, end - start)

    def _position_of(self, segment: LogSegment, offset: int) -> int:
        """Where the batch that contains `offset`, or the next one, begins."""
        boundaries = self._boundaries
        known = boundaries.get(offset) if boundaries is not None else None
        if known is not None:
            return known
        found = segment.find_batch(offset)
        return segment.size if found is None else found[0]

    def _cut(
        self, segment: LogSegment, start: int, end: int, max_bytes: int, min_one_message: bool
    ) -> tuple[int, int]:
        """The end of the whole batches that fit into `max_bytes`, and the offset there; an end before `start` if none fits."""
        limit = start + max_bytes
        indexed = segment.boundary_before(limit, start)
        if indexed is not None:
            return indexed[0], indexed[1].base_offset
        cut, next_offset = start, -1
        for position, batch in scan_headers(segment.file, start, end):
            after = position + batch.size_in_bytes
            if after > limit and (position > start or not min_one_message):
                break
            cut, next_offset = after, batch.next_offset
        return (cut, next_offset) if cut > start else (start - 1, -1)

    def _remember_boundary(self, offset: int, position: int) -> None:
        """Keep in mind that a batch boundary is at `position`, so that the read which begins there need not search."""
        boundaries = self._boundaries
        if boundaries is None:
            self._boundaries = {offset: position}
            return
        boundaries[offset] = position
        if len(boundaries) > _REMEMBERED_BOUNDARIES:
            del boundaries[next(iter(boundaries))]

    # -- looking up ---------------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp: int, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record at or after the log start whose timestamp (ms) is at least `timestamp`; None when there is none
        below `upper_bound_offset`. Raises ApiError CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        for segment in self.segments:
            if segment.size and segment.max_timestamp_and_offset.timestamp >= timestamp:
                found = segment.find_timestamp(timestamp, self.log_start_offset)
                if found is not None:
                    bound = self.log_end_offset if upper_bound_offset is None else upper_bound_offset
                    return found if found.offset < bound else None
        return None

    def offset_of_max_timestamp(self, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record that has the largest timestamp of the log; None when it is not below `upper_bound_offset`."""
        candidates = [segment for segment in self.segments if segment.size]
        if not candidates:
            return None
        newest = max(candidates, key=lambda segment: segment.max_timestamp_and_offset.timestamp)
        found = newest.find_max_timestamp()
        bound = self.log_end_offset if upper_bound_offset is None else upper_bound_offset
        return found if found is not None and found.offset < bound else None

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
        """Move the log start to `offset` and drop the segments below; returns the log start.

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
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            self.delete_segments_before(offset)
        return self.log_start_offset

    def delete_segments_before(self, offset: int) -> int:
        """Drop the sealed segments that lie wholly below `offset`; returns how many. Raises ApiError KAFKA_STORAGE_ERROR."""
        count = self._segment_index(offset)
        self._drop_segments(self.segments[:count])
        del self.segments[:count]
        return count

    def _drop_segments(self, dropped: Sequence[LogSegment]) -> None:
        """Rename them out of the way; the files go after `file_delete_delay_ms`, as readers may still be at it."""
        try:
            for segment in dropped:
                paths = segment.mark_deleted(DELETED_SUFFIX)
                self.directory.deferred_deletions.append(
                    DeferredDeletion(paths, is_tree=False, delay_ms=self._config.file_delete_delay_ms)
                )
            self.producer_state.remove_snapshots(segment.base_offset for segment in dropped)
        except OSError as error:
            doing = f"Error while deleting segments for {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        self._boundaries = None

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drop everything at or above `offset`, batches that reach beyond it included; whether anything was dropped.

        The recovery point goes back as well; it has to be checkpointed before anything is appended.
        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        self.leader_epochs.truncate_from_end(offset)
        self._written_epoch = -1
        if offset >= self.log_end_offset:
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        keep = self._segment_index(offset) + 1
        self._drop_segments(self.segments[keep:])
        del self.segments[keep:]
        active = self.active_segment = self.segments[-1]
        try:
            active.truncate_to(offset)
        except OSError as error:
            doing = f"Error while truncating {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        self._boundaries = None
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._reload_producer_state()
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything; the log is empty and begins at `offset`. Raises ApiError KAFKA_STORAGE_ERROR."""
        state = self.producer_state
        self._drop_segments(self.segments)
        try:
            self._file_system.create(f"{self.path}/{file_name(offset, LOG_SUFFIX)}")
        except OSError as error:
            doing = f"Error while truncating {self.topic_partition} in dir {self.directory.path}"
            raise self.directory.fail(error, doing) from error
        self.active_segment = LogSegment(self._file_system, self.path, offset, 0, now_ms)
        self.segments[:] = [self.active_segment]
        self.leader_epochs.clear()
        self._written_epoch = -1
        self._unsynced_names = True
        self._boundaries = None
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        state.clear(offset)

    def _reload_producer_state(self) -> None:
        state = self.producer_state
        state.load(self.log_start_offset, self.log_end_offset)
        for _, _, batch in self.headers(state.map_end_offset):
            state.replay(batch)
        state.map_end_offset = self.log_end_offset

    # -- stable storage -----------------------------------------------------------------------------------------------

    def prepare_flush(self, offset: int | None = None) -> FlushTask:
        """What has to be fsynced before everything below `offset` (default: the log end) is safe. Raises ApiError KAFKA_STORAGE_ERROR."""
        end = self.log_end_offset if offset is None else min(offset, self.log_end_offset)
        task = FlushTask(self._file_system, self, end)
        if end <= self.recovery_point:
            return task
        try:
            for segment in self.segments[self._segment_index(self.recovery_point) : self._segment_index(end - 1) + 1]:
                is_sealed = segment is not self.active_segment
                task.files += segment.files_to_flush(is_sealed=is_sealed)
                if is_sealed:
                    snapshot = self.producer_state.snapshot_path(segment.base_offset)
                    task.optional_paths.append(snapshot)
            epochs = self.leader_epochs.take_unsynced()
        except OSError as error:
            raise self.directory.fail(error, f"Error while flushing {self.topic_partition}") from error
        if epochs is not None:
            task.optional_paths.append(epochs)
            self._unsynced_names = True
        if self._unsynced_names:
            task.directories += [self.path, self.directory.path]
            self._unsynced_names = False
        return task

    def flush(self, now_ms: int, offset: int | None = None) -> None:
        """Return once everything below `offset` (default: the log end) is on stable storage.

        Raises ApiError KAFKA_STORAGE_ERROR; the directory is offline then.
        """
        task = self.prepare_flush(offset)
        task.run()
        task.complete(now_ms)

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers silent for that long; returns how many. State that was not read yet is left alone."""
        return 0 if self._producer_state is None else self._producer_state.remove_expired(now_ms, expiration_ms)

    def discard(self) -> None:
        """The partition is being deleted: let go of all files, and refuse every access from now on."""
        for segment in self.segments:
            segment.close()
        gone = LogDirectory(self.directory.path, lambda _path, _reason: None)
        gone.failure = f"{self.topic_partition} has been deleted"
        self.directory.rolled_logs.discard(self)
        self.directory = gone

    def close(self) -> None:
        """Write everything that spares the next start a recovery, and let go of all files. Flush first.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        try:
            if self.log_end_offset > self.log_start_offset:
                self.active_segment.seal()
                self.producer_state.take_snapshot()
            if self._leader_epochs is not None:
                self._leader_epochs.write_if_changed()
            for segment in self.segments:
                segment.close()
        except OSError as error:
            raise self.directory.fail(error, f"Error while closing {self.topic_partition}") from error

    def __repr__(self) -> str:
        return f"UnifiedLog({self.path}, offsets {self.log_start_offset}..{self.log_end_offset})"


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset
