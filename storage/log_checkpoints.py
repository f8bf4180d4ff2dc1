"""The offset checkpoints of the log directories: one entry for each log in the directory."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    WHOLE_SEGMENTS,
    CheckpointTask,
    fingerprint_of,
)
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem
from storage.log.unified_log import UnifiedLog
from storage.relocation.future_logs import FutureLogs


def checkpoint_tasks(
    file_system: FileSystem,
    directories: Sequence[LogDirectory],
    logs: Iterable[UnifiedLog],
    name: str,
    value: Callable[[UnifiedLog], int | None],
    marks: Mapping[str, Mapping[TopicPartition, int]] | None = None,
) -> list[CheckpointTask]:
    """A task for each directory whose checkpoint `name` has changed; `value` returns a log's entry, or None for no
    entry. `marks` are additional entries, by path of the directory.
    """
    offsets: dict[str, dict[TopicPartition, int]] = {
        directory.path: dict((marks or {}).get(directory.path, {})) for directory in directories
    }
    for log in logs:
        offset = value(log)
        if offset is not None:
            offsets[log.local.directory.path][log.topic_partition] = offset
    tasks = []
    for directory in directories:
        content, path = offsets[directory.path], f"{directory.path}/{name}"
        fingerprint = fingerprint_of(content)
        if directory.failure is None and fingerprint != directory.written_checkpoints.get(path):
            tasks.append(CheckpointTask(file_system, directory, name, content))
        elif directory.failure is None:
            directory.checkpoint_written(path, fingerprint, directory.deleted_logs)
    return tasks


def whole_segment_marks(
    directories: Sequence[LogDirectory], logs: Iterable[UnifiedLog], unsure: Container[str]
) -> dict[str, dict[TopicPartition, int]]:
    """The entry WHOLE_SEGMENTS, by path, for each directory that may have it: in all its logs every gap above the
    recovery point is a loss, and its path is not among the `unsure`.
    """
    gapped = {log.directory.path for log in logs if log.durability.gaps_end > log.durability.recovery_point}
    return {
        directory.path: {WHOLE_SEGMENTS: 0}
        for directory in directories
        if directory.path not in gapped and directory.path not in unsure
    }


class LogCheckpoints:
    """The checkpoints of all logs. Belongs to the thread that owns the logs; any thread may run the tasks.

    Unchanged checkpoints are not written again.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directories: Sequence[LogDirectory],
        logs: Mapping[TopicPartition, UnifiedLog],
        futures: FutureLogs,
    ) -> None:
        self._file_system = file_system
        self._directories = directories
        self._logs = logs
        self._futures = futures
        self.high_watermarks: dict[TopicPartition, int] = {}
        """The high watermarks that the last run checkpointed; replicas start from them."""
        self.truncated_below: dict[TopicPartition, int] = {}
        """The checkpointed high watermarks of logs that end below them since recovery. Entries here also stay in the
        checkpoint file, so that the next start finds them too.
        """
        self.without_end: set[UnifiedLog] = set()
        """Logs that lost their end (`LoadResult.lost_its_end`), until `compare_with_logs`."""
        self.refusing: set[str] = set()
        """Directories with a log that was refused, and so is missing from the checkpoints."""

    def recovery_point_tasks(self, closed: Iterable[LogDirectory] = ()) -> list[CheckpointTask]:
        """Tasks that write the recovery points of all logs. Kafka may be the next to write in the `closed`
        directories.
        """
        unsure = self.refusing | {each.path for each in closed}
        marks = whole_segment_marks(self._directories, self._logs.values(), unsure)
        return self._tasks(RECOVERY_POINT_CHECKPOINT, lambda log: log.durability.recovery_point, marks)

    def write_recovery_points(self, closed: Iterable[LogDirectory] = ()) -> None:
        """Do `recovery_point_tasks`, waiting for the disk."""
        run_tasks(self.recovery_point_tasks(closed))

    def log_start_offset_tasks(self) -> list[CheckpointTask]:
        """Tasks that write the log starts above 0.

        Kafka leaves out log starts equal to the first segment's base; but a power cut can restore segments below.
        """
        return self._tasks(LOG_START_OFFSET_CHECKPOINT, lambda log: log.local.log_start_offset or None)

    def write_log_start_offsets(self) -> None:
        """Do `log_start_offset_tasks`, waiting for the disk."""
        run_tasks(self.log_start_offset_tasks())

    def high_watermark_tasks(self, high_watermarks: Mapping[TopicPartition, int]) -> list[CheckpointTask]:
        """Tasks that write the high watermarks; logs not named keep the loaded value. For a log that is being moved,
        both directories get the entry, because a crash decides which of them has the log.
        """
        self.high_watermarks.update(high_watermarks)
        known, truncated_below = self.high_watermarks, self.truncated_below
        return self._tasks(
            HIGH_WATERMARK_CHECKPOINT,
            lambda log: truncated_below.get(log.topic_partition) or known.get(log.topic_partition),
        )

    def found(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Note a high watermark from the checkpoint of a directory that holds the partition's log or future log."""
        self.high_watermarks[topic_partition] = max(high_watermark, self.high_watermarks.get(topic_partition, 0))

    def compare_with_logs(self) -> None:
        """Find the logs truncated below their high watermark. Call it when all logs are loaded and conflicts are
        resolved.
        """
        for topic_partition, known in self.high_watermarks.items():
            log = self._logs.get(topic_partition)
            if log is None:
                continue
            # The extent of the loss is unknown; one offset stands for all of it.
            high_watermark = max(known, log.log_end_offset + 1) if log in self.without_end else known
            if high_watermark > log.log_end_offset:
                self.high_watermarks[topic_partition] = log.log_end_offset
                self.truncated_below[topic_partition] = high_watermark
        self.without_end.clear()

    def truncated_replicas(self) -> dict[str, tuple[int, ...]]:
        """The partitions in `truncated_below` by topic."""
        found: dict[str, tuple[int, ...]] = {}
        for topic, partition in self.truncated_below:
            found[topic] = (*found.get(topic, ()), partition)
        return found

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a log that is gone."""
        self.high_watermarks.pop(topic_partition, None)
        self.truncated_below.pop(topic_partition, None)

    def cleaner_offset_tasks(self) -> list[CheckpointTask]:
        """Tasks that write how far the logs were cleaned.

        Run them after `plan_cleaning`, after `ReplacementTask.complete`, and between a truncation and the next append:
        the cleaner does not search below the checkpoint for older values of a key.
        """
        return self._tasks(CLEANER_OFFSET_CHECKPOINT, lambda log: log.cleaner_checkpoint)

    def _tasks(
        self,
        name: str,
        value: Callable[[UnifiedLog], int | None],
        marks: Mapping[str, Mapping[TopicPartition, int]] | None = None,
    ) -> list[CheckpointTask]:
        logs = [*self._futures.online(), *self._logs.values()]
        return checkpoint_tasks(self._file_system, self._directories, logs, name, value, marks)


def run_tasks(tasks: Iterable[CheckpointTask]) -> None:
    """Run and complete the tasks on this thread, which waits for the disk."""
    for task in tasks:
        task.run()
        task.complete()
