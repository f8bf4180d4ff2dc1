"""The log of one replica: segments, producer state and leader epochs under one owner (Kafka classes `UnifiedLog`,
`LocalLog`).

All methods belong to one thread, and only `flush` waits for an fsync. To flush on another thread: call `prepare_flush`
here, `FlushTask.run` there, and `FlushTask.complete` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.directory.log_directory import FailedLog, LogDirectory
from storage.io.file_system import FileSystem, WouldWaitError
from storage.log.leader_epoch import EpochEntry, LeaderEpochFileCache, LogEpochs
from storage.log.local_log import LocalLog, rename_to_deleted
from storage.log.log_appender import ANY_EPOCH, LogAppender, LogAppendInfo
from storage.log.log_flush import FlushTask, LogDurability, is_unchanged_since_load
from storage.log.log_reader import (
    FetchDataInfo,
    offset_for_timestamp,
    offset_of_max_timestamp,
    read,
    retry_if_truncated,
)
from storage.log.log_validator import AppendOrigin
from storage.log.producer_state import LogProducers, ProducerStateManager
from storage.log.retention import Expiry, check_new_start, find_expired
from storage.log.truncation import TruncationTask
from storage.log_config import LogConfig
from storage.segment.indexes import TimestampAndOffset
from storage.segment.log_segment import LogSegment, segment_index

_NO_TIMESTAMP = -1


class UnifiedLog:
    """Created by `storage.recovery.log_loader` (existing directories) and `storage.log.partition_directory` (new
    ones).
    """

    __slots__ = (
        "appender",
        "cleaner_checkpoint",
        "epochs",
        "local",
        "producers",
        "replacements",
        "topic_id",
        "uncleanable_reason",
    )

    def __init__(
        self,
        *,
        file_system: FileSystem,
        directory: LogDirectory,
        path: str,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        segments: Sequence[LogSegment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        snapshot_offsets: Sequence[int] = (),
        names_are_synced: bool = True,
        now_ms: int = 0,
    ) -> None:
        self.topic_id = topic_id
        durability = LogDurability(file_system, recovery_point, log_end_offset, now_ms, names_are_synced)
        self.local = LocalLog(
            file_system=file_system,
            directory=directory,
            path=path,
            topic_partition=topic_partition,
            config=config,
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            durability=durability,
        )
        self.producers = LogProducers(snapshot_offsets)
        self.epochs = LogEpochs()
        self.appender = LogAppender(self.local, self.producers, self.epochs)
        self.cleaner_checkpoint: int | None = None
        """Below this offset every key has one value; None if the log was never cleaned."""
        self.replacements = 0
        """How often segments were replaced by cleaned ones."""
        self.uncleanable_reason: str | None = None
        """The reason why the cleaner skips this log until the next start."""

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def topic_partition(self) -> TopicPartition:
        return self.local.topic_partition

    @property
    def durability(self) -> LogDurability:
        return self.local.durability

    @property
    def directory(self) -> LogDirectory:
        """The log directory (entry of `log.dirs`) of the log."""
        return self.local.directory

    @property
    def path(self) -> str:
        """The directory of the log itself."""
        return self.local.path

    @property
    def config(self) -> LogConfig:
        """May be replaced at any time; takes effect from the next call on."""
        return self.local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.local.config = config

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments, oldest first; every change makes a new tuple."""
        return self.local.segments

    @property
    def active_segment(self) -> LogSegment:
        """The last segment, which receives appends."""
        return self.local.active_segment

    @property
    def log_start_offset(self) -> int:
        """The first readable offset."""
        return self.local.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.local.log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on stable storage."""
        return self.local.durability.recovery_point

    @property
    def truncations(self) -> int:
        """The number of truncations so far."""
        return self.local.truncations

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.local.segments)

    # -- producers and epochs -----------------------------------------------------------------------------------------

    @property
    def producer_state(self) -> ProducerStateManager:
        """State of the producers up to the log end, read from snapshot and log on first use. Raises ApiError."""
        return self.producers.load(self.local)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is completed, with its marker below the high watermark."""
        state = self.producers.loaded
        if state is None:
            state = self.producers.load(self.local)
        state.on_high_watermark(high_watermark)
        first_unstable = state.first_unstable_offset
        if first_unstable is None or first_unstable >= high_watermark:
            return high_watermark
        return max(first_unstable, self.local.log_start_offset)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Complete the transactions whose markers are below the high watermark; call it when that has moved."""
        state = self.producers.loaded
        if state is not None:
            state.on_high_watermark(high_watermark)

    @property
    def leader_epochs(self) -> LeaderEpochFileCache:
        """Leader epochs of this log, read from their checkpoint on first use. Raises ApiError KAFKA_STORAGE_ERROR."""
        return self.epochs.load(self.local)

    def assign_epoch_start_offset(self, leader_epoch: int) -> None:
        """Begin `leader_epoch` at the log end; call it on becoming leader. The file has the epoch before its first
        record.
        """
        if leader_epoch >= 0:
            self.epochs.begin(EpochEntry(leader_epoch, self.local.log_end_offset))

    def latest_epoch(self) -> int:
        """The newest leader epoch of this log, or -1."""
        return self.leader_epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """The largest known epoch not above `epoch` and its end offset (KIP-101, KIP-279); (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- appending and flushing ---------------------------------------------------------------------------------------

    def append_as_leader(
        self, records: memoryview, *, leader_epoch: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> LogAppendInfo:
        """See `LogAppender.append_as_leader`. `Partition` calls that directly, because it runs for every produced
        batch.
        """
        return self.appender.append_as_leader(records, leader_epoch=leader_epoch, now_ms=now_ms, origin=origin)

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int = ANY_EPOCH
    ) -> LogAppendInfo | None:
        """See `LogAppender.append_as_follower`."""
        return self.appender.append_as_follower(records, now_ms=now_ms, leader_epoch=leader_epoch)

    def roll(self, now_ms: int) -> LogSegment:
        """Seal the active segment and begin a new one; see `LogAppender.roll`."""
        return self.appender.roll(now_ms)

    def prepare_flush(self, now_ms: int, offset: int | None = None, *, closing: bool = False) -> FlushTask:
        """The fsyncs that make everything below `offset` (default: the log end) safe; with `closing` also the files
        that make recovery at the next start unnecessary. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        return self.appender.prepare_flush(now_ms, offset, closing=closing)

    def flush(self, now_ms: int, offset: int | None = None) -> None:
        """Return once everything below `offset` (default: the log end) is on stable storage.

        Raises ApiError KAFKA_STORAGE_ERROR; the directory is offline then.
        """
        self.prepare_flush(now_ms, offset).finish()

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upper_bound_offset: int | None = None, min_one_message: bool = True
    ) -> FetchDataInfo:
        """The file range of the batches from the one that reaches `offset` on: at most `max_bytes`, in one segment, all
        below `upper_bound_offset` (the log end by default).

        With `min_one_message` the first batch is returned even if it is larger than `max_bytes`. May wait for the disk,
        on any thread. Raises ApiError OFFSET_OUT_OF_RANGE for an offset outside [log start, log end], CORRUPT_MESSAGE,
        KAFKA_STORAGE_ERROR.
        """
        log, bound = self.local, upper_bound_offset
        look = partial(read, log, offset, max_bytes, bound, min_one_message=min_one_message, may_wait=True)
        return retry_if_truncated(log, look)

    def try_read(
        self, offset: int, max_bytes: int, upper_bound_offset: int | None = None, min_one_message: bool = True
    ) -> FetchDataInfo | None:
        """As `read`, but returns None instead of waiting for the disk. For the log's owner only."""
        log, bound = self.local, upper_bound_offset
        try:
            return read(log, offset, max_bytes, bound, min_one_message=min_one_message, may_wait=False)
        except WouldWaitError:
            return None
        except OSError as error:
            raise log.read_failed(error) from error

    def offset_after_corrupt_range(self, offset: int) -> int | None:
        """The first readable offset after the corrupt range that contains `offset`, or None."""
        segments = self.local.segments
        corrupt_range = segments[segment_index(segments, offset)].batches.corrupt_range_of(offset)
        return None if corrupt_range is None else corrupt_range.end_offset

    def offset_for_timestamp(self, timestamp: int, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record from the log start on whose timestamp (ms) is at least `timestamp`, or None if it is not
        below `upper_bound_offset`. May wait for the disk, on any thread. Raises ApiError CORRUPT_MESSAGE,
        OFFSET_NOT_AVAILABLE during a truncation.
        """
        return retry_if_truncated(self.local, partial(offset_for_timestamp, self.local, timestamp, upper_bound_offset))

    def offset_of_max_timestamp(self, upper_bound_offset: int | None = None) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of the log, or None if it is not below `upper_bound_offset`.

        May wait for the disk, on any thread. Raises ApiError CORRUPT_MESSAGE, OFFSET_NOT_AVAILABLE during a truncation.
        """
        return retry_if_truncated(self.local, partial(offset_of_max_timestamp, self.local, upper_bound_offset))

    def earliest(self) -> TimestampAndOffset:
        """The log start and the leader epoch of its record."""
        offset = self.log_start_offset
        return TimestampAndOffset(_NO_TIMESTAMP, offset, self.leader_epochs.epoch_for_offset(offset))

    # -- shortening ---------------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int, high_watermark: int) -> int:
        """Move the log start to `offset`; returns the log start. `delete_old_segments` removes the segments below it.

        Raises ApiError OFFSET_OUT_OF_RANGE for an offset above the high watermark.
        """
        check_new_start(self.topic_partition, offset, high_watermark)
        self._move_log_start(offset)
        return self.log_start_offset

    def _move_log_start(self, offset: int) -> None:
        if offset > self.local.log_start_offset:
            self.local.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    def expire_segments(self, now_ms: int, high_watermark: int) -> Expiry:
        """Move the log start past the expired segments; if all have expired, roll first.

        Their files stay until `delete_old_segments`, so that the new log start can be made durable first. Raises
        ApiError CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        local = self.local
        local.refuse_offline()
        if local.truncation is not None:
            return Expiry(0, [], None)
        try:
            expiry = find_expired(local, now_ms, high_watermark)
        except OSError as error:
            raise local.read_failed(error) from error
        if expiry.expired == len(local.segments):
            self.appender.roll(now_ms, sealed_is_kept=False)
        if expiry.expired:
            self._move_log_start(local.segments[expiry.expired].base_offset)
        return expiry

    def delete_old_segments(self, limit: int | None = None) -> Sequence[LogSegment]:
        """Drop the oldest segments that lie wholly below the log start, at most `limit` of them; returns them.

        After a power cut some of them may reappear and others not. So the log start must be durable before this call,
        or recovery would take the gaps between them for lost records. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        local = self.local
        local.refuse_offline()
        if local.truncation is not None:
            return []
        count = segment_index(local.segments, local.log_start_offset)
        dropped = local.segments[: count if limit is None else min(count, limit)]
        if not dropped:
            return []
        try:
            paths = rename_to_deleted(dropped)
            paths += self.producer_state.mark_deleted(segment.base_offset for segment in dropped)
        except OSError as error:
            doing = f"Error while deleting segments for {local.topic_partition} in dir {local.directory.path}"
            raise local.fail(error, doing) from error
        local.defer_deletion(paths, dropped)  # readers may still use it
        local.forget_boundaries()
        local.segments = local.segments[len(dropped) :]
        return dropped

    def prepare_truncation(self, offset: int, now_ms: int) -> TruncationTask:
        """A task that drops everything at or above `offset`, including batches that reach beyond it; see
        `TruncationTask` for the duties of the owner. The log then ends with its last batch, which may be below `offset`
        where offsets were skipped.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        return TruncationTask(self, offset, now_ms)

    def prepare_full_truncation(self, offset: int, now_ms: int) -> TruncationTask:
        """A task that drops everything, so that the log is empty and begins at `offset`; as `prepare_truncation`."""
        return TruncationTask(self, offset, now_ms, fully=True)

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Run `prepare_truncation` at once, which waits for the disk; returns whether anything was dropped. Raises
        ApiError.
        """
        task = self.prepare_truncation(offset, now_ms)
        task.finish()
        return task.is_needed

    # -- closing ------------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Close all files of a partition that is being deleted, and refuse every access from now on."""
        self.release_files()
        self.local.directory = FailedLog(self.directory, self.path, f"{self.topic_partition} has been deleted")

    def close(self) -> None:
        """Write the files that make recovery at the next start unnecessary; the caller flushes them afterwards. Raises
        ApiError KAFKA_STORAGE_ERROR.
        """
        local = self.local
        local.refuse_while_truncated()
        try:
            # A segment whose records were all deleted receives appends after the next start, like any other.
            is_empty = local.log_end_offset == local.log_start_offset and not local.active_segment.size
            if not is_empty and not is_unchanged_since_load(self.durability, self.producers, self.epochs):
                local.active_segment.seal()
                self.producer_state.take_snapshot()
            self.epochs.write_if_changed()
        except OSError as error:
            raise local.failed(error, f"Error while closing {self.topic_partition}") from error

    def use_path(self, path: str) -> None:
        """Follow a rename of the log's directory to `path`; open files stay open."""
        self.local.use_path(path)
        self.epochs.use_path(path)
        if self.producers.loaded is not None:
            self.producers.loaded.use_directory(path)

    def release_files(self) -> None:
        """Close all descriptors; they are opened again when needed."""
        for segment in self.segments:
            segment.close()

    def __repr__(self) -> str:
        return f"UnifiedLog({self.path}, offsets {self.log_start_offset}..{self.log_end_offset})"
