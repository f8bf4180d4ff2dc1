"""The embedded tree served as a ZooKeeper: requests that brokers do not send, invalid bytes, and its own crashes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from config.definitions import ConfigError
from config.properties import load_properties
from tests.kit.broker_process import ROOT
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import eventually, eventually_async, eventually_on_loop
from tests.kit.zookeeper import new_served_tree, new_session, real_zookeeper, served_tree
from tests.kit.zookeeper_process import ZookeeperProcess
from zookeeper.coordination import EventType, SessionState, WatchEvent
from zookeeper.tree_server import TreeServerConfig
from zookeeper.wire_format import MOST_FRAME_BYTES, OpCode, encode_buffer, encode_string, encode_strings

OPEN_ACL = struct.pack(">ii", 1, 31) + encode_string("world") + encode_string("anyone")
NO_ACL = struct.pack(">i", 0)
EVENT_XID = -1


class Reply(NamedTuple):
    xid: int
    zxid: int
    error: int
    body: bytes


class RawClient:
    """Sends and receives frames. A context manager."""

    def __init__(self, server: ZookeeperProcess, own_address: str = "127.0.0.1") -> None:
        address = (server.host, server.port)
        self._socket = socket.create_connection(address, timeout=20, source_address=(own_address, 0))
        self.session_id = self.timeout_ms = 0
        self.password = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *frames: bytes) -> None:
        """Send all frames in one packet."""
        self._socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """Receive one frame. Raises EOFError at the end of the connection."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while part := self._socket.recv(65536):
                data += part
        return data

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def connect(self, *, timeout_ms: int = 6000, session_id: int = 0, password: bytes = b"", zxid: int = 0) -> Self:
        """Begin or resume a session; afterwards `timeout_ms` is 0 if it has expired."""
        self.send(struct.pack(">iqiq", 0, zxid, timeout_ms, session_id) + encode_buffer(password) + b"\0")
        _, self.timeout_ms, self.session_id = struct.unpack_from(">iiq", frame := self.receive())
        self.password = frame[20:36]
        return self

    def reply(self) -> Reply:
        frame = self.receive()
        return Reply(*struct.unpack_from(">iqi", frame), frame[16:])

    def call(self, code: int, body: bytes = b"", xid: int = 1) -> Reply:
        self.send(request(code, body, xid))
        return self.reply()


def request(code: int, body: bytes = b"", xid: int = 1) -> bytes:
    return struct.pack(">ii", xid, code) + body


def create(path: str, acl: bytes = OPEN_ACL, flags: int = 0) -> bytes:
    return encode_string(path) + encode_buffer(b"x") + acl + struct.pack(">i", flags)


def some_path() -> str:
    return f"/{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    with served_tree(tmp_path_factory.mktemp("tree")) as running:
        yield running


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.java)])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ZookeeperProcess]:
    """The embedded tree, or the real ZooKeeper that it replaces."""
    with (served_tree if request.param == "embedded" else real_zookeeper)(tmp_path) as running:
        yield running


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_watch_fires_behind_the_reply_that_set_it_and_before_the_change_is_confirmed(
    server: ZookeeperProcess,
) -> None:
    """All three in one packet: they share a journal frame, and still appear in order."""
    path = some_path()
    with RawClient(server).connect() as client:
        client.call(OpCode.CREATE, create(path))
        client.send(
            request(OpCode.SET_DATA, encode_string(path) + encode_buffer(b"1") + struct.pack(">i", -1), 2),
            request(OpCode.GET_DATA, encode_string(path) + b"\1", 3),
            request(OpCode.SET_DATA, encode_string(path) + encode_buffer(b"2") + struct.pack(">i", -1), 4),
            request(OpCode.GET_DATA, encode_string(path) + b"\0", 5),
        )
        replies = [client.reply() for _ in range(5)]
    assert [reply.xid for reply in replies] == [2, 3, EVENT_XID, 4, 5]
    assert replies[2].body == struct.pack(">ii", 3, 3) + encode_string(path)
    # A reply's zxid is the last one that it reflects: with a later one, changes would be missed after a lost
    # connection.
    assert replies[0].zxid == replies[1].zxid < replies[3].zxid == replies[4].zxid


