"""Rejects the batches that an idempotent producer sent after a rejected one, for the same reason.

A producer has up to five batches in flight. Suppose one is rejected because its partition moves, too few replicas are
in sync or the disk is full, and the cause is gone before the next batch is processed. Kafka rejects that one with
OUT_OF_ORDER_SEQUENCE_NUMBER. Librdkafka then starts a new producer epoch and resends everything unacknowledged, even
what is already stored, and brokers cannot detect the duplicates.

Therefore a batch that directly follows a rejected one on the same connection gets the same error. The producer resends
all of them, in order. A resent batch that is out of order gets that error: its predecessor is no longer the last
rejected batch.
"""

from __future__ import annotations

from typing import Final

from broker.network.registry import RequestContext
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import NO_SEQUENCE, increment_sequence
from protocol.topic_partition import TopicPartition

RETRIABLE: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors after which a producer resends the same batch."""
MAX_REMEMBERED: Final = 1000
"""Maximum partitions with remembered rejections, per connection."""


def refuse_whole_flight(
    context: RequestContext, topic_partition: TopicPartition, records: memoryview, error: ApiError
) -> ApiError:
    """Choose the error of a batch whose append failed with `error`.

    `context` belongs to the connection and remembers the last rejected batch of each producer.
    """
    error_code = error.error_code
    is_out_of_order = error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    refused = context.refused_batches
    if len(records) < HEADER_BYTES or not (refused if is_out_of_order else error_code in RETRIABLE):
        return error
    batch = RecordBatch(records)
    if batch.base_sequence == NO_SEQUENCE:
        return error
    if refused is None:
        refused = context.refused_batches = {}
    key = (topic_partition, batch.producer_id, batch.producer_epoch)
    if is_out_of_order:
        last_sequence, error_code = refused.get(key, (NO_SEQUENCE, error_code))
        if last_sequence == NO_SEQUENCE or increment_sequence(last_sequence, 1) != batch.base_sequence:
            return error
        error = ApiError(error_code, f"the preceding batch of {topic_partition} was rejected")
    elif len(refused) >= MAX_REMEMBERED:
        refused.clear()
    refused[key] = (batch.last_sequence, error_code)
    return error
