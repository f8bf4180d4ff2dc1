"""Deliberate bugs. The fault matrix must catch each of them, to show that it checks for such bugs.

A mutant changes one thing in the code while it is applied, as a mistake there would. `scenario` is the first one to
try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from protocol.records.record_format import CONTROL_FLAG
from protocol.topic_partition import TopicPartition
from storage import log_checkpoints
from storage.compaction import cleanable_log
from storage.compaction import cleaner as log_cleaner
from storage.compaction.cleaned_segment import CleanedSegment
from storage.directory import checkpoints, log_directories
from storage.directory.checkpoints import CheckpointTask
from storage.directory.log_directories import CLEAN_SHUTDOWN_FILE, CleanShutdown
from storage.io import file_system
from storage.log import log_flush
from storage.log.leader_epoch import LeaderEpochFileCache
from storage.log.log_flush import FlushTask
from storage.log.producer_state import ProducerStateManager
from storage.log.truncation import TruncationTask
from storage.log.unified_log import UnifiedLog
from storage.log_checkpoints import LogCheckpoints
from storage.log_manager import LogManager
from storage.recovery import segment_recovery as recovery
from storage.recovery.log_loader import LogLoader
from storage.relocation.future_logs import FutureLogs
from storage.segment.checked_batches import CheckedBatches
from storage.segment.log_segment import LogSegment
from storage.segment.segment_files import SWAP_SUFFIX
from tests.faults.mutant import Mutant, Patch, everywhere, nothing
from tests.kit.memory_file_system import MemoryFile

MUTANTS: dict[str, Mutant] = {}


def mutant(scenario: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a mutant under the name of its function."""

    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__.replace("_", " ")
        MUTANTS[name] = Mutant(name, scenario, apply)
        return apply

    return register


# -- what is fsynced --------------------------------------------------------------------------------------------------


@mutant("leader")
def directory_is_not_fsynced_by_a_flush(patch: Patch) -> None:
    run_together = log_flush.run_together

    def run(tasks: list[FlushTask]) -> None:
        for task in tasks:
            task.directories = []
        run_together(tasks)

    everywhere(patch, run_together, run)


