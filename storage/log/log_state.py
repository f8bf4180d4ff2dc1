"""What a log consists of, and the parts of it that are opened on first use: most logs of a broker are idle most of the
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem, is_disk_full
from storage.log.leader_epoch import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochFileCache
from storage.log.log_config import LogConfig
from storage.log.log_files import TRUNCATION_MARKER
from storage.log.log_segment import LogSegment
from storage.log.producer_state import ProducerStateManager
from storage.log.segment_search import BatchBoundaries, headers_from

if TYPE_CHECKING:
    from storage.log.log_flush import FlushTask
    from storage.log.truncation import TruncationTask


class LogState:
    """What `UnifiedLog` owns. Producer state and leader epochs are read from their files on first use."""

    __slots__ = (
        "_leader_epochs",
        "_led_from",
        "_producer_state",
        "_snapshot_offsets",
        "_written_epoch",
        "active_segment",
        "boundaries",
        "cleaner_checkpoint",
        "config",
        "directory",
        "file_system",
        "flush_in_flight",
        "gaps_end",
        "has_unflushed_sealed_segments",
        "has_unsynced_cut",
        "has_unsynced_names",
        "highest_recovery_point",
        "last_flushed_ms",
        "log_end_offset",
        "log_start_offset",
        "path",
        "recovery_point",
        "replacements",
        "segments",
        "topic_id",
        "topic_partition",
        "truncation",
        "truncation_marker",
        "truncations",
        "uncleanable_reason",
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
        self.file_system = file_system
        self.directory = directory
        self.path = path
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        """May be replaced at any time; holds from the next call on."""
        self.segments = segments
        self.active_segment = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = min(recovery_point, log_end_offset)
        """Everything below is on stable storage."""
        self.highest_recovery_point = recovery_point
        """What a checkpoint on disk may say at most. More than `recovery_point` once the end was cut off."""
        self.flush_in_flight: FlushTask | None = None
        """The last task that was made and is not completed."""
        self.last_flushed_ms = now_ms
        self._snapshot_offsets = snapshot_offsets
        self.has_unsynced_names = not names_are_synced
        """Whether files were created since the directories were fsynced."""
        self.has_unflushed_sealed_segments = False
        """Whether the log was rolled since a FlushTask last reached its active segment."""
        self.has_unsynced_cut = False
        """Whether a power cut could undo that the end was cut off; nothing may be written behind such a cut."""
        self.truncation_marker: int | None = None
        """What the TRUNCATION_MARKER says if there is one: because of `has_unsynced_cut`, which the process after a
        sudden death of this one has to know, or because `recovery_point` has not come to `highest_recovery_point`
        again.
        """
        self.gaps_end = 0
        """Below it a sealed segment may end before the next one begins without a loss. Until that is below the
        checkpointed recovery point, a start after a crash cannot know it.
        """
        self.truncations = 0
        """How often the end was cut off; what began before such a moment, a flush or a read, proves nothing."""
        self.truncation: TruncationTask | None = None
        """The one that was made and is not complete."""
        self._producer_state: ProducerStateManager | None = None
        self._leader_epochs: LeaderEpochFileCache | None = None
        self._led_from: EpochEntry | None = None
        """An epoch that began, and that nobody has asked for yet."""
        self._written_epoch = -1
        self.boundaries = BatchBoundaries()
        self.cleaner_checkpoint: int | None = None
        """Below it every key has one value; None when the log was never cleaned."""
        self.replacements = 0
        """How often segments were replaced by cleaned ones."""
        self.uncleanable_reason: str | None = None
        """Why the cleaner has set this log aside until the next start."""

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def producer_state(self) -> ProducerStateManager:
        """State of the producers up to the log end. Read from snapshot and log on first use."""
        state = self._producer_state
        if state is None:
            name = str(self.topic_partition)
            state = ProducerStateManager(self.file_system, self.path, name, self._snapshot_offsets)
            self._fill(state)
            self._producer_state = state
            self._snapshot_offsets = ()
        return state

    @property
    def snapshot_offsets(self) -> Sequence[int]:
        """Of the producer snapshots in the directory."""
        state = self._producer_state
        return self._snapshot_offsets if state is None else state.snapshot_offsets

    def use_producer_state(self, state: ProducerStateManager) -> None:
        """Take the state that somebody has gathered up to the log end."""
        self._producer_state = state
        self._snapshot_offsets = ()

    def _fill(self, state: ProducerStateManager) -> None:
        try:
            # From the first segment on, not from the log start: what can still be known of a producer is worth knowing.
            state.load(self.segments[0].base_offset, self.log_end_offset)
            if state.map_end_offset < self.log_end_offset:
                for batch in headers_from(self.segments, state.map_end_offset):
                    state.replay(batch)
                state.map_end_offset = self.log_end_offset
        except OSError as error:
            doing = f"Error while reading the producer state of {self.topic_partition}"
            raise self.directory.fail(error, doing) from error

    @property
    def leader_epochs(self) -> LeaderEpochFileCache:
        """Leader epochs of this log. Read from their checkpoint on first use."""
        epochs = self._leader_epochs
        if epochs is None:
            path = f"{self.path}/{LEADER_EPOCH_CHECKPOINT}"
            try:
                epochs = LeaderEpochFileCache.load(self.file_system, path, self._epochs_in_batches)
            except OSError as error:
                raise self.directory.fail(error, f"Error while reading {path}") from error
            # What a crash took from the log, or retention, may still be in the file.
            epochs.truncate_from_end(self.log_end_offset)
            epochs.truncate_from_start(self.log_start_offset)
            self._leader_epochs = epochs
        if self._led_from is not None:
            epochs.assign(*self._led_from)
            self._led_from = None
        return epochs

    def use_leader_epochs(self, epochs: LeaderEpochFileCache) -> None:
        """These are the leader epochs, whatever there were."""
        self._leader_epochs = epochs
        self._led_from = None

    def take_unsynced_epochs(self) -> str | None:
        """See `LeaderEpochFileCache.take_unsynced`. An epoch without a record in it is not worth a file."""
        return None if self._leader_epochs is None else self._leader_epochs.take_unsynced()

    @property
    def is_as_loaded(self) -> bool:
        """Whether nothing was changed, or only read, since the log was opened after a clean stop: then closing it
        again has nothing to do.
        """
        return self._producer_state is None and self._leader_epochs is None and not self.has_unsynced_names

    def _epochs_in_batches(self) -> Iterator[EpochEntry]:
        latest = -1
        for batch in headers_from(self.segments, self.log_start_offset):
            if batch.partition_leader_epoch > latest:
                latest = batch.partition_leader_epoch
                yield EpochEntry(latest, batch.base_offset)

    def use_path(self, path: str) -> None:
        """The directory of the log has been renamed to `path`; what is open stays open."""
        self.path = path
        for segment in self.segments:
            segment.use_directory(path)
        if self._producer_state is not None:
            self._producer_state.use_directory(path)
        if self._leader_epochs is not None:
            self._leader_epochs.use_path(f"{path}/{LEADER_EPOCH_CHECKPOINT}")

    def take_over_epochs(self, other: LogState) -> None:
        """Know of the epochs of `other`, which holds the same records, that began behind the last of them."""
        for entry in other.leader_epochs.entries:
            if entry.epoch > self.leader_epochs.latest_epoch:
                self.leader_epochs.assign(entry.epoch, min(entry.start_offset, self.log_end_offset))

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction is decided, and the marker that says so is below the high watermark."""
        state = self._producer_state
        if state is None:
            state = self.producer_state
        state.on_high_watermark(high_watermark)
        first_unstable = state.first_unstable_offset
        if first_unstable is None or first_unstable >= high_watermark:
            return high_watermark
        return max(first_unstable, self.log_start_offset)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget the transactions whose markers are below; to be called when the high watermark has moved."""
        if self._producer_state is not None:
            self._producer_state.on_high_watermark(high_watermark)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def mark_truncation(self, recovery_point: int) -> None:
        """To be called before the end is cut off; everything below `recovery_point` stays, on stable storage. Raises
        OSError.
        """
        known, noted = self.truncation_marker, min(recovery_point, self.recovery_point)
        path = f"{self.path}/{TRUNCATION_MARKER}{noted}"
        if known is None:
            self.file_system.create(path)
        elif known != noted:
            self.file_system.rename(f"{self.path}/{TRUNCATION_MARKER}{known}", path)
        self.truncation_marker = noted
        self.gaps_end = min(self.gaps_end, recovery_point)
        self.truncations += 1
        self.has_unsynced_names = self.has_unsynced_cut = True

    def advance_recovery_point(self, offset: int) -> None:
        """Everything below `offset` is on stable storage, and the cut if there is one. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        self.recovery_point = max(self.recovery_point, offset)
        if self.recovery_point < self.highest_recovery_point:
            return
        self.highest_recovery_point = self.recovery_point
        if self.truncation_marker is not None and not self.has_unsynced_cut:
            path = f"{self.path}/{TRUNCATION_MARKER}{self.truncation_marker}"
            self.truncation_marker = None
            try:
                self.file_system.remove(path)
            except FileNotFoundError:
                return
            except OSError as error:
                raise self.directory.fail(error, f"Error while removing {path}") from error

    @property
    def known_recovery_point(self) -> int:
        """What a start after a crash goes by, once `recovery_point` is checkpointed."""
        return (
            self.recovery_point if self.truncation_marker is None else min(self.recovery_point, self.truncation_marker)
        )

    @property
    def flush_limit_offset(self) -> int:
        """Records from here on may be neither acknowledged nor shown, because of flush.messages: fewer than so many
        below are not on stable storage. With flush.messages=1 it is the end of what is; the log end without a limit.

        It bounds the high watermark, and it is what a follower may tell its leader as its fetch offset.
        """
        return min(self.log_end_offset, self.recovery_point + self.config.flush_messages - 1)

    def failed(self, error: OSError, doing: str) -> ApiError:
        """What to raise for an error of the disk that left the log as it was: unless the disk is just full, it is
        offline now.
        """
        if is_disk_full(error):
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}")
        return self.directory.fail(error, doing)

    def refuse_while_truncated(self) -> None:
        """Raises RuntimeError while a TruncationTask is under way: its owner has to wait for it."""
        if self.truncation is not None:
            raise RuntimeError(f"{self.topic_partition} is being truncated")

    def report_corrupt_ranges(self, segment: LogSegment) -> None:
        """Tell what was found to be damaged in `segment`; each damage is told once. Any thread may.

        What was found while the end was being cut off is no damage. In this order: a task takes itself away after it
        has replaced the segment.
        """
        if self.truncation is not None or segment not in self.segments:
            return
        for corrupt_range in segment.corrupt_ranges:
            lost = f"offsets {corrupt_range.first_offset} to {corrupt_range.end_offset - 1}"
            at = f"{segment.path} is corrupt at byte {corrupt_range.start}"
            message = f"{at} ({corrupt_range.reason}): {lost} cannot be read"
            self.directory.report_corruption(segment.path, corrupt_range.start, message)
