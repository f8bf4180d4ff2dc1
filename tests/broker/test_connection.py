"""A connection over real loopback sockets: reply order, back-pressure, limits, and what closes it."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Self

import pytest
import uvloop

from broker.network.connection import MAX_WAITING_REQUESTS, Connection, Parts
from broker.network.file_slice import FileSlice
from broker.network.limits import ConnectionLimits, RequestMemory
from broker.network.server import Endpoint, SocketServer
from broker.registry import CloseConnection
from broker.system import TcpNetwork, ThreadExecutor
from protocol.errors import DecodeError

Answer = Callable[[bytes], Parts | Awaitable[Parts | None] | None]


class ScriptedDispatcher:
    """Answers every frame with what `answer` gives for it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.seen = 0

    def dispatch(self, connection: Connection, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        self.seen += 1
        return self._answer(bytes(frame))


class Rig:
    """A SocketServer on an ephemeral port with a scripted dispatcher."""

    def __init__(
        self,
        answer: Answer,
        *,
        max_connections: int = 100,
        per_ip: int = 100,
        max_idle_ms: int = -1,
        queued_bytes: int = -1,
    ) -> None:
        self.executor = ThreadExecutor(2)
        self.writers: list[asyncio.StreamWriter] = []
        self.dispatcher = ScriptedDispatcher(answer)
        self.server = SocketServer(
            TcpNetwork(50), self.executor, ConnectionLimits(max_connections, per_ip, {}), RequestMemory(queued_bytes),
            max_request_bytes=1_000_000, max_idle_ms=max_idle_ms,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        await self.server.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0)])
        await self.server.start(self.dispatcher)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop_listening()
        self.server.close_connections()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)
        self.executor.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = await asyncio.open_connection("127.0.0.1", self.server.ports["PLAINTEXT"])
        self.writers.append(streams[1])
        return streams


LOOP_FACTORIES: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
"""The loop that `run` uses, set for each test."""


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 30) == b""
    except ConnectionResetError:
        return True


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 60)

    with asyncio.Runner(loop_factory=LOOP_FACTORIES[0]) as runner:
        runner.run(bounded())


