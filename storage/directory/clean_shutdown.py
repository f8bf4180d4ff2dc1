"""`.kafka_cleanshutdown` in a log directory: its logs were closed in order (Kafka class `CleanShutdownFileHandler`)."""

from __future__ import annotations

import json

from protocol.value import Value
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import FileSystem

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"


class CleanShutdown(Value):
    """The last run ended in order, having had this broker epoch (-1: not known)."""

    broker_epoch: int


def take_clean_shutdown(file_system: FileSystem, directory: str) -> CleanShutdown | None:
    """Read the file and remove it at once, so that a crash from now on does not look clean; None when there is none."""
    path = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
    try:
        content = file_system.read_file(path)
    except FileNotFoundError:
        # The process before may have died between removing it and this; a power cut would bring it back.
        file_system.sync_dir(directory)
        return None
    file_system.remove(path)
    file_system.sync_dir(directory)
    try:
        return CleanShutdown(int(json.loads(content)["brokerEpoch"]))
    except (ValueError, KeyError, TypeError):
        # Releases before Kafka 3.7 leave the file empty.
        return CleanShutdown(-1)


def write_clean_shutdown(file_system: FileSystem, directory: str, broker_epoch: int) -> None:
    """Say that every log in `directory` is flushed and closed. Raises OSError."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(file_system, f"{directory}/{CLEAN_SHUTDOWN_FILE}", content.encode())
