"""The states of a transactional id (Kafka class `TransactionState`), its records in __transaction_state in Kafka's
formats (Kafka class `TransactionLog`), and a loader that builds all ids from a partition's log.

TransactionLogKey v0, TransactionLogValue v0 (v1 is read too); null values are tombstones.
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
    """A state, with its number in the log; `label` is its name in admin responses."""

    label: str

    def __new__(cls, number: int, label: str) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.label = label
        return member

    EMPTY = 0, "Empty"
    """The producer has its id and epoch, but did not start a transaction yet."""
    ONGOING = 1, "Ongoing"
    """Partitions were added."""
    PREPARE_COMMIT = 2, "PrepareCommit"
    """The commit is decided; markers are being written."""
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    """All partitions have their markers."""
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    """The id is being removed. Never in the log, which gets a tombstone instead."""
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"
    """Kafka's transient state while an epoch is raised, before PREPARE_ABORT. Never in the log."""


_S: Final = TransactionState

NO_TRANSACTION: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is open or ending: a new producer may take over, and an unused id may expire."""

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
"""The valid predecessors of each state."""


def may_follow(state: TransactionState, before: TransactionState) -> bool:
    """Whether a transactional id may go from `before` to `state`."""
    return before in _BEFORE[state]


NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

_VERSION: Final = 0
_VERSION_BYTES: Final = 2
_STATES: Final = {int(state): state for state in TransactionState}


class TransactionMetadata(Value):
    """A transactional id: its producer, and the open or last transaction. Times are wall-clock milliseconds; `start_ms`
    is -1 before a producer's first transaction.

    `last_producer_epoch` is the epoch before the last bump that the producer asked for, `previous_producer_id` the id
    before the current one; -1 if unset. They identify repeated requests (KIP-360). The log lacks them: after a load
    they are -1, as in Kafka.
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
    """The state of a transactional id; without a value, a tombstone."""

    transactional_id: str
    value: TransactionMetadata | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """The record's key and value. Raises EncodeError for a value that cannot be encoded."""
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
    """The transactional id in a key, or None for an unknown key version. Raises DecodeError."""
    if key is None or len(key) < _VERSION_BYTES:
        raise DecodeError("record key", -1, "", "a record of __transaction_state has no key or a cut-off one")
    if int.from_bytes(key[:_VERSION_BYTES], signed=True) != _VERSION:
        return None
    return decode_versioned(TransactionLogKey, key)[0].transactional_id


def decode_value(value: bytes) -> TransactionMetadata:
    """Decode the state. Raises DecodeError, or ApiError UNSUPPORTED_VERSION."""
    decoded, _ = decode_versioned(TransactionLogValue, value)
    state = _STATES.get(decoded.transaction_status)
    if state is None:
        problem = f"{decoded.transaction_status} is not a state of a transaction"
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
    """Builds the transactional ids from the log: feed it chunks with `take`, then call `finish`.

    It keeps the last value of each key as bytes, and decodes only the survivors in the end. It shares nothing, so it
    may run on any thread.
    """

    def __init__(self) -> None:
        self._latest: dict[bytes | None, bytes] = {}

    def take(self, batches: memoryview) -> int | None:
        """Take the complete batches at the start of `batches`. Returns the offset after them, or None without any.

        Raises ApiError for a batch with unreadable records.
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
        """The transactional ids. Unreadable records are logged and skipped. Empties the loader."""
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