@pytest.fixture(autouse=True, params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def _every_loop(request: pytest.FixtureRequest) -> None:
    LOOP_FACTORIES[0] = request.param


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

        async with Rig(answer) as rig:
            reader, writer = await rig.connect()
            for word in (b"wait1.", b"now2.", b"silent", b"wait3.", b"now4."):
                writer.write(framed(word))
            while rig.dispatcher.seen < 5:
                await asyncio.sleep(0.001)
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

        async with Rig(answer) as rig:
            reader, writer = await rig.connect()
            other_reader, other_writer = await rig.connect()
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
        async with Rig(lambda frame: [frame]) as rig:
            reader, writer = await rig.connect()
            writer.write(struct.pack(">i", length) + b"x" * 100)
            assert await is_closed(reader)
            assert rig.dispatcher.seen == 0
            writer.close()

    run(scenario())


class GeneratedFile:
    """A File of `size` bytes whose content is known; counts what is read; cold on every second try."""

    def __init__(self, size: int) -> None:
        self.path = "generated"
        self.size = size
        self.read_bytes = 0
        self.tries = 0

    def pread(self, position: int, size: int) -> bytes:
        size = max(0, min(size, self.size - position))
        self.read_bytes += size
        return bytes((position + i) & 0xFF for i in range(min(size, 16))).ljust(size, b"-")

    def try_pread(self, position: int, size: int) -> bytes | None:
        self.tries += 1
        return None if self.tries % 2 else self.pread(position, size)


def test_a_file_slice_is_sent_whole_cold_or_warm() -> None:
    async def scenario() -> None:
        file = GeneratedFile(5_000_000)
        async with Rig(lambda frame: [b"head", FileSlice(file, 0, file.size), b"tail"]) as rig:  # type: ignore[arg-type]
            reader, writer = await rig.connect()
            writer.write(framed(b"x") * 2)
            for _ in range(2):
                assert await reader.readexactly(4) == b"head"
                assert len(await reader.readexactly(file.size)) == file.size
                assert await reader.readexactly(4) == b"tail"
            writer.close()

    run(scenario())


def test_a_file_that_became_shorter_closes_the_connection() -> None:
    async def scenario() -> None:
        file = GeneratedFile(1000)
        async with Rig(lambda frame: [FileSlice(file, 0, 2000)]) as rig:  # type: ignore[arg-type]
            reader, writer = await rig.connect()
            writer.write(framed(b"x"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(2000)
            writer.close()

    run(scenario())


def test_a_client_that_stops_reading_costs_little_and_stops_being_read() -> None:
    async def scenario() -> None:
        file = GeneratedFile(100_000_000)
        async with Rig(lambda frame: [FileSlice(file, 0, file.size)]) as rig:  # type: ignore[arg-type]
            reader, writer = await rig.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(50):
                writer.write(framed(b"more"))
            await asyncio.sleep(0.3)
            # What was read from the file fits in the socket's buffers and one chunk, not in 50 answers of 100 MB.
            assert file.read_bytes < 30_000_000
            writer.transport.abort()
            del reader

    run(scenario())


def test_too_many_waiting_requests_pause_reading_until_they_are_answered() -> None:
    async def scenario() -> None:
        waiting: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Awaitable[Parts | None]:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        async with Rig(answer) as rig:
            reader, writer = await rig.connect()
            total = 60_000
            writer.write(framed(b"ab" * 10) * total)
            while rig.dispatcher.seen <= MAX_WAITING_REQUESTS:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.2)
            stalled_at = rig.dispatcher.seen
            # One read of the shared buffer may go beyond the limit, no more.
            assert stalled_at < total / 4
            answered = 0
            received = 0
            while received < total:
                for future in waiting[answered:]:
                    future.set_result([b"y"])
                    answered += 1
                received += len(await reader.read(1 << 20))
            writer.close()

    run(scenario())


def test_connections_over_the_limit_of_their_address_are_refused() -> None:
    async def scenario() -> None:
        async with Rig(lambda frame: [frame], per_ip=1) as rig:
            reader, writer = await rig.connect()
            writer.write(framed(b"a"))
            assert await reader.readexactly(1) == b"a"
            refused, refused_writer = await rig.connect()
            assert await is_closed(refused)
            writer.close()
            refused_writer.close()
            while rig.server.connections:
                await asyncio.sleep(0.001)
            again, again_writer = await rig.connect()
            again_writer.write(framed(b"b"))
            assert await again.readexactly(1) == b"b"
            again_writer.close()

    run(scenario())


def test_connections_over_the_brokers_limit_wait_for_a_place() -> None:
    async def scenario() -> None:
        async with Rig(lambda frame: [frame], max_connections=1) as rig:
            reader, writer = await rig.connect()
            writer.write(framed(b"a"))
            assert await reader.readexactly(1) == b"a"
            second, second_writer = await rig.connect()
            await asyncio.sleep(0.05)
            second_writer.write(framed(b"b"))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(second.read(1), 0.1)
            writer.close()
            assert await second.readexactly(1) == b"b"
            second_writer.close()
            del reader

    run(scenario())


def test_requests_in_pieces_share_the_memory_for_them() -> None:
    async def scenario() -> None:
        async with Rig(lambda frame: [frame[:1]], queued_bytes=100_000) as rig:
            large, memory = framed(b"x" * 200_000), rig.server.request_memory
            first, first_writer = await rig.connect()
            first_writer.write(large[:150_000])
            while not memory._held:
                await asyncio.sleep(0.001)
            second, second_writer = await rig.connect()
            second_writer.write(large[:150_000])
            while not memory._waiting:
                await asyncio.sleep(0.001)
            second_writer.write(large[150_000:])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(second.read(1), 0.1)
            first_writer.write(large[150_000:])
            assert await first.readexactly(1) == b"x"
            assert await second.readexactly(1) == b"x"
            first_writer.close()
            second_writer.close()

    run(scenario())


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async def scenario() -> None:
        forever: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Parts | Awaitable[Parts | None]:
            if frame == b"wait":
                forever.append(asyncio.get_running_loop().create_future())
                return forever[-1]
            return [frame]

        async with Rig(answer, max_idle_ms=300) as rig:
            idle, idle_writer = await rig.connect()
            waiting, waiting_writer = await rig.connect()
            waiting_writer.write(framed(b"wait"))
            assert await is_closed(idle)
            forever[0].set_result([b"done"])
            assert await waiting.readexactly(4) == b"done"
            idle_writer.close()
            waiting_writer.close()

    run(scenario())


def test_hanging_up_cancels_what_waits() -> None:
    async def scenario() -> None:
        waiting: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Awaitable[Parts | None]:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        async with Rig(answer) as rig:
            _, writer = await rig.connect()
            writer.write(framed(b"x"))
            while not waiting:
                await asyncio.sleep(0.001)
            writer.transport.abort()
            while not waiting[0].cancelled():
                await asyncio.sleep(0.001)
            assert not rig.server.connections

    run(scenario())
