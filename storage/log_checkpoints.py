"""The entries for a broker's logs in the offset checkpoints of its log directories."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from protocol.topic_partition import TopicPartition
from storage.directory.checkpoint_tasks import CheckpointTask, fingerprint_of
from storage.directory.checkpoints import WHOLE_SEGMENTS
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem
from storage.log.unified_log import UnifiedLog


def checkpoint_tasks(
    file_system: FileSystem,
    directories: Sequence[LogDirectory],
    logs: Iterable[UnifiedLog],
    name: str,
    value: Callable[[UnifiedLog], int | None],
    marks: Mapping[str, Mapping[TopicPartition, int]] | None = None,
) -> list[CheckpointTask]:
    """A task for each directory whose checkpoint `name` has changed; `value` gives a log's entry, None for no entry.
    `marks` are entries besides, by path of the directory.
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
    """The entry WHOLE_SEGMENTS for each directory that may have it, by path: none of its logs has a gap above its
    recovery point that is no loss, and its path is not among the `unsure`.
    """
    gapped = {log.directory.path for log in logs if log.durability.gaps_end > log.durability.recovery_point}
    return {
        directory.path: {WHOLE_SEGMENTS: 0}
        for directory in directories
        if directory.path not in gapped and directory.path not in unsure
    }
