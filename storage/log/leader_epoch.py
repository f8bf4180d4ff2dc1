"""Which leader epoch began at which offset of a log (Kafka class `LeaderEpochFileCache`, KIP-101, KIP-279).

Followers find the point of divergence with it after a change of leader; without the entry of an epoch a replica
would cut too much or too little. The file `leader-epoch-checkpoint` is written before the first record of an epoch
is appended, so process death never loses an entry. It is fsynced when the log is flushed: what a power cut takes
away before that can be read again from the batches above the recovery point, each of which carries its epoch.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from storage.directory.checkpoints import CorruptCheckpointError, format_checkpoint, parse_checkpoint, write_atomically
from storage.io.file_system import FileSystem

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    """The first offset written in an epoch."""

    epoch: int
    start_offset: int


class LeaderEpochFileCache:
    """Entries in ascending order of both epoch and start offset."""

    __slots__ = ("_dirty", "_entries", "_file_system", "_path", "_unsynced")

    def __init__(self, file_system: FileSystem, path: str, entries: Iterable[EpochEntry] = ()) -> None:
        """`path` of the checkpoint; `entries` as they are in it. See `load`."""
        self._file_system = file_system
        self._path = path
        self._entries = list(entries)
        self._dirty = False
        self._unsynced = False

    @classmethod
    def load(
        cls, file_system: FileSystem, path: str, rebuild: Callable[[], Iterable[EpochEntry]]
    ) -> LeaderEpochFileCache:
        """Read the checkpoint; when it is damaged, take the entries from `rebuild`, which walks the log."""
        try:
            return cls(file_system, path, _parse(path, file_system.read_file(path)))
        except FileNotFoundError:
            return cls(file_system, path)
        except CorruptCheckpointError:
            cache = cls(file_system, path)
        for entry in rebuild():
            cache.assign(entry.epoch, entry.start_offset)
        cache._dirty = True
        return cache

    @property
    def entries(self) -> list[EpochEntry]:
        """All entries, oldest first."""
        return list(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The newest epoch; -1 when there is none."""
        return self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` began at `start_offset`.

        Entries that this one contradicts (same or newer epoch, same or later offset) are dropped, as nothing was
        written in them. An epoch that is already the newest keeps its start.
        """
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self._dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """The largest known epoch not above `epoch`, and where it ended; (-1, -1) when `epoch` is not known yet.

        For an epoch older than all that are known: (`epoch`, start of the oldest).
        """
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1].epoch:
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)
        if epoch == entries[-1].epoch:
            return EpochEntry(epoch, log_end_offset)
        after = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        return EpochEntry(entries[after - 1].epoch if after else epoch, entries[after].start_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that the record at `offset` was written in; -1 when it is older than all entries."""
        after = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[after - 1].epoch if after else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that began at or after `end_offset`."""
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
            self._dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that ended at or before `start_offset`; the one it lies in begins there now."""
        entries = self._entries
        after = bisect_right(entries, start_offset, key=lambda entry: entry.start_offset)
        if after and (after > 1 or entries[0].start_offset != start_offset):
            entries[:after] = [EpochEntry(entries[after - 1].epoch, start_offset)]
            self._dirty = True

    def remove(self) -> None:
        """Forget all, the file as well. Raises OSError."""
        self._entries, self._dirty, self._unsynced = [], False, False
        with contextlib.suppress(FileNotFoundError):
            self._file_system.remove(self._path)

    def use_path(self, path: str) -> None:
        """The checkpoint is at `path` now."""
        self._path = path

    def write_if_changed(self) -> None:
        """Hand the entries to the operating system, replacing the file atomically. Raises OSError."""
        if self._dirty:
            data = format_checkpoint([f"{epoch} {offset}" for epoch, offset in self._entries])
            write_atomically(self._file_system, self._path, data, sync=False)
            self._dirty = False
            self._unsynced = True

    def take_unsynced(self) -> str | None:
        """The path to fsync (file, then directory) before the recovery point may advance; None for nothing."""
        self.write_if_changed()
        if not self._unsynced:
            return None
        self._unsynced = False
        return self._path


def _parse(path: str, data: bytes) -> list[EpochEntry]:
    try:
        entries = [EpochEntry(int(epoch), int(offset)) for epoch, offset in parse_checkpoint(path, data)]
    except ValueError as error:
        raise CorruptCheckpointError(str(error)) from None
    for older, newer in pairwise(entries):
        if older.epoch >= newer.epoch or older.start_offset > newer.start_offset:
            raise CorruptCheckpointError(f"{path}: epoch {newer.epoch} does not follow epoch {older.epoch}")
    return entries
