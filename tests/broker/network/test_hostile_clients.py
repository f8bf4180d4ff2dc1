"""Misbehaving clients over real sockets, while another client continues to work."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import odradek
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest
from protocol.records.batch import CompressionType, Record, build_batch
from protocol.records.compression import MAX_DECOMPRESSED_BYTES
from tests.kit.broker_process import BrokerProcess
from tests.kit.heavy_requests import metadata_of_unknown
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import fetch, framed, new_topic, produce, request_bytes, values_in

MANY = 5_000
PATIENCE_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path_factory.mktemp("hostile"),
        {"socket.request.max.bytes": "2000000", "socket.listen.backlog.size": "1024"},
    )
    process.start()
    with connect(process) as client:
        client.ask(new_topic("t"), 7)
    yield process
    assert process.stop() == 0
    assert " ERROR " not in process.output.read_text()


def connect(broker: BrokerProcess) -> WireClient:
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


def raw(broker: BrokerProcess) -> socket.socket:
    host, port = broker.address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def is_served(broker: BrokerProcess) -> None:
    """Another client can produce and read."""
    word = random.randbytes(8).hex().encode()
    with connect(broker) as client:
        answer = client.ask(produce("t", [word]), 9)
        offset = answer.responses[0].partition_responses[0].base_offset  # type: ignore[attr-defined]
        assert values_in(client.ask(fetch("t", offset), 12)) == [word]


def hangs_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1) + b"x" * 10,
        struct.pack(">i", 2_000_001),
        struct.pack(">i", 2**31 - 1) + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        framed(b""),
        framed(b"\0"),
        framed(struct.pack(">hhi", 999, 0, 1)),
        framed(struct.pack(">hhi", 0, 99, 1) + b"\xff\xff"),
        framed(request_bytes(MetadataRequest(topics=None), 12)[:-1]),
        framed(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1)),
    ],
    ids=["negative", "oversized", "huge", "http", "tls", "empty", "short", "api", "version", "cut", "array"],
)
def test_garbage_is_hung_up_on_with_a_reason(broker: BrokerProcess, data: bytes) -> None:
    said = len(broker.output.read_text())
    with raw(broker) as connection:
        port = connection.getsockname()[1]
        # the broker may close before it has read the whole oversized request
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        assert hangs_up(connection)
    is_served(broker)
    assert f"Closing connection of 127.0.0.1:{port}: " in broker.output.read_text()[said:]


def test_a_request_that_arrives_byte_by_byte_is_served(broker: BrokerProcess) -> None:
    request = ApiVersionsRequest(client_software_name="slow", client_software_version="1")
    with raw(broker) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(request_bytes(request, 3)):
            connection.sendall(bytes([byte]))
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        assert len(connection.recv(size, socket.MSG_WAITALL)) == size


def test_a_wrong_crc_and_lying_counts_are_refused_and_change_nothing(broker: BrokerProcess) -> None:
    good = build_batch([Record(0, 1_700_000_000_000, None, b"v", []) for _ in range(3)])
    with connect(broker) as client:
        for at in range(17, len(good), 5):
            mutant = bytearray(good)
            mutant[at] ^= 0x55
            data = ProduceRequest.PartitionProduceData(index=0, records=bytes(mutant))
            request = ProduceRequest(
                acks=1, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
            )
            answer = client.ask(request, 9)
            assert answer.responses[0].partition_responses[0].error_code != 0, at  # type: ignore[attr-defined]
    is_served(broker)


@pytest.mark.parametrize(
    ("codec", "refusal"),
    [
        (CompressionType.GZIP, ErrorCode.INVALID_RECORD),
        (CompressionType.LZ4, ErrorCode.INVALID_RECORD),
        (CompressionType.ZSTD, ErrorCode.INVALID_RECORD),
        (CompressionType.SNAPPY, ErrorCode.MESSAGE_TOO_LARGE),  # it cannot compress that much to so little
    ],
)
def test_a_compression_bomb_is_refused_and_costs_nothing(
    tmp_path: Path, codec: CompressionType, refusal: ErrorCode
) -> None:
    """One batch with more zeros than the decompression limit, for a broker that decodes every record."""
    zeros = bytes(MAX_DECOMPRESSED_BYTES + (4 << 20))
    bomb = build_batch([Record(0, 1_700_000_000_000, None, zeros, [])], compression=codec)
    broker = BrokerProcess(tmp_path, {"log.validate.records": "deep"})
    broker.start()
    try:
        with connect(broker) as client:
            client.ask(new_topic("t"), 7)
            before = resident_bytes(broker)
            data = ProduceRequest.PartitionProduceData(index=0, records=bomb)
            request = ProduceRequest(
                acks=1, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
            )
            answer = client.ask(request, 9)
            assert answer.responses[0].partition_responses[0].error_code == refusal  # type: ignore[attr-defined]
            assert resident_bytes(broker) - before < 80 << 20
        is_served(broker)
    finally:
        broker.kill()


def resident_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
def test_many_connections_cost_little_and_everyone_is_served(broker: BrokerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + 200:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = resident_bytes(broker)
    connections: list[socket.socket] = []
    try:
        for _ in range(MANY):
            connections.append(raw(broker))
        request = framed(request_bytes(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3))
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            assert len(connection.recv(4, socket.MSG_WAITALL)) == 4
        is_served(broker)
        assert resident_bytes(broker) - before < MANY * 16_384
        # Each leaves a request half-sent, whose header declares a large one.
        for connection in connections:
            connection.sendall(struct.pack(">i", 1_900_000) + b"x" * 50)
        is_served(broker)
        assert resident_bytes(broker) - before < MANY * 24_576
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually("they are gone", lambda: open_connections(broker), lambda count: count <= 20)


def open_connections(broker: BrokerProcess) -> int:
    """Sockets of the broker's process, except for those that close meanwhile."""
    count = 0
    for descriptor in os.listdir(f"/proc/{broker.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{broker.pid}/fd/{descriptor}").startswith("socket:")
    return count


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
def test_clients_that_stop_reading_cost_a_chunk_each(broker: BrokerProcess) -> None:
    with connect(broker) as client:
        client.ask(new_topic("big"), 7)
        for _ in range(60):
            client.ask(produce("big", [b"x" * 900_000]), 9)
    before = resident_bytes(broker)
    frame = framed(request_bytes(fetch("big", 0), 12).replace(struct.pack(">i", 1 << 20), struct.pack(">i", 50 << 20)))
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(raw(broker))
            connection.sendall(frame * 20)
        time.sleep(0.5)
        is_served(broker)
        # 30 clients request 20 answers of 50 MB each.
        assert resident_bytes(broker) - before < 150 << 20
    is_served(broker)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
