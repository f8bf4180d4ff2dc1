"""Connection limits and the memory of requests: which connections wait, are refused, or come next."""

from __future__ import annotations

import asyncio
import mmap
import weakref

import pytest

from broker.network.limits import TURN_BYTES, ConnectionLimits, ConnectionRates, ReceivingTurn
from broker.network.memory import (
    DECODED_TIMES,
    LEAST_ARRIVED_BYTES,
    PROGRESS_BYTES,
    LargeRequestMemory,
    ReplyMemory,
    RequestMemory,
)
from cluster.quotas.client_quota import QuotaWindow
from tests.kit.environment import ManualClock
from tests.kit.waiting import eventually_on_loop


class FakeConnection:
    """Records why it is not reading."""

    def __init__(self, address: str = "127.0.0.1", listener: str = "PLAINTEXT") -> None:
        self.client_address = address
        self.listener_name = listener
        self.counted = False
        self.paused: set[str] = set()
        self.received_of_frame: int | None = None
        self.is_closed = False

    def close(self, _reason: str) -> None:
        self.is_closed = True

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.discard(reason)


def test_an_address_over_its_limit_is_refused_with_kafkas_words() -> None:
    limits = ConnectionLimits(100, 2, {})
    first, second, third = FakeConnection(), FakeConnection(), FakeConnection()
    assert limits.admit(first) is None
    assert limits.admit(second) is None
    refusal = limits.admit(third)
    assert refusal == (
        "Rejected connection from /127.0.0.1, address already has the configured maximum of 2 connections."
    )
    assert limits.admit(FakeConnection("127.0.0.2")) is None
    limits.release(third)  # it was never counted
    limits.release(first)
    assert limits.admit(FakeConnection()) is None


def test_an_override_for_an_address_wins() -> None:
    limits = ConnectionLimits(100, 100, {"127.0.0.9": 0})
    assert limits.admit(FakeConnection("127.0.0.9")) is not None
    assert limits.admit(FakeConnection("127.0.0.8")) is None


def test_over_the_brokers_limit_connections_wait_unread_in_order() -> None:
    limits = ConnectionLimits(1, 100, {})
    first, second, third, fourth = (FakeConnection() for _ in range(4))
    for connection in (first, second, third, fourth):
        assert limits.admit(connection) is None
    assert [bool(c.paused) for c in (first, second, third, fourth)] == [False, True, True, True]
    limits.release(third)  # hangs up while it waits: releases no slot
    limits.release(first)
    assert not second.paused
    assert fourth.paused
    limits.change(2, 100, {})
    assert not fourth.paused


def test_a_full_listener_keeps_its_own_connections_waiting_and_no_others() -> None:
    limits = ConnectionLimits(3, 100, {}, per_listener={"A": 1})
    one, two, three = (FakeConnection(listener="A") for _ in range(3))
    others = [FakeConnection(listener="B") for _ in range(3)]
    for connection in (one, two, three, *others):
        assert limits.admit(connection) is None
    assert [bool(each.paused) for each in (one, two, three, *others)] == [False, True, True, False, False, True]
    limits.release(others[0])
    assert not others[2].paused
    assert two.paused
    limits.release(one)
    assert not two.paused
    assert three.paused
    limits.release(others[1])
    limits.change(3, 100, {}, {"A": 2})
    assert not three.paused


def test_connections_leave_the_logs_their_descriptors() -> None:
    limits = ConnectionLimits(2, 100, {}, most_open=3)
    connections = [FakeConnection() for _ in range(3)]
    assert [limits.admit(each) for each in connections] == [None] * 3
    refusal = limits.admit(FakeConnection("127.0.0.2"))
    assert refusal == (
        "Rejected connection from /127.0.0.2, 3 connections are open, and the other files that this process may open "
        "(ulimit -n) are reserved for the logs."
    )
    limits.release(connections[2])  # a waiting one
    assert limits.admit(FakeConnection()) is None
    assert limits.admit(FakeConnection()) is not None


def test_request_memory_is_given_in_order_and_never_starves_the_last() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        first, second, third = FakeConnection(), FakeConnection(), FakeConnection()
        memory.take(first, 90)
        memory.take(second, 90)  # some was left, so it may overdraw
        assert not second.paused
        memory.take(third, 500)
        assert third.paused
        memory.release(first)
        assert not third.paused
        memory.release(second)
        memory.release(third)
        fourth = FakeConnection()
        memory.take(fourth, 1)
        assert not fourth.paused

    asyncio.run(scenario())