@pytest.mark.parametrize(
    ("code", "body", "error"),
    [
        (19, create("/container"), -6),
        (21, create("/ttl") + bytes(8), -6),
        (OpCode.CREATE, create("/container", flags=4), -6),
        (OpCode.CREATE, create("/flags", flags=9), -8),
        (OpCode.CREATE, create("/protected", NO_ACL), -114),
        (OpCode.SET_ACL, encode_string("/") + NO_ACL + struct.pack(">i", -1), -114),
        (OpCode.SET_ACL, encode_string("/") + OPEN_ACL + struct.pack(">i", 7), -103),
        (OpCode.CREATE, encode_string("/short"), -5),
        (OpCode.CREATE, b"\x7f\xff\xff\xff", -5),
        (OpCode.DELETE, struct.pack(">i", 2) + b"\xff\xfe" + struct.pack(">i", -1), -5),
        (OpCode.GET_CHILDREN, encode_string("/none") + b"\0", -101),
        (OpCode.GET_DATA, encode_string("none") + b"\0", -8),
        (106, encode_string("/") + struct.pack(">i", 0), -6),
    ],
)
def test_what_cannot_be_done_is_answered(code: int, body: bytes, error: int, server: ZookeeperProcess) -> None:
    with RawClient(server).connect() as client:
        assert client.call(code, body).error == error
        assert client.call(OpCode.SYNC, encode_string("/")).error == 0, "the session goes on"


def test_children_and_created_nodes_come_with_their_stat_where_asked(server: ZookeeperProcess) -> None:
    path = some_path()
    with RawClient(server).connect() as client:
        created = client.call(OpCode.CREATE2, create(path, flags=1))
        stat = client.call(OpCode.EXISTS, encode_string(path) + b"\0").body
        assert created.body == encode_string(path) + stat
        assert struct.unpack(">qqqqiiiqiiq", stat)[7] == client.session_id
        top = client.call(OpCode.EXISTS, encode_string("/") + b"\0").body
        names = client.call(OpCode.GET_CHILDREN, encode_string("/") + b"\0").body
        assert client.call(OpCode.GET_CHILDREN2, encode_string("/") + b"\0").body == names + top


def test_reads_that_are_asked_for_together(server: ZookeeperProcess) -> None:
    path = f"/{secrets.token_hex(4)}"
    more, end = struct.pack(">i?i", OpCode.GET_DATA, False, -1), struct.pack(">i?i", -1, True, -1)
    children = struct.pack(">i?i", OpCode.GET_CHILDREN, False, -1)
    with RawClient(server).connect() as client:
        client.call(OpCode.CREATE, create(path))
        client.call(OpCode.CREATE, create(f"{path}/child"))
        data = client.call(OpCode.GET_DATA, encode_string(path) + b"\0").body
        asked = more + encode_string(path) + b"\0", more + encode_string("/none") + b"\0"
        found = client.call(OpCode.MULTI_READ, b"".join((*asked, children, encode_string(path), b"\0", end)))
        assert found.error == 0
        assert found.body == b"".join(
            (
                struct.pack(">i?i", OpCode.GET_DATA, False, 0) + data,
                struct.pack(">i?ii", -1, False, -101, -101),
                struct.pack(">i?iii", OpCode.GET_CHILDREN, False, 0, 1, 5) + b"child",
                end,
            )
        )
        assert client.call(OpCode.MULTI_READ, struct.pack(">i?i", OpCode.EXISTS, False, -1)).error in {-5, -6}


def test_thousands_of_requests_in_one_packet_are_answered_in_order(server: ZookeeperProcess) -> None:
    with RawClient(server).connect() as client:
        asked = [request(OpCode.EXISTS, encode_string("/") + b"\0", xid) for xid in range(3000)]
        client.send(*asked, request(OpCode.CLOSE_SESSION, b"", 3000))
        assert [client.reply().xid for _ in range(3001)] == list(range(3001))
        assert client.rest() == b""


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_timeouts_are_negotiated(server: ZookeeperProcess) -> None:
    for asked_ms, given_ms in ((5, 1000), (7000, 7000), (100_000, 60_000)):
        with RawClient(server).connect(timeout_ms=asked_ms) as client:
            assert client.timeout_ms == given_ms


