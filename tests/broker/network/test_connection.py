"""A connection over real loopback sockets: reply order, back-pressure, limits, and what closes it."""

import asyncio
import errno
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from io import UnsupportedOperation
from pathlib import Path
from typing import Self

import pytest
import uvloop

from broker.environment.system import SystemClock, TcpNetwork, ThreadExecutor
from broker.network import socket_server
from broker.network.connection import MAX_WAITING_REQUESTS, Connection
from broker.network.file_slice import FileSlice, Part
from broker.network.limits import ConnectionLimits, ReplyMemory, RequestMemory
from broker.network.registry import CloseConnection, Waiting
from broker.network.reply_writer import Parts
from broker.network.socket_server import Endpoint, SocketServer
from protocol.api_keys import ApiKey
from protocol.errors import DecodeError
from storage.io.os_file_system import OsFileSystem

Answer = Callable[[bytes], Parts | Waiting[Parts | None] | Awaitable[Parts | None] | None]
"""An awaitable lets everything pass."""


class ScriptedDispatcher:
    """Answers every frame with what `answer` gives for it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.seen = 0

    def dispatch(self, connection: Connection, frame: memoryview) -> Parts | Waiting[Parts | None] | None:
        self.seen += 1
        answer = self._answer(bytes(frame))
        if isinstance(answer, Awaitable):
            return Waiting(asyncio.ensure_future(answer))
        return answer


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
            TcpNetwork(50), self.executor, SystemClock(), ConnectionLimits(max_connections, per_ip, {}),
            RequestMemory(queued_bytes), max_request_bytes=1_000_000, max_idle_ms=max_idle_ms,
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

    def try_send(self, socket: int, position: int, size: int) -> int | None:
        raise UnsupportedOperation


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


class ChangingFile:
    """A File on the disk that is cold, or refuses to be sent, on every so many tries."""

    def __init__(self, path: Path, content: bytes, *, cold_every: int = 1 << 30, refuses_after: int = 1 << 30) -> None:
        self._file = OsFileSystem().open(str(path))
        self._file.append([content])
        self.path = str(path)
        self.cold_every = cold_every
        self.refuses_after = refuses_after
        self.sends = 0
        self.sent_bytes = 0
        self.read_bytes = 0

    def pread(self, position: int, size: int) -> bytes:
        self.read_bytes += size
        return self._file.pread(position, size)

    def try_pread(self, position: int, size: int) -> bytes | bytearray | None:
        self.read_bytes += size
        return self._file.try_pread(position, size)

    def try_send(self, socket: int, position: int, size: int) -> int | None:
        self.sends += 1
        if self.sends % self.cold_every == 0:
            return None
        if self.sends > self.refuses_after:
            raise OSError(errno.EINVAL, "no sendfile here")
        sent = self._file.try_send(socket, position, size)
        self.sent_bytes += sent or 0
        return sent


@pytest.mark.skipif(sys.platform != "linux", reason="sendfile as Linux has it")
@pytest.mark.parametrize(
    ("circumstances", "most_read"),
    [({}, 0.4), ({"cold_every": 3}, 1.0), ({"refuses_after": 2}, 1.0)],
    ids=["warm", "cold at times", "refused in the midst"],
)
def test_the_kernel_sends_large_slices(circumstances: dict[str, int], most_read: float, tmp_path: Path) -> None:
    async def scenario() -> None:
        content = random.Random(1).randbytes(20_000_000)
        file = ChangingFile(tmp_path / "f", content, **circumstances)
        size, small = 19_000_000, 1000
        parts: list[Part] = [
            b"head", FileSlice(file, 5, size), b"mid", FileSlice(file, 7, small), FileSlice(file, 9, size), b"tail"
        ]  # fmt: skip
        expected = b"head" + content[5 : 5 + size] + b"mid" + content[7 : 7 + small] + content[9 : 9 + size] + b"tail"
        async with Rig(lambda frame: [FileSlice(part._file, part._position, len(part)) if isinstance(part, FileSlice)
                                      else part for part in parts]) as rig:  # fmt: skip
            reader, writer = await rig.connect()
            writer.write(framed(b"x") * 3)
            for turn in range(3):
                assert await reader.readexactly(len(expected)) == expected, turn
            assert file.sent_bytes > 1_000_000
            assert file.read_bytes <= most_read * 3 * len(expected)

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="sendfile as Linux has it")
def test_a_file_that_is_cut_while_it_is_sent_closes_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = ChangingFile(tmp_path / "f", bytes(30_000_000))
        async with Rig(lambda frame: [b"", FileSlice(file, 0, 30_000_000)]) as rig:  # type: ignore[arg-type]
            reader, writer = await rig.connect()
            writer.write(framed(b"x"))
            await reader.readexactly(1)
            file._file.truncate(1000)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(30_000_000)

    run(scenario())


def test_a_file_that_became_shorter_closes_the_connection() -> None:
    async def scenario() -> None:
        file = GeneratedFile(1000)
        async with Rig(lambda frame: [b"", FileSlice(file, 0, 2000)]) as rig:  # type: ignore[arg-type]
            reader, writer = await rig.connect()
            writer.write(framed(b"x"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(2000)
            writer.close()

    run(scenario())


def test_a_client_that_stops_reading_costs_little_and_stops_being_read() -> None:
    async def scenario() -> None:
        file = GeneratedFile(100_000_000)
        async with Rig(lambda frame: [b"", FileSlice(file, 0, file.size)]) as rig:  # type: ignore[arg-type]
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
            while rig.dispatcher.seen < MAX_WAITING_REQUESTS:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert rig.dispatcher.seen == MAX_WAITING_REQUESTS
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
    """A frame that begins as a request for that API does."""
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

        async with Rig(answer) as rig:
            reader, writer = await rig.connect()
            other_reader, other_writer = await rig.connect()
            #             produce waits, lets produce pass, but not metadata; create lets nothing pass
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
            for step, then in (([b"c"], [19]), ([b"d"], [3, 19]), ([b"e"], [0])):
                seen = len(order)
                waiting[-1].set_result(step)  # type: ignore[arg-type]
                while order[seen:] != then:
                    await asyncio.sleep(0.001)
            waiting[-1].set_result([b"f"])
            assert await reader.readexactly(3 + 6 + 1) == b"cd" + key(3) + b"ef"
            writer.write(framed(key(3)))
            assert await reader.readexactly(6) == key(3)

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


def test_connections_on_which_nothing_moves_are_closed_whatever_is_asked_for() -> None:
    async def scenario() -> None:
        forever: list[asyncio.Future[Parts | None]] = []

        def answer(frame: bytes) -> Parts | Awaitable[Parts | None]:
            if frame == b"wait":
                forever.append(asyncio.get_running_loop().create_future())
                return forever[-1]
            return [frame * (20_000_000 if frame == b"x" else 1)]

        async with Rig(answer, max_idle_ms=500) as rig:
            busy, busy_writer = await rig.connect()
            slow, slow_writer = await rig.connect()
            silent, _ = await rig.connect()
            waiting, waiting_writer = await rig.connect()
            waiting_writer.write(framed(b"wait"))
            _, unread_writer = await rig.connect()
            for writer in (slow_writer, unread_writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(framed(b"x"))
            while len(rig.server.connections) > 2:
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


def test_a_client_that_has_much_to_ask_lets_others_have_their_turn() -> None:
    async def scenario() -> None:
        turns: list[bytes] = []

        def answer(frame: bytes) -> Parts:
            turns.append(frame[:1])
            ends_s = time.perf_counter() + 0.002
            while time.perf_counter() < ends_s:
                pass
            return [frame]

        async with Rig(answer) as rig:
            _, greedy_writer = await rig.connect()
            reader, writer = await rig.connect()
            greedy_writer.write(framed(b"a") * 2000)
            while not turns:
                await asyncio.sleep(0)
            for _ in range(10):
                writer.write(framed(b"b"))
                assert await reader.readexactly(1) == b"b"
            assert turns.count(b"b") == 10
            assert turns.count(b"a") < 500

    run(scenario())


def test_a_client_that_reads_no_replies_is_asked_no_more() -> None:
    async def scenario() -> None:
        async with Rig(lambda frame: [frame * 1000]) as rig:
            reader, writer = await rig.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            total = 3000
            writer.write(framed(b"abcdefghij" * 10) * total)  # 300 MB of replies
            (connection,) = rig.server.connections
            while not connection.unsent_bytes:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert rig.dispatcher.seen < total / 2
            assert connection.unsent_bytes < 400_000
            memory = rig.server.reply_memory
            assert memory._held == {connection: connection.unsent_bytes}
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(total):
                assert await reader.readexactly(100_000) == b"abcdefghij" * 10_000
            while memory._held:
                await asyncio.sleep(0.001)

    run(scenario())


def test_who_reads_nothing_is_hung_up_on_while_others_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(socket_server, "STALLED_S", 0.5)
        async with Rig(lambda frame: [frame * 3_000_000]) as rig:
            rig.server.reply_memory = ReplyMemory(10_000_000)
            hogs = [await rig.connect() for _ in range(2)]
            reader, writer = await rig.connect()
            for _, hog in hogs:
                hog.transport.pause_reading()  # type: ignore[attr-defined]
                hog.write(framed(b"123456"))
            while not rig.server.reply_memory.is_exhausted:
                await asyncio.sleep(0.001)
            writer.write(framed(b"x"))
            assert await reader.readexactly(3_000_000)
            while rig.server.reply_memory.is_exhausted or len(rig.server.connections) > 2:
                await asyncio.sleep(0.001)

    run(scenario())


def test_what_a_client_that_went_has_asked_for_is_not_even_looked_at() -> None:
    async def scenario() -> None:
        async with Rig(lambda frame: [frame * 1000]) as rig:
            _, writer = await rig.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(framed(b"abcdefghij" * 100) * 200)
            (connection,) = rig.server.connections
            while not connection.unsent_bytes:
                await asyncio.sleep(0.001)
            seen = rig.dispatcher.seen
            writer.transport.abort()
            while rig.server.connections:
                await asyncio.sleep(0.001)
            assert rig.dispatcher.seen <= seen + 1

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