def test_request_memory_forgets_those_that_hang_up_while_they_wait() -> None:
    async def scenario() -> None:
        memory = RequestMemory(10)
        first, second, third = FakeConnection(), FakeConnection(), FakeConnection()
        memory.take(first, 10)
        memory.take(second, 10)
        memory.take(third, 10)
        memory.release(second)
        memory.release(first)
        assert not third.paused
        assert second.paused  # a closed connection is never resumed

    asyncio.run(scenario())


def test_request_memory_that_is_needed_no_longer_goes_to_those_that_wait() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        first, second = FakeConnection(), FakeConnection()
        memory.take(first, 150)
        memory.take(second, 10)
        assert not memory.shrink(second, 5)  # it has no memory yet
        assert memory.shrink(first, 120)
        assert second.paused
        assert memory.shrink(first, 90)
        assert not second.paused

    asyncio.run(scenario())


def test_a_connection_that_waits_for_more_memory_keeps_what_it_has() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        first, second = FakeConnection(), FakeConnection()
        memory.take(first, 100)
        memory.take(second, 10)
        memory.take(first, 50)
        assert first.paused
        assert second.paused
        assert not memory.shrink(first, 60)
        memory.release(first)
        assert not second.paused
        assert first.paused  # it stopped waiting, and has no memory
        memory.release(second)
        third = FakeConnection()
        memory.take(third, 100)
        assert not third.paused

    asyncio.run(scenario())


def test_frames_that_do_not_arrive_are_closed_once_others_wait() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        moving, slow, stalled, complete, waiting = (FakeConnection() for _ in range(5))
        moving.received_of_frame, slow.received_of_frame, stalled.received_of_frame = 0, 7, 7
        for each in (moving, slow, stalled):
            memory.take(each, 25)
        memory.take(complete, 25)
        memory.take(waiting, 25)

        moving.received_of_frame = PROGRESS_BYTES
        slow.received_of_frame = 8
        memory._close_stalled()
        assert [each.is_closed for each in (moving, slow, stalled, complete)] == [False, False, True, False]
        memory.release(stalled)
        assert not waiting.paused
        memory._close_stalled()
        assert not slow.is_closed, "nobody waits any more"

    asyncio.run(scenario())


