"""Waiting operations: woken once a turn, expired in time, forgotten when cancelled."""

import asyncio

import pytest

from broker.purgatory import Purgatory
from protocol.topic_partition import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_many_wakes_of_one_turn_examine_an_operation_once() -> None:
    async def scenario() -> tuple[str, int]:
        purgatory = Purgatory("Fetch")
        attempts: list[bool] = []

        def attempt(expired: bool) -> str | None:
            attempts.append(expired)
            return "done"

        future = purgatory.watch([A, B], 60_000, attempt)
        for _ in range(5):
            purgatory.wake(A)
            purgatory.wake(B)
        result = await future
        assert purgatory.size == 0
        purgatory.wake(A)
        await asyncio.sleep(0)
        return result, len(attempts)

    assert asyncio.run(scenario()) == ("done", 1)


def test_an_unsatisfied_operation_waits_on_and_ends_when_its_time_is_over() -> None:
    async def scenario() -> list[bool]:
        purgatory = Purgatory("Fetch")
        attempts: list[bool] = []

        def attempt(expired: bool) -> str | None:
            attempts.append(expired)
            return "late" if expired else None

        future = purgatory.watch([A], 20, attempt)
        purgatory.wake(A)
        purgatory.wake(B)
        assert await future == "late"
        return attempts

    assert asyncio.run(scenario()) == [False, True]


def test_cancelling_forgets_the_operation() -> None:
    async def scenario() -> int:
        purgatory = Purgatory("Fetch")
        future = purgatory.watch([A], 60_000, lambda expired: "x")
        future.cancel()
        await asyncio.sleep(0)
        purgatory.wake(A)
        await asyncio.sleep(0)
        return purgatory.size

    assert asyncio.run(scenario()) == 0


def test_an_error_of_the_attempt_reaches_the_waiter() -> None:
    async def scenario() -> None:
        purgatory = Purgatory("Fetch")

        def attempt(expired: bool) -> str | None:
            raise ValueError("the log is gone")

        future = purgatory.watch([A], 60_000, attempt)
        purgatory.wake(A)
        with pytest.raises(ValueError, match="the log is gone"):
            await future

    asyncio.run(scenario())
