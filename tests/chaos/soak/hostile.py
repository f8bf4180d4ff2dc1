"""A hostile client: it floods a cluster in ways drawn from a seed, one broker at a time or all of them.

`python -m tests.chaos.soak.hostile` reads `Orders` as a line of JSON, floods until its standard input ends, and prints
a line when a flood begins. It is a separate process, because encoding large requests would hold up other threads.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from tests.kit import heavy_requests as heavy

ROOT = Path(__file__).resolve().parents[3]
KINDS = 10
"""How many kinds of floods one run draws."""
LONGEST_PAUSE_S = 3.0
PATIENCE_S = 20.0
TOPIC = "hostile"
"""The topic that this client produces to."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() reset the connection."""


@dataclass
class Orders:
    """The addresses to flood, and the seed. `secured` are SASL_SSL listeners."""

    brokers: list[str]
    secured: list[str]
    seed: int


@functools.cache
def built(make: Callable[[], bytes]) -> bytes:
    """A request, encoded once."""
    return make()


def connected(address: str, stack: ExitStack) -> socket.socket:
    """A connection that is reset on close, as if the client had died. Raises OSError."""
    host, _, port = address.rpartition(":")
    client = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return client


def read_answer(client: socket.socket) -> None:
    """Read and discard an answer, or the end of the connection."""
    missing = 0
    size = client.recv(4, socket.MSG_WAITALL)
    if len(size) == 4:
        missing = int.from_bytes(size, "big")
    while missing > 0 and (data := client.recv(min(missing, 1 << 20))):
        missing -= len(data)