def test_the_newest_of_an_address_is_closed_when_too_much_waits_for_request_memory() -> None:
    async def scenario() -> None:
        memory = RequestMemory(100)
        holder, client = FakeConnection(), FakeConnection("127.0.0.2")
        memory.take(holder, 100)
        memory.take(client, 1000, LEAST_ARRIVED_BYTES // 4)
        strangers = [FakeConnection("127.0.0.3") for _ in range(5)]
        for each in strangers:
            memory.take(each, 1000, LEAST_ARRIVED_BYTES // 4)
        assert [each.is_closed for each in strangers] == [False, False, False, True, True]
        assert not client.is_closed
        for each in strangers[3:]:
            memory.release(each)
        memory.release(holder)
        assert not client.paused

    asyncio.run(scenario())


def test_large_requests_wait_for_memory_and_addresses_take_turns() -> None:
    async def scenario() -> None:
        memory = LargeRequestMemory(100 * DECODED_TIMES)
        first, *others = [memory.take("127.0.0.1", 120) for _ in range(4)]
        client = memory.take("127.0.0.2", 120)
        turns = [first, *others, client]

        def granted() -> list[bool]:
            return [turn.granted.done() for turn in turns]

        assert granted() == [True, False, False, False, False]
        others[1].end()  # it hung up
        first.end()
        first.end()
        assert granted() == [True, True, False, False, False]
        others[0].end()
        assert granted() == [True, True, False, False, True], "the other address has its turn"
        client.end()
        assert others[2].granted.done()
        others[2].end()
        assert memory.take("127.0.0.1", 1).granted.done()

    asyncio.run(scenario())


def test_a_large_request_that_takes_long_keeps_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("broker.network.memory.LONGEST_TURN_S", 0)
        memory = LargeRequestMemory(1)
        memory.take("127.0.0.1", 1)
        await memory.take("127.0.0.1", 1).granted

    asyncio.run(scenario())


def test_without_a_limit_nobody_waits() -> None:
    memory = RequestMemory(-1)
    for size in (1 << 30,) * 8:
        connection = FakeConnection()
        memory.take(connection, size)
        assert not connection.paused


class FakeAnswered:
    """Counts how often it is resumed."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.client_address = address
        self.unsent_bytes = 0
        self.taken_up = 0
        self.is_closed = False

    def schedule_processing(self) -> None:
        self.taken_up += 1

    def close(self, _reason: str) -> None:
        self.is_closed = True


def test_reply_memory_lets_an_address_wait_while_too_much_of_its_replies_is_unread() -> None:
    async def scenario() -> None:
        memory = ReplyMemory(100)
        hog, other, gone, stranger = FakeAnswered(), FakeAnswered(), FakeAnswered(), FakeAnswered("127.0.0.2")
        assert not memory.must_wait(other)
        memory.hold(hog, 60)
        memory.hold(hog, 101)
        assert memory.is_exhausted
        assert memory.must_wait(other)
        assert memory.must_wait(gone)
        assert not memory.must_wait(stranger)
        memory.forget(gone)
        memory.hold(hog, 201)
        assert memory.must_wait(stranger), "twice the limit"
        memory.hold(hog, 100)
        assert (hog.taken_up, other.taken_up, gone.taken_up, stranger.taken_up) == (0, 1, 0, 1)
        memory.hold(other, 50)
        assert memory.must_wait(other)
        memory.forget(hog)
        assert not memory.is_exhausted
        assert other.taken_up == 2

    asyncio.run(scenario())


def test_a_turn_receives_so_much_of_incomplete_frames() -> None:
    async def scenario() -> None:
        turn = ReceivingTurn()
        connections = [FakeConnection() for _ in range(4)]
        for _ in range(3):
            for each in connections:
                turn.count(each, TURN_BYTES // 2)
            assert [bool(each.paused) for each in connections] == [False, True, True, True]
            await asyncio.sleep(0)
            assert not any(each.paused for each in connections)

    asyncio.run(scenario())


def test_incomplete_frames_are_freed_one_in_a_turn() -> None:
    async def scenario() -> None:
        turn = ReceivingTurn()
        memories = [mmap.mmap(-1, 4096) for _ in range(5)]
        alive = [weakref.ref(memory) for memory in memories]
        while memories:
            turn.free(memories.pop())
        for left in (5, 4, 3, 2, 1, 0):
            assert sum(memory() is not None for memory in alive) == left
            await asyncio.sleep(0)

    asyncio.run(scenario())


def waiting(connections: list[FakeConnection]) -> list[int]:
    """The numbers of the paused ones."""
    return [number for number, each in enumerate(connections) if each.paused]


def accepted(rates: ConnectionRates, count: int, listener: str = "PLAINTEXT") -> list[FakeConnection]:
    connections = [FakeConnection(listener=listener) for _ in range(count)]
    for each in connections:
        rates.admit(each)
    return connections


def test_connections_beyond_a_rate_wait_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        rates = ConnectionRates(clock, QuotaWindow(2, 1000))
        rates.change(2**31 - 1, {"OUTSIDE": 5}, None)
        assert waiting(accepted(rates, 50, "PLAINTEXT")) == []
        # Five per second, over the full window and the new one.
        connections = accepted(rates, 8, "OUTSIDE")
        assert waiting(connections) == [5, 6, 7]
        rates.release(connections[6])
        await asyncio.sleep(0)
        assert waiting(accepted(rates, 5, "PLAINTEXT")) == []
        clock.ms += 60_000
        await eventually_on_loop("the last is read", lambda: not connections[7].paused, pause_s=0.01)
        assert waiting(connections) == [6]
        assert waiting(accepted(rates, 3, "OUTSIDE")) == []

    asyncio.run(scenario())


def test_the_listener_of_brokers_is_exempt_from_the_rate_of_all() -> None:
    async def scenario() -> None:
        rates = ConnectionRates(ManualClock(), QuotaWindow(2, 1000))
        rates.change(5, {}, "INSIDE")
        assert waiting(accepted(rates, 50, "INSIDE")) == []
        assert waiting(accepted(rates, 6, "OUTSIDE")) == [5]
        rates.change(2**31 - 1, {}, "INSIDE")
        assert waiting(accepted(rates, 6, "OTHER")) == []

    asyncio.run(scenario())


def test_those_who_do_not_read_are_closed_and_those_who_do_are_not() -> None:
    async def scenario() -> None:
        memory = ReplyMemory(10 * PROGRESS_BYTES)
        reader, small, large = (FakeAnswered() for _ in range(3))
        for each, share in ((reader, 9), (small, 4), (large, 5)):
            each.unsent_bytes = share * PROGRESS_BYTES
            memory.hold(each, each.unsent_bytes)
        before = {each: each.unsent_bytes for each in (reader, small, large)}
        reader.unsent_bytes -= PROGRESS_BYTES
        memory._close_stalled(before)
        assert [each.is_closed for each in (reader, small, large)] == [False, True, True]
        memory.forget(large)
        assert memory.is_exhausted
        memory.forget(small)
        assert not memory.is_exhausted

    asyncio.run(scenario())
