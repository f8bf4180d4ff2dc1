"""Moving a log to another log directory while it is in use (KIP-113; Kafka classes `LogManager`,
`ReplicaAlterLogDirsThread`).

A future log grows in a `-future` directory at the destination. `CopyTask`s fill it off the owner's thread; the owner
copies the last bytes itself, so that no append comes in between (`FutureLogs.catch_up`). Then it replaces the log in
two steps, because two directories cannot be renamed atomically:

1. `replace`: the future directory gets the name of the log, which from now on *is* the future log. The old directory
   keeps its name until its whole content is on stable storage in the new one, including the new name.
2. `retire`: the old directory becomes `-delete`.

A crash between the steps leaves two directories with the same name. Their content is identical up to the first step, so
the longer log is the right one (`further`). Kafka refuses to start in this case.

If the broker stops during a move, the next start finds the future log and continues.

A log must not be cleaned while it is moved (Kafka's `abortAndPauseCleaning`): the copy could hold a value but not the
tombstone that deletes it. So the cleaner checkpoint of the log is valid for the copy too, and moves with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.log_directory import LogDirectory
from storage.directory.meta_properties import PARTITION_METADATA
from storage.io.file_system import FileSystem
from storage.log.log_reader import copy_aborted
from storage.log.partition_directory import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    MAX_NAME,
    STRAY_SUFFIX,
    create_log,
    name_with_suffix,
    rename_away,
)
from storage.log.unified_log import UnifiedLog
from storage.relocation.future_log_tasks import AdjustTask, CopyStart, CopyStartTask, CopyTask, FutureTruncation
from storage.segment.log_segment import segment_index

LAST_BYTES = 1 << 20
"""The most bytes that the owner's thread copies: about a millisecond of work."""