def at_once(count: int, do: Callable[[], None]) -> None:
    """Run it in this many threads; connection errors are ignored."""

    def unless_refused() -> None:
        with contextlib.suppress(OSError):
            do()

    threads = [threading.Thread(target=unless_refused) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


HALF_A_HELLO = bytes.fromhex("1603010200") + bytes(200)
"""The header of a TLS record of 512 bytes, and part of its body."""


def declared_records() -> bytes:
    """A batch for this client's topic."""
    return heavy.produce_declared(TOPIC)


class HostileClient:
    """The floods. Each takes an address, returns when it is over, and may raise OSError."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._members = 0

    def ask(self, make: Callable[[], bytes], address: str) -> None:
        """Send one request, and return its answer."""
        with ExitStack() as stack:
            client = connected(address, stack)
            client.sendall(built(make))
            read_answer(client)

    def half_frames(self, address: str, held_s: float) -> None:
        """Open ten connections with 80 MB of a 100 MB frame each, hold them for a while and reset them."""

        def send() -> None:
            with ExitStack() as stack:
                client = connected(address, stack)
                client.settimeout(held_s + 5)
                with contextlib.suppress(TimeoutError):
                    client.sendall(built(heavy.half_frame))
                time.sleep(held_s)

        at_once(10, send)

    def many_connections(self, address: str, count: int, data: bytes, held_s: float = 0) -> None:
        """Open this many connections that send something, wait, and are reset."""
        with ExitStack() as stack:
            for _ in range(count):
                connected(address, stack).sendall(data)
            time.sleep(held_s)

    def join(self, address: str) -> None:
        """Join a new group with 50 MB of metadata."""
        self._members += 1
        number = self._members
        with ExitStack() as stack:
            client = connected(address, stack)
            client.sendall(heavy.join_group(1, metadata=bytes(50_000_000), group_number=number))
            read_answer(client)

    def garbage(self, address: str) -> None:
        """Fifty connections with frames of random bytes."""
        for _ in range(50):
            with contextlib.suppress(OSError), ExitStack() as stack:
                client = connected(address, stack)
                data = self._chance.randbytes(self._chance.randrange(1, 10_000))
                client.sendall(struct.pack(">i", len(data)) + data)
                client.shutdown(socket.SHUT_WR)
                read_answer(client)

    def garbage_by_tls(self, address: str) -> None:
        """Twenty connections that send garbage instead of SASL after the TLS handshake."""
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        for _ in range(20):
            with contextlib.suppress(OSError), ExitStack() as stack:
                client = stack.enter_context(trusting.wrap_socket(connected(address, stack)))
                data = self._chance.randbytes(self._chance.randrange(1, 10_000))
                client.sendall(struct.pack(">i", len(data)) + data)
                client.recv(1)

    def floods(self) -> dict[str, Callable[[str], None]]:
        """The floods for any listener."""

        def asking(make: Callable[[], bytes]) -> Callable[[str], None]:
            return functools.partial(self.ask, make)

        def six_metadata(address: str) -> None:
            at_once(6, lambda: self.ask(heavy.metadata_of_unknown, address))

        return {
            "half frames, held": lambda address: self.half_frames(address, 5),
            "half frames, reset": lambda address: self.half_frames(address, 0),
            "2,000 connections, reset": lambda address: self.many_connections(address, 2_000, b"\0"),
            "garbage": self.garbage,
            "Fetch of 999,000 partitions": asking(heavy.fetch_unknown),
            "Metadata of 500,000 names": asking(heavy.metadata_of_unknown),
            "Metadata of one name": asking(heavy.metadata_of_one),
            "six Metadata at once": six_metadata,
            "ListOffsets of 999,000 partitions": asking(heavy.list_offsets_of_unknown),
            "OffsetForLeaderEpoch of 999,000 partitions": asking(heavy.epochs_of_unknown),
            "OffsetFetch of 999,000 partitions": asking(heavy.offset_fetch),
            "Produce of 500,000 empty partitions": asking(heavy.produce_nothing),
            "Produce of 2^31-1 declared records": asking(declared_records),
            "JoinGroup of 500,000 protocols": asking(heavy.join_group),
            "JoinGroup of 50 MB": self.join,
            "CreateTopics of 100,000 bad names": asking(heavy.create_bad_names),
        }

    def floods_of_secured(self) -> dict[str, Callable[[str], None]]:
        """The floods for listeners with TLS."""
        return {
            "600 half-open handshakes": lambda address: self.many_connections(address, 600, HALF_A_HELLO, 10),
            "SASL garbage": self.garbage_by_tls,
        }


FOR_ALL_BROKERS = ("JoinGroup", "OffsetFetch", "Produce of 2^31-1")
"""Only the coordinator or the leader fully handles these, so each broker gets them."""


def draw(client: HostileClient, orders: Orders, chance: random.Random) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Draw floods of `KINDS` kinds forever, as (name, address, flood); all TLS floods are among them."""
    kinds, secured = client.floods(), client.floods_of_secured() if orders.secured else {}
    chosen = [*chance.sample(list(kinds), KINDS - len(secured)), *secured]
    while True:
        for name in chance.sample(chosen, len(chosen)):
            targets = orders.secured if name in secured else orders.brokers
            if not name.startswith(FOR_ALL_BROKERS):
                targets = [chance.choice(targets)]
            for target in targets:
                yield name, target, functools.partial((kinds | secured)[name], target)


def main() -> None:
    """Flood until standard input ends."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    chance = random.Random(orders.seed)
    for name, target, flood in draw(HostileClient(chance), orders, chance):
        print(f"{name}: {target}", flush=True)
        with contextlib.suppress(OSError):
            flood()
        if select.select([sys.stdin], [], [], chance.uniform(0, LONGEST_PAUSE_S))[0]:
            return


class Hostility:
    """Runs the hostile client for a block. `floods` counts the floods that began, by kind."""

    def __init__(self, brokers: Sequence[str], secured: Sequence[str], seed: int, say: Callable[[str], None]) -> None:
        self.floods: Counter[str] = Counter()
        self._orders = Orders(list(brokers), list(secured), seed)
        self._say = say

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.chaos.soak.hostile"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(self._orders)), file=self._process.stdin, flush=True)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def _read(self, said: IO[str]) -> None:
        for line in said:
            self.floods[line.rpartition(": ")[0]] += 1
            self._say(f"flood: {line.strip()}")

    def __exit__(self, *_: object) -> None:
        """End the process; its connections are reset."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


if __name__ == "__main__":
    main()
