"""Watch brokers during a load test: how long each keeps a probe waiting, and how much memory it uses.

`python -m tests.chaos.soak.watch` is the probe. It reads the brokers' addresses as a line of JSON, sends each broker
ApiVersions requests until its standard input ends, and prints the gaps between two answers that exceed `NOTED_S`. It is
a separate process, so that it never waits for the threads of the run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, Self

from bench.probe import ask_on
from protocol.messages.api_versions import ApiVersionsRequest
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.network.namespaces import CLIENT
from tests.kit.wire_requests import framed, request_bytes

ROOT = Path(__file__).resolve().parents[3]
PAUSE_S = 0.02
ASKS_OF_A_CONNECTION = 25
PATIENCE_S = 5.0
"""After this the probe reconnects; the gap continues."""
NOTED_S, SAID_S = 0.1, 0.5
MINUTE_S = 60.0
SETTLED_AFTER_S = 4 * MINUTE_S
"""The minute that begins here is the baseline of memory use."""
MOST_GROWTH = 1.2


class Gap(NamedTuple):
    """The time between two consecutive answers of a broker, in seconds of the machine's monotonic clock."""

    broker: int
    began_s: float
    ended_s: float

    @property
    def lasted_s(self) -> float:
        """Its length."""
        return self.ended_s - self.began_s


@dataclass
class FaultTime:
    """When a fault of these victims lasted, in seconds of the machine's monotonic clock."""

    victims: frozenset[str]
    began_s: float
    ended_s: float = math.inf


@dataclass
class FaultTimes:
    """All fault times of a run; they show which waits a fault caused."""

    times: list[FaultTime] = field(default_factory=list)

    @contextlib.contextmanager
    def lasting(self, victims: frozenset[str]) -> Iterator[None]:
        """Record a fault for the duration of a block."""
        time_of_fault = FaultTime(victims, time.monotonic())
        self.times.append(time_of_fault)
        try:
            yield
        finally:
            time_of_fault.ended_s = time.monotonic()

    def explain(self, gap: Gap) -> bool:
        """Whether a fault hit the broker, or its connection with the clients, between the two answers.

        A gap lasts until a killed broker answers again, or until TCP has retransmitted after a cut, so the recovery
        time need not be guessed. Faults of other brokers or of ZooKeeper explain nothing.
        """
        own = {f"broker {gap.broker}", f"cut {gap.broker}-{CLIENT}"}
        return any(
            fault.victims & own and fault.began_s <= gap.ended_s and gap.began_s <= fault.ended_s
            for fault in self.times
        )


class Watch:
    """Runs the probe and samples memory every second, for the duration of a block."""

    def __init__(
        self,
        cluster: BrokerCluster,
        addresses: Mapping[int, str],
        trusted: str | None,
        times: FaultTimes,
        say: Callable[[str], None],
    ) -> None:
        """`addresses` by broker; they use TLS if `trusted` names the authority's certificate."""
        self.waits: list[Gap] = []
        """The gaps that no fault explains."""
        self._cluster = cluster
        self._times = times
        self._say = say
        self._orders = {"addresses": dict(addresses), "trusted": trusted}
        self._memory: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self._began_s = time.monotonic()
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.chaos.soak.watch"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(self._orders), file=self._process.stdin, flush=True)
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._look, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def _read(self, said: IO[str]) -> None:
        for line in said:
            gap = Gap(*json.loads(line))
            if not self._times.explain(gap):
                self.waits.append(gap)
                if gap.lasted_s > SAID_S:
                    self._say(f"broker {gap.broker} did not answer for {gap.lasted_s:.2f} s")

    def _look(self) -> None:
        while not self._stopping.wait(1):
            for number, broker in self._cluster.brokers.items():
                # It may exit at any moment.
                with contextlib.suppress(AssertionError, OSError, StopIteration):
                    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
                    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
                    self._memory[number].append((time.monotonic() - self._began_s, kilobytes * 1024))

    def memory_mb(self, from_s: float) -> dict[int, float]:
        """The median of each broker's memory in the minute that begins at this time of the watch."""
        found = {
            number: [size for at_s, size in samples if from_s <= at_s < from_s + MINUTE_S]
            for number, samples in self._memory.items()
        }
        return {number: round(statistics.median(sizes) / 1e6, 1) for number, sizes in found.items() if sizes}

    def growth(self) -> tuple[dict[int, float], dict[int, float]] | None:
        """Each broker's memory in minute five and in the last minute, or None before minute six is over."""
        lasted_s = time.monotonic() - self._began_s
        if lasted_s < SETTLED_AFTER_S + 2 * MINUTE_S:
            return None
        return self.memory_mb(SETTLED_AFTER_S), self.memory_mb(lasted_s - MINUTE_S)


def ask_again_and_again(number: int, connect: Callable[[], socket.socket], say: Callable[[Gap], None]) -> None:
    """Ask a broker forever, on a new connection every half second and after each failure."""
    request = framed(request_bytes(ApiVersionsRequest(), 0, client_id="probe"))
    last_s = None
    while True:
        try:
            with contextlib.closing(connect()) as connection:
                for _ in range(ASKS_OF_A_CONNECTION):
                    ask_on(connection, request)
                    now_s = time.monotonic()
                    if last_s is not None and now_s - last_s > NOTED_S:
                        say(Gap(number, last_s, now_s))
                    last_s = now_s
                    time.sleep(PAUSE_S)
        except OSError:
            time.sleep(PAUSE_S)


def connector(address: str, trusted: str | None) -> Callable[[], socket.socket]:
    """Return a function that connects with a broker, over TLS if `trusted` is given."""
    host, _, port = address.rpartition(":")
    context = None if trusted is None else ssl.create_default_context(cafile=trusted)

    def connect() -> socket.socket:
        connection = socket.create_connection((host, int(port)), PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection if context is None else context.wrap_socket(connection, server_hostname=host)

    return connect


def main() -> None:
    """Ask until standard input ends."""
    orders = json.loads(sys.stdin.readline())
    # The probe measures the brokers, so it must not wait for a processor itself.
    with contextlib.suppress(PermissionError):
        os.nice(-10)
    printing = threading.Lock()

    def say(gap: Gap) -> None:
        with printing:
            print(json.dumps(gap), flush=True)

    for number, address in orders["addresses"].items():
        connect = connector(address, orders["trusted"])
        threading.Thread(target=ask_again_and_again, args=(int(number), connect, say), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
