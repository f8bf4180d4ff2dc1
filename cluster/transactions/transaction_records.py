"""The states of a transactional id (Kafka class `TransactionState`), its records in __transaction_state in Kafka's
formats (Kafka class `TransactionLog`), and the ids that a partition's log builds.

TransactionLogKey v0, TransactionLogValue v0 (v1 is read too); no value is a tombstone.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Final, Self

from protocol.errors import ApiError, DecodeError
from protocol.messages.transactions import TransactionLogKey, TransactionLogValue
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition, by_topic
from protocol.value import Value, field
from protocol.wire.schema import decode_versioned, encode_versioned


class TransactionState(IntEnum):
    """A state, with its number in the log; `label` is its name for administrators."""

    label: str

    def __new__(cls, number: int, label: str) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.label = label
        return member

    EMPTY = 0, "Empty"
    """The producer has its id and epoch, and no transaction yet."""
    ONGOING = 1, "Ongoing"
    """Partitions were added."""
    PREPARE_COMMIT = 2, "PrepareCommit"
    """It is decided that the transaction is committed; markers are being written."""
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    """All partitions have their markers."""
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    """The id is being forgotten. Never in the log, which has a tombstone then."""
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"
    """Kafka's name for the moment before PREPARE_ABORT in which an epoch is raised. Never in the log."""


_S: Final = TransactionState

NO_TRANSACTION: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""Nothing is open or being ended: a new producer may take over, and an old id may be forgotten."""

ENDING: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})

_BEFORE: Final = {
    _S.EMPTY: NO_TRANSACTION,
    _S.ONGOING: NO_TRANSACTION | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: NO_TRANSACTION,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
"""The states that each may follow."""


def may_follow(state: TransactionState, before: TransactionState) -> bool:
    """Whether `state` may come next when a transactional id is in `before`."""
    return before in _BEFORE[state]


NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

_VERSION: Final = 0
_VERSION_BYTES: Final = 2
_STATES: Final = {int(state): state for state in TransactionState}


class TransactionMetadata(Value):
    """A transactional id: its producer, and the transaction that is open or was the last. Times are wall-clock
    milliseconds; `start_ms` is -1 before the first transaction of a producer.

    `last_producer_epoch` is the epoch before the one that the producer itself asked to raise, `previous_producer_id`
    the id before the last one; -1 when there is none. By them a request that is sent again is recognized (KIP-360).
    The log does not have them: after a load they are -1, as in Kafka.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    last_update_ms: int
    start_ms: int
    last_producer_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)
    previous_producer_id: int = field(default=NO_PRODUCER_ID, compare=False)


class TransactionRecord(Value):
    """The state of a transactional id; without a value, its end."""

    transactional_id: str
    value: TransactionMetadata | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Key and value as they stand in the log. Raises EncodeError for a value that cannot be written."""
        key = encode_versioned(TransactionLogKey(transactional_id=self.transactional_id), _VERSION)
        metadata = self.value
        if metadata is None:
            return key, None
        topics = None
        if metadata.state is not TransactionState.EMPTY:
            topics = [
                TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=partitions)
                for topic, partitions in by_topic(sorted(metadata.partitions)).items()
            ]
        value = TransactionLogValue(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            transaction_timeout_ms=metadata.timeout_ms,
            transaction_status=metadata.state,
            transaction_partitions=topics,
            transaction_last_update_timestamp_ms=metadata.last_update_ms,
            transaction_start_timestamp_ms=metadata.start_ms,
        )
        return key, encode_versioned(value, _VERSION)


def decode_key(key: bytes | None) -> str | None:
    """The transactional id that a key names; None for a key of another version. Raises DecodeError."""
    if key is None or len(key) < _VERSION_BYTES:
        raise DecodeError("record key", -1, "", "a record of __transaction_state has no key or a cut-off one")
    if int.from_bytes(key[:_VERSION_BYTES], signed=True) != _VERSION:
        return None
    return decode_versioned(TransactionLogKey, key)[0].transactional_id


def decode_value(value: bytes) -> TransactionMetadata:
    """The state in a record. Raises DecodeError, or ApiError UNSUPPORTED_VERSION, for what cannot be read."""
    decoded, _ = decode_versioned(TransactionLogValue, value)
    state = _STATES.get(decoded.transaction_status)
    if state is None:
        problem = f"{decoded.transaction_status} is no state of a transaction"
        raise DecodeError("TransactionLogValue", -1, "transaction_status", problem)
    return TransactionMetadata(
        producer_id=decoded.producer_id,
        producer_epoch=decoded.producer_epoch,
        timeout_ms=decoded.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(each.topic, partition)
            for each in decoded.transaction_partitions or ()
            for partition in each.partition_ids
        ),
        last_update_ms=decoded.transaction_last_update_timestamp_ms,
        start_ms=decoded.transaction_start_timestamp_ms,
    )


logger = logging.getLogger("kafka.coordinator.transaction.TransactionStateManager")


class TransactionLoader:
    """Takes the log chunk by chunk with `take`; `finish` gives the transactional ids.

    Values are kept as bytes, the last one of each key, and only those that are left in the end are decoded. Uses
    nothing that anybody else uses, so it may run on any thread.
    """

    def __init__(self) -> None:
        self._latest: dict[bytes | None, bytes] = {}

    def take(self, batches: memoryview) -> int | None:
        """Take the complete batches that `batches` begins with; gives the offset behind them, or None without any.

        Raises ApiError for a batch whose records cannot be read.
        """
        next_offset, latest = None, self._latest
        for batch in read_batches(batches):
            next_offset = batch.next_offset
            if batch.is_control:
                continue
            for _, _, key, value, _ in batch.records():
                if value is None:
                    latest.pop(key, None)
                else:
                    latest[key] = value
        return next_offset

    def finish(self) -> dict[str, TransactionMetadata]:
        """The transactional ids. A record that cannot be read is logged and left out. The loader is empty then."""
        found = {}
        while self._latest:
            key, value = self._latest.popitem()
            try:
                transactional_id = decode_key(key)
                if transactional_id is not None:
                    found[transactional_id] = decode_value(value)
            except (DecodeError, ApiError) as error:
                logger.error("A record of __transaction_state cannot be read and is left out: %s", error)
        return found
