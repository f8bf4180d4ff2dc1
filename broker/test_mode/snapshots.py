"""Snapshots of a running broker: its data directory as after a clean shutdown, without stopping it.

The files of a snapshot are hard links to those of the broker, and so are the files of a broker that is started from it.
`LinkedFileSystem` keeps them apart: a file that has other links becomes a copy before this process changes it. Only
appends and truncations change a file in place; all else is written to a new file, which replaces the old one.

Everything that is acknowledged is in the files or in the tree before its client knows it. A snapshot is taken in one
turn of the event loop, while the journal of the tree is not being written: so it shows one moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker.stages.serving import ServingBroker
from storage.directory.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    format_offset_checkpoint,
)
from storage.directory.log_directories import write_clean_shutdown
from storage.directory.meta_properties import META_PROPERTIES
from storage.io.file_system import Bytes
from storage.io.os_file_system import OsFile, OsFileSystem
from storage.log.unified_log import UnifiedLog
from zookeeper.durable_tree import write_tree
from zookeeper.embedded_ensemble import EmbeddedEnsemble
from zookeeper.znode_tree import ZnodeTree

if TYPE_CHECKING:
    from storage.io.os_file_system import _Descriptor

DATA: Final = "data"
"""The name of the log directory in a snapshot."""
_PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.0005
_UNFINISHED: Final = (".deleted", ".cleaned", ".swap", ".tmp", ".own")
"""Suffixes of files that a log does not have yet, or no longer."""


# -- files that are shared ---------------------------------------------------------------------------------------------


class LinkedFile(OsFile):
    """A file that becomes a copy before it changes, if it has other links."""

    __slots__ = ("_own_since",)

    _files: LinkedFileSystem

    def __init__(self, files: LinkedFileSystem, path: str, size: int) -> None:
        super().__init__(files, path, size)
        self._own_since = 0
        """The number of snapshots when this file last had no other link for certain."""

    def append(self, parts: Sequence[Bytes]) -> None:
        if self._own_since != self._files.snapshots:
            self._become_own()
        super().append(parts)

    def truncate(self, size: int) -> None:
        if self._own_since != self._files.snapshots:
            self._become_own()
        super().truncate(size)

    def _open(self) -> _Descriptor:
        with self._files.replacing:  # otherwise it might keep the file that `_become_own` is replacing
            return super()._open()

    def _become_own(self) -> None:
        with self._files.replacing:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self.path).st_nlink > 1:
                    copy = f"{self.path}.own"
                    shutil.copy2(self.path, copy)
                    os.replace(copy, self.path)
            self.close()  # also if another object for this path has replaced the file
            self._own_since = self._files.snapshots


class LinkedFileSystem(OsFileSystem):
    """The file system of a broker whose files may have other links."""

    def __init__(self, *, has_links: bool) -> None:
        """`has_links`: the broker starts on files that others have as well."""
        super().__init__()
        self.snapshots = int(has_links)
        """Changes whenever files may have got links."""
        self.replacing = threading.Lock()
        """Is held while a file is opened by its name, or replaced."""

    def _new_file(self, path: str, size: int) -> LinkedFile:
        return LinkedFile(self, path, size)

    def open(self, path: str, *, is_private: bool = False) -> OsFile:
        with self.replacing:
            return super().open(path, is_private=is_private)


def link_tree(source: str, target: str) -> None:
    """Create links to all files below `source` in the directory `target`. Raises OSError."""
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                link_tree(entry.path, f"{target}/{entry.name}")
            else:
                _link(entry.path, f"{target}/{entry.name}")


def _link(source: str, target: str) -> None:
    """A link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


# -- taking a snapshot -------------------------------------------------------------------------------------------------


