"""A survey of a log directory before its logs are opened: the logs in it, and their checkpoint entries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protocol.topic_partition import TopicPartition
from protocol.value import Value, field
from storage.directory.checkpoints import (
    CHECKPOINTS,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    WHOLE_SEGMENTS,
    CorruptCheckpointError,
    read_offset_checkpoint,
)
from storage.directory.log_directories import take_clean_shutdown
from storage.directory.log_directory import LogDirectory
from storage.directory.meta_properties import LogDirError
from storage.io.file_system import FileSystem
from storage.log_config import LogConfig
from storage.recovery.directory_loading import DirectoryLoad, LoadTask
from storage.recovery.load_options import LoadOptions, LoadResult

_PARTITION_DIR = re.compile(r"(.+)-(\d+)")
_SET_ASIDE = re.compile(r"(.+)-(\d+)\.[0-9a-f]{32}-(delete|future|stray)")
_NOT_PARTITIONS = frozenset({"lost+found", "__cluster_metadata-0", "remote-log-index-cache"})
"""The root of a file system has the first; Kafka writes the other two next to its partitions."""


class LoadReport(Value, frozen=False):
    """The findings of a start. `repaired` holds only logs that needed repair."""

    clean: bool = True
    broker_epochs: dict[int, None] = field(default_factory=dict)
    """The broker epochs in the clean shutdown markers, -1 for a marker without one."""
    repaired: list[LoadResult] = field(default_factory=list)
    has_stale_checkpoints: bool = False
    """Whether a checkpoint still lists a missing log. The entry must not be applied to the next log of that name."""
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions whose files cannot be used, with the reason. Requests for them fail with KAFKA_STORAGE_ERROR."""
    ignored: list[str] = field(default_factory=list)
    """Ignored directories (`-stray`), useless ones (a `-future` without its log), and unreadable checkpoints."""

    @property
    def broker_epoch(self) -> int:
        """Broker epoch of the run before, if it ended cleanly in all directories; else -1."""
        return next(iter(self.broker_epochs)) if self.clean and len(self.broker_epochs) == 1 else -1


class FoundPartition(NamedTuple):
    """A directory that holds a log; `name` is that of the directory if it differs from the partition's (`-future`)."""

    topic_partition: TopicPartition
    name: str


def find_partitions(
    file_system: FileSystem, directory: LogDirectory, file_delete_delay_ms: int, report: LoadReport
) -> list[FoundPartition]:
    """Find the logs in `directory` and register its pending deletions. Raises OSError, and LogDirError for content that
    is invalid in a log directory.
    """
    partitions: list[FoundPartition] = []
    for info in file_system.list_dir(directory.path):
        name = info.name
        if not info.is_dir or name.startswith(".") or name in _NOT_PARTITIONS:
            continue
        set_aside = _SET_ASIDE.fullmatch(name)
        match = _PARTITION_DIR.fullmatch(name)
        if set_aside and set_aside[3] == "delete":
            directory.defer_tree(f"{directory.path}/{name}", file_delete_delay_ms)
        elif set_aside and set_aside[3] == "future":
            partitions.append(FoundPartition(TopicPartition(set_aside[1], int(set_aside[2])), name))
        elif set_aside:
            report.ignored.append(f"{directory.path}/{name}")
        elif match:
            partitions.append(FoundPartition(TopicPartition(match[1], int(match[2])), ""))
        else:
            raise LogDirError(
                f"Found directory {directory.path}/{name}, '{name}' is not in the form of topic-partition or "
                "topic-partition.uniqueId-delete (if marked for deletion). Kafka's log directories (and children) "
                "should only contain Kafka topic data."
            )
    return partitions


def begin_load(
    file_system: FileSystem,
    directory: LogDirectory,
    partitions: Sequence[FoundPartition],
    now_ms: int,
    topic_configs: Mapping[str, LogConfig],
    default_config: LogConfig,
    report: LoadReport,
) -> DirectoryLoad:
    """The logs to load, with their checkpoint entries; also removes the clean shutdown marker. Raises OSError."""
    path = directory.path
    shutdown = take_clean_shutdown(file_system, path)
    if shutdown is None:
        report.clean = False
    else:
        report.broker_epochs[shutdown.broker_epoch] = None
    recovery_points = _read_checkpoint(file_system, path, RECOVERY_POINT_CHECKPOINT, report)
    is_whole = recovery_points.pop(WHOLE_SEGMENTS, None) is not None
    log_starts = _read_checkpoint(file_system, path, LOG_START_OFFSET_CHECKPOINT, report)
    high_watermarks = _read_checkpoint(file_system, path, HIGH_WATERMARK_CHECKPOINT, report)
    cleaner_offsets = _read_checkpoint(file_system, path, CLEANER_OFFSET_CHECKPOINT, report)
    known = recovery_points.keys() | log_starts.keys() | high_watermarks.keys() | cleaner_offsets.keys()
    for partition in known - {partition for partition, _ in partitions}:
        report.has_stale_checkpoints = True
        directory.note_stale(partition, CHECKPOINTS)
    tasks = []
    for partition, name in partitions:
        config = topic_configs.get(partition.topic)
        # After a crash an entry may stem from the log itself, when it was in this directory before. So the entries of a
        # future log are not used, and its missing records are copied again.
        is_known = shutdown is not None or not name
        options = LoadOptions(
            clean=shutdown is not None,
            recovery_point=recovery_points.get(partition, 0) if is_known else 0,
            log_start_offset=log_starts.get(partition, 0) if is_known else 0,
            high_watermark=0 if name else high_watermarks.get(partition, 0),
            now_ms=now_ms,
            cleaner_checkpoint=cleaner_offsets.get(partition),
            may_have_gaps=not is_whole and (config is None or config.is_compacted or partition in cleaner_offsets),
            name=name,
        )
        tasks.append(LoadTask(file_system, path, partition, config or default_config, options))
    return DirectoryLoad(directory, tasks, is_clean=shutdown is not None)


def _read_checkpoint(file_system: FileSystem, path: str, name: str, report: LoadReport) -> dict[TopicPartition, int]:
    try:
        return read_offset_checkpoint(file_system, f"{path}/{name}")
    except CorruptCheckpointError as error:
        report.ignored.append(str(error))
        return {}