def test_a_session_is_resumed_by_who_knows_its_password(server: ZookeeperProcess) -> None:
    path = some_path()
    with RawClient(server).connect() as first:
        first.call(OpCode.CREATE, create(path, flags=1))
        with RawClient(server).connect(session_id=first.session_id, password=bytes(16)) as stranger:
            assert (stranger.timeout_ms, stranger.session_id) == (0, 0)
        with RawClient(server).connect(session_id=first.session_id, password=first.password) as second:
            assert second.session_id == first.session_id
            assert first.rest() == b"", "the earlier connection is closed"
            assert second.call(OpCode.EXISTS, encode_string(path) + b"\0").error == 0
            assert second.call(OpCode.CLOSE_SESSION).error == 0
        with RawClient(server).connect(session_id=first.session_id, password=first.password) as late:
            assert late.timeout_ms == 0
        with RawClient(server).connect() as other:
            assert other.call(OpCode.EXISTS, encode_string(path) + b"\0").error == -101


def test_watches_set_again_fire_when_something_was_missed(server: ZookeeperProcess) -> None:
    path = some_path()
    with RawClient(server).connect() as client:
        before = client.call(OpCode.CREATE, create(path)).zxid
        later = client.call(OpCode.SET_DATA, encode_string(path) + encode_buffer(b"") + struct.pack(">i", -1)).zxid
        nothing = encode_strings([])
        client.send(request(101, struct.pack(">q", before) + encode_strings([path]) + nothing + nothing, -8))
        event, reply = client.reply(), client.reply()
        assert (event.xid, event.body) == (EVENT_XID, struct.pack(">ii", 3, 3) + encode_string(path))
        assert (reply.xid, reply.error) == (-8, 0)
        client.send(request(101, struct.pack(">q", later) + encode_strings([path]) + nothing + nothing, -8))
        assert client.reply().xid == -8


@pytest.mark.parametrize("session_id", [0, 12345, None], ids=["new", "unknown", "its own"])
def test_a_client_that_has_seen_more_is_refused_without_a_word(
    either: ZookeeperProcess, session_id: int | None
) -> None:
    """Whether or not its session is known: only an up-to-date server can know that it has expired."""
    with RawClient(either) as first, RawClient(either) as later:
        first.connect()
        own = first.session_id if session_id is None else session_id
        with pytest.raises(EOFError):
            later.connect(session_id=own, password=first.password, zxid=1 << 40)
        assert first.call(OpCode.PING, xid=-2).error == 0
        with RawClient(either) as again:
            again.connect(session_id=12345, password=first.password)
            assert (again.timeout_ms, again.session_id) == (0, 0)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", MOST_FRAME_BYTES + 1),
        struct.pack(">i", 3) + b"abc",
    ],
)
def test_bytes_that_are_no_frame_end_the_connection(data: bytes, server: ZookeeperProcess) -> None:
    with RawClient(server) as client:
        client.send_bytes(data)
        assert client.rest() == b""
    with RawClient(server).connect() as client:
        client.send_bytes(data if len(data) != 7 else struct.pack(">i", 3) + b"abc")
        assert client.rest() == b""


def test_four_letter_words(server: ZookeeperProcess) -> None:
    for word, answer in ((b"ruok", b"imok"), (b"isro", b"rw"), (b"srvr", b"Mode: standalone\n"), (b"wipe", b"")):
        with RawClient(server) as client:
            client.send_bytes(word)
            assert answer in (said := client.rest())
            assert said or not answer


# -- deaths ------------------------------------------------------------------------------------------------------------


@in_loop
async def test_sessions_nodes_and_watches_outlive_a_killed_server(tmp_path: Path) -> None:
    with served_tree(tmp_path) as server:
        session, leaving = new_session(server.address), new_session(server.address, session_timeout_ms=1500)
        await session.connect()
        await leaving.connect()
        states: list[SessionState] = []
        events: list[WatchEvent] = []
        session.add_session_listener(states.append)
        await session.create("/mine", b"1", ephemeral=True)
        await leaving.create("/theirs", ephemeral=True)
        await session.get("/mine", events.append)
        await session.exists("/theirs", events.append)
        server.kill()
        await eventually_on_loop("the connection is lost", lambda: states, pause_s=0.01)
        leaving._client.end_session()  # dies while the server is down: no close request is sent
        await asyncio.to_thread(server.start)
        assert (await session.get("/mine"))[1].ephemeral_owner == session.session_id
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        await eventually_async(
            "the dead session's node is gone",
            lambda: session.exists("/theirs"),
            lambda stat: stat is None,
            pause_s=0.01,
        )
        await session.set("/mine", b"2", 0)
        await session.exists("/")
        assert events == [WatchEvent(EventType.DELETED, "/theirs"), WatchEvent(EventType.DATA_CHANGED, "/mine")]
        await session.close()


