"""CreatePartitions: codes and messages as in the answers of Apache Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.errors import ErrorCode
from tests.broker.handlers.topic_broker import Broker, topic
from tests.kit.coordination_fixtures import in_loop

FEWER = "Topic currently has 3 partitions, which is higher than the requested {}."
UNGROWN: list[tuple[int, Sequence[Sequence[int]] | None, ErrorCode, str]] = [
    (3, None, ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partitions."),
    (3, [], ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partitions."),
    (2, None, ErrorCode.INVALID_PARTITIONS, FEWER.format(2)),
    (0, None, ErrorCode.INVALID_PARTITIONS, FEWER.format(0)),
    (-1, None, ErrorCode.INVALID_PARTITIONS, FEWER.format(-1)),
    (2**31 - 1, None, ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."),
    (
        5,
        [[0]],
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Increasing the number of partitions by 2 but 1 assignments provided.",
    ),
    (
        4,
        [],
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Increasing the number of partitions by 1 but 0 assignments provided.",
    ),
    (5, [[9], [7]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Unknown broker(s) in replica assignment: 7, 9."),
    (4, [[0, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Unknown broker(s) in replica assignment: 1."),
    (5, [[0], []], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Cannot have replication factor of 0 for partition id 4."),
    (
        4,
        [[0, 0]],
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Duplicate brokers not allowed in replica assignment: 0, 0 for partition id 3.",
    ),
]


@pytest.mark.parametrize(("count", "assignments", "error_code", "message"), UNGROWN)
@in_loop
async def test_what_may_not_grow(
    count: int, assignments: Sequence[Sequence[int]] | None, error_code: ErrorCode, message: str
) -> None:
    broker = Broker()
    await broker.start()
    await broker.create(topic("t", 3))
    before = broker.image
    assert await broker.grow(("t", count, assignments)) == [("t", error_code, message)]
    assert broker.image is before


@in_loop
async def test_growth() -> None:
    broker = Broker()
    await broker.start()
    await broker.create(topic("a"), topic("b"), topic("c"), topic("d"))
    assert await broker.grow(
        ("b", 2, None), ("zz", 5, None), ("a", 2, [[0]]), ("b", 3, None), ("c", 4, None), ("aa", 9, None)
    ) == [
        ("zz", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'zz' does not exist."),
        ("a", ErrorCode.NONE, None),
        ("c", ErrorCode.NONE, None),
        ("aa", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'aa' does not exist."),
        ("b", ErrorCode.INVALID_REQUEST, "Duplicate topic in request."),
    ]
    assert await broker.grow(("d", 9, None), validate=True, timeout_ms=0) == [("d", ErrorCode.NONE, None)]
    assert [len(broker.image.topics[name].partitions) for name in "abcd"] == [2, 1, 4, 1]
    assert await broker.grow(("d", 2, None), timeout_ms=0) == [("d", ErrorCode.REQUEST_TIMED_OUT, None)]
    assert len(broker.image.topics["d"].partitions) == 2
