"""`partition.metadata` in the directory of a partition: the id of the topic it belongs to (Kafka class
`PartitionMetadataFile`).

It tells a partition of today's topic from one that a deleted topic of the same name left behind.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.uuids import Uuid
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import FileSystem

PARTITION_METADATA = "partition.metadata"


def read_topic_id(file_system: FileSystem, directory: str) -> Uuid | None:
    """The topic id of the partition in `directory`; None when it has no such file.

    An empty file counts as none: it is what a power cut can leave of one that was just written, before the
    partition held any flushed record. Raises ValueError, naming the file, for any other content that cannot be
    read.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        text = file_system.read_file(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    if not text.strip("\0\n "):
        return None
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if values["version"].strip() != "0":
            raise ValueError(f"version {values['version']} is not known")
        return _topic_id(values["topic_id"].strip())
    except KeyError as missing:
        raise ValueError(f"{path} cannot be read: no {missing}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


@lru_cache(maxsize=64)
def _topic_id(text: str) -> Uuid:
    """One object for all partitions of a topic, which are mostly read one after the other."""
    return Uuid.from_text(text)


def write_topic_id(file_system: FileSystem, directory: str, topic_id: Uuid) -> None:
    """Write the file, whole or not at all; not fsynced (the first flush of the log does that)."""
    content = f"version: 0\ntopic_id: {topic_id}"
    write_atomically(file_system, f"{directory}/{PARTITION_METADATA}", content.encode(), sync=False)
