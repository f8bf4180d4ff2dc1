"""Small files that are replaced whole: Kafka's text checkpoints.

Format (Kafka class `CheckpointFile`): a line with the version (0), a line with the number of entries, one line per
entry. A checkpoint is replaced by writing a `.tmp` beside it, fsync, rename, and fsync of the directory, so that a
crash leaves either the old or the new one, and what was confirmed stays.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from protocol.topic_partition import TopicPartition
from storage.io.file_system import FileSystem

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
