"""The log cleaner's progress in a log directory, of this broker or of Apache Kafka."""

from __future__ import annotations

from pathlib import Path

from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from storage.io.os_file_system import OsFileSystem


def clean_until(directory: Path | str, topic: str) -> int | None:
    """The offset of partition 0 in cleaner-offset-checkpoint, or None without an entry."""
    checkpoint = Path(directory) / CLEANER_OFFSET_CHECKPOINT
    if not checkpoint.exists() or not checkpoint.stat().st_size:  # Kafka creates an empty one
        return None
    return read_offset_checkpoint(OsFileSystem(), str(checkpoint)).get(TopicPartition(topic, 0))


def active_base(directory: Path | str, topic: str) -> int:
    """The base offset of the active segment of partition 0: the cleaner works below it."""
    return max(int(file.stem) for file in Path(directory).glob(f"{topic}-0/*.log"))
