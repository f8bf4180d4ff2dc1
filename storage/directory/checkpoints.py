"""Small files that are replaced whole: Kafka's text checkpoints, and writing those of a log directory without holding
up the thread that owns the logs.

Format (Kafka class `CheckpointFile`): a line with the version (0), a line with the number of entries, one line per
entry. A checkpoint is replaced by writing a `.tmp` beside it, fsync, rename, and fsync of the directory, so that a
crash leaves either the old or the new one, and what was confirmed stays.
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
"""All of a log directory."""

WHOLE_SEGMENTS = TopicPartition("odradek:whole-segments-above-recovery-points", 0)
"""An entry among the recovery points of a log directory that stands for no partition: it says that Odradek wrote them
while the logs were open, and that above them no segment ends before the next one begins. A segment that does has lost
its tail in a power cut. Kafka ignores partitions that it does not have, and leaves the entry out when it writes the
file.
"""

_VERSION = "0"


class CorruptCheckpointError(ValueError):
    """A checkpoint that does not hold what its own header promises; the message names the file."""


def write_atomically(file_system: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace the file at `path` by `data`, whole or not at all.

    With `sync` the new content is on stable storage when this returns. Without it, only process death is survived for
    certain, and after a power cut the file may even be empty: only for what can be rebuilt.
    """
    temporary = path + ".tmp"
    file_system.write_file(temporary, data)
    if sync:
        file_system.sync_file(temporary)
    file_system.rename(temporary, path)
    if sync:
        file_system.sync_dir(posixpath.dirname(path))


def format_checkpoint(entries: Iterable[str]) -> bytes:
    """The content of a checkpoint of these lines."""
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
    # An entry whose line end is missing may have lost digits, so it does not count as an entry.
    entries = [line.split() for line in lines[2:-1]]
    if len(entries) != count or lines[-1].strip():
        raise CorruptCheckpointError(f"{path} announces {count} entries and does not hold exactly these")
    return entries


def read_offset_checkpoint(file_system: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Offsets by partition; empty when there is no such file. Raises CorruptCheckpointError."""
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

    `run` may be called on any thread, but not twice at a time for one file; `complete` belongs to the owner of the
    logs. The text is made by `run`: for 10,000 logs that takes longer than all else.
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
        """Why the file is still the old one although the directory works: the disk is full. Another task may follow."""

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
    """Changes when they do."""
    # Not of the items: 10,000 pairs would have the garbage collector walk over all there is.
    return hash((tuple(offsets), tuple(offsets.values())))