@mutant("leader")
def file_is_renamed_without_an_fsync(patch: Patch) -> None:
    def write(files: file_system.FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
        files.write_file(path + ".tmp", data)
        files.rename(path + ".tmp", path)
        if sync:
            files.sync_dir(path.rpartition("/")[0])

    everywhere(patch, checkpoints.write_atomically, write)


@mutant("leader")
def checkpoint_is_written_in_place(patch: Patch) -> None:
    def run(self: CheckpointTask) -> None:
        self._file_system.write_file(self._path, checkpoints.format_offset_checkpoint(self._offsets))
        self._file_system.sync_file(self._path)

    patch.setattr(CheckpointTask, "run", run)


@mutant("torn")
def cut_of_recovery_is_not_fsynced(patch: Patch) -> None:
    cut_and_fsync = LogSegment.truncate_file

    def truncate_file(self: LogSegment, size: int) -> None:
        with Patch.context() as inner:
            inner.setattr(MemoryFile, "flush", nothing)
            cut_and_fsync(self, size)

    patch.setattr(LogSegment, "truncate_file", truncate_file)


@mutant("leader")
def failed_fsync_is_taken_for_good(patch: Patch) -> None:
    run_together = log_flush.run_together

    def run(tasks: list[FlushTask]) -> None:
        run_together(tasks)
        for task in tasks:
            task.error = None

    everywhere(patch, run_together, run)


@mutant("leader")
def recovery_point_is_ahead_of_the_fsync(patch: Patch) -> None:
    complete = FlushTask.complete

    def ahead(self: FlushTask) -> None:
        self.offset = self.log.log_end_offset
        complete(self)

    patch.setattr(FlushTask, "complete", ahead)


@mutant("leader")
def orderly_stop_does_not_flush(patch: Patch) -> None:
    begin_close = LogManager.begin_close
    patch.setattr(LogManager, "begin_close", lambda self, logs: begin_close(self, logs)[:0])


@mutant("leader")
def truncation_is_not_made_durable(patch: Patch) -> None:
    run = TruncationTask.run

    def hasty(self: TruncationTask) -> None:
        with Patch.context() as inner:
            inner.setattr(MemoryFile, "flush", nothing)
            run(self)

    patch.setattr(TruncationTask, "run", hasty)


# -- what recovery does -----------------------------------------------------------------------------------------------


@mutant("leader")
def recovery_ends_one_batch_too_early(patch: Patch) -> None:
    valid_batches = recovery._valid_batches

    def all_but_the_last(*arguments: Any) -> Iterator[Any]:
        held = None
        for batch in valid_batches(*arguments):
            if held is not None:
                yield held
            held = batch

    patch.setattr(recovery, "_valid_batches", all_but_the_last)


@mutant("torn")
def recovery_does_not_check_the_crc(patch: Patch) -> None:
    patch.setattr(recovery, "SOUND", recovery.SOUND._replace(checks_crc=False))


@mutant("leader")
def lost_tail_of_a_sealed_segment_is_not_noticed(patch: Patch) -> None:
    patch.setattr(LogLoader, "_is_cut_short", lambda _self, _end, _next_base: False)


@mutant("leader")
def segments_behind_a_damage_stay(patch: Patch) -> None:
    patch.setattr(LogLoader, "_drop_behind", nothing)


@mutant("leader")
def clean_shutdown_marker_stays(patch: Patch) -> None:
    def take(files: file_system.FileSystem, directory: str) -> CleanShutdown | None:
        return CleanShutdown(-1) if files.exists(f"{directory}/{CLEAN_SHUTDOWN_FILE}") else None

    everywhere(patch, log_directories.take_clean_shutdown, take)


@mutant("follower")
def epochs_are_not_truncated(patch: Patch) -> None:
    patch.setattr(LeaderEpochFileCache, "truncate_from_end", nothing)


@mutant("follower")
def producers_outlive_a_truncation(patch: Patch) -> None:
    complete = TruncationTask.complete

    def keep(self: TruncationTask) -> None:
        before = self._unified.producer_state
        complete(self)
        self._unified.producers.use(before)

    patch.setattr(TruncationTask, "complete", keep)


@mutant("leader")
def producer_snapshot_is_believed_in_any_case(patch: Patch) -> None:
    load = ProducerStateManager.load

    def load_any(self: ProducerStateManager, start_offset: int, end_offset: int) -> None:
        load(self, start_offset, max([end_offset, *self.snapshot_offsets]))

    patch.setattr(ProducerStateManager, "load", load_any)


# -- appending and deleting -------------------------------------------------------------------------------------------


@mutant("leader")
def full_disk_leaves_half_a_batch(patch: Patch) -> None:
    patch.setattr(LogSegment, "discard_unwritten", nothing)


@mutant("leader")
def failing_disk_is_taken_for_a_full_one(patch: Patch) -> None:
    everywhere(patch, file_system.is_disk_full, lambda _error: True)


@mutant("leader")
def index_entry_is_made_before_its_record(patch: Patch) -> None:
    append = LogSegment.append

    def entry_first(
        self: LogSegment, records: memoryview, last_offset: int, stamp: int, stamp_offset: int, interval: int
    ) -> None:
        if self._bytes_since_index_entry > interval and stamp > self._max_timestamp >= 0:
            self.files.offset_index.append(last_offset, self.size)
            self.files.time_index.maybe_append(stamp, stamp_offset)
            self._bytes_since_index_entry = 0
        append(self, records, last_offset, stamp, stamp_offset, interval)

    patch.setattr(LogSegment, "append", entry_first)


@mutant("leader")
def log_start_is_not_checkpointed(patch: Patch) -> None:
    patch.setattr(LogCheckpoints, "log_start_offset_tasks", lambda _self: [])


@mutant("retention")
def retention_goes_beyond_the_high_watermark(patch: Patch) -> None:
    expire = UnifiedLog.expire_segments

    def expire_all(self: UnifiedLog, now_ms: int, _high_watermark: int) -> object:
        return expire(self, now_ms, self.log_end_offset)

    patch.setattr(UnifiedLog, "expire_segments", expire_all)


# -- compaction -------------------------------------------------------------------------------------------------------


@mutant("compacted")
def cleaning_goes_beyond_the_high_watermark(patch: Patch) -> None:
    cleanable = cleanable_log.cleanable_log

    def cleanable_to_the_end(log: UnifiedLog, _high_watermark: int, now_ms: int) -> object:
        return cleanable(log, log.log_end_offset, now_ms)

    everywhere(patch, cleanable, cleanable_to_the_end)


@mutant("compacted")
def tombstones_are_cleaned_early(patch: Patch) -> None:
    filter_batch = log_cleaner.filter_batch

    def early(*arguments: Any, **options: Any) -> object:
        return filter_batch(*arguments, **(options | {"delete_retention_ms": 0}))

    patch.setattr(log_cleaner, "filter_batch", early)


@mutant("compacted")
def abort_marker_is_dropped_early(patch: Patch) -> None:
    filter_batch = log_cleaner.filter_batch

    def early(batch: Any, *arguments: Any, **options: Any) -> object:
        if batch.attributes & CONTROL_FLAG:
            options |= {"discard": options["ends_empty_transaction"]}
        return filter_batch(batch, *arguments, **options)

    patch.setattr(log_cleaner, "filter_batch", early)


@mutant("compacted")
def last_batch_of_a_producer_is_cleaned_away(patch: Patch) -> None:
    filter_batch = log_cleaner.filter_batch

    def emptied(*arguments: Any, **options: Any) -> object:
        return filter_batch(*arguments, **(options | {"keep_empty": False}))

    patch.setattr(log_cleaner, "filter_batch", emptied)


@mutant("compacted")
def segments_are_swapped_without_a_swap_stage(patch: Patch) -> None:
    change_suffix = LogSegment.change_suffix

    def change(self: LogSegment, suffix: str) -> tuple[str, ...]:
        return () if suffix == SWAP_SUFFIX else change_suffix(self, suffix)

    patch.setattr(LogSegment, "change_suffix", change)


@mutant("compacted")
def cleaned_segment_is_not_fsynced(patch: Patch) -> None:
    finish = CleanedSegment.finish

    def finish_quickly(self: CleanedSegment, *arguments: Any) -> None:
        files = self._file_system
        with Patch.context() as inner:
            inner.setattr(files, "sync_file", nothing)
            finish(self, *arguments)

    patch.setattr(CleanedSegment, "finish", finish_quickly)


@mutant("compacted")
def lost_tail_is_taken_for_compacted(patch: Patch) -> None:
    # As in a directory written by Kafka.
    everywhere(patch, log_checkpoints.whole_segment_marks, lambda _directories, _logs, _unsure: {})


@mutant("compacted")
def cleaning_goes_beyond_the_recovery_point(patch: Patch) -> None:
    cleanable = cleanable_log.cleanable_log

    def cleanable_above(log: UnifiedLog, high_watermark: int, now_ms: int) -> object:
        with Patch.context() as inner:
            inner.setattr(type(log.durability), "known_recovery_point", log.log_end_offset)
            return cleanable(log, high_watermark, now_ms)

    everywhere(patch, cleanable, cleanable_above)


# -- moves ------------------------------------------------------------------------------------------------------------


@mutant("moving")
def high_watermark_stays_behind(patch: Patch) -> None:
    tasks = LogCheckpoints.high_watermark_tasks

    def of_the_logs_alone(self: LogCheckpoints, high_watermarks: dict[TopicPartition, int]) -> list[CheckpointTask]:
        with Patch.context() as inner:
            inner.setattr(FutureLogs, "online", lambda _self: [])
            return tasks(self, high_watermarks)

    patch.setattr(LogCheckpoints, "high_watermark_tasks", of_the_logs_alone)


@mutant("adopted")
def copy_with_an_unknown_gap_takes_the_place_of_a_log(patch: Patch) -> None:
    catch_up = FutureLogs.catch_up

    def catch_up_at_once(self: FutureLogs, log: UnifiedLog, now_ms: int) -> bool:
        return catch_up(self, log, now_ms) or self.logs[log.topic_partition].log_end_offset == log.log_end_offset

    patch.setattr(FutureLogs, "catch_up", catch_up_at_once)


@mutant("moving")
def copy_takes_the_place_of_a_log_before_it_caught_up(patch: Patch) -> None:
    patch.setattr(FutureLogs, "catch_up", lambda _self, _log, _now_ms: True)


@mutant("moving")
def other_end_of_a_move_goes_before_the_copy_is_safe(patch: Patch) -> None:
    patch.setattr(LogManager, "_finish_moves", lambda self, now_ms: self.futures.set_superseded_aside(now_ms))


# -- verification -----------------------------------------------------------------------------------------------------


@mutant("flips")
def bytes_are_served_unverified(patch: Patch) -> None:
    def believe(self: CheckedBatches, _start: int, _stop: int) -> None:
        self.unverified_end = 0

    patch.setattr(CheckedBatches, "check", believe)
