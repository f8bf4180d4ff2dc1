"""Truncating a log without blocking the thread that owns it (Kafka: `UnifiedLog.truncateTo`,
`truncateFullyAndStartAt`).

Other threads may be reading and checking the truncated batches. They store their findings in the segment object that
they were given. So the truncated segment gets a new object, and findings in the old one are lost. A reader compares
`UnifiedLog.truncations` when it has finished, and starts over if the value changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from protocol.errors import ApiError, detached
from storage.log.leader_epoch import LEADER_EPOCH_CHECKPOINT, NO_EPOCH_WRITTEN, LeaderEpochFileCache
from storage.log.local_log import rename_to_deleted
from storage.log.log_flush import write_truncation_marker
from storage.log.producer_state import ProducerStateManager, load_producers
from storage.segment.log_segment import LogSegment, segment_index
from storage.segment.segment_files import LOG_SUFFIX, file_name

if TYPE_CHECKING:
    from storage.log.unified_log import UnifiedLog


class TruncationTask:
    """Drops everything at or above an offset, batches that reach beyond it included; or (`fully`) everything, so that
    the log is empty and begins at the offset.

    The owner of the log creates the task; any thread may call `run`; the owner calls `complete`.

    From its creation until `complete`, the log ends below the offset: reads stop at the base of the truncated segment,
    lookups by time fail with OFFSET_NOT_AVAILABLE, retention and compaction skip the log. The owner must not append,
    roll or close meanwhile (RuntimeError). It must lower its high watermark to the log end after creating the task and
    again after completing it. Replies to earlier reads may not be sent yet; after a truncation below the high watermark
    (an unclean election), they may contain bytes of later appends.

    The truncation is on stable storage when the task is complete, so appends do not wait for it. A log that restarts
    empty at its end (`fully`) ends there even if the task is interrupted at any point.
    """

    __slots__ = (
        "_directory",
        "_dropped",
        "_end_offset",
        "_error",
        "_file_system",
        "_is_marked",
        "_is_roll",
        "_known_marker",
        "_leader_epochs",
        "_log",
        "_new_segment",
        "_now_ms",
        "_old_end_offset",
        "_old_segments",
        "_paths",
        "_producer_state",
        "_recovery_point",
        "_unified",
        "is_full",
        "is_needed",
        "offset",
        "unreadable_from",
    )

    def __init__(self, unified: UnifiedLog, offset: int, now_ms: int, *, fully: bool = False) -> None:
        """Raises ApiError KAFKA_STORAGE_ERROR when the directory is offline."""
        log = unified.local
        log.refuse_offline()
        log.refuse_while_truncated()
        self._file_system = file_system = log.file_system
        self._unified = unified
        self._log = log
        self._directory = log.directory
        self._now_ms = now_ms
        self.offset = offset
        self.is_needed = fully or offset < log.log_end_offset
        """Whether the truncation would remove anything."""
        self.is_full = fully or offset < log.segments[0].base_offset
        self._old_segments = log.segments
        self._old_end_offset = log.log_end_offset
        self._end_offset = offset
        self._known_marker = log.durability.truncation_marker
        self._is_marked = False
        self._error: OSError | ApiError | None = None
        self._paths: list[str] = []
        keep = 0 if self.is_full else segment_index(log.segments, offset) + 1
        self._dropped = log.segments[keep:]
        self._is_roll = fully and offset == log.log_end_offset
        if self._is_roll and log.active_segment.base_offset == offset:
            self._dropped = log.segments[:-1]
        # Not `offset`: the next flush covers the whole segment again, its indexes included.
        self._recovery_point = offset if self.is_full else log.segments[keep - 1].base_offset
        self.unreadable_from = log.segments[0].base_offset if self.is_full else self._recovery_point
        """First position that must not be read until the task is complete."""
        self._new_segment: LogSegment | None = None
        self._leader_epochs: LeaderEpochFileCache | None = None
        self._producer_state = ProducerStateManager(
            file_system, log.path, str(log.topic_partition), unified.producers.snapshot_offsets
        )
        if self.is_needed:
            # The order matters: a reader that sees the new number also sees the task.
            log.truncation = self
            log.truncations += 1
            log.log_end_offset = min(log.log_end_offset, offset)
            if not self.is_full:
                log.segments = log.segments[:keep]
                log.active_segment = log.segments[-1]

    def run(self) -> None:
        """Truncate the files; an error is kept for `complete`."""
        if not self.is_needed:
            return
        try:
            self._mark()
            self._is_marked = True
            if self._is_roll:
                # The follower may be in the ISR because it fetched from this end. So the log must end here even if this
                # is interrupted, just as when it rolls and its oldest segments expire.
                self._begin_segment()
                self._drop(self._dropped)
                self._file_system.sync_dir(self._log.path)
            elif self.is_full:
                self._drop(reversed(self._dropped))
                self._begin_segment()
            else:
                self._drop(reversed(self._dropped))
                # Make this durable before truncating: a power cut must not leave a gap below the recovery point.
                self._file_system.sync_dir(self._log.path)
                self._cut_last(self._old_segments[len(self._old_segments) - len(self._dropped) - 1])
        except (OSError, ApiError) as error:
            self._error = detached(error)

    def _mark(self) -> None:
        """Write the truncation marker for the next process: everything below its offset stays, and is on stable
        storage.
        """
        log = self._log
        noted = min(self._recovery_point, log.durability.recovery_point)
        write_truncation_marker(self._file_system, log.path, self._known_marker, noted)
        self._known_marker = noted

    def _drop(self, segments: Iterable[LogSegment]) -> None:
        """Rename the files out of the way; they are removed later, because readers may still use them."""
        self._paths += rename_to_deleted(segments)
        self._paths += self._producer_state.mark_deleted(segment.base_offset for segment in self._dropped)

    def _begin_segment(self) -> None:
        """Create the empty segment durably and remove the leader epochs."""
        log, last = self._log, self._old_segments[-1]
        if last in self._dropped:
            self._file_system.create(f"{log.path}/{file_name(self.offset, LOG_SUFFIX)}")
            self._new_segment = LogSegment(self._file_system, log.path, self.offset, 0, self._now_ms, is_new=True)
        else:
            self._new_segment = last.again()
        self._leader_epochs = LeaderEpochFileCache(self._file_system, f"{log.path}/{LEADER_EPOCH_CHECKPOINT}")
        self._leader_epochs.remove()  # the next start would trust its entries below `offset`
        self._file_system.sync_dir(log.path)
        self._producer_state.clear(self.offset)

    def _cut_last(self, segment: LogSegment) -> None:
        new = segment.again()
        self._end_offset = new.truncate_to(self.offset)
        new.file.flush()
        kept = [*self._old_segments[: -len(self._dropped) - 1], new]
        load_producers(self._producer_state, kept, kept[0].base_offset, self._end_offset)
        self._new_segment = new

    def complete(self) -> None:
        """Apply the truncation to the log. Raises ApiError KAFKA_STORAGE_ERROR; if the disk was too full to begin, the
        log is unchanged, otherwise its directory is offline.
        """
        log = self._log
        if not self.is_needed:
            self._unified.epochs.forget_from(log, self.offset)
            return
        if log.directory is not self._directory:  # it was deleted meanwhile
            log.truncation = None
            raise log.directory.offline_error()
        doing = f"Error while truncating {log.topic_partition} in dir {log.directory.path}"
        log.defer_deletion(self._paths, self._dropped)
        if isinstance(self._error, ApiError):
            raise log.fail(OSError(self._error.message), doing) from self._error
        if self._error is not None:
            if self._is_marked:
                raise log.fail(self._error, doing) from self._error
            log.segments, log.active_segment = self._old_segments, self._old_segments[-1]
            log.log_end_offset = self._old_end_offset
            log.truncation = None
            raise log.failed(self._error, doing) from self._error
        self._publish()

    def finish(self) -> None:
        """Call `run` and `complete`, which waits for the disk. Raises as `complete`."""
        self.run()
        self.complete()

    def _publish(self) -> None:
        unified, log, new, end_offset = self._unified, self._log, self._new_segment, self._end_offset
        durability = log.durability
        assert new is not None
        replaced = () if log.active_segment in self._dropped else log.segments[-1:]
        log.segments = (*(() if self.is_full else log.segments[:-1]), new)
        log.active_segment = new
        for segment in replaced:
            segment.files.close_indexes()
        log.log_end_offset = end_offset
        log.log_start_offset = end_offset if self.is_full else min(log.log_start_offset, end_offset)
        durability.recovery_point = end_offset if self.is_full else min(durability.recovery_point, self._recovery_point)
        durability.truncation_marker = self._known_marker
        durability.gaps_end = min(durability.gaps_end, self._recovery_point)
        durability.has_unsynced_names = True
        durability.has_unsynced_truncation = False
        if unified.cleaner_checkpoint is not None:
            unified.cleaner_checkpoint = min(unified.cleaner_checkpoint, self.offset)
        if self._leader_epochs is not None:
            unified.epochs.use(self._leader_epochs)
        else:
            unified.leader_epochs.truncate_from_end(self.offset)
        unified.producers.use(self._producer_state)
        log.forget_boundaries()
        unified.epochs.written = NO_EPOCH_WRITTEN
        # Reset the task last: a reader that does not see it sees the new segment.
        log.truncation = None
