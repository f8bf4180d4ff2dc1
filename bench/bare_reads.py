"""CPU of a process that only sends a file over loopback, in three ways: `python -m bench.bare_reads`.

This is the lower bound of every broker's `consume`: the cost without protocol, event loop and log. The client receives
into one buffer and computes the checksum of it, as consumers do. The file is in the page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import crc32c

from bench.processes import cpu_s

FILE_BYTES = 400 << 20
READ_BYTES = 900_000
"""Bytes at a time: the batches of 1 kB records in a consumer's fetch of 1 MB."""
ROUNDS = 8
BUFFER = memoryview(bytearray(READ_BYTES))


def by_sendfile(receiver: socket.socket, file: int, position: int, size: int) -> None:
    """Let the kernel send a part of the file."""
    while size:
        sent = os.sendfile(receiver.fileno(), file, position, size)
        position, size = position + sent, size - sent


def by_pread(receiver: socket.socket, file: int, position: int, size: int) -> None:
    """Copy a part of the file into new memory, and from there into the socket."""
    receiver.sendall(os.pread(file, size, position))


def by_buffer(receiver: socket.socket, file: int, position: int, size: int) -> None:
    """Copy a part of the file into the same memory each time, and from there into the socket."""
    os.preadv(file, [BUFFER[:size]], position)
    receiver.sendall(BUFFER[:size])


def serve(listener: socket.socket, path: str, send: Callable[[socket.socket, int, int, int], None]) -> None:
    """Send the next part of the file for each byte received, starting over at its end."""
    file = os.open(path, os.O_RDONLY)
    receiver, _ = listener.accept()
    receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    position = 0
    while receiver.recv(1):
        send(receiver, file, position, READ_BYTES)
        position = (position + READ_BYTES) % (FILE_BYTES - READ_BYTES)


class Sample(NamedTuple):
    """Seconds for each gigabyte (10^9 bytes)."""

    server_cpu: float
    client_cpu: float
    passed: float


def measure(path: str, send: Callable[[socket.socket, int, int, int], None]) -> Sample:
    """Read the file once."""
    reads = FILE_BYTES // READ_BYTES
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.Process(target=serve, args=(listener, path, send))
        server.start()
        with socket.create_connection(listener.getsockname()) as client:
            began, server_cpu, client_cpu = time.monotonic(), cpu_s(server.pid or 0), time.process_time()
            for _ in range(reads):
                client.sendall(b"\0")
                received = 0
                while received < READ_BYTES:
                    received += client.recv_into(BUFFER[received:])
                crc32c.crc32c(BUFFER)
            passed, client_cpu = time.monotonic() - began, time.process_time() - client_cpu
            server_cpu = cpu_s(server.pid or 0) - server_cpu
        server.join()
    gigabytes = reads * READ_BYTES / 1e9
    return Sample(server_cpu / gigabytes, client_cpu / gigabytes, passed / gigabytes)


def main() -> None:
    """Print the best of some rounds of each."""
    ways = {"sendfile": by_sendfile, "pread, new memory": by_pread, "pread, one buffer": by_buffer}
    found: dict[str, list[Sample]] = {name: [] for name in ways}
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        file.flush()
        for _ in range(ROUNDS):
            for name, send in ways.items():
                found[name].append(measure(file.name, send))
    print(f"{'':20}{'server, CPU s/GB':>18}{'client, CPU s/GB':>18}{'GB/s':>8}")
    for name, samples in found.items():
        server_cpu, client_cpu, passed = map(min, zip(*samples, strict=True))
        print(f"{name:20}{server_cpu:18.3f}{client_cpu:18.3f}{1 / passed:8.2f}")


if __name__ == "__main__":
    main()
