"""Limits on connections, on the memory of requests and replies, and on idle time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from broker.network import limits
from broker.network import memory as memory_limits
from broker.network.memory import ReplyMemory
from broker.network.reply_writer import Parts
from protocol.wire.frames import SHARED_BYTES
from tests.broker.network.scripted_server import ScriptedServer, framed, is_closed, run
from tests.kit.waiting import eventually_on_loop

pytestmark = pytest.mark.usefixtures("every_loop")


def test_connections_over_the_limit_of_their_address_are_refused() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], per_ip=1) as scripted:
            reader, writer = await scripted.connect()
            writer.write(framed(b"a"))
            assert await reader.readexactly(1) == b"a"
            refused, refused_writer = await scripted.connect()
            assert await is_closed(refused)
            writer.close()
            refused_writer.close()
            await eventually_on_loop("no connection left", lambda: not scripted.server.connections)
            again, again_writer = await scripted.connect()
            again_writer.write(framed(b"b"))
            assert await again.readexactly(1) == b"b"
            again_writer.close()

    run(scenario())


def test_connections_over_the_brokers_limit_wait_for_a_place() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], max_connections=1) as scripted:
            reader, writer = await scripted.connect()
            writer.write(framed(b"a"))
            assert await reader.readexactly(1) == b"a"
            second, second_writer = await scripted.connect()
            await asyncio.sleep(0.05)
            second_writer.write(framed(b"b"))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(second.read(1), 0.1)
            writer.close()
            assert await second.readexactly(1) == b"b"
            second_writer.close()
            del reader

    run(scenario())


def test_requests_in_pieces_share_the_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "PROGRESS_S", 60)

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame[:1]], queued_bytes=100_000) as scripted:
            large, memory = framed(b"x" * 200_000), scripted.server.request_memory
            first, first_writer = await scripted.connect()
            first_writer.write(large[:150_000])
            await eventually_on_loop("memory is held", lambda: memory._held)
            second, second_writer = await scripted.connect()
            second_writer.write(large[:150_000])
            await eventually_on_loop("the second request waits for memory", lambda: memory._waiting)
            second_writer.write(large[150_000:])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(second.read(1), 0.1)
            first_writer.write(large[150_000:])
            assert await first.readexactly(1) == b"x"
            assert await second.readexactly(1) == b"x"
            first_writer.close()
            second_writer.close()

    run(scenario())


def test_a_request_that_is_served_keeps_its_memory_when_its_client_hangs_up() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame[:1]], queued_bytes=100_000) as scripted:
            memory = scripted.server.request_memory
            first, first_writer = await scripted.connect()
            first_writer.write(framed(b"x"))
            assert await first.readexactly(1) == b"x"
            (served,) = scripted.server.connections
            served.hold_request(100_000)
            served._apply_limits()
            second, second_writer = await scripted.connect()
            second_writer.write(framed(b"y" * 200_000)[:150_000])
            await eventually_on_loop("the second request waits", lambda: memory._waiting)
            first_writer.close()
            await eventually_on_loop("the first one is gone", lambda: served.closed)
            await eventually_on_loop("one is open", lambda: len(scripted.server.connections) == 1)
            assert list(memory._held) == [served]
            assert served not in memory._waiting
            served.release_request(100_000)
            assert not memory._waiting
            second_writer.close()
            del second

    run(scenario())


def test_half_a_request_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "PROGRESS_S", 0.05)

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame[:1]], queued_bytes=100_000) as scripted:
            large, memory = framed(b"x" * 200_000), scripted.server.request_memory
            half, half_writer = await scripted.connect()
            half_writer.write(large[:150_000])
            await eventually_on_loop("memory is held", lambda: memory._held)
            other, other_writer = await scripted.connect()
            other_writer.write(large)
            assert await asyncio.wait_for(other.readexactly(1), 30) == b"x"
            assert await is_closed(half)
            other_writer.close()

    run(scenario())


def test_large_requests_are_received_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_BYTES", 1 << 20)
    received: list[int] = []
    freed: list[int] = []

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame[:1]]) as scripted:
            scripted.server.max_request_bytes = 1 << 25
            turn = scripted.server.receiving_turn
            go_on, free = turn._next, turn.free
            monkeypatch.setattr(turn, "_next", lambda: (received.append(turn._received), go_on()))
            monkeypatch.setattr(turn, "free", lambda memory: (freed.append(len(memory)), free(memory)))
            large = framed(b"x" * 20_000_000)
            half, half_writer = await scripted.connect()
            half_writer.write(large[:15_000_000])
            other, other_writer = await scripted.connect()
            other_writer.write(large)
            assert await other.readexactly(1) == b"x"
            await eventually_on_loop("half a frame is here", lambda: sum(received) > 30_000_000)
            half_writer.close()
            await eventually_on_loop("the memory of half a frame is freed", lambda: freed)
            other_writer.close()
            del half

    run(scenario())
    assert max(received) <= (1 << 20) + 2 * SHARED_BYTES


def test_connections_on_which_nothing_moves_are_closed_whatever_is_asked_for() -> None:
    async def scenario() -> None:
        forever: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Parts | Awaitable[Parts | None]:
            if frame == b"wait":
                forever.append(asyncio.get_running_loop().create_future())
                return forever[-1]
            return [frame * (20_000_000 if frame == b"x" else 1)]

        async with ScriptedServer(answer, max_idle_ms=500) as scripted:
            busy, busy_writer = await scripted.connect()
            slow, slow_writer = await scripted.connect()
            silent, _ = await scripted.connect()
            waiting, waiting_writer = await scripted.connect()
            waiting_writer.write(framed(b"wait"))
            _, unread_writer = await scripted.connect()
            for writer in (slow_writer, unread_writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(framed(b"x"))
            while len(scripted.server.connections) > 2:
                busy_writer.write(framed(b"busy"))
                assert await busy.readexactly(4) == b"busy"
                slow_writer.transport.resume_reading()  # type: ignore[attr-defined]
                await slow.read(100_000)
                slow_writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(0.02)
            assert await is_closed(silent)
            assert await is_closed(waiting)
            assert forever[0].cancelled()

    run(scenario())


def test_a_client_that_reads_no_replies_is_asked_no_more() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame * 1000]) as scripted:
            reader, writer = await scripted.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            total = 3000
            writer.write(framed(b"abcdefghij" * 10) * total)  # 300 MB of replies
            (connection,) = scripted.server.connections
            await eventually_on_loop("a reply that is not sent", lambda: connection.unsent_bytes)
            await asyncio.sleep(0.05)
            assert scripted.dispatcher.seen < total / 2
            assert connection.unsent_bytes < 400_000
            memory = scripted.server.reply_memory
            assert memory._held == {connection: connection.unsent_bytes}
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(total):
                assert await reader.readexactly(100_000) == b"abcdefghij" * 10_000
            await eventually_on_loop("all memory given back", lambda: not memory._held)

    run(scenario())


def test_who_reads_nothing_is_hung_up_on_while_others_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(memory_limits, "PROGRESS_S", 0.2)
        async with ScriptedServer(lambda frame: [frame * 3_000_000]) as scripted:
            scripted.server.reply_memory = ReplyMemory(10_000_000)
            hogs = [await scripted.connect() for _ in range(2)]
            reader, writer = await scripted.connect()
            for _, hog in hogs:
                hog.transport.pause_reading()  # type: ignore[attr-defined]
                hog.write(framed(b"123456"))
            await eventually_on_loop("no memory left", lambda: scripted.server.reply_memory.is_exhausted)
            writer.write(framed(b"x"))
            assert await reader.readexactly(3_000_000)
            memory = scripted.server.reply_memory
            await eventually_on_loop(
                "those who read nothing are gone",
                lambda: not memory.is_exhausted and len(scripted.server.connections) <= 2,
            )

    run(scenario())