def test_a_stopped_server_does_not_take_its_clients_for_dead(tmp_path: Path) -> None:
    with served_tree(tmp_path) as server, RawClient(server).connect(timeout_ms=1000) as client:
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(2.5)
        server.process.send_signal(signal.SIGCONT)
        assert client.call(OpCode.PING, xid=-2).error == 0
        assert client.call(OpCode.CREATE, create("/mine", flags=1)).error == 0
        # The client stays silent, so now its session expires.
        assert client.rest() == b""


def test_one_directory_has_one_server(tmp_path: Path) -> None:
    with served_tree(tmp_path) as server:
        second = new_served_tree(tmp_path)
        with pytest.raises(RuntimeError, match=r"Failed to acquire lock on file \.lock in .*data"):
            second.start()
        server.kill()
        second.start()
        second.kill()


@pytest.mark.java
def test_the_data_of_a_real_zookeeper_are_left_alone(tmp_path: Path) -> None:
    with real_zookeeper(tmp_path):
        pass
    with pytest.raises(RuntimeError, match="holds a real ZooKeeper's data, which the embedded tree cannot read"):
        new_served_tree(tmp_path).start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_server_leaves_in_order(number: signal.Signals, tmp_path: Path) -> None:
    with served_tree(tmp_path) as server:
        process = server.process
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        eventually("its state", lambda: "runs: it answered after" in server.output.read_text())
        process.send_signal(number)
        assert process.wait(30) == 0
        eventually("its last words", lambda: "is served on port" in server.output.read_text())


def test_one_address_leaves_room_for_others(tmp_path: Path) -> None:
    """One client could use all connections that the system allows, and brokers would lose their sessions."""

    with served_tree(tmp_path, settings={"maxClientCnxns": "2"}) as server, contextlib.ExitStack() as held:

        def connect(own_address: str = "127.0.0.1") -> RawClient:
            return held.enter_context(RawClient(server, own_address)).connect()

        connect()
        connect()
        with pytest.raises((EOFError, ConnectionError)):
            connect()
        connect("127.0.0.2")
        held.close()
        eventually("there is room again", connect, not_yet=(EOFError, ConnectionError))
        assert "Too many connections from 127.0.0.1 - max is 2" in server.output.read_text()


# -- configuration -----------------------------------------------------------------------------------------------------


def test_the_keys_of_zookeeper() -> None:
    parsed = TreeServerConfig.parse({"dataDir": "/d", "clientPort": "2181"})
    assert parsed == ("/d", "127.0.0.1", 2181, 6000, 60_000, False, 60)
    given = {
        "dataDir": "/d",
        "clientPort": "1",
        "clientPortAddress": "::1",
        "tickTime": "100",
        "maxSessionTimeout": "9",
        "maxClientCnxns": "0",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    assert TreeServerConfig.parse(given) == ("/d", "::1", 1, 200, 9, True, 0)


def test_the_file_that_comes_with_it_opens_no_port_to_other_machines() -> None:
    properties = load_properties((ROOT / "config" / "zookeeper.properties").read_bytes())
    assert properties["clientPortAddress"] == "127.0.0.1"  # a real ZooKeeper uses it too
    assert TreeServerConfig.parse(properties).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataDir": ""}, "configuration dataDir: it is needed"),
        ({"clientPort": "65536"}, "65536 for configuration clientPort: a port between 1 and 65535 is needed"),
        ({"tickTime": "fast"}, "fast for configuration tickTime: it is not a number"),
        ({"server.1": "zk1:2888:3888"}, r"zk1:2888:3888 for configuration server\.1: .* use a real ZooKeeper"),
        ({"secureClientPort": "2281"}, "secureClientPort: the embedded tree has neither ensembles nor TLS"),
        ({"authProvider.1": "X509"}, r"X509 for configuration authProvider\.1: .*SASLAuthenticationProvider only"),
    ],
)
def test_keys_that_cannot_be_heeded(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TreeServerConfig.parse({"dataDir": "/d", "clientPort": "2181", **changed})
