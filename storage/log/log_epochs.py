"""The leader epochs of a log, opened on first use: in most partitions nothing happens in most epochs."""

from __future__ import annotations

from collections.abc import Iterator

from storage.log.leader_epoch import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochFileCache
from storage.log.local_log import LocalLog
from storage.segment.segment_search import headers_from

NO_EPOCH_WRITTEN = -2
"""Below every epoch that a batch can have."""


class LogEpochs:
    """The `LeaderEpochFileCache` of a log once it was read, the epoch that began last, and the one written last."""

    __slots__ = ("_led_from", "_loaded", "written")

    def __init__(self) -> None:
        self._loaded: LeaderEpochFileCache | None = None
        self._led_from: EpochEntry | None = None
        """An epoch that has begun and is not in the file yet."""
        self.written = -1
        """The epoch of the batch before; one of another epoch has to be noted on disk first."""

    @property
    def is_loaded(self) -> bool:
        """Whether the file was read, or will not be."""
        return self._loaded is not None

    def load(self, local: LocalLog) -> LeaderEpochFileCache:
        """The epochs of `local`, read from their checkpoint if they were not yet. Raises ApiError
        KAFKA_STORAGE_ERROR.
        """
        epochs = self._loaded
        if epochs is None:
            path = f"{local.path}/{LEADER_EPOCH_CHECKPOINT}"
            try:
                epochs = LeaderEpochFileCache.load(local.file_system, path, lambda: _epochs_in_batches(local))
            except OSError as error:
                raise local.fail(error, f"Error while reading {path}") from error
            # The file may still have epochs of records that a crash or retention removed.
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
        """An epoch begins. Only remembered here, until the epochs are asked for."""
        self._led_from = entry

    def truncate_from_start(self, offset: int) -> None:
        """The log begins at `offset` now."""
        if self._loaded is not None:  # otherwise they are cut when they are read
            self._loaded.truncate_from_start(offset)

    def forget_from(self, local: LocalLog, offset: int) -> None:
        """Nothing at or above `offset` is in `local`; an epoch that was to begin there has none."""
        self.load(local).truncate_from_end(offset)
        self.written = -1

    def write_if_changed(self) -> None:
        """Write the file where it is not up to date. Raises OSError."""
        if self._loaded is not None:
            self._loaded.write_if_changed()

    def take_unsynced(self) -> str | None:
        """See `LeaderEpochFileCache.take_unsynced`. An epoch without a record in it is not worth a file."""
        return None if self._loaded is None else self._loaded.take_unsynced()

    def use_path(self, path: str) -> None:
        """The directory of the log is `path` now."""
        if self._loaded is not None:
            self._loaded.use_path(f"{path}/{LEADER_EPOCH_CHECKPOINT}")


def _epochs_in_batches(local: LocalLog) -> Iterator[EpochEntry]:
    latest = -1
    for batch in headers_from(local.segments, local.log_start_offset):
        if batch.partition_leader_epoch > latest:
            latest = batch.partition_leader_epoch
            yield EpochEntry(latest, batch.base_offset)