@pytest.mark.parametrize("reads", [False, True], ids=["silent", "reading"])
def test_a_client_that_asks_for_thousands_of_large_replies_and_leaves(broker: BrokerProcess, reads: bool) -> None:
    topic = "many" if reads else "more"
    with connect(broker) as client:
        client.ask(new_topic(topic, partitions=1000), 7)
        client.ask(MetadataRequest(topics=None), 9)
    before = resident_bytes(broker)
    asked = framed(request_bytes(MetadataRequest(topics=None), 9)) * 8000
    with raw(broker) as hostile:
        hostile.setblocking(False)
        hostile.send(asked)
        ends_s = time.monotonic() + 1
        while time.monotonic() < ends_s:
            with contextlib.suppress(BlockingIOError):
                if reads:
                    hostile.recv(1 << 20)
            is_served(broker)
            assert resident_bytes(broker) - before < 60 << 20
    used_s = cpu_seconds(broker)
    for _ in range(3):
        is_served(broker)
    # Computing all 8000 replies would have taken a minute.
    assert cpu_seconds(broker) - used_s < 5
    assert resident_bytes(broker) - before < 60 << 20


def cpu_seconds(broker: BrokerProcess) -> float:
    with open(f"/proc/{broker.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path, {"connections.max.idle.ms": "1000", "connection.failed.authentication.delay.ms": "10"}
    )
    broker.start()
    try:
        with raw(broker) as silent, raw(broker) as half_way:
            half_way.sendall(struct.pack(">i", 1000) + b"x" * 500)
            for connection in (silent, half_way):
                port = connection.getsockname()[1]
                assert hangs_up(connection)
                said = f"Closing connection of 127.0.0.1:{port}: idle for more than connections.max.idle.ms=1000"
                assert said in broker.output.read_text()
    finally:
        broker.stop()


def three_that_are_served(broker: BrokerProcess, stack: contextlib.ExitStack) -> list[WireClient]:
    """Open the maximum number of connections. The broker may still count the one that probed whether it listens, or
    earlier ones whose end it has not read yet.
    """

    def three() -> list[WireClient]:
        with contextlib.ExitStack() as attempt, contextlib.suppress(ConnectionClosed):
            clients = [attempt.enter_context(connect(broker)) for _ in range(3)]
            for client in clients:
                client.ask(MetadataRequest(topics=[]), 9)
            stack.enter_context(attempt.pop_all())
            return clients
        return []

    return eventually("three may come", three)


def test_the_limit_of_an_address(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"max.connections.per.ip": "3"})
    broker.start()
    try:
        with contextlib.ExitStack() as stack:
            kept = three_that_are_served(broker, stack)
            assert hangs_up(stack.enter_context(raw(broker)))
            for client in kept:
                client.ask(MetadataRequest(topics=[]), 9)
        assert "address already has the configured maximum of 3 connections." in broker.output.read_text()
    finally:
        broker.stop()


def test_a_client_that_leaves_costs_no_more_work() -> None:
    """The topics of 400,000 unknown names take seconds to describe; nobody waits for them any more."""
    with odradek.Broker() as broker:
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as leaver:
            leaver.sendall(metadata_of_unknown(400_000))
            eventually("the request is being handled", lambda: broker.requests(api="Metadata"), bool)
        broker.clock.advance(1)  # returns when the broker is idle
        assert broker.requests(api="Metadata")[0]["response"] is None


def test_a_topic_is_created_although_its_client_leaves() -> None:
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="flights")])
    with odradek.Broker() as broker:
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as leaver:
            leaver.sendall(framed(request_bytes(asked, 9)))
            eventually("the request is being handled", lambda: broker.requests(api="Metadata"), bool)
        eventually("the topic is there", broker.topics, lambda topics: topics == ["flights"])
