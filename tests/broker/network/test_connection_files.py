"""Slices of files in replies: sent by the kernel or read, cold or warm, whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import random
import sys
from io import UnsupportedOperation
from pathlib import Path

import pytest

from broker.network.file_slice import FileSlice, Part
from storage.io.os_file_system import OsFileSystem
from tests.broker.network.scripted_server import ScriptedServer, framed, run

pytestmark = pytest.mark.usefixtures("every_loop")


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
        async with ScriptedServer(lambda frame: [b"head", FileSlice(file, 0, file.size), b"tail"]) as scripted:  # type: ignore[arg-type]
            reader, writer = await scripted.connect()
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

        def answer(frame: bytes) -> list[Part]:
            """A reply of its own for each request: sending a slice uses it up."""
            return [
                FileSlice(part._file, part._position, len(part)) if isinstance(part, FileSlice) else part
                for part in parts
            ]

        async with ScriptedServer(answer) as scripted:
            reader, writer = await scripted.connect()
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
        async with ScriptedServer(lambda frame: [b"", FileSlice(file, 0, 30_000_000)]) as scripted:  # type: ignore[arg-type]
            reader, writer = await scripted.connect()
            writer.write(framed(b"x"))
            await reader.readexactly(1)
            file._file.truncate(1000)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(30_000_000)

    run(scenario())


def test_a_file_that_became_shorter_closes_the_connection() -> None:
    async def scenario() -> None:
        file = GeneratedFile(1000)
        async with ScriptedServer(lambda frame: [b"", FileSlice(file, 0, 2000)]) as scripted:  # type: ignore[arg-type]
            reader, writer = await scripted.connect()
            writer.write(framed(b"x"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(2000)
            writer.close()

    run(scenario())


def test_a_client_that_stops_reading_costs_little_and_stops_being_read() -> None:
    async def scenario() -> None:
        file = GeneratedFile(100_000_000)
        async with ScriptedServer(lambda frame: [b"", FileSlice(file, 0, file.size)]) as scripted:  # type: ignore[arg-type]
            reader, writer = await scripted.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(50):
                writer.write(framed(b"more"))
            await asyncio.sleep(0.3)
            # What was read from the file fits in the socket's buffers and one chunk, not in 50 answers of 100 MB.
            assert file.read_bytes < 30_000_000
            writer.transport.abort()
            del reader

    run(scenario())
