"""Identity files of log directories. `meta.properties` in every log directory names its broker and cluster (Kafka class
`BrokerMetadataCheckpoint`), and `partition.metadata` in a partition's directory holds the topic id (Kafka class
`PartitionMetadataFile`). The id distinguishes a partition of the current topic from one left behind by a deleted topic
of the same name.

Both are Java properties files. Version 0 of `meta.properties` is ZooKeeper mode's (`broker.id`), version 1 KRaft's
(`node.id`); both are read, 0 is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from protocol.uuids import Uuid
from protocol.value import Value
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import FileSystem

META_PROPERTIES = "meta.properties"

_SEPARATOR = re.compile(r"(?<!\\)[=:]")
_ESCAPED = re.compile(r"\\(.)")


class LogDirError(Exception):
    """This broker must not use a log directory. The one-line message names the directory and the reason."""


class MetaProperties(Value):
    """The content of one `meta.properties`; missing keys are None."""

    version: int
    broker_id: int | None
    cluster_id: str | None


def read_meta_properties(file_system: FileSystem, directory: str) -> MetaProperties | None:
    """Read the `meta.properties` of a directory; None if it is missing. Raises LogDirError for invalid content, OSError
    when it cannot be read.
    """
    path = f"{directory}/{META_PROPERTIES}"
    try:
        text = file_system.read_file(path).decode("latin-1")
    except (FileNotFoundError, NotADirectoryError):
        return None
    values: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, _, value = _SEPARATOR.sub("\0", stripped, count=1).partition("\0")
            values[key.strip()] = _ESCAPED.sub(r"\1", value.strip())
    try:
        version = int(values["version"])
        number = values.get("node.id" if version == 1 else "broker.id")
        broker_id = None if number is None else int(number)
    except (KeyError, ValueError):
        raise LogDirError(f"{path} is damaged: it has no valid version and broker.id (node.id in version 1)") from None
    if version not in {0, 1}:
        raise LogDirError(f"{path} has version {version}; only versions 0 and 1 can be read")
    return MetaProperties(version, broker_id, values.get("cluster.id"))


def check_meta_properties(
    file_system: FileSystem, directories: Sequence[str], broker_id: int, cluster_id: str | None
) -> list[str]:
    """Check that no directory belongs to another broker or cluster (None: not known yet); changes nothing.

    Returns the directories that have no `meta.properties` yet. Raises LogDirError.
    """
    without = []
    for directory in directories:
        found = read_meta_properties(file_system, directory)
        if found is None:
            without.append(directory)
            continue
        if found.broker_id is not None and found.broker_id != broker_id:
            raise LogDirError(
                f"Configured broker.id {broker_id} doesn't match stored broker.id {found.broker_id} in "
                f"{directory}/{META_PROPERTIES}. If you moved your data, make sure your configured broker.id matches; "
                "for a new broker, use empty log directories (log.dirs)."
            )
        if cluster_id is not None and found.cluster_id is not None and found.cluster_id != cluster_id:
            raise LogDirError(
                f"The Cluster ID {cluster_id} doesn't match stored clusterId {found.cluster_id} in "
                f"{directory}/{META_PROPERTIES}. The broker is trying to join the wrong cluster, "
                "or log.dirs belongs to another one."
            )
    return without


def write_meta_properties(file_system: FileSystem, directory: str, broker_id: int, cluster_id: str) -> None:
    """Claim `directory`, durably. Raises OSError."""
    text = f"#\n#Written by Odradek\nbroker.id={broker_id}\nversion=0\ncluster.id={cluster_id}\n"
    write_atomically(file_system, f"{directory}/{META_PROPERTIES}", text.encode("latin-1"))


PARTITION_METADATA = "partition.metadata"


def read_topic_id(file_system: FileSystem, directory: str) -> Uuid | None:
    """Read the topic id of the partition in `directory`; None if the file is missing.

    An empty file is treated as missing: a power cut can leave one before the partition holds any flushed record. Raises
    ValueError, naming the file, for other invalid content.
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
    """Share one object among the partitions of a topic, which are mostly read one after the other."""
    return Uuid.from_text(text)


def write_topic_id(file_system: FileSystem, directory: str, topic_id: Uuid) -> None:
    """Write the file, whole or not at all; not fsynced (the first flush of the log does that)."""
    content = f"version: 0\ntopic_id: {topic_id}"
    write_atomically(file_system, f"{directory}/{PARTITION_METADATA}", content.encode(), sync=False)
