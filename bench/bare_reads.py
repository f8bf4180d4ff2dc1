"""CPU of a process that only sends a file over loopback, in two ways: `python -m bench.bare_reads`.

The floor under every broker's `consume`: what is left when there is no protocol, no event loop and no log. The client
receives into one buffer and looks at nothing. The file is in the page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable

from bench.processes import cpu_s

FILE_BYTES = 400 << 20
READ_BYTES = 900_000
"""At a time: what a consumer's fetch of 1 MB brings of records of 1 kB in batches."""
ROUNDS = 8


def by_sendfile(receiver: socket.socket, file: int, position: int, size: int) -> None:
    """Have the kernel send a part of the file."""
    while size:
        sent = os.sendfile(receiver.fileno(), file, position, size)
        position, size = position + sent, size - sent


def by_pread(receiver: socket.socket, file: int, position: int, size: int) -> None:
    """Copy a part of the file into this process and from there into the socket."""
    receiver.sendall(os.pread(file, size, position))


def serve(listener: socket.socket, path: str, send: Callable[[socket.socket, int, int, int], None]) -> None:
    """Send a part of the file for each byte that comes, from its beginning to its end, again and again."""
    file = os.open(path, os.O_RDONLY)
    receiver, _ = listener.accept()
    receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    position = 0
    while receiver.recv(1):
        send(receiver, file, position, READ_BYTES)
        position = (position + READ_BYTES) % (FILE_BYTES - READ_BYTES)


def measure(path: str, send: Callable[[socket.socket, int, int, int], None]) -> tuple[float, float]:
    """The server's CPU seconds and the seconds that passed, for each gigabyte (10^9 bytes)."""
    reads = FILE_BYTES // READ_BYTES
    buffer = memoryview(bytearray(READ_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.Process(target=serve, args=(listener, path, send))
        server.start()
        with socket.create_connection(listener.getsockname()) as client:
            began, spent = time.monotonic(), cpu_s(server.pid or 0)
            for _ in range(reads):
                client.sendall(b"\0")
                received = 0
                while received < READ_BYTES:
                    received += client.recv_into(buffer[received:])
            passed, spent = time.monotonic() - began, cpu_s(server.pid or 0) - spent
        server.join()
    gigabytes = reads * READ_BYTES / 1e9
    return spent / gigabytes, passed / gigabytes


def main() -> None:
    """Print the best of some rounds of both."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        file.flush()
        ways = {"sendfile": by_sendfile, "pread and send": by_pread}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, send in ways.items():
                found[name].append(measure(file.name, send))
    print(f"{'':20}{'CPU s/GB':>10}{'GB/s':>10}")
    for name, samples in found.items():
        spent, passed = min(cpu for cpu, _ in samples), min(seconds for _, seconds in samples)
        print(f"{name:20}{spent:10.3f}{1 / passed:10.2f}")


if __name__ == "__main__":
    main()
