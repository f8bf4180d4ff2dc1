"""The directory of a partition: creating it for a new log, and renaming it out of the way (Kafka:
`UnifiedLog.logDeleteDirName` and similar).

`<topic>-<partition>` is the log in use. Other directories end in `.<32 hex digits>` and a suffix: `-delete` waits for
its removal, `-stray` belongs to no topic, `-future` is the copy that will replace the log (see
`storage.relocation.future_logs`).
"""

from __future__ import annotations

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.directory.log_directory import LogDirectory, NoRoomError
from storage.directory.meta_properties import write_topic_id
from storage.io.file_system import FileSystem, is_disk_full
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.log_segment import LogSegment
from storage.segment.segment_files import LOG_SUFFIX, file_name

MAX_NAME = 255
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"


def name_with_suffix(topic_partition: TopicPartition, suffix: str, seed: str) -> str:
    """`<topic>-<partition>.<32 hex digits><suffix>`; the digits are derived from `seed`. May be longer than
    `MAX_NAME`.
    """
    from hashlib import blake2b  # late: most brokers never rename a directory

    return f"{topic_partition}.{blake2b(seed.encode(), digest_size=16).hexdigest()}{suffix}"


def create_log(
    file_system: FileSystem,
    directory: LogDirectory,
    name: str,
    topic_partition: TopicPartition,
    topic_id: Uuid | None,
    config: LogConfig,
    now_ms: int,
    *,
    base_offset: int = 0,
) -> UnifiedLog:
    """Create an empty log that begins at `base_offset`, in a new directory of that name. It is not on stable storage
    until its first flush.

    Raises ApiError KAFKA_STORAGE_ERROR: NoRoomError when the disk is only full, and the directory stays online.
    """
    path = f"{directory.path}/{name}"
    doing = f"Error while creating log for {topic_partition} in dir {directory.path}"
    if directory.failure is not None:
        raise directory.offline_error()
    try:
        file_system.make_dir(path)
        if topic_id is not None:
            write_topic_id(file_system, path, topic_id)
        file_system.create(f"{path}/{file_name(base_offset, LOG_SUFFIX)}")
    except FileExistsError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}") from error
    except OSError as error:
        if not is_disk_full(error):
            raise directory.fail(error, doing) from error
        _remove_at_once(file_system, directory, path)
        raise NoRoomError(f"{doing}: {error}") from error
    return UnifiedLog(
        file_system=file_system,
        directory=directory,
        path=path,
        topic_partition=topic_partition,
        topic_id=topic_id,
        config=config,
        segments=[LogSegment(file_system, path, base_offset, 0, now_ms, is_new=True)],
        log_start_offset=base_offset,
        log_end_offset=base_offset,
        recovery_point=base_offset,
        names_are_synced=False,
        now_ms=now_ms,
    )


def _remove_at_once(file_system: FileSystem, directory: LogDirectory, path: str) -> None:
    """Clean up on a full disk: leftovers must not block another directory of the same name."""
    if not file_system.exists(path):
        return
    try:
        file_system.remove_tree(path)
    except OSError as error:
        directory.fail(error, f"Error while removing {path}")


def _path_away(log: UnifiedLog, suffix: str, seed: str) -> str:
    name, topic = name_with_suffix(log.topic_partition, suffix, seed), log.topic_partition.topic
    # A long topic name is cut, as in Kafka.
    return f"{log.directory.path}/{topic[: len(topic) - max(len(name) - MAX_NAME, 0)]}{name[len(topic) :]}"


def rename_away(file_system: FileSystem, log: UnifiedLog, suffix: str, now_ms: int) -> str:
    """Rename the directory of `log`, which refuses every access from now on. Returns the new path. Reads in progress
    continue. Raises ApiError KAFKA_STORAGE_ERROR.
    """
    directory = log.directory
    if directory.failure is not None:
        raise directory.offline_error()
    source, seed = log.path, f"{log.path} {log.topic_id} {now_ms}"
    try:
        # The clock may stand still or be set back: a directory renamed earlier keeps its name.
        while file_system.exists(target := _path_away(log, suffix, seed)):
            seed += "+"
        log.discard()
        file_system.rename(source, target)
    except OSError as error:
        doing = f"Error while renaming {source} to {target}"
        if is_disk_full(error):
            if suffix != DELETE_SUFFIX:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {error}") from error
            _remove_at_once(file_system, directory, source)  # needs disk space that only a removal frees
        elif not (isinstance(error, FileNotFoundError) and file_system.exists(directory.path)):  # not already removed
            raise directory.fail(error, doing) from error
    log.use_path(target)
    return target
