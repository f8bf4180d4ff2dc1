"""Measures the longest wait of a client that sends ApiVersions every millisecond while others load the broker.

Run as `python -m bench.probe PORT`, it sends requests until its standard input ends, then prints the longest wait in
milliseconds. It is a separate process because a load in the same one would slow it down.
"""

from __future__ import annotations

import math
import select
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from protocol.messages.api_versions import ApiVersionsRequest
from tests.kit.wire_requests import framed, request_bytes

PAUSE_S = 0.001
STARTED = b"asking\n"
LONGEST_S = 60
"""Waits are measured up to this limit."""


class Probe:
    """The process, as a context manager: it probes inside the context, and sets `longest_ms` on exit.

    A broker that does not answer within `LONGEST_S` of the end counts as a wait that long, one that hung up as an
    infinite wait.
    """

    def __init__(self, port: int) -> None:
        self.longest_ms = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.probe", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        if self._process.stdout is None or self._process.stdout.readline() != STARTED:
            raise RuntimeError("the probe got no answer")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            said, _ = self._process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            self.longest_ms = LONGEST_S * 1000
            return
        if error is None and self._process.returncode:
            raise RuntimeError("the probe failed")
        self.longest_ms = float(said) if said else 0.0


def ask_on(connection: socket.socket, request: bytes) -> float:
    """Seconds until the response was complete; raises ConnectionError if the broker hangs up."""
    began = time.perf_counter()
    connection.sendall(request)
    missing, size = 4, b""
    while missing > 0:
        data = connection.recv(min(missing, 65536))
        if not data:
            raise ConnectionError("the broker hung up")
        missing -= len(data)
        if len(size) < 4:
            size += data
            if len(size) == 4:
                missing = int.from_bytes(size, "big")
    return time.perf_counter() - began


def main(port: int) -> None:
    """Send requests until standard input ends, and print the longest wait."""
    request = framed(request_bytes(ApiVersionsRequest(), 0, client_id="probe"))
    longest_s = 0.0
    with socket.create_connection(("127.0.0.1", port), LONGEST_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(500):  # warm up: users do not wait for a JIT that compiles the path
            ask_on(connection, request)
        sys.stdout.buffer.write(STARTED)
        sys.stdout.flush()
        try:
            while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
                longest_s = max(longest_s, ask_on(connection, request))
        except TimeoutError:
            longest_s = LONGEST_S
        except ConnectionError:
            longest_s = math.inf
    print(longest_s * 1000)


if __name__ == "__main__":
    main(int(sys.argv[1]))
