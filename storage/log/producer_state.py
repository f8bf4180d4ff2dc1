"""The producer state of a log, which makes producers idempotent (Kafka classes `ProducerStateManager`,
`ProducerStateEntry`, `BatchMetadata`). A log loads it on first use, because most logs of a broker are idle most of the
time.

Appending takes two steps: `check` judges a batch and changes nothing; `update` follows once the batch is in the file.
So a failed write changes nothing. The state holds the last five batches of a producer, and a retry of any of them gets
its original offset (a client has at most five requests in flight).

Snapshots (`<end offset>.snapshot`) are in Kafka's format. They bound how much of the log must be read again at start.
Kafka writes only the newest batch of every producer, and uses the last entry of a producer when it reads. So an older
batch that is resent after a restart seems out of order, and is lost or appended twice. Here each known batch has an
entry, the newest last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import NO_SEQUENCE, RecordBatch, increment_sequence
from protocol.records.checksum import crc32c
from protocol.records.control_records import EndTxnMarker, decode_end_txn_marker
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import FileSystem, is_disk_full
from storage.log.log_validator import ONGOING, AppendOrigin, TransactionVerification, VerificationGuard
from storage.segment.log_segment import LogSegment, headers_from
from storage.segment.segment_files import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from storage.segment.transaction_index import CompletedTxn

if TYPE_CHECKING:
    from storage.log.local_log import LocalLog

BATCHES_TO_RETAIN = 5
NO_OFFSET = -1

_VERSION = 1
_HEADER = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(ValueError):
    """A producer snapshot with invalid content; the message names the file."""


class BatchMetadata(NamedTuple):
    """One appended batch of a producer; `timestamp` is the batch's largest, in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return increment_sequence(self.last_sequence, -self.offset_delta)


class ProducerStateEntry:
    """One producer: its epoch and its newest batches, oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "last_timestamp", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: tuple[BatchMetadata, ...] = ()
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.current_txn_first_offset = NO_OFFSET
        """First offset of the producer's open transaction; -1 when it has none."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        """The appended batch with the sequence numbers of `batch`, if it is among the last five."""
        if batch.producer_epoch == self.producer_epoch:
            for known in self.batches:
                if known.last_sequence == batch.last_sequence and known.first_sequence == batch.base_sequence:
                    return known
        return None


_NO_BATCHES = (BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, -1),)


