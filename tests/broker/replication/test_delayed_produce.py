"""Appends that wait for acknowledgement: what ends the wait, and how."""

from __future__ import annotations

import asyncio

from broker.replication.delayed_operations import DelayedProduce, Purgatory
from cluster.replication.partition import ACKS_ALL
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class FakePartition:
    """Acknowledges everything below `end`, unless it has an error."""

    def __init__(self) -> None:
        self.end = 0
        self.error: ApiError | None = None

    def is_acknowledged(self, last_offset: int, required_acks: int) -> bool:
        assert required_acks == ACKS_ALL
        if self.error is not None:
            raise self.error
        return last_offset < self.end


class Fixture:
    """Two partitions, and a purgatory."""

    def __init__(self) -> None:
        self.purgatory = Purgatory("Produce")
        self.partitions = {A: FakePartition(), B: FakePartition()}

    def wait(
        self, *appends: tuple[TopicPartition, int], timeout_ms: int | None = 60_000
    ) -> asyncio.Future[list[ApiError | None]]:
        delayed = DelayedProduce(self.partitions.__getitem__, ACKS_ALL, appends, list)  # type: ignore[arg-type]
        return self.purgatory.watch(delayed.keys(), timeout_ms, delayed.attempt)  # type: ignore[return-value,arg-type]

    async def grow(self, key: TopicPartition, end: int) -> None:
        self.partitions[key].end = end
        self.purgatory.wake(key)
        await asyncio.sleep(0)


def codes(errors: list[ApiError | None]) -> list[ErrorCode | None]:
    return [None if error is None else error.error_code for error in errors]


def test_all_appends_of_a_request_are_waited_for() -> None:
    async def scenario() -> None:
        fixture = Fixture()
        waiting = fixture.wait((A, 4), (B, 2), (A, 5))
        await fixture.grow(A, 5)
        await fixture.grow(B, 9)
        assert not waiting.done()
        await fixture.grow(A, 6)
        assert await waiting == [None, None, None]
        await asyncio.sleep(0)
        assert fixture.purgatory.size == 0

    asyncio.run(scenario())


def test_what_is_late_is_answered_so_and_the_rest_as_it_is() -> None:
    async def scenario() -> None:
        fixture = Fixture()
        waiting = fixture.wait((A, 0), (B, 0), (A, 1), timeout_ms=20)
        await fixture.grow(A, 1)
        assert codes(await waiting) == [None, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT]

    asyncio.run(scenario())


def test_a_partition_that_went_away_is_answered_with_its_error() -> None:
    async def scenario() -> None:
        fixture = Fixture()
        waiting = fixture.wait((A, 0), (B, 0))
        fixture.partitions[A].error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads")
        fixture.purgatory.wake(A)
        await fixture.grow(B, 1)
        assert codes(await waiting) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, None]

    asyncio.run(scenario())


def test_what_cannot_happen_is_not_waited_for_unless_it_has_happened() -> None:
    async def scenario() -> None:
        fixture = Fixture()
        waiting = fixture.wait((A, 0), (A, 7))
        fixture.partitions[A].end = 1
        fixture.purgatory.wake(A, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full"))
        assert codes(await waiting) == [None, ErrorCode.KAFKA_STORAGE_ERROR]

    asyncio.run(scenario())
