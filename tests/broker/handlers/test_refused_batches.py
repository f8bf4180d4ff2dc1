"""Batches directly after a refused one, and other batches."""

from __future__ import annotations

import pytest

from broker.handlers.refused_batches import MAX_REMEMBERED, refuse_whole_flight
from broker.network.registry import RequestContext
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition

TP = TopicPartition("t", 0)
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
MAX_SEQUENCE = 2**31 - 1


class Flight:
    """One connection, and the refusals that it receives."""

    def __init__(self) -> None:
        self.context = RequestContext(11, "c", "127.0.0.1", "PLAINTEXT")

    def told(
        self,
        sequence: int,
        error_code: ErrorCode,
        *,
        records: int = 1,
        topic_partition: TopicPartition = TP,
        producer: tuple[int, int] = (7, 0),
    ) -> ErrorCode:
        """Refuse a batch of this many records."""
        batch = build_batch(
            [Record(0, 0, None, b"", [])] * records,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
        error = ApiError(error_code, "")
        return refuse_whole_flight(self.context, topic_partition, memoryview(batch), error).error_code


@pytest.mark.parametrize(
    "refusal",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_flight_is_refused_as_its_first_batch_is(refusal: ErrorCode) -> None:
    flight = Flight()
    assert flight.told(5, refusal, records=3) is refusal
    assert [flight.told(each, OUT_OF_ORDER) for each in (8, 9, 10)] == [refusal] * 3


def test_what_is_out_of_order_when_it_is_sent_again_is_told_so() -> None:
    flight = Flight()
    flight.told(5, ErrorCode.NOT_ENOUGH_REPLICAS)
    told = [flight.told(6, OUT_OF_ORDER) for _ in range(3)]
    assert told == [ErrorCode.NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, OUT_OF_ORDER]


@pytest.mark.parametrize("sequence", [5, 7])
def test_another_batch_is_out_of_order(sequence: int) -> None:
    flight = Flight()
    assert flight.told(sequence, OUT_OF_ORDER) is OUT_OF_ORDER
    flight.told(5, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert flight.told(sequence, OUT_OF_ORDER) is OUT_OF_ORDER


def test_nobody_else_is_refused_with_it() -> None:
    flight = Flight()
    flight.told(5, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert flight.told(6, OUT_OF_ORDER, producer=(7, 1)) is OUT_OF_ORDER
    assert flight.told(6, OUT_OF_ORDER, producer=(8, 0)) is OUT_OF_ORDER
    assert flight.told(6, OUT_OF_ORDER, topic_partition=TopicPartition("t", 1)) is OUT_OF_ORDER
    assert Flight().told(6, OUT_OF_ORDER) is OUT_OF_ORDER


def test_sequences_go_on_at_zero() -> None:
    flight = Flight()
    flight.told(MAX_SEQUENCE, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert flight.told(0, OUT_OF_ORDER) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_other_refusals_and_other_producers_leave_no_trace() -> None:
    flight = Flight()
    assert flight.told(5, ErrorCode.INVALID_PRODUCER_EPOCH) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert flight.told(-1, ErrorCode.NOT_ENOUGH_REPLICAS, producer=(-1, -1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    refused = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, "")
    assert refuse_whole_flight(flight.context, TP, memoryview(b"short"), refused) is refused
    assert flight.context.refused_batches is None


def test_a_connection_does_not_remember_without_end() -> None:
    flight = Flight()
    for partition in range(3 * MAX_REMEMBERED):
        flight.told(5, ErrorCode.NOT_ENOUGH_REPLICAS, topic_partition=TopicPartition("t", partition))
        assert flight.context.refused_batches is not None
        assert len(flight.context.refused_batches) <= MAX_REMEMBERED
