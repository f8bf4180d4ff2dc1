"""All logs of a broker and the directories they live in (Kafka class `LogManager`).

The manager has neither timers nor a clock: its owner asks for due tasks and runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.compaction.cleanable_log import correct_checkpoint
from storage.directory.checkpoints import (
    CHECKPOINTS,
)
from storage.directory.log_directories import LogDirectories, write_clean_shutdown
from storage.directory.log_directory import FailedLog, LogDirectory, NoRoomError
from storage.directory.meta_properties import write_topic_id
from storage.io.file_system import FileSystem, is_disk_full
from storage.log.log_flush import FlushTask
from storage.log.partition_directory import DELETE_SUFFIX, STRAY_SUFFIX, create_log, rename_away
from storage.log.retention import TimestampLookup
from storage.log.unified_log import UnifiedLog
from storage.log_checkpoints import LogCheckpoints, run_tasks
from storage.log_config import LogConfig
from storage.recovery.directory_loading import DirectoryLoad, LoadTask
from storage.recovery.log_directory_survey import LoadReport, begin_load, find_partitions
from storage.relocation.future_logs import FutureLogs


class LogManager:
    """Owner of every UnifiedLog. It keeps logs in offline directories, which refuse every access."""

    def __init__(
        self,
        file_system: FileSystem,
        log_dirs: Sequence[str],
        default_config: LogConfig,
        *,
        producer_id_expiration_ms: int = 24 * 3600 * 1000,
        on_directory_failure: Callable[[str, str], None] = lambda _path, _reason: None,
        on_corruption: Callable[[str], None] = lambda _message: None,
    ) -> None:
        """`on_directory_failure` is called with path and reason when a directory, or a log in it alone, goes offline,
        possibly during an append; `on_corruption` is called on any thread with a message for each damaged place in a
        file, once.
        """
        self._file_system = file_system
        self.default_config = default_config
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.directories = LogDirectories(
            file_system, [LogDirectory(path, on_directory_failure, on_corruption) for path in log_dirs]
        )
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.refused: dict[TopicPartition, str] = {}
        self.futures = FutureLogs(file_system, self.directories)
        """The future logs of logs that are being moved to another directory."""
        self.checkpoints = LogCheckpoints(file_system, self.directories, self.logs, self.futures)
        self._not_recovered: set[str] = set()
        """Directories with a log that was refused after an unclean stop: the next start must try again."""
        self._conflicting: list[tuple[UnifiedLog, int]] = []
        """Logs with the name of one in `logs` but of another topic, with their high watermarks."""
        self._report = LoadReport()

    # -- loading ------------------------------------------------------------------------------------------------------

    def begin_load(self, now_ms: int, topic_configs: Mapping[str, LogConfig] | None = None) -> list[DirectoryLoad]:
        """The logs to load, by directory; any threads may work on them. A directory that fails goes offline.

        `topic_configs` by topic name, as far as already known; other topics begin with the default. Raises LogDirError
        for a directory that is not a valid log directory.
        """
        self._report = report = LoadReport()
        found = {}
        for directory in self.directories.online:
            try:
                found[directory.path] = find_partitions(
                    self._file_system, directory, self.default_config.file_delete_delay_ms, report
                )
            except OSError as error:
                directory.fail(error, f"Error while loading log dir {directory.path}")
        loads = []
        configs = topic_configs or {}
        for directory in self.directories.online:
            partitions = found[directory.path]
            try:
                load = begin_load(
                    self._file_system, directory, partitions, now_ms, configs, self.default_config, report
                )
            except OSError as error:
                directory.fail(error, f"Error while loading log dir {directory.path}")
            else:
                loads.append(load)
        return loads

    def complete_load(self, loads: Sequence[DirectoryLoad]) -> LoadReport:
        """Add the loaded logs, in the order of the directories and of the logs in them.

        Raises LogDirError when a partition is in two directories.
        """
        report, self._report = self._report, LoadReport()
        for load in loads:
            for task in load.tasks:
                self._complete(load, task, report)
        all_online = all(directory.failure is None for directory in self.directories) and not report.refused
        now_ms = max((task.options.now_ms for load in loads for task in load.tasks), default=0)
        report.ignored += self.futures.match(self.logs, all_online=all_online, now_ms=now_ms)
        self.checkpoints.compare_with_logs()
        if self.futures.superseded_logs:
            self._finish_moves(now_ms)
        # Before the first append: only batches written from now on are known to follow without gaps (`WHOLE_SEGMENTS`).
        for log in self.online_logs():
            if log.durability.gaps_end > log.recovery_point:
                with contextlib.suppress(ApiError):  # the disk is full; the flush stays due
                    log.flush(now_ms)
        self.checkpoints.write_recovery_points()
        self.refused = report.refused
        return report

    def _complete(self, load: DirectoryLoad, task: LoadTask, report: LoadReport) -> None:
        directory, partition = load.directory, task.topic_partition
        directory.deferred_deletions += task.directory.deferred_deletions
        if task.failure is not None:
            directory.take_offline(task.failure)
        elif task.refusal is not None:
            report.refused[partition] = task.refusal
            self.checkpoints.refusing.add(directory.path)
            if not load.is_clean:
                self._not_recovered.add(directory.path)
        elif task.result is not None:
            log = task.result.log
            log.local.directory = directory
            if task.options.name:
                self.futures.found(log, task.options.now_ms)
                return
            if task.result.lost_its_end:
                self.checkpoints.without_end.add(log)
            self._take(log, task.result.high_watermark)
            reset = correct_checkpoint(self.logs[partition])
            if reset is not None:
                report.ignored.append(reset)
            if task.result.truncated_bytes or task.result.lost_below_high_watermark or task.result.split_segments:
                report.repaired.append(task.result)

    def _finish_moves(self, now_ms: int) -> None:
        """Complete moves that were interrupted between their last two steps; see `FutureLogs.resolve`."""
        try:
            for log in self.futures.superseded_logs:
                self.logs[log.topic_partition].flush(now_ms)
            tasks = [*self.checkpoints.log_start_offset_tasks(), *self.checkpoints.high_watermark_tasks({})]
            run_tasks(tasks)
            is_known = not any(task.refusal for task in tasks)
            if is_known and all(
                self.logs[log.topic_partition].directory.failure is None for log in self.futures.superseded_logs
            ):
                self.futures.set_superseded_aside(now_ms)
        except ApiError:
            return  # a disk failed and is already reported; the next start finds both again

    def _add(self, log: UnifiedLog) -> None:
        self.logs[log.topic_partition] = log
        log.directory.log_count += 1

    def _take(self, log: UnifiedLog, high_watermark: int) -> None:
        """Add a log with its checkpointed high watermark. Two directories may have the same name; see
        `FutureLogs.resolve`. If that cannot be the end of a move, `resolve_conflicting_logs` decides.
        """
        other = self.logs.get(log.topic_partition)
        if other is not None and None not in (log.topic_id, other.topic_id) and log.topic_id != other.topic_id:
            self._conflicting.append((log, high_watermark))
            log.directory.log_count += 1
            return
        if other is not None:
            other.directory.log_count -= 1
            log = self.futures.resolve(other, log)
        self._add(log)
        if high_watermark:
            self.checkpoints.found(log.topic_partition, high_watermark)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> UnifiedLog | None:
        """The log, or None."""
        return self.logs.get(topic_partition)

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        now_ms: int,
        *,
        is_new: bool = True,
    ) -> UnifiedLog:
        """The log, created if missing in the directory with the fewest logs. A new log is not on stable storage until
        its first flush.

        With `is_new` False this broker should already have the log: it is not created while a directory is offline,
        because it may be there. Raises ApiError: INCONSISTENT_TOPIC_ID when the files belong to another topic,
        KAFKA_STORAGE_ERROR (NoRoomError when a working disk was too full).
        """
        log = self.logs.get(topic_partition)
        if log is not None and log.directory.failure is not None:
            if not is_new:
                raise log.directory.offline_error()
            self._drop_failed(log, now_ms)
        elif log is not None:
            self._check_topic_id(log, topic_id)
            return log
        refusal = self.refused.get(topic_partition)
        if refusal is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log of {topic_partition} cannot be used: {refusal}")
        offline = [directory.path for directory in self.directories if directory.failure is not None]
        if offline and not is_new:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {topic_partition} because log directories {','.join(offline)} are offline",
            )
        return self._create(topic_partition, topic_id, config, now_ms)

    def _check_topic_id(self, log: UnifiedLog, topic_id: Uuid | None) -> None:
        if topic_id is None or log.topic_id == topic_id:
            return
        if log.topic_id is not None:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"Topic id {topic_id} of {log.topic_partition} is not the one in its directory, {log.topic_id}",
            )
        try:
            write_topic_id(self._file_system, log.path, topic_id)
        except OSError as error:
            raise log.local.fail(error, f"Error while writing the topic id of {log.topic_partition}") from error
        log.topic_id = topic_id
        log.durability.has_unsynced_names = True

    def _create(
        self, topic_partition: TopicPartition, topic_id: Uuid | None, config: LogConfig, now_ms: int
    ) -> UnifiedLog:
        """Create the log in the directory requested by AlterReplicaLogDirs, or in the one with the fewest logs; if a
        disk fails, try the next one.
        """
        preferred = self.futures.take_preferred(topic_partition)
        directories = [preferred] if preferred is not None else sorted(self.directories, key=_rank)
        refusal = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "All log directories are offline")
        for directory in directories:
            stale = directory.stale_checkpoint(topic_partition.topic)
            if stale is not None:
                text = f"The disk is too full for {stale}, which still knows a deleted log of {topic_partition.topic}"
                refusal = NoRoomError(text)
                continue
            try:
                log = create_log(
                    self._file_system, directory, str(topic_partition), topic_partition, topic_id, config, now_ms
                )
            except ApiError as error:
                if not isinstance(refusal, NoRoomError):
                    refusal = detached(error)
            else:
                self._add(log)
                return log
        raise detached(refusal)

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delete the log: its directory is renamed at once and removed after `file_delete_delay_ms`.

        A missing log is ignored. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        # The future log goes first: if a crash leaves only the log, its topic is deleted again; a future log alone
        # would stay.
        self.futures.forget_partition(topic_partition, now_ms)
        log = self.logs.get(topic_partition)
        if log is not None and log.directory.failure is not None:
            self._drop_failed(log, now_ms)
        elif log is not None:
            self._delete(log, now_ms)

    def _delete(self, log: UnifiedLog, now_ms: int) -> None:
        directory, delay_ms = log.directory, log.config.file_delete_delay_ms
        directory.defer_tree(self._rename_away(log, DELETE_SUFFIX, now_ms), delay_ms)

    def reading_failed(self, path: str, error: OSError) -> None:
        """Handle a failed read of the log file at `path` for a reply, like any failed read of its log. A file that is
        missing because the log deleted it is ignored.
        """
        for log in self.logs.values():
            if path.startswith(f"{log.path}/") and any(segment.path == path for segment in log.segments):
                if not (isinstance(error, FileNotFoundError) and self._file_system.exists(path)):
                    log.local.fail(error, f"Exception while reading from {path}")
                return
        if not isinstance(error, FileNotFoundError):
            self.directories.reading_failed(path, error)

    def set_aside(self, topic_partition: TopicPartition, now_ms: int) -> str:
        """Rename the directory of a log that belongs to no topic, so that it is neither used nor lost; returns the new
        path. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        return self._rename_away(self.logs[topic_partition], STRAY_SUFFIX, now_ms)

    def replace_with_future(self, topic_partition: TopicPartition) -> UnifiedLog:
        """Complete a move: the future log becomes the log; see `FutureLogs.replace`. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        log = self.logs[topic_partition] = self.futures.replace(self.logs[topic_partition])
        return log

    def _drop_failed(self, log: UnifiedLog, now_ms: int) -> None:
        """Forget a failed log that is no longer wanted. If its disk failed, it becomes a stray when the disk works
        again.
        """
        failed = log.directory
        if isinstance(failed, FailedLog) and failed.directory.failure is None:
            log.local.directory = failed.directory
            self._delete(log, now_ms)
            return
        del self.logs[log.topic_partition]
        self.checkpoints.forget(log.topic_partition)
        log.directory.log_count -= 1

    def _rename_away(self, log: UnifiedLog, suffix: str, now_ms: int) -> str:
        directory = log.directory
        target = rename_away(self._file_system, log, suffix, now_ms)
        directory.note_stale(log.topic_partition, CHECKPOINTS)
        del self.logs[log.topic_partition]
        self.checkpoints.forget(log.topic_partition)
        directory.log_count -= 1
        return target

    def resolve_conflicting_logs(self, topic_ids: Callable[[TopicPartition], Uuid | None], now_ms: int) -> list[str]:
        """For each pair of logs with one name, rename the log of the deleted topic out of the way; returns the new
        paths.

        A directory that works again after a failure still has logs deleted meanwhile. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        paths = []
        while self._conflicting:
            conflicting, high_watermark = self._conflicting.pop()
            log = self.logs[conflicting.topic_partition]
            if conflicting.topic_id == topic_ids(conflicting.topic_partition):
                self.logs[conflicting.topic_partition], conflicting = conflicting, log
                self.checkpoints.forget(log.topic_partition)
                self.checkpoints.found(log.topic_partition, high_watermark)
                self.checkpoints.compare_with_logs()
            conflicting.directory.log_count -= 1
            paths.append(rename_away(self._file_system, conflicting, STRAY_SUFFIX, now_ms))
        return paths

    # -- stable storage -----------------------------------------------------------------------------------------------

    def due_flushes(self, now_ms: int) -> list[tuple[UnifiedLog, int]]:
        """The logs that are due for a flush, with the offset to flush up to: the sealed segments of logs that rolled,
        and the whole log after `flush_ms`. They stay due until a FlushTask for them is created.

        If the clock was set back, how long they have waited is unknown, and they are due as well.
        """
        due = []
        for log in self.online_logs():
            local, durability = log.local, log.durability
            waited_ms = now_ms - durability.last_flushed_ms
            if local.log_end_offset > durability.recovery_point and not 0 <= waited_ms < local.config.flush_ms:
                due.append((log, local.log_end_offset))
            elif durability.has_unflushed_sealed_segments:
                due.append((log, local.active_segment.base_offset))
        return due

    def timestamp_lookup(self, logs: Sequence[UnifiedLog], now_ms: int) -> TimestampLookup:
        """A task that reads everything from `logs` that `UnifiedLog.expire_segments` needs to decide without
        waiting.
        """
        return TimestampLookup(self._file_system, [log.local for log in logs], now_ms)

    def online_logs(self) -> Iterable[UnifiedLog]:
        """The logs whose directory works."""
        return [log for log in self.logs.values() if log.local.directory.failure is None]

    def logs_to_close(self) -> list[UnifiedLog]:
        """All logs that `begin_close` must close."""
        return [*self.online_logs(), *self.futures.online()]

    def begin_close(self, logs: Iterable[UnifiedLog]) -> list[FlushTask]:
        """Close `logs`; the caller must run the returned tasks (`run_together`). Several threads may do both
        concurrently, each with a share of `logs_to_close`.
        """
        tasks = []
        for log in logs:
            try:
                log.close()
                task = log.prepare_flush(log.durability.last_flushed_ms, closing=True)
            except ApiError:
                self._not_recovered.add(log.directory.path)
            else:
                tasks.append(task)
        return tasks

    def complete_close(self, tasks: Sequence[FlushTask], broker_epoch: int) -> None:
        """Finish closing the flushed logs of `tasks`: write the checkpoints, and the clean shutdown marker in each
        directory where everything succeeded.
        """
        for task in tasks:
            with contextlib.suppress(ApiError):  # the directory is offline, which was reported already
                task.complete()
        for log in (*self.online_logs(), *self.futures.online()):
            log.release_files()
        logs = (*self.logs.values(), *self.futures.logs.values())
        failed = {log.directory.path for log in logs if log.directory.failure is not None}
        closed = [each for each in self.directories if each.path not in self._not_recovered | failed]
        self.checkpoints.write_recovery_points(closed)
        self.checkpoints.write_log_start_offsets()
        for directory in closed:
            if directory.failure is None:
                try:
                    write_clean_shutdown(self._file_system, directory.path, broker_epoch)
                except OSError as error:
                    if not is_disk_full(error):  # without the marker the next start reads more, but nothing is lost
                        directory.fail(error, f"Error while marking {directory.path} as cleanly shut down")
        self.directories.unlock()


def _rank(directory: LogDirectory) -> tuple[bool, bool, int]:
    """The order of directories to try for a new log: working ones with free space first, then the fewest logs, then the
    configured order.
    """
    return directory.failure is not None, directory.is_reserve_reached, directory.log_count