class FutureLogs:
    """The future logs by partition. All methods belong to the thread that owns the logs."""

    def __init__(self, file_system: FileSystem, directories: Sequence[LogDirectory]) -> None:
        self._file_system = file_system
        self._directories = directories
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self._replaced: dict[TopicPartition, UnifiedLog] = {}
        """Replaced logs that are not retired yet; see the module."""
        self.superseded_logs: list[UnifiedLog] = []
        """Logs found at start that are shorter than another log of the same name."""
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        self._truncations: dict[TopicPartition, int] = {}
        """`truncations` of the log when the future log was last adjusted to it."""
        self._begins: dict[TopicPartition, CopyStart] = {}
        """The results of `CopyStartTask`s."""

    # -- preferred directories ----------------------------------------------------------------------------------------

    def directory_at(self, path: str) -> LogDirectory:
        """The log directory of that path. Raises ApiError LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR when it is
        offline.
        """
        for directory in self._directories:
            if directory.path == path:
                if directory.failure is not None:
                    raise directory.offline_error()
                return directory
        raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")

    def prefer(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Remember the directory for a log that does not exist yet (Kafka's `maybeUpdatePreferredLogDir`)."""
        self._preferred[topic_partition] = directory

    def take_preferred(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Remove and return the directory requested for the log, if any."""
        return self._preferred.pop(topic_partition, None)

    # -- creating and dropping ----------------------------------------------------------------------------------------

    def create(self, log: UnifiedLog, directory: LogDirectory, now_ms: int) -> UnifiedLog:
        """Create an empty future log of `log` in `directory`; `adjust` makes it begin where the log does.

        Raises ApiError INVALID_TOPIC_EXCEPTION for a topic name too long for the suffix, KAFKA_STORAGE_ERROR.
        """
        topic_partition = log.topic_partition
        name = name_with_suffix(topic_partition, FUTURE_SUFFIX, f"{log.path} {directory.path} {now_ms}")
        check_name(topic_partition)
        future = create_log(
            self._file_system,
            directory,
            name,
            topic_partition,
            log.topic_id,
            log.config,
            now_ms,
            base_offset=log.log_start_offset,
        )
        # Cleaning pauses until the move ends, so the clean part of the log will also be clean in the copy.
        future.cleaner_checkpoint = log.cleaner_checkpoint
        self._add(future)
        self._truncations[topic_partition] = log.truncations
        return future

    def _add(self, future: UnifiedLog) -> None:
        self.logs[future.topic_partition] = future
        future.directory.log_count += 1

    def drop(self, topic_partition: TopicPartition, now_ms: int, suffix: str = DELETE_SUFFIX) -> None:
        """Cancel a move, if there is one. A future log on a failed disk is only forgotten; the next start finds it
        again.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        future = self.logs.pop(topic_partition, None)
        self._begins.pop(topic_partition, None)
        if future is not None:
            directory = future.directory
            directory.log_count -= 1
            if directory.failure is None:
                path = rename_away(self._file_system, future, suffix, now_ms)
                if suffix == DELETE_SUFFIX:
                    directory.defer_tree(path, future.config.file_delete_delay_ms)

    def forget_partition(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Forget everything about a deleted partition. Raises ApiError KAFKA_STORAGE_ERROR."""
        self._preferred.pop(topic_partition, None)
        self.drop(topic_partition, now_ms)
        if topic_partition in self._replaced:
            self.retire(topic_partition, now_ms)

    # -- after a start ------------------------------------------------------------------------------------------------

    def found(self, future: UnifiedLog, now_ms: int) -> None:
        """Add a future log found at start; if a partition has two, keep the longer one."""
        other = self.logs.get(future.topic_partition)
        if other is not None and further(other, future) is other:
            self._set_aside(future, DELETE_SUFFIX, now_ms)
            return
        self.drop(future.topic_partition, now_ms)
        self._add(future)

    def resolve(self, log: UnifiedLog, other: UnifiedLog) -> UnifiedLog:
        """Choose between two logs with the same name: returns the longer one, and adds the other to `superseded_logs`.

        This is the state after a crash between `replace` and `retire`, or when a directory works again that failed at
        that point. If both are equally long, the newer one is chosen, so that the move stays completed. It may not be
        on stable storage yet, so the other must stay until it is flushed and its log start checkpointed
        (`set_superseded_aside`).
        """
        is_tie = further(log, other) is log and further(other, log) is other
        best = max(log, other, key=self._created_ms) if is_tie else further(log, other)
        worse = other if best is log else log
        start = min(worse.log_start_offset, best.log_end_offset)
        if start > best.log_start_offset:
            best.delete_records_before(start, start)
        self.superseded_logs.append(worse)
        return best

    def _created_ms(self, log: UnifiedLog) -> int:
        """The creation time of the log's directory: the time of its topic id file, which is written first and only
        once; -1 without one.
        """
        try:
            return self._file_system.modified_ms(f"{log.path}/{PARTITION_METADATA}")
        except OSError:  # the next operation that needs the disk will report the failure
            return -1

    def set_superseded_aside(self, now_ms: int) -> None:
        """Rename the `superseded_logs` for deletion, which is safe now. Raises ApiError KAFKA_STORAGE_ERROR."""
        while self.superseded_logs:
            self._set_aside(self.superseded_logs.pop(), DELETE_SUFFIX, now_ms)

    def _set_aside(self, log: UnifiedLog, suffix: str, now_ms: int) -> str:
        directory, delay_ms = log.directory, log.config.file_delete_delay_ms
        path = rename_away(self._file_system, log, suffix, now_ms)
        if suffix == DELETE_SUFFIX:
            directory.defer_tree(path, delay_ms)
        return path

    def match(self, logs: Mapping[TopicPartition, UnifiedLog], *, all_online: bool, now_ms: int) -> list[str]:
        """Clean up after loading: drop future logs whose log is already at the destination, and rename future logs
        without a log. Returns the new paths of the latter.

        While a directory is offline, the log may be in there.
        """
        strays = []
        for topic_partition, future in list(self.logs.items()):
            log = logs.get(topic_partition)
            if log is not None and log.directory is future.directory:
                self.drop(topic_partition, now_ms)
            elif log is None and all_online:
                del self.logs[topic_partition]
                future.directory.log_count -= 1
                strays.append(self._set_aside(future, STRAY_SUFFIX, now_ms))
        return strays

    # -- moving -------------------------------------------------------------------------------------------------------

    def adjust(self, log: UnifiedLog, now_ms: int) -> AdjustTask | CopyStartTask | None:
        """Adjust the future log of `log`, so that it can be appended to, after DeleteRecords, retention, truncation, a
        start or a change of configuration. Call it before each CopyTask.

        Returns a task if the disk is needed first; call this again when the task is complete. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        future = self.logs[log.topic_partition]
        future.config = log.config
        due = self._due(log, future)
        if isinstance(due, CopyStartTask):
            return due
        if due is not None:
            return AdjustTask(future, due, now_ms, partial(self._was_adjusted, log, log.truncations))
        self._truncations[log.topic_partition] = log.truncations
        if log.cleaner_checkpoint is not None:
            known = future.cleaner_checkpoint
            # A cleaning that was running may have set the log's checkpoint only now; the gaps in the copy are not a
            # loss either.
            future.cleaner_checkpoint = future.log_start_offset if known is None else min(known, log.cleaner_checkpoint)
        if future.log_start_offset < log.log_start_offset <= future.log_end_offset:
            future.delete_records_before(log.log_start_offset, log.log_start_offset)
        return None

    def _due(self, log: UnifiedLog, future: UnifiedLog) -> FutureTruncation | CopyStartTask | None:
        """The next truncation of `future` that `log` requires, or the task that finds the information to decide."""
        compared = self._truncations.get(log.topic_partition)
        must_restart = compared is None and _was_cleaned_since(log, future)
        if not must_restart and compared != log.truncations:
            end = _common_end(log, future)
            if end < future.log_end_offset:
                return FutureTruncation(end)
        start, end = future.log_start_offset, future.log_end_offset
        if must_restart or log.log_start_offset > end or start == end == log.log_start_offset:
            begin = self._begin_of(log)
            if begin is None:
                return CopyStartTask(log, partial(self._begins.__setitem__, log.topic_partition))
            if must_restart:
                return FutureTruncation(begin, is_full=True, cleaner_checkpoint=log.cleaner_checkpoint)
            if not start == end == begin:
                return FutureTruncation(begin, is_full=True)
        return None

    def _begin_of(self, log: UnifiedLog) -> int | None:
        """The offset where a copy of `log` begins, or None if a `CopyStartTask` must find it."""
        start = log.log_start_offset
        if start in {log.log_end_offset, log.segments[segment_index(log.segments, start)].base_offset}:
            return start
        known = self._begins.get(log.topic_partition)
        if known is not None and (known.log_start_offset, known.truncations) == (start, log.truncations):
            return known.offset
        return None

    def _was_adjusted(self, log: UnifiedLog, truncations: int) -> None:
        """Note that the future log matches the state of `log` after `truncations` truncations."""
        if log.topic_partition in self.logs:
            self._truncations[log.topic_partition] = truncations

    def catch_up(self, log: UnifiedLog, now_ms: int) -> bool:
        """Copy the last bytes on the owner's thread; returns whether `replace` may follow at once, before any append.

        It may not while a gap left by compaction lies above the recovery point of the copy: the copy must be flushed
        and its recovery point checkpointed first, or recovery after a crash would take the gap for a loss. Raises
        ApiError.
        """
        future = self.logs[log.topic_partition]
        if self._due(log, future) is not None:
            return False
        self.adjust(log, now_ms)
        task = CopyTask(log, future, LAST_BYTES, now_ms)
        task.run()
        task.complete()
        if future.log_start_offset < log.log_start_offset:  # the copy reaches that far only now
            self.adjust(log, now_ms)
        return future.log_end_offset == log.log_end_offset and future.durability.gaps_end <= future.recovery_point

    def replace(self, log: UnifiedLog) -> UnifiedLog:
        """Give the future log the name of `log` and return it. `log` must not be appended to any more.

        Raises ApiError KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE, and then has changed nothing.
        """
        topic_partition = log.topic_partition
        future = self.logs[topic_partition]
        if topic_partition in self._replaced:
            old = self._replaced[topic_partition].path
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{old} of an earlier move could not be retired yet")
        path = f"{future.directory.path}/{topic_partition}"
        _take_over_epochs(log, future)
        copy_aborted(log, future)
        try:
            self._file_system.rename(future.path, path)
        except OSError as error:
            raise future.local.failed(error, f"Error while renaming {future.path} to {path}") from error
        future.use_path(path)
        future.durability.has_unsynced_names = True
        # Until the rename is durable, a power cut can undo it and restore what is on stable storage in `log`: records
        # beyond that must not be acknowledged or shown.
        future.durability.recovery_point = min(future.recovery_point, log.recovery_point)
        del self.logs[topic_partition]
        self._begins.pop(topic_partition, None)
        self._replaced[topic_partition] = log
        return future

    def retire(self, topic_partition: TopicPartition, now_ms: int) -> LogDirectory | None:
        """Rename the replaced log for deletion. Returns the directory to fsync, which makes the rename durable.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        log = self._replaced.pop(topic_partition, None)
        if log is None:
            return None
        directory, delay_ms = log.directory, log.config.file_delete_delay_ms
        directory.log_count -= 1
        if directory.failure is not None:
            return None
        directory.defer_tree(rename_away(self._file_system, log, DELETE_SUFFIX, now_ms), delay_ms)
        return directory

    def online(self) -> Iterable[UnifiedLog]:
        """All logs here on working disks; the checkpoints of their directories must list them."""
        logs = (*self.logs.values(), *self._replaced.values(), *self.superseded_logs)
        return [log for log in logs if log.directory.failure is None]


def _take_over_epochs(log: UnifiedLog, future: UnifiedLog) -> None:
    """Copy to `future`, which has the same records, the newer epochs of `log`."""
    for entry in log.leader_epochs.entries:
        if entry.epoch > future.leader_epochs.latest_epoch:
            future.leader_epochs.assign(entry.epoch, min(entry.start_offset, future.log_end_offset))


def _was_cleaned_since(log: UnifiedLog, future: UnifiedLog) -> bool:
    """Whether the log was cleaned after the copy found at start had begun, because the directory of the copy was
    missing.

    Then the copy may hold records whose tombstone or abort marker is already gone from the log.
    """
    if log.cleaner_checkpoint is None:
        return False
    known = future.log_start_offset if future.cleaner_checkpoint is None else future.cleaner_checkpoint
    return max(known, log.log_start_offset) < log.cleaner_checkpoint


def check_name(topic_partition: TopicPartition) -> None:
    """Raises ApiError INVALID_TOPIC_EXCEPTION for a name too long for a `-future` directory (KAFKA-4893)."""
    if len(name_with_suffix(topic_partition, FUTURE_SUFFIX, "")) > MAX_NAME:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")


def further(log: UnifiedLog, other: UnifiedLog) -> UnifiedLog:
    """The longer of two logs of one partition, compared as in an election: latest leader epoch, then log end."""
    order: Callable[[UnifiedLog], tuple[int, int]] = lambda each: (each.latest_epoch(), each.log_end_offset)  # noqa: E731
    return log if order(log) >= order(other) else other


def _common_end(log: UnifiedLog, future: UnifiedLog) -> int:
    """The offset up to which both logs are identical according to their leader epochs (KIP-101, KIP-279)."""
    end = min(log.log_end_offset, future.log_end_offset)
    latest = future.latest_epoch()
    if latest < 0:
        return end
    known = log.end_offset_for_epoch(latest)
    if known.epoch < 0:
        return end
    return min(end, known.start_offset, future.end_offset_for_epoch(known.epoch).start_offset)
