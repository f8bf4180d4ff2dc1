"""Small files that are replaced whole: Kafka's text checkpoints, and tasks that write them without blocking the thread
that owns the logs.

Format (Kafka class `CheckpointFile`): a line with the version (0), a line with the number of entries, one line per
entry. Replacing a checkpoint means: write a `.tmp` file next to it, fsync it, rename it, fsync the directory. After a
crash either the old or the new file exists, and a confirmed write is never lost.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem, is_disk_full

HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
CHECKPOINTS = (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
"""All checkpoint files of a log directory."""

WHOLE_SEGMENTS = TopicPartition("odradek:whole-segments-above-recovery-points", 0)
"""A marker entry among the recovery points of a log directory; it does not name a partition. It says that Odradek wrote
the file while the logs were open, and that every segment above the recovery points ends where the next one begins. A
segment that ends earlier has lost its tail in a power cut. Kafka ignores unknown partitions, and leaves the entry out
when it rewrites the file.
"""

_VERSION = "0"


class CorruptCheckpointError(ValueError):
    """A checkpoint whose content contradicts its header; the message names the file."""


def write_atomically(file_system: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace the file at `path` by `data`, whole or not at all.

    With `sync` the new content is on stable storage when this returns. Without it the write only survives the death of
    the process; after a power cut the file may even be empty, so use that only for data that can be rebuilt.
    """
    temporary = path + ".tmp"
    file_system.write_file(temporary, data)
    if sync:
        file_system.sync_file(temporary)
    file_system.rename(temporary, path)
    if sync:
        file_system.sync_dir(posixpath.dirname(path))


def format_checkpoint(entries: Iterable[str]) -> bytes:
    """The content of a checkpoint with these lines."""
    lines = list(entries)
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def parse_checkpoint(path: str, data: bytes) -> list[list[str]]:
    """The entries of a checkpoint, each split into its words. `path` is for the error.

    Raises CorruptCheckpointError: other version, fewer or more entries than announced, not text, last line cut.
    """
    try:
        lines = data.decode().split("\n")
        version, count = lines[0].strip(), int(lines[1])
    except (UnicodeDecodeError, ValueError, IndexError):
        raise CorruptCheckpointError(f"{path} is not a checkpoint file") from None
    if version != _VERSION:
        raise CorruptCheckpointError(f"{path} has version {version}; only version {_VERSION} can be read")
    # An entry without its line end may have lost digits, so it is not accepted.
    entries = [line.split() for line in lines[2:-1]]
    if len(entries) != count or lines[-1].strip():
        raise CorruptCheckpointError(f"{path} announces {count} entries and does not hold exactly these")
    return entries


def read_offset_checkpoint(file_system: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Offsets by partition; empty when the file does not exist. Raises CorruptCheckpointError."""
    try:
        data = file_system.read_file(path)
    except FileNotFoundError:
        return {}
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in parse_checkpoint(path, data)
        }
    except ValueError as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(f"{path} has an entry that is not 'topic partition offset'") from None


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The content of an offset checkpoint."""
    return format_checkpoint([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


class CheckpointTask:
    """The new content of one checkpoint file.

    Any thread may call `run`, but not twice at a time for one file; the owner of the logs calls `complete`. `run` also
    formats the text: for 10,000 logs that takes longer than everything else.
    """

    __slots__ = ("_deleted_logs", "_error", "_file_system", "_offsets", "_path", "directory", "refusal")

    def __init__(
        self, file_system: FileSystem, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        self._file_system = file_system
        self.directory = directory
        self._path = f"{directory.path}/{name}"
        self._offsets = offsets
        self._deleted_logs = directory.deleted_logs
        self._error: OSError | None = None
        self.refusal: ApiError | None = None
        """Set when the disk was too full to replace the file although the directory works. Another task may follow."""

    def run(self) -> None:
        """Replace the file, durably; an error is kept for `complete`."""
        try:
            write_atomically(self._file_system, self._path, format_offset_checkpoint(self._offsets))
        except OSError as error:
            self._error = detached(error)

    def complete(self) -> None:
        """Take the directory offline if the disk refused, unless it is only full."""
        doing = f"Error while writing to checkpoint file {self._path}"
        if self._error is not None and is_disk_full(self._error):
            self.refusal = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing}: {self._error}")
            self.directory.checkpoint_refused(self._path)
        elif self._error is not None:
            self.directory.fail(self._error, doing)
        else:
            self.directory.checkpoint_written(self._path, fingerprint_of(self._offsets), self._deleted_logs)


def fingerprint_of(offsets: Mapping[TopicPartition, int]) -> int:
    """Changes when the entries change."""
    # Not a hash of the items: 10,000 pairs would trigger a full garbage collection.
    return hash((tuple(offsets), tuple(offsets.values())))
