"""Keys and values in `__transaction_state`, each behind an int16 version: see `encode_versioned`.

A null value deletes the transactional id that the key names.
"""

from __future__ import annotations

from protocol.wire.schema import Message, Struct, int8, int16, int32, int64, string


class TransactionLogKey(Message, versions="0"):
    """The transactional id that the value is about."""

    transactional_id: string


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """Producer and state of a transactional id; v1, flexible, is written only with transactions v2 (KIP-890)."""

    class PartitionsSchema(Struct):
        """Partitions of one topic that take part in the transaction."""

        topic: string
        partition_ids: list[int32]

    producer_id: int64
    producer_epoch: int16
    transaction_timeout_ms: int32
    transaction_status: int8
    transaction_partitions: list[PartitionsSchema] | None = None
    transaction_last_update_timestamp_ms: int64
    transaction_start_timestamp_ms: int64
