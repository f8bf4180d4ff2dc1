"""Measures what closed connections leave in a broker, which is to be nothing.

python -m tests.broker.network.closed_connections --connections 1000000 --half-frames 100000 --members 10000
"""

from __future__ import annotations

import argparse
import signal
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_admin import DeleteGroupsRequest
from protocol.messages.metadata import MetadataRequest
from tests.kit import group_requests
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import framed, request_bytes

AT_ONCE: Final = 500
"""Connections that are open during a garbage collection."""
MEMBERS_OF_GROUP: Final = 100
SESSION_MS: Final = 6_000
NAMES: Final = 20_000
"""The topics in a metadata request that triggers a garbage collection."""
HALF_FRAME: Final = struct.pack(">i", 1_000_000) + bytes(100_000)
PATIENCE_S: Final = 30
SECOND_S: Final = 2.0
"""Seconds between two measurements: the broker returns memory in a second with little work, and counting is work."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection, so that no port stays in TIME_WAIT for minutes."""
_PLAIN_MODULE: Final = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
_COUNTING: Final = """
import gc, os, runpy, signal, sys
report = sys.argv.pop(1)
def count(*_):
    with open("/proc/self/status") as status:
        rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    with open(report + ".new", "w") as file:
        file.write(f"{len(gc.get_objects()) + gc.get_freeze_count()} {rss}")
    os.replace(report + ".new", report)
signal.signal(signal.SIGUSR1, count)
runpy.run_module("broker", run_name="__main__", alter_sys=True)
"""


class Memory(NamedTuple):
    """Objects that the broker's garbage collector tracks, and its resident memory."""

    objects: int
    rss_kb: int

    def has_grown_since(self, before: Memory) -> bool:
        """Whether it has grown by more than a process's normal fluctuation."""
        return self.objects > before.objects + 1_000 or self.rss_kb > before.rss_kb + 2_048