def encode_snapshot(entries: dict[int, ProducerStateEntry]) -> bytes:
    """The content of a snapshot file."""
    parts = [b""]
    for producer_id, entry in entries.items():
        parts.extend(
            _ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for batch in entry.batches or _NO_BATCHES
        )
    parts[0] = struct.pack(">i", len(parts) - 1)
    body = b"".join(parts)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode_snapshot(path: str, data: bytes) -> dict[int, ProducerStateEntry]:
    """The producers in a snapshot file. Raises CorruptSnapshotError."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"Snapshot {path} is cut off: {len(data)} bytes")
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"Snapshot {path} contained an unknown file version {version}")
    if crc != crc32c(data[_CRC_FROM:]):
        raise CorruptSnapshotError(f"Snapshot {path} is corrupt (CRC is no longer valid)")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"Snapshot {path} announces {count} entries and has {len(data)} bytes")
    entries: dict[int, ProducerStateEntry] = {}
    for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        earlier = entries.get(producer_id)
        entry = entries[producer_id] = ProducerStateEntry(epoch)
        if earlier is not None and earlier.producer_epoch == epoch:
            entry.batches = earlier.batches[1 - BATCHES_TO_RETAIN :]
        if offset >= 0:
            entry.batches = (*entry.batches, BatchMetadata(sequence, offset, delta, timestamp))
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.current_txn_first_offset = txn_first_offset
    return entries


NO_PRODUCER_EPOCH = -1


def _marker_of(batch: RecordBatch) -> EndTxnMarker | None:
    """The marker in a control batch, or None if its record was compacted away, was not read, or is of another type."""
    try:
        record = next(batch.records(), None)
        return None if record is None else decode_end_txn_marker(record)
    except ApiError:
        return None


def _in_sequence(last_sequence: int, first_sequence: int) -> bool:
    return first_sequence == last_sequence + 1 or (first_sequence == 0 and last_sequence == 2**31 - 1)


class ProducerStateManager:
    """State of all producers of one log up to `map_end_offset` (exclusive)."""

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
        """`name` is the partition's, for messages; `snapshot_offsets` are those of the snapshots in `directory`."""
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
        """Completed transactions whose marker may not be below the high watermark yet: last offset by first offset."""

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open, or whose marker has not passed the high watermark
        (see `on_high_watermark`).
        """
        ongoing = next(iter(self._ongoing.values())) if self._ongoing else None
        if not self._unreplicated:
            return ongoing
        unreplicated = min(self._unreplicated)
        return unreplicated if ongoing is None else min(unreplicated, ongoing)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Complete the transactions whose markers are below the high watermark (Kafka's `onHighWatermarkUpdated`)."""
        unreplicated = self._unreplicated
        if unreplicated:
            self._unreplicated = {first: last for first, last in unreplicated.items() if last >= high_watermark}

    def use_directory(self, directory: str) -> None:
        """Use `directory` for the snapshots from now on."""
        self._directory = directory

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int
    ) -> VerificationGuard:
        """The guard that admits a transactional batch with first sequence number `sequence` once its coordinator has
        agreed; ONGOING when the transaction is known here, so that no request is necessary.
        """
        if producer_id in self._ongoing:
            return ONGOING
        return self.verification.begin(producer_id, producer_epoch, sequence, now_ms)

    def has_batch(self, batch: RecordBatch) -> bool:
        """Whether `check` would find that a batch with a producer id is a duplicate."""
        entry = self.entries.get(batch.producer_id)
        return entry is not None and entry.find_duplicate(batch) is not None

    def check(
        self, batch: RecordBatch, offset: int, origin: AppendOrigin, guard: VerificationGuard | None = None
    ) -> BatchMetadata | None:
        """Check a batch with a producer id before it is appended at `offset`; returns the original if it is a
        duplicate. A batch that would begin a transaction needs its `guard`, unless that is None.

        Raises ApiError INVALID_PRODUCER_EPOCH for an older epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap,
        INVALID_TXN_STATE for a batch wrongly inside or outside of a transaction, TRANSACTION_COORDINATOR_FENCED for the
        marker of a deposed coordinator. An unknown producer may begin with any sequence number: its earlier records may
        have been deleted.
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
        if self.verification.pending:
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
        """Record a batch that was appended at `base_offset` with largest `timestamp` (ms); also used to replay a log.
        Returns the transaction that it completed, if any.
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
        """Record a batch read from the log, unless it is already known; returns the transaction that it completed, if
        any.
        """
        completed = None
        if batch.base_offset >= self.map_end_offset or batch.last_offset >= self.map_end_offset:
            if batch.producer_id >= 0:
                completed = self.update(batch, batch.base_offset, batch.max_timestamp)
            self.map_end_offset = batch.next_offset
        return completed

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers without an open transaction that were idle for `expiration_ms`; returns how many."""
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
        """Write a snapshot at `map_end_offset` unless it exists; returns its path, not fsynced yet.

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
        """Replace the state by the newest readable snapshot from `start_offset` to `end_offset`.

        Snapshots outside this range and damaged ones are removed. Without a snapshot, the state is empty as of
        `start_offset`.
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
                    self._file_system.remove(path)  # a longer name may need disk space that only a removal frees
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


class LogProducers:
    """The producers of a log: a `ProducerStateManager`, or the snapshots to load it from."""

    __slots__ = ("_snapshot_offsets", "loaded")

    def __init__(self, snapshot_offsets: Sequence[int]) -> None:
        self._snapshot_offsets = snapshot_offsets
        self.loaded: ProducerStateManager | None = None
        """The state up to the log end, or None until it is first used."""

    @property
    def snapshot_offsets(self) -> Sequence[int]:
        """Offsets of the producer snapshots in the directory."""
        return self._snapshot_offsets if self.loaded is None else self.loaded.snapshot_offsets

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers idle for that long; returns how many. State that is not loaded is left alone."""
        return 0 if self.loaded is None else self.loaded.remove_expired(now_ms, expiration_ms)

    def use(self, state: ProducerStateManager) -> None:
        """Use this state, which reaches up to the log end."""
        self.loaded = state
        self._snapshot_offsets = ()

    def load(self, local: LocalLog) -> ProducerStateManager:
        """The state up to the end of `local`, read from snapshot and log on first use. Raises ApiError."""
        state = self.loaded
        if state is None:
            name = str(local.topic_partition)
            state = ProducerStateManager(local.file_system, local.path, name, self._snapshot_offsets)
            try:
                load_producers(state, local.segments, local.segments[0].base_offset, local.log_end_offset)
            except OSError as error:
                doing = f"Error while reading the producer state of {local.topic_partition}"
                raise local.fail(error, doing) from error
            self.use(state)
        return state


def load_producers(
    state: ProducerStateManager, segments: Sequence[LogSegment], start_offset: int, end_offset: int
) -> None:
    """Read `state` as of `end_offset`, where `segments` end, from the newest snapshot and the batches after it.

    `start_offset` is the base of the first segment of the log, not the log start, to keep as much producer state as
    possible. Raises OSError, ApiError CORRUPT_MESSAGE.
    """
    state.load(start_offset, end_offset)
    if state.map_end_offset < end_offset:
        for batch in headers_from(segments, state.map_end_offset):
            state.replay(batch)
        state.map_end_offset = end_offset