async def take_snapshot(
    serving: ServingBroker, files: LinkedFileSystem, directory: str, meet: Callable[[], None] = lambda: None
) -> None:
    """Write a snapshot to `directory`, which does not exist. The broker has one log directory, and goes on afterwards.

    `meet` waits for the other processes of a cluster, see `meeting`. Raises OSError, ApiError KAFKA_STORAGE_ERROR.
    """
    ensemble = serving.coordination.ensemble
    if isinstance(ensemble, EmbeddedEnsemble):
        await ensemble.at_rest(lambda tree: _write(serving, files, directory, tree))
        return
    while any(log.local.truncation is not None for log in serving.logs.log_manager.logs.values()):
        await asyncio.to_thread(time.sleep, _POLL_S)
    meet()
    _write(serving, files, directory, None)


async def await_replicas(serving: ServingBroker) -> None:
    """Wait until the in-sync followers of the partitions that this broker leads have all that it has now: another
    replica may lead when the snapshot is restored.
    """
    ends = [(partition, partition.log.log_end_offset) for partition in serving.logs.replicas if partition.is_leader]
    gives_up_s = time.monotonic() + _PATIENCE_S
    while any(partition.is_leader and partition.high_watermark < end for partition, end in ends):
        if time.monotonic() > gives_up_s:
            raise TimeoutError(f"followers that are in sync have not fetched all records for {_PATIENCE_S:.0f} s")
        await asyncio.to_thread(time.sleep, _POLL_S)


def meeting(directory: str, count: int) -> Callable[[], None]:
    """Has so many processes wait for each other, with their event loops: their snapshots show one moment.

    The function raises TimeoutError if the others do not come.
    """

    def meet() -> None:
        with open(f"{directory}/{os.getpid()}", "x", encoding="ascii"):
            pass
        gives_up_s = time.monotonic() + _PATIENCE_S
        while len(os.listdir(directory)) < count:
            if time.monotonic() > gives_up_s:
                raise TimeoutError(f"a process of the cluster has not come to the snapshot for {_PATIENCE_S:.0f} s")
            time.sleep(_POLL_S)

    return meet


def write_tree_snapshot(tree: ZnodeTree, files: OsFileSystem, directory: str, meet: Callable[[], None]) -> None:
    """Write a snapshot of the tree of a cluster to `directory`. Raises OSError."""
    os.makedirs(directory)
    meet()
    write_tree(files, directory, tree)


def _write(serving: ServingBroker, files: LinkedFileSystem, directory: str, tree: ZnodeTree | None) -> None:
    manager, data = serving.logs.log_manager, f"{directory}/{DATA}"
    logs = list(manager.online_logs())
    os.makedirs(data)
    try:
        for log in logs:
            log.close()  # writes what is in memory only; the log stays open
            _link_log(log, f"{data}/{log.topic_partition}")
    finally:
        files.snapshots += 1
    _link(f"{manager.directories[0].path}/{META_PROPERTIES}", f"{data}/{META_PROPERTIES}")

    def checkpoint(name: str, offset_of: Callable[[UnifiedLog], int | None]) -> None:
        found = ((log.topic_partition, offset_of(log)) for log in logs)
        offsets = {partition: offset for partition, offset in found if offset is not None}
        files.write_file(f"{data}/{name}", format_offset_checkpoint(offsets))

    high_watermarks = serving.logs.replicas.high_watermarks()
    checkpoint(RECOVERY_POINT_CHECKPOINT, lambda log: log.log_end_offset)
    checkpoint(LOG_START_OFFSET_CHECKPOINT, lambda log: log.log_start_offset or None)
    checkpoint(HIGH_WATERMARK_CHECKPOINT, lambda log: high_watermarks.get(log.topic_partition))
    checkpoint(CLEANER_OFFSET_CHECKPOINT, lambda log: log.cleaner_checkpoint)
    write_clean_shutdown(files, data, serving.coordination.fence.broker_epoch)
    if tree is not None:
        write_tree(files, data, tree)


def _link_log(log: UnifiedLog, target: str) -> None:
    os.mkdir(target)
    for name in os.listdir(log.path):
        if not name.endswith(_UNFINISHED):
            _link(f"{log.path}/{name}", f"{target}/{name}")
