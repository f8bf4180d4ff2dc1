"""Slices of files in replies: cold or warm, sent completely or not at all."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from broker.network.reply_writer import FileSlice, Part
from storage.io.os_file_system import OsFile, OsFileSystem
from tests.broker.network.scripted_server import ScriptedServer, framed, run

pytestmark = pytest.mark.usefixtures("every_loop")


class GeneratedFile:
    """A File of `size` bytes with known content; counts the bytes read; every second try is cold."""

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

    def try_pread_into(self, position: int, buffer: memoryview) -> int | None:
        data = self.try_pread(position, len(buffer))
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)


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


class ColdAtTimes(OsFile):
    """A file on a disk that keeps every `cold_every`-th large read waiting."""

    cold_every = 1 << 30
    tries = 0

    @staticmethod
    def create(path: Path, content: bytes, cold_every: int = 1 << 30) -> ColdAtTimes:
        file = ColdAtTimes(OsFileSystem(), str(path), 0)
        path.touch()
        file.append([content])
        file.cold_every = cold_every
        return file

    def try_pread_into(self, position: int, buffer: bytearray | memoryview) -> int | None:
        self.tries += 1
        return None if self.tries % self.cold_every == 0 else super().try_pread_into(position, buffer)


@pytest.mark.parametrize("cold_every", [1 << 30, 3], ids=["warm", "cold at times"])
def test_large_and_small_slices_are_sent_in_their_order(cold_every: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        content = random.Random(1).randbytes(20_000_000)
        file = ColdAtTimes.create(tmp_path / "f", content, cold_every)
        size, small = 19_000_000, 1000

        def answer(frame: bytes) -> list[Part]:
            """Each request needs a new reply: sending a slice consumes it."""
            return [
                b"head",
                FileSlice(file, 5, size),
                b"mid",
                FileSlice(file, 7, small),
                FileSlice(file, 9, size),
                b".",
            ]

        expected = b"head" + content[5 : 5 + size] + b"mid" + content[7 : 7 + small] + content[9 : 9 + size] + b"."
        async with ScriptedServer(answer) as scripted:
            reader, writer = await scripted.connect()
            writer.write(framed(b"x") * 3)
            for turn in range(3):
                assert await reader.readexactly(len(expected)) == expected, turn
            assert file.tries > 3 * 38

    run(scenario())


def test_a_client_that_reads_late_gets_its_own_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        size = 10_000_000
        files = [ColdAtTimes.create(tmp_path / name, name.encode() * size) for name in "ab"]
        async with ScriptedServer(lambda frame: [b"", FileSlice(files[frame == b"b"], 0, size)]) as scripted:
            late_reader, late = await scripted.connect()
            late.transport.pause_reading()  # type: ignore[attr-defined]
            late.write(framed(b"a"))
            while not files[0].tries:
                await asyncio.sleep(0.01)
            # The socket took part of the data read for it. Other clients are served meanwhile.
            for _ in range(3):
                reader, writer = await scripted.connect()
                writer.write(framed(b"b"))
                assert await reader.readexactly(size) == b"b" * size
            late.transport.resume_reading()  # type: ignore[attr-defined]
            assert await late_reader.readexactly(size) == b"a" * size

    run(scenario())


def test_a_file_that_is_cut_while_it_is_sent_closes_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = ColdAtTimes.create(tmp_path / "f", bytes(30_000_000))
        async with ScriptedServer(lambda frame: [b"", FileSlice(file, 0, 30_000_000)]) as scripted:
            reader, writer = await scripted.connect()
            writer.write(framed(b"x"))
            await reader.readexactly(1)
            file.truncate(1000)
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
            # The data read fits in the socket's buffers and one chunk, unlike 50 answers of 100 MB.
            assert file.read_bytes < 30_000_000
            writer.transport.abort()
            del reader

    run(scenario())
