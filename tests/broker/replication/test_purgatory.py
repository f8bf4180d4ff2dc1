"""Delayed operations: woken once a turn, expired in time, forgotten when cancelled."""

import asyncio

import pytest

from broker.replication.delayed_operations import DelayedOperation, Purgatory, Woken
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_many_wakes_of_one_turn_examine_an_operation_once() -> None:
    async def scenario() -> tuple[str, int]:
        purgatory = Purgatory("Fetch")
        attempts: list[bool] = []

        def attempt(woken: Woken, expired: bool) -> str | None:
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

        def attempt(woken: Woken, expired: bool) -> str | None:
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
        future = purgatory.watch([A], 60_000, lambda woken, expired: "x")
        future.cancel()
        await asyncio.sleep(0)
        purgatory.wake(A)
        await asyncio.sleep(0)
        return purgatory.size

    assert asyncio.run(scenario()) == 0


def test_an_error_of_the_attempt_reaches_the_waiter() -> None:
    async def scenario() -> None:
        purgatory = Purgatory("Fetch")

        def attempt(woken: Woken, expired: bool) -> str | None:
            raise ValueError("the log is gone")

        future = purgatory.watch([A], 60_000, attempt)
        purgatory.wake(A)
        with pytest.raises(ValueError, match="the log is gone"):
            await future

    asyncio.run(scenario())


def test_an_operation_is_told_what_changed() -> None:
    async def scenario() -> list[Woken]:
        purgatory = Purgatory("Fetch")
        told: list[Woken] = []

        def attempt(woken: Woken, expired: bool) -> str | None:
            told.append(woken)
            return "done" if len(told) == 2 else None

        failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        future = purgatory.watch([A, B], 60_000, attempt)
        purgatory.wake(B)
        await asyncio.sleep(0)
        purgatory.wake(A)
        purgatory.wake(B, failure)
        purgatory.wake(B)
        await future
        assert [{key: error and str(error) for key, error in woken.items()} for woken in told] == [
            {B: None},
            {A: None, B: str(failure)},
        ]
        return told

    assert asyncio.run(scenario())


def test_changes_before_the_wait_are_not_missed() -> None:
    async def scenario() -> Woken:
        purgatory = Purgatory("Fetch")
        operation: DelayedOperation[Woken] = DelayedOperation(purgatory, [A, B], lambda woken, expired: woken)
        purgatory.wake(B)
        await asyncio.sleep(0)
        found = await operation.wait(60_000)
        await asyncio.sleep(0)
        assert purgatory.size == 0
        return found

    assert asyncio.run(scenario()) == {B: None}


def test_operations_are_completed_in_the_order_in_which_they_came() -> None:
    async def scenario() -> list[int]:
        purgatory = Purgatory("Fetch")
        done: list[int] = []
        futures = []
        for number in range(100):
            futures.append(purgatory.watch([A], None, lambda woken, expired, number=number: done.append(number) or "x"))
        purgatory.wake(A)
        await asyncio.gather(*futures)
        return done

    assert asyncio.run(scenario()) == list(range(100))