class CountingBroker(BrokerProcess):
    """A broker with listeners of each kind. On SIGUSR1 its process counts objects."""

    def __init__(self, directory: Path) -> None:
        self.ports = {name: free_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL")}
        super().__init__(
            directory,
            {
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
                "socket.listen.backlog.size": "1000",
                "offsets.topic.num.partitions": "1",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": _PLAIN_MODULE,
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(Authority().issue("broker").write_pem(directory / "broker.pem")),
                "ssl.client.auth": "none",
            },
        )
        self.address = f"127.0.0.1:{self.ports['PLAINTEXT']}"
        self._report = directory / "memory"
        self.program = ("-c", _COUNTING, str(self._report))

    def memory(self) -> Memory:
        """The current memory. Earlier requests are served before it counts."""
        self._report.unlink(missing_ok=True)
        self.send_signal(signal.SIGUSR1)
        text = eventually("the broker counts", self._report.read_text, not_yet=(FileNotFoundError,))
        return Memory(*map(int, text.split()))


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    return connection


class Visits:
    """Connections that are opened, used in some way, and reset."""

    def __init__(self, broker: CountingBroker) -> None:
        self._ports = broker.ports
        self._client = WireClient("127.0.0.1", broker.ports["PLAINTEXT"])
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE
        self._metadata = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=f"unknown-{number}") for number in range(NAMES)],
            allow_auto_topic_creation=False,
        )

    def close(self) -> None:
        """Close the client that triggers garbage collections."""
        self._client.close()

    def make(self, connections: int, half_frames: int) -> None:
        """Open this many connections (10 % with SASL, 1 % with TLS), and this many more that leave half a frame."""
        self._in_rounds(connections * 89 // 100, self._ask)
        self._in_rounds(connections // 10, self._begin_sasl)
        self._in_rounds(connections // 200, self._begin_tls)
        self._in_rounds(connections // 200, self._ask_by_tls)
        self._in_rounds(half_frames, self._send_half_a_frame)

    def find_coordinator(self) -> None:
        """Wait until all groups have a coordinator."""

        def is_there() -> bool:
            self._client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
            answer = self._client.ask(group_requests.join("g", session_ms=SESSION_MS), group_requests.JOIN)
            return bool(answer.error_code == ErrorCode.MEMBER_ID_REQUIRED)  # type: ignore[attr-defined]

        eventually("the coordinator", is_there)

    def join(self, members: int) -> None:
        """Let this many members join groups of a hundred. Every second one leaves, the sessions of the others
        expire.
        """
        for first in range(0, members, MEMBERS_OF_GROUP):
            group = f"group-{first}"
            for number in range(first, min(first + MEMBERS_OF_GROUP, members)):
                connection = WireClient("127.0.0.1", self._ports["PLAINTEXT"])
                answer = self._client.ask(group_requests.join(group, session_ms=SESSION_MS), group_requests.JOIN)
                member: str = answer.member_id  # type: ignore[attr-defined]
                connection.send(group_requests.join(group, member, session_ms=SESSION_MS), group_requests.JOIN)
                if number % 2:
                    self._client.ask(group_requests.leave(group, (member, None)), group_requests.LEAVE)
                connection.close()

    def await_no_members(self, groups: int) -> None:
        """Wait until all members of that many groups are gone, and then the groups."""
        names = [f"group-{number * MEMBERS_OF_GROUP}" for number in range(groups)]

        def deleted() -> bool:
            answer = self._client.ask(DeleteGroupsRequest(groups_names=names), group_requests.DELETE)
            gone = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
            return all(each.error_code in gone for each in answer.results)  # type: ignore[attr-defined]

        if names:
            eventually("the members expire", deleted)

    def _in_rounds(self, count: int, visit: Callable[[], socket.socket]) -> None:
        while count > 0:
            opened = [visit() for _ in range(min(count, AT_ONCE))]
            self._client.ask(self._metadata, 9)
            for connection in opened:
                connection.close()
            count -= len(opened)

    def _ask(self) -> socket.socket:
        connection = _connect(self._ports["PLAINTEXT"])
        connection.sendall(framed(request_bytes(ApiVersionsRequest(), 0)))
        return connection

    def _begin_sasl(self) -> socket.socket:
        connection = _connect(self._ports["SASL_PLAINTEXT"])
        connection.sendall(struct.pack(">i", 500_000) + bytes(10_000))
        return connection

    def _begin_tls(self) -> socket.socket:
        connection = _connect(self._ports["SSL"])
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        return connection

    def _ask_by_tls(self) -> socket.socket:
        connection = self._tls.wrap_socket(_connect(self._ports["SSL"]))
        connection.sendall(HALF_FRAME[:50_000])
        return connection

    def _send_half_a_frame(self) -> socket.socket:
        connection = _connect(self._ports["PLAINTEXT"])
        connection.sendall(HALF_FRAME)
        return connection


def measure(directory: Path, connections: int, half_frames: int, members: int = 0) -> tuple[Memory, Memory]:
    """The broker's memory before and after this many connections and members of groups.

    Earlier ones have filled its caches. The earlier members were as many, because Python keeps the arenas of a peak for
    the next one: each arena of 1 MiB has an object that survives.
    """
    broker = CountingBroker(directory)
    broker.start()
    groups = -(-members // MEMBERS_OF_GROUP)
    try:
        visits = Visits(broker)
        visits.make(max(2 * AT_ONCE, connections // 20), max(2 * AT_ONCE, half_frames // 20))
        if members:
            visits.find_coordinator()
            visits.join(members)
            visits.await_no_members(groups)
        readings = [broker.memory() for _ in range(4) if not time.sleep(SECOND_S)]
        before = Memory(min(each.objects for each in readings), min(each.rss_kb for each in readings))
        visits.make(connections, half_frames)
        visits.join(members)
        visits.await_no_members(groups)
        deadline_s = time.monotonic() + PATIENCE_S
        while (after := broker.memory()).has_grown_since(before) and time.monotonic() < deadline_s:
            time.sleep(SECOND_S)
        visits.close()
        assert broker.stop() == 0
        return before, after
    finally:
        broker.kill()


def main(arguments: Sequence[str]) -> int:
    """Print both; returns 1 if objects or memory remained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--half-frames", type=int, default=2_000)
    parser.add_argument("--members", type=int, default=1_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        before, after = measure(Path(directory), options.connections, options.half_frames, options.members)
    print(f"before: {before}\nafter:  {after}")
    return int(after.has_grown_since(before))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
