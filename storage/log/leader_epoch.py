"""The start offset of each leader epoch of a log (Kafka class `LeaderEpochFileCache`, KIP-101, KIP-279). A log loads
its epochs on first use, because most partitions see no records in most epochs.

After a change of leader, followers use it to find the point of divergence; if an entry were missing, a replica would
truncate too much or too little. The file `leader-epoch-checkpoint` is written before the first record of an epoch is
appended, so process death never loses an entry. It is fsynced when the log is flushed. Entries that a power cut loses
before that are rebuilt from the batches above the recovery point, because every batch carries its epoch.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from storage.directory.checkpoints import CorruptCheckpointError, format_checkpoint, parse_checkpoint, write_atomically
from storage.io.file_system import FileSystem
from storage.segment.log_segment import headers_from

if TYPE_CHECKING:
    from storage.log.local_log import LocalLog

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
        """Use the checkpoint at `path`, which holds `entries`. See `load`."""
        self._file_system = file_system
        self._path = path
        self._entries = list(entries)
        self._dirty = False
        self._unsynced = False

    @classmethod
    def load(
        cls, file_system: FileSystem, path: str, rebuild: Callable[[], Iterable[EpochEntry]]
    ) -> LeaderEpochFileCache:
        """Read the checkpoint; if it is damaged, use the entries of `rebuild`, which walks the log."""
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
        """The newest epoch, or -1."""
        return self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` began at `start_offset`.

        Entries that contradict this one (same or newer epoch, same or later offset) are dropped, because no record was
        written in those epochs. If `epoch` is already the newest, it keeps its start.
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

        For an epoch older than all known ones: (`epoch`, start of the oldest).
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
        """Forget the epochs that ended at or before `start_offset`; the epoch that contains it now begins there."""
        entries = self._entries
        after = bisect_right(entries, start_offset, key=lambda entry: entry.start_offset)
        if after and (after > 1 or entries[0].start_offset != start_offset):
            entries[:after] = [EpochEntry(entries[after - 1].epoch, start_offset)]
            self._dirty = True

    def remove(self) -> None:
        """Forget all entries and remove the file. Raises OSError."""
        self._entries, self._dirty, self._unsynced = [], False, False
        with contextlib.suppress(FileNotFoundError):
            self._file_system.remove(self._path)

    def use_path(self, path: str) -> None:
        """Use `path` for the checkpoint from now on."""
        self._path = path

    def write_if_changed(self) -> None:
        """Replace the file atomically, without fsync. Raises OSError."""
        if self._dirty:
            data = format_checkpoint([f"{epoch} {offset}" for epoch, offset in self._entries])
            write_atomically(self._file_system, self._path, data, sync=False)
            self._dirty = False
            self._unsynced = True

    def take_unsynced(self) -> str | None:
        """The path to fsync (file, then directory) before the recovery point may advance, or None."""
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


NO_EPOCH_WRITTEN = -2
"""Lower than the epoch of any batch."""


class LogEpochs:
    """The `LeaderEpochFileCache` of a log, loaded on first use, and the pending and last written epoch."""

    __slots__ = ("_led_from", "_loaded", "written")

    def __init__(self) -> None:
        self._loaded: LeaderEpochFileCache | None = None
        self._led_from: EpochEntry | None = None
        """The current epoch while it is not in the file yet."""
        self.written = -1
        """The epoch of the last appended batch; a new epoch must be on disk before its first batch."""

    @property
    def is_loaded(self) -> bool:
        """Whether the file was read or replaced."""
        return self._loaded is not None

    def load(self, local: LocalLog) -> LeaderEpochFileCache:
        """The epochs of `local`, read from their checkpoint on first use. Raises ApiError KAFKA_STORAGE_ERROR."""
        epochs = self._loaded
        if epochs is None:
            path = f"{local.path}/{LEADER_EPOCH_CHECKPOINT}"
            try:
                epochs = LeaderEpochFileCache.load(local.file_system, path, lambda: _epochs_in_batches(local))
            except OSError as error:
                raise local.fail(error, f"Error while reading {path}") from error
            # The file may still list epochs of records that a crash or retention removed.
            epochs.truncate_from_end(local.log_end_offset)
            epochs.truncate_from_start(local.log_start_offset)
            self._loaded = epochs
        if self._led_from is not None:
            epochs.assign(*self._led_from)
            self._led_from = None
        return epochs

    def use(self, epochs: LeaderEpochFileCache) -> None:
        """Replace the leader epochs."""
        self._loaded = epochs
        self._led_from = None

    def begin(self, entry: EpochEntry) -> None:
        """Begin an epoch. It is only remembered here until `load` is called."""
        self._led_from = entry

    def truncate_from_start(self, offset: int) -> None:
        """Forget the epochs below `offset`, the new log start."""
        if self._loaded is not None:  # otherwise `load` truncates them
            self._loaded.truncate_from_start(offset)

    def forget_from(self, local: LocalLog, offset: int) -> None:
        """Forget the epochs from `offset` on, which `local` no longer holds, including a pending one."""
        self.load(local).truncate_from_end(offset)
        self.written = -1

    def write_if_changed(self) -> None:
        """Write the file if it is out of date. Raises OSError."""
        if self._loaded is not None:
            self._loaded.write_if_changed()

    def take_unsynced(self) -> str | None:
        """See `LeaderEpochFileCache.take_unsynced`. An epoch without records does not need a file."""
        return None if self._loaded is None else self._loaded.take_unsynced()

    def use_path(self, path: str) -> None:
        """Use `path` as the directory of the log from now on."""
        if self._loaded is not None:
            self._loaded.use_path(f"{path}/{LEADER_EPOCH_CHECKPOINT}")


def _epochs_in_batches(local: LocalLog) -> Iterator[EpochEntry]:
    latest = -1
    for batch in headers_from(local.segments, local.log_start_offset):
        if batch.partition_leader_epoch > latest:
            latest = batch.partition_leader_epoch
            yield EpochEntry(latest, batch.base_offset)
