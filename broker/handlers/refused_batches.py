"""Refusals of batches that an idempotent producer had on their way behind a refused one: for the same reason.

A producer sends up to five batches without waiting. When one is refused because its partition moves, too few replicas
are in sync, or no room is left, and the reason goes away before the next is looked at, Kafka refuses that with
OUT_OF_ORDER_SEQUENCE_NUMBER. Librdkafka then begins a new producer epoch and sends everything that is not acknowledged
again, even what is stored, and no broker can tell that it is.

So a batch that follows directly on one that was refused on the same connection is refused in the same way. The producer
sends all of them again, in order. One that is out of order when it is sent again is told so: what it follows on then is
no longer the last that was refused.
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
"""Refusals after which a producer sends the same batch again."""
MAX_REMEMBERED: Final = 1000
"""Partitions of which a connection remembers a refusal."""


def refuse_whole_flight(
    context: RequestContext, topic_partition: TopicPartition, records: memoryview, error: ApiError
) -> ApiError:
    """The refusal of a batch whose append has failed with `error`.

    `context` is that of its connection, and remembers the last batch of each producer that was refused.
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
        error = ApiError(error_code, f"a batch of {topic_partition} was refused that this one follows on")
    elif len(refused) >= MAX_REMEMBERED:
        refused.clear()
    refused[key] = (batch.last_sequence, error_code)
    return error
