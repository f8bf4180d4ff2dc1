"""Records of __transaction_state, in Kafka's formats: TransactionLogKey v0, TransactionLogValue v0 (v1 is read too). No
value: a tombstone. (Kafka class `TransactionLog`.)
"""

from __future__ import annotations

from typing import Final

from cluster.transactions.transaction_state import TransactionState
from protocol.errors import DecodeError
from protocol.messages.transactions import TransactionLogKey, TransactionLogValue
from protocol.topic_partition import TopicPartition, by_topic
from protocol.value import Value, field
from protocol.wire.schema import decode_versioned, encode_versioned

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
