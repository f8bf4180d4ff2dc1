"""A connection over real loopback sockets: reply order, back-pressure, and what closes it."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable
from functools import partial

import pytest

from broker.network.connection import MAX_WAITING_REQUESTS
from broker.network.registry import CloseConnection, Waiting
from broker.network.reply_writer import Parts
from protocol.api_keys import ApiKey
from protocol.errors import DecodeError
from tests.broker.network.scripted_server import ScriptedServer, framed, is_closed, run
from tests.kit.waiting import eventually_on_loop

pytestmark = pytest.mark.usefixtures("every_loop")


def test_replies_leave_in_request_order_though_they_are_ready_in_another() -> None:
    async def scenario() -> None:
        waiting: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Parts | Awaitable[Parts | None] | None:
            if frame.startswith(b"silent"):
                return None
            if frame.startswith(b"wait"):
                waiting.append(asyncio.get_running_loop().create_future())
                return waiting[-1]
            return [frame]

        async with ScriptedServer(answer) as scripted:
            reader, writer = await scripted.connect()
            for word in (b"wait1.", b"now2.", b"silent", b"wait3.", b"now4."):
                writer.write(framed(word))
            await eventually_on_loop("all five requests were seen", lambda: scripted.dispatcher.seen == 5)
            waiting[1].set_result([b"3."])
            await asyncio.sleep(0.01)
            waiting[0].set_result([b"1."])
            assert await reader.readexactly(len(b"1.now2.3.now4.")) == b"1.now2.3.now4."
            writer.close()

    run(scenario())


@pytest.mark.parametrize("error", [CloseConnection("no"), DecodeError("X", 1, "f", "bad"), RuntimeError("a bug"), None])
def test_what_a_handler_raises_closes_this_connection_and_no_other(error: Exception | None) -> None:
    async def scenario() -> None:
        async def fail_later() -> Parts | None:
            await asyncio.sleep(0)
            raise CloseConnection("later")

        def answer(frame: bytes) -> Parts | Awaitable[Parts | None] | None:
            if frame == b"fail":
                if error is None:
                    return fail_later()
                raise error
            return [frame]

        async with ScriptedServer(answer) as scripted:
            reader, writer = await scripted.connect()
            other_reader, other_writer = await scripted.connect()
            writer.write(framed(b"fail"))
            assert await is_closed(reader)
            other_writer.write(framed(b"fine"))
            assert await other_reader.readexactly(4) == b"fine"
            writer.close()
            other_writer.close()

    run(scenario())


@pytest.mark.parametrize("length", [-1, -(2**31), 1_000_001, 2**31 - 1])
def test_an_impossible_length_closes_the_connection(length: int) -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame]) as scripted:
            reader, writer = await scripted.connect()
            writer.write(struct.pack(">i", length) + b"x" * 100)
            assert await is_closed(reader)
            assert scripted.dispatcher.seen == 0
            writer.close()

    run(scenario())


def test_too_many_waiting_requests_pause_reading_until_they_are_answered() -> None:
    async def scenario() -> None:
        waiting: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Awaitable[Parts | None]:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        async with ScriptedServer(answer) as scripted:
            reader, writer = await scripted.connect()
            total = 60_000
            writer.write(framed(b"ab" * 10) * total)
            await eventually_on_loop(
                "as many requests as may wait", lambda: scripted.dispatcher.seen >= MAX_WAITING_REQUESTS
            )
            await asyncio.sleep(0.05)
            assert scripted.dispatcher.seen == MAX_WAITING_REQUESTS
            answered = 0
            received = 0
            while received < total:
                for future in waiting[answered:]:
                    future.set_result([b"y"])
                    answered += 1
                received += len(await reader.read(1 << 20))
            writer.close()

    run(scenario())


def key(number: int) -> bytes:
    """A frame that begins like a request for that API."""
    return struct.pack(">hi", number, 0)


def test_nothing_is_taken_up_behind_what_has_effects_until_it_is_done() -> None:
    async def scenario() -> None:
        order: list[int] = []
        blockers = {19: frozenset[ApiKey](), 0: frozenset({ApiKey.PRODUCE})}
        waiting: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Parts | Waiting[Parts | None]:
            (api_key,) = struct.unpack_from(">h", frame)
            order.append(api_key)
            if api_key not in blockers:
                return [frame]
            waiting.append(asyncio.get_running_loop().create_future())
            return Waiting(waiting[-1], blockers[api_key])

        async with ScriptedServer(answer) as scripted:
            reader, writer = await scripted.connect()
            other_reader, other_writer = await scripted.connect()
            # produce waits, and lets produce pass, but not metadata; create lets nothing pass
            stream = b"".join(framed(key(number)) for number in (0, 0, 3, 0, 19, 3, 19, 0))
            for piece in (stream[:13], stream[13:50], stream[50:]):
                writer.write(piece)
                await asyncio.sleep(0.02)
            assert order == [0, 0]
            other_writer.write(framed(key(3)) * 2)
            assert await other_reader.readexactly(12) == key(3) * 2
            del order[2:]
            waiting[1].set_result([b"b"])
            await asyncio.sleep(0.01)
            assert order == [0, 0]
            waiting[0].set_result([b"a"])
            assert await reader.readexactly(2 + 6) == b"ab" + key(3)
            await asyncio.sleep(0.01)
            assert order == [0, 0, 3, 0]

            def they_are_seen(seen: int, then: list[int]) -> bool:
                return order[seen:] == then

            for step, then in (([b"c"], [19]), ([b"d"], [3, 19]), ([b"e"], [0])):
                waiting[-1].set_result(step)  # type: ignore[arg-type]
                await eventually_on_loop("those behind it", partial(they_are_seen, len(order), then))
            waiting[-1].set_result([b"f"])
            assert await reader.readexactly(3 + 6 + 1) == b"cd" + key(3) + b"ef"
            writer.write(framed(key(3)))
            assert await reader.readexactly(6) == key(3)

    run(scenario())


def test_a_client_that_has_much_to_ask_lets_others_have_their_turn() -> None:
    async def scenario() -> None:
        turns: list[bytes] = []

        def answer(frame: bytes) -> Parts:
            turns.append(frame[:1])
            ends_s = time.perf_counter() + 0.002
            while time.perf_counter() < ends_s:
                pass
            return [frame]

        async with ScriptedServer(answer) as scripted:
            _, greedy_writer = await scripted.connect()
            reader, writer = await scripted.connect()
            greedy_writer.write(framed(b"a") * 2000)
            await eventually_on_loop("the first request", lambda: turns)
            for _ in range(10):
                writer.write(framed(b"b"))
                assert await reader.readexactly(1) == b"b"
            assert turns.count(b"b") == 10
            assert turns.count(b"a") < 500

    run(scenario())


def test_what_a_client_that_went_has_asked_for_is_not_even_looked_at() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame * 1000]) as scripted:
            _, writer = await scripted.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(framed(b"abcdefghij" * 100) * 200)
            (connection,) = scripted.server.connections
            await eventually_on_loop("a reply that is not sent", lambda: connection.unsent_bytes)
            seen = scripted.dispatcher.seen
            writer.transport.abort()
            await eventually_on_loop("no connection left", lambda: not scripted.server.connections)
            assert scripted.dispatcher.seen <= seen + 1

    run(scenario())


def test_hanging_up_cancels_what_waits() -> None:
    async def scenario() -> None:
        waiting: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Awaitable[Parts | None]:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        async with ScriptedServer(answer) as scripted:
            _, writer = await scripted.connect()
            writer.write(framed(b"x"))
            await eventually_on_loop("the request waits", lambda: waiting)
            writer.transport.abort()
            await eventually_on_loop("it is cancelled", waiting[0].cancelled)
            assert not scripted.server.connections

    run(scenario())
