"""A broker with limited memory survives floods that would need more, and serves others meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import pytest

from protocol.messages.fetch import FetchRequest
from protocol.messages.produce import ProduceRequest
from tests.kit import heavy_requests as heavy
from tests.kit.broker_process import BrokerProcess
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import framed, new_topic, produce, request_bytes

TOPIC = "t"
PARTITIONS = 8
MEGABYTE = 1 << 20
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() reset the connection."""
IN_SO_MUCH_MEMORY = """
import runpy, sys
from environment import system
memory_bytes = int(sys.argv.pop(1))
system.available_memory = lambda: memory_bytes
runpy.run_module("broker", run_name="__main__", alter_sys=True)
"""
"""Starts a broker that assumes this memory. The test measures its use, as the kernel would kill it at a real limit."""
SIZES = [
    pytest.param(16, id="92-MB"),
    pytest.param(1, id="512-MB", marks=pytest.mark.slow),
]
"""The divisors of the memory, and of all data that clients send."""


class Floods:
    """Requests of many clients at once, which never read an answer."""

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor

    def half_frames(self) -> list[bytes]:
        """Most of each of forty frames of 40 MB."""
        return [heavy.half_frame(40_000_000 // self._divisor)] * 40

    def batches(self) -> list[bytes]:
        """Twelve times some large produce requests."""
        records = produce(TOPIC, [os.urandom(900_000)]).topic_data[0].partition_data[0].records
        data = [ProduceRequest.PartitionProduceData(index=each, records=records) for each in range(PARTITIONS)]
        request = ProduceRequest(
            acks=1, timeout_ms=10_000, topic_data=[ProduceRequest.TopicProduceData(name=TOPIC, partition_data=data)]
        )
        return [framed(request_bytes(request, 9)) * 2] * 12

    def fetches(self) -> list[bytes]:
        """Twenty batches of twenty fetches of all data."""
        partition = partial(FetchRequest.FetchPartition, fetch_offset=0, partition_max_bytes=50 * MEGABYTE)
        topic = FetchRequest.FetchTopic(
            topic=TOPIC, partitions=[partition(partition=each) for each in range(PARTITIONS)]
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MEGABYTE, topics=[topic])
        return [framed(request_bytes(request, 11)) * 20] * 20

    def metadata(self) -> list[bytes]:
        """The metadata of 500,000 topics, six times."""
        return [heavy.metadata_of_unknown(500_000 // self._divisor)] * 6

    def many_elements(self) -> list[bytes]:
        """A request of nearly a million partitions, twice."""
        return [heavy.fetch_unknown(heavy.MOST_ELEMENTS // self._divisor)] * 2


@contextlib.contextmanager
def flooded(address: str, requests: Sequence[bytes]) -> Iterator[Callable[[], None]]:
    """Send each request on a separate connection, as far as the broker accepts it, and read nothing. Returns a function
    that waits until each has an answer, or is closed.
    """
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(address)) for _ in requests]

        def send(connection: socket.socket, request: bytes) -> None:
            with contextlib.suppress(OSError):
                connection.sendall(request)
                connection.recv(1, socket.MSG_PEEK)

        threads = stack.enter_context(ThreadPoolExecutor(len(requests)))
        sending = [threads.submit(send, *each) for each in zip(connections, requests, strict=True)]
        yield lambda: list(wait(sending))
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def connected(address: str) -> socket.socket:
    """A connection that accepts little data at a time, and is reset when it is closed."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return connection


def peak_bytes(broker: BrokerProcess) -> int:
    """The peak memory of the process (VmHWM)."""
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def produces(address: str) -> None:
    """Check that another client can still produce."""
    host, _, port = address.rpartition(":")
    with WireClient(host, int(port)) as client:
        answer = client.ask(produce(TOPIC, [b"probe"]), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("divisor", SIZES)
def test_floods_leave_a_broker_within_its_memory(divisor: int, tmp_path: Path) -> None:
    """Six metadata requests used to need three times the memory of a container of 512 MB, and killed the broker."""
    settings = {"socket.request.max.bytes": str(100_000_000 // divisor)}
    memory_bytes = 64 * MEGABYTE + 448 * MEGABYTE // divisor
    broker = BrokerProcess(tmp_path, settings)
    broker.program = ("-c", IN_SO_MUCH_MEMORY, str(memory_bytes))
    broker.start()
    try:
        host, _, port = broker.address.rpartition(":")
        with WireClient(host, int(port)) as client:
            client.ask(new_topic(TOPIC, PARTITIONS), 7)
        floods = Floods(divisor)
        with flooded(broker.address, floods.half_frames()):
            produces(broker.address)
        for requests in (floods.batches(), floods.fetches(), floods.metadata(), floods.many_elements()):
            with flooded(broker.address, requests) as all_are_answered:
                produces(broker.address)
                all_are_answered()
                produces(broker.address)
        assert peak_bytes(broker) < memory_bytes
        assert broker.stop() == 0
        assert " ERROR " not in broker.output.read_text()
    finally:
        broker.kill()


def test_a_request_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    """A request of 100 MB, which socket.request.max.bytes allows, used to kill a broker in a container of 64 MB."""
    memory_bytes = 64 * MEGABYTE
    broker = BrokerProcess(tmp_path)
    broker.program = ("-c", IN_SO_MUCH_MEMORY, str(memory_bytes))
    broker.start()
    try:
        with connected(broker.address) as connection, contextlib.suppress(OSError):
            connection.sendall(heavy.half_frame(100_000_000))
            assert not connection.recv(1), "it is closed"
        host, _, port = broker.address.rpartition(":")
        with WireClient(host, int(port)) as client:
            client.send_bytes(heavy.metadata_of_unknown(59_000))
            client.receive_frame()
            client.ask(new_topic(TOPIC, 1), 7)
        produces(broker.address)
        assert peak_bytes(broker) < memory_bytes
        assert broker.stop() == 0
        output = broker.output.read_text()
        assert "Refusing requests of more than 2516582 bytes, although socket.request.max.bytes is 104857600" in output
        assert "Invalid receive (size = 100000000 larger than 2516582)" in output
    finally:
        broker.kill()
