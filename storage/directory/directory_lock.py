"""Taking possession of a log directory."""

from __future__ import annotations

from storage.directory.meta_properties import LogDirError
from storage.io.file_system import FileSystem, Lock

LOCK_FILE = ".lock"


def lock_directory(file_system: FileSystem, path: str) -> Lock:
    """Create the directory where missing and lock it against other brokers.

    Raises LogDirError when another broker has it, OSError when it cannot be used.
    """
    _make_durable(file_system, path)
    try:
        return file_system.lock(f"{path}/{LOCK_FILE}")
    except BlockingIOError:
        raise LogDirError(
            f"Failed to acquire lock on file {LOCK_FILE} in {path}. "
            "A Kafka instance in another process or thread is using this directory."
        ) from None


def _make_durable(file_system: FileSystem, path: str) -> None:
    """Create `path` where missing so that a power cut cannot take it, and all below it, away again."""
    # The parent in any case: the process that made `path` may have died before it got to that.
    parents = [_parent_of(path)]
    while not file_system.exists(parents[-1]):
        parents.append(_parent_of(parents[-1]))
    file_system.make_dirs(path)
    for parent in parents:
        try:
            file_system.sync_dir(parent)
        except PermissionError:
            continue  # not ours to open, so not ours to have made


def _parent_of(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")
