"""The memory of a log of each producer, which makes producers idempotent (Kafka class `ProducerStateManager`,
KIP-98).

Appending takes two steps: `check` judges a batch and changes nothing; `update` follows once the batch is in the
file. A failed write therefore leaves no trace. The last five batches of a producer are known, so that a retry of
any of them is answered with its original offset (a client has at most five requests in flight).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import NO_SEQUENCE, RecordBatch
from protocol.records.control_records import EndTxnMarker, decode_end_txn_marker
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import FileSystem, is_disk_full
from storage.log.producer_snapshot import (
    BATCHES_TO_RETAIN,
    NO_OFFSET,
    BatchMetadata,
    CorruptSnapshotError,
    ProducerStateEntry,
    decode_snapshot,
    encode_snapshot,
)
from storage.log.transaction_verification import ONGOING, TransactionVerification, VerificationGuard
from storage.segment.log_files import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from storage.segment.transaction_index import CompletedTxn

NO_PRODUCER_EPOCH = -1


class AppendOrigin(Enum):
    """The origin of an append, which decides the checks of a batch (Kafka class `AppendOrigin`)."""

    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


def _marker_of(batch: RecordBatch) -> EndTxnMarker | None:
    """The marker in a control batch; None when its record is compacted away, not read, or of another kind."""
    try:
        record = next(batch.records(), None)
        return None if record is None else decode_end_txn_marker(record)
    except ApiError:
        return None


def _in_sequence(last_sequence: int, first_sequence: int) -> bool:
    return first_sequence == last_sequence + 1 or (first_sequence == 0 and last_sequence == 2**31 - 1)


class ProducerStateManager:
    """State of all producers of one log, as of `map_end_offset` (exclusive)."""

    __slots__ = (
        "_directory",
        "_file_system",
        "_ongoing",
        "_unreplicated",
        "entries",
        "map_end_offset",
        "name",
        "snapshot_offsets",
        "verification",
    )

    def __init__(
        self, file_system: FileSystem, directory: str, name: str, snapshot_offsets: Iterable[int] = ()
    ) -> None:
        """`name` of the partition, for messages; `snapshot_offsets` of the snapshots in `directory`."""
        self._file_system = file_system
        self._directory = directory
        self.name = name
        self.snapshot_offsets = sorted(snapshot_offsets)
        self.entries: dict[int, ProducerStateEntry] = {}
        self.map_end_offset = 0
        self.verification = TransactionVerification()
        self._ongoing: dict[int, int] = {}
        """First offsets of the open transactions by producer, the oldest first."""
        self._unreplicated: dict[int, int] = {}
        """Transactions that are over and whose marker may not be below the high watermark yet: last offset by first."""

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open, or that readers take for open until `on_high_watermark` has
        told of its end.
        """
        ongoing = next(iter(self._ongoing.values())) if self._ongoing else None
        if not self._unreplicated:
            return ongoing
        unreplicated = min(self._unreplicated)
        return unreplicated if ongoing is None else min(unreplicated, ongoing)

    def on_high_watermark(self, high_watermark: int) -> None:
        """A transaction whose marker is below is over for readers, too (Kafka's `onHighWatermarkUpdated`)."""
        unreplicated = self._unreplicated
        if unreplicated:
            self._unreplicated = {first: last for first, last in unreplicated.items() if last >= high_watermark}

    def use_directory(self, directory: str) -> None:
        """The snapshots are in `directory` now."""
        self._directory = directory

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int
    ) -> VerificationGuard:
        """A guard with which a transactional batch that begins with `sequence` may be appended once its coordinator has
        agreed; ONGOING when the transaction is known here, and nobody has to be asked.
        """
        if producer_id in self._ongoing:
            return ONGOING
        return self.verification.begin(producer_id, producer_epoch, sequence, now_ms)

    def check(
        self, batch: RecordBatch, offset: int, origin: AppendOrigin, guard: VerificationGuard | None = None
    ) -> BatchMetadata | None:
        """Judge a batch with a producer id that is to be appended at `offset`; returns the original if it is a
        duplicate. What would begin a transaction needs its `guard`, unless that is None.

        Raises ApiError INVALID_PRODUCER_EPOCH for an older epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap,
        INVALID_TXN_STATE for what is outside of a transaction or should not be, TRANSACTION_COORDINATOR_FENCED for the
        marker of a coordinator that is deposed. A producer that is not known may begin with any sequence number: its
        earlier records may have been deleted.
        """
        producer_id = batch.producer_id
        entry = self.entries.get(producer_id)
        epoch = batch.producer_epoch
        first = batch.base_sequence
        if entry is not None and origin is AppendOrigin.CLIENT and not _in_sequence(entry.last_sequence, first):
            duplicate = entry.find_duplicate(batch)
            if duplicate is not None:
                return duplicate
        if batch.attributes & 0x30 and guard is not None and producer_id not in self._ongoing:
            self.verification.check(batch, guard, self.name)
        if entry is not None:
            if epoch < entry.producer_epoch:
                raise ApiError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"Epoch of producer {producer_id} at offset {offset} in {self.name} is {epoch}, "
                    f"which is smaller than the last seen epoch {entry.producer_epoch}",
                )
            if batch.attributes & 0x30 or entry.current_txn_first_offset != NO_OFFSET:
                self._check_transaction(entry, batch)
        if origin is not AppendOrigin.CLIENT:
            return None
        if self.verification.questions:
            self.verification.check_sequence(batch, offset, self.name)
        if entry is not None:
            self._check_sequence(entry, batch, offset)
        return None

    def _check_sequence(self, entry: ProducerStateEntry, batch: RecordBatch, offset: int) -> None:
        producer_id, epoch, first = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if epoch != entry.producer_epoch:
            if first != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number for new epoch of producer {producer_id} at offset {offset} in partition "
                    f"{self.name}: {epoch} (request epoch), {first} (seq. number), "
                    f"{entry.producer_epoch} (current producer epoch)",
                )
        elif not _in_sequence(entry.last_sequence, first):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {producer_id} at offset {offset} in partition "
                f"{self.name}: {first} (incoming seq. number), {entry.last_sequence} (current end sequence number)",
            )

    def _check_transaction(self, entry: ProducerStateEntry, batch: RecordBatch) -> None:
        if not batch.attributes & 0x30:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected a transactional write of producer {batch.producer_id} in {self.name}, "
                "whose transaction is open",
            )
        marker = _marker_of(batch) if batch.is_control else None
        if marker is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producer {batch.producer_id} in {self.name}: "
                f"{marker.coordinator_epoch} (zombie), {entry.coordinator_epoch} (current)",
            )

    def update(self, batch: RecordBatch, base_offset: int, timestamp: int) -> CompletedTxn | None:
        """Take note of a batch that was appended at `base_offset` with largest `timestamp` (ms); also used to replay
        a log. Gives the transaction that it has ended.
        """
        producer_id = batch.producer_id
        entry = self.entries.get(producer_id)
        epoch = batch.producer_epoch
        if entry is None:
            entry = self.entries[producer_id] = ProducerStateEntry(epoch)
        elif entry.producer_epoch != epoch:
            entry.producer_epoch = epoch
            entry.batches = ()
        entry.last_timestamp = timestamp
        completed = None
        if batch.attributes & 0x30:
            completed = self._update_transaction(entry, batch, base_offset)
        if batch.base_sequence != NO_SEQUENCE:
            delta = batch.last_offset_delta
            added = BatchMetadata(batch.last_sequence, base_offset + delta, delta, timestamp)
            entry.batches = (*entry.batches[1 - BATCHES_TO_RETAIN :], added)
        return completed

    def _update_transaction(
        self, entry: ProducerStateEntry, batch: RecordBatch, base_offset: int
    ) -> CompletedTxn | None:
        producer_id = batch.producer_id
        self.verification.end(producer_id)
        if not batch.is_control:
            if batch.is_transactional and entry.current_txn_first_offset == NO_OFFSET:
                entry.current_txn_first_offset = base_offset
                self._ongoing[producer_id] = base_offset
            return None
        marker = _marker_of(batch)
        if marker is not None:
            entry.coordinator_epoch = marker.coordinator_epoch
        first_offset = entry.current_txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.current_txn_first_offset = NO_OFFSET
        self._ongoing.pop(producer_id, None)
        last_offset = base_offset + batch.last_offset_delta
        self._unreplicated[first_offset] = last_offset
        return CompletedTxn(producer_id, first_offset, last_offset, next(iter(self._ongoing.values()), last_offset + 1))

    def replay(self, batch: RecordBatch) -> CompletedTxn | None:
        """Take note of a batch read from the log, unless it is known already; gives the transaction that it has
        ended.
        """
        completed = None
        if batch.base_offset >= self.map_end_offset or batch.last_offset >= self.map_end_offset:
            if batch.producer_id >= 0:
                completed = self.update(batch, batch.base_offset, batch.max_timestamp)
            self.map_end_offset = batch.next_offset
        return completed

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers without an open transaction that were silent for `expiration_ms`; returns how many."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset == NO_OFFSET and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        self.verification.expire(now_ms, expiration_ms)
        return len(expired)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot_path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def take_snapshot(self) -> str | None:
        """Write the state as of `map_end_offset`, if there is no snapshot of it yet; returns its path, not fsynced yet.

        Raises OSError.
        """
        offset = self.map_end_offset
        if self.snapshot_offsets and self.snapshot_offsets[-1] >= offset:
            return None
        path = self.snapshot_path(offset)
        write_atomically(self._file_system, path, encode_snapshot(self.entries), sync=False)
        self.snapshot_offsets.append(offset)
        return path

    def load(self, start_offset: int, end_offset: int) -> None:
        """Replace the state by the newest snapshot from `start_offset` to `end_offset` that can be read.

        Snapshots outside are removed and damaged ones too. Without any, the state is empty as of `start_offset`.
        """
        self.entries = {}
        self._ongoing = {}
        self._unreplicated = {}
        self.verification.clear()
        self.map_end_offset = start_offset
        for offset in [at for at in self.snapshot_offsets if not start_offset <= at <= end_offset]:
            self._remove_snapshot(offset)
        while self.snapshot_offsets:
            offset = self.snapshot_offsets[-1]
            path = self.snapshot_path(offset)
            try:
                self.entries = decode_snapshot(path, self._file_system.read_file(path))
            except (CorruptSnapshotError, FileNotFoundError):
                self._remove_snapshot(offset)
                continue
            self.map_end_offset = offset
            began = ((entry.current_txn_first_offset, producer_id) for producer_id, entry in self.entries.items())
            self._ongoing = {producer_id: offset for offset, producer_id in sorted(began) if offset != NO_OFFSET}
            return

    def clear(self, offset: int) -> None:
        """Forget all producers and snapshots; the log is empty and begins at `offset`."""
        self.entries = {}
        self._ongoing = {}
        self._unreplicated = {}
        self.verification.clear()
        self.map_end_offset = offset
        for at in list(self.snapshot_offsets):
            self._remove_snapshot(at)

    def mark_deleted(self, offsets: Iterable[int]) -> list[str]:
        """Give the snapshots at `offsets` the suffix `.deleted`, as their segments are gone; returns their paths.

        Raises OSError.
        """
        paths = []
        for offset in offsets:
            if offset in self.snapshot_offsets:
                self.snapshot_offsets.remove(offset)
                path = self.snapshot_path(offset)
                try:
                    self._file_system.rename(path, path + DELETED_SUFFIX)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    self._file_system.remove(path)  # a longer name may need room that only this gives back
                    continue
                paths.append(path + DELETED_SUFFIX)
        return paths

    def _remove_snapshot(self, offset: int) -> None:
        if offset in self.snapshot_offsets:
            self.snapshot_offsets.remove(offset)
            try:
                self._file_system.remove(self.snapshot_path(offset))
            except FileNotFoundError:
                return
