"""Mutated requests of every served API against a whole broker in this process.

Allowed: an answer, or a closed connection. Not allowed: an unexpected exception, a log that stopped working, unbounded
memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import sys
from collections.abc import Iterator

import pytest

from broker.network.registry import HandlerRegistry, Route
from protocol.api_keys import ApiKey
from protocol.records.batch import Record, build_batch
from tests.kit.due import due
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.wire_requests import fetch, framed, new_topic, produce, request_bytes, values_in
from tests.protocol.values import SeededSource, build

MAX_GROWTH_BYTES = 300 << 20
COMMANDS = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
"""Only the controller, or the broker itself, sends these: their purpose is to affect others."""
TOPICS = ("fuzz-a", "fuzz-b", "__consumer_offsets", "no-such-topic", "..", "a/b", "x" * 250, "")


class PlausibleSource(SeededSource):
    """Values that often get past the first check: known names, small numbers, real batches."""

    def text(self) -> str:
        return self._random.choice(TOPICS) if self._random.random() < 0.7 else super().text()

    def integer(self, low: int, high: int) -> int:
        if self._random.random() < 0.7:
            return max(low, self._random.choice([0, 0, 0, 1, -1, 100]))
        return super().integer(low, high)

    def binary(self) -> bytes:
        if self._random.random() < 0.7:
            return build_batch([Record(0, 1_700_000_000_000, b"k", self._random.randbytes(20), [])])
        return super().binary()


class Recorder(logging.Handler):
    """Keeps every record at ERROR or above."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


def frames(routes: list[Route], seed: int) -> Iterator[bytes]:
    """Endless requests: valid ones, mutated ones, truncated ones and noise."""
    chance = random.Random(seed)
    source = PlausibleSource(seed)
    while True:
        route = chance.choice(routes)
        version = chance.randint(route.min_version, route.max_version)
        frame = bytearray(request_bytes(build(route.request_type, version, source), version))
        yield bytes(frame)
        for _ in range(9):
            mutant = bytearray(frame)
            match chance.randrange(6):
                case 0:
                    del mutant[chance.randrange(len(mutant)) :]
                case 1:
                    mutant += chance.randbytes(chance.randrange(1, 20))
                case 2:
                    at = chance.randrange(len(mutant))
                    mutant[at : at + 4] = chance.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
                case 3:
                    at = chance.randrange(len(mutant))
                    del mutant[at : at + chance.randrange(1, 8)]
                case 4:
                    mutant = bytearray(chance.randbytes(chance.randrange(60)))
                case _:
                    for _ in range(chance.randrange(1, 5)):
                        mutant[chance.randrange(len(mutant))] = chance.randrange(256)
            yield bytes(mutant)


async def fuzz(count: int, seed: int, *, commands: bool = False) -> None:
    """Send requests of all clients, or those of brokers (`commands`), which may stop the broker."""
    recorder = Recorder()
    logging.getLogger().addHandler(recorder)
    logging.disable(logging.WARNING)  # a line per refused frame would be most of the work
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        async with InProcessBroker(num_partitions="2") as broker:
            witness = broker.connect()
            for topic in TOPICS[:2]:
                await witness.ask(new_topic(topic), 7)
            registry: HandlerRegistry = broker.server.serving.registry
            stream = frames([route for route in registry if (route.api_key in COMMANDS) is commands], seed)
            wire: Wire | None = None
            for number in range(count):
                if wire is None or wire.is_closed or number % 50 == 0:
                    if wire is not None:
                        wire.close()
                    wire = broker.connect()
                frame = next(stream)
                if not commands and int.from_bytes(frame[:2]) in COMMANDS:
                    continue  # a mutated API key
                wire.feed(framed(frame))
                wire.transport.written.clear()
                if number % 10 == 0:
                    await asyncio.sleep(0)
                assert not recorder.records, f"frame {number} of seed {seed}: {frame.hex()}\n{recorder.records}"
            await asyncio.sleep(0)
            if commands:
                assert not recorder.records
                return
            # Other clients are not affected.
            await witness.ask(new_topic("after"), 7)
            await witness.ask(produce("after", [b"still", b"works"]), 9)
            assert values_in(await witness.ask(fetch("after", 0), 12)) == [b"still", b"works"]
            assert not recorder.records
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger().removeHandler(recorder)
    unit = 1 if sys.platform == "darwin" else 1024
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit
    assert growth < MAX_GROWTH_BYTES


@pytest.mark.parametrize("seed", range(4))
def test_mutated_requests_disturb_nobody(seed: int) -> None:
    asyncio.run(fuzz(5_000, seed))


def test_mutated_commands_are_obeyed_or_refused() -> None:
    asyncio.run(fuzz(5_000, 1, commands=True))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", due(range(100, 110)))
def test_a_million_mutated_requests_disturb_nobody(seed: int) -> None:
    asyncio.run(fuzz(100_000, seed))
