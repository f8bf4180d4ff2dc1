"""Bytes of TLS: hellos, handshakes and records of clients, cut, changed and mixed.

The listener may deliver only plain text that a client sent, and only from clients that it admits.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from broker.broker_environment import system_environment
from broker.network.connection import Connection
from broker.network.handshakes import Handshakes
from broker.network.limits import ConnectionLimits
from broker.network.memory import RequestMemory
from broker.network.socket_server import SocketServer
from broker.network.tls_transport import Tls, TlsTransport
from broker.security.listener_security import SecuredListener, security_of_listeners
from config.broker_config import BrokerConfig
from tests.fuzz.mutation import mutated
from tests.fuzz.runner import Target, Trial
from tests.fuzz.targets.sessions import quiet
from tests.kit.environment import InlineExecutor, ManualClock
from tests.kit.in_process import MemoryNetwork, MemoryTransport
from tests.kit.security.certificates import Authority, subject
from tests.kit.wire_requests import framed

AUTHS = ("none", "requested", "required")
CLIENTS = {
    "nobody": "User:ANONYMOUS",
    "alice": "User:alice",
    "stranger": None,
    "expired": None,
    "unmapped": None,
}
"""The principal of each client, None for clients that are never admitted."""
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
FRAMES = (b"first", b"second" * 50)
MOST_TURNS = 12


class HandshakeCase(NamedTuple):
    """`twist`, if not 0, changes the bytes sent in turn `turn`; `cut` is the size of the pieces.

    Without a `client` only the hello is sent.
    """

    auth: str
    client: str
    version: ssl.TLSVersion
    turn: int
    twist: int
    cut: int


class Server:
    """One listener of each kind."""

    def __init__(self, authority: Authority) -> None:
        broker = authority.issue("broker")
        self.executor = InlineExecutor()
        self.listeners = {auth: self._listener(authority, broker, auth) for auth in AUTHS}
        self.server = SocketServer(
            MemoryNetwork(), self.executor, ManualClock(), ConnectionLimits(100, 100, {}), RequestMemory(-1),
            max_request_bytes=100_000, max_idle_ms=-1,
        )  # fmt: skip

    def _listener(self, authority: Authority, broker: object, auth: str) -> SecuredListener:
        config = BrokerConfig(
            {
                "broker.id": "0",
                "listeners": "PLAINTEXT://:9092,SSL://:9093",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": broker.key_pem(),  # type: ignore[attr-defined]
                "ssl.keystore.certificate.chain": broker.certificate_pem,  # type: ignore[attr-defined]
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": authority.pem,
                "ssl.client.auth": auth,
                "ssl.principal.mapping.rules": r"RULE:^CN=(\w+),O=Odradek$/$1/",
                "connection.failed.authentication.delay.ms": "0",
            }
        )

        async def no_user(_user: str, _mechanism: str) -> None:
            return None

        environment = system_environment(config).replace(executor=self.executor)
        listener = security_of_listeners(config, environment, no_user, no_user)["SSL"]
        assert isinstance(listener.tls, Tls)
        listener.tls.handshakes = Handshakes(self.executor)
        return listener


class Peer:
    """The server's side of one connection, and its output."""

    def __init__(self, server: Server, auth: str) -> None:
        self.taken_up: list[tuple[str, bytes]] = []
        protocol = server.listeners[auth].protocol(server.server, self, "SSL")
        assert isinstance(protocol, TlsTransport)
        self._protocol = protocol
        self.transport = MemoryTransport()
        self.transport.connection = protocol  # type: ignore[assignment]
        protocol.connection_made(self.transport)

    def dispatch(self, connection: Connection, frame: memoryview) -> list[bytearray]:
        """The dispatcher."""
        self.taken_up.append((str(connection.principal), bytes(frame)))
        return [bytearray(framed(b"ok"))]

    async def receive(self, data: bytes, cut: int) -> bytes:
        """Receive `data` in pieces; returns the answer."""
        size = cut or len(data)
        while data and not self.transport.closed:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(data), size)
            buffer[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]
            if cut:
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written


class TlsClients:
    """Handshakes of complete clients with at most one mutated message."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.errors: list[str] = []
        authority, stranger = Authority(), Authority("stranger")
        self._server = Server(authority)
        alice = subject("alice", ORGANIZATION_NAME="Odradek")
        identities = {
            "alice": authority.issue(alice),
            "stranger": stranger.issue(alice),
            "expired": authority.issue(alice, days=-1),
            "unmapped": authority.issue("alice"),
        }
        self._contexts = {}
        with tempfile.TemporaryDirectory() as directory:
            for client in CLIENTS:
                for version in VERSIONS:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.check_hostname = False
                    context.load_verify_locations(cadata=authority.pem)
                    context.minimum_version = context.maximum_version = version
                    if client in identities:
                        context.load_cert_chain(identities[client].write_pem(Path(directory) / "client.pem"))
                    self._contexts[client, version] = context
        self._hellos = {version: self._hello(version) for version in VERSIONS}

    def _hello(self, version: ssl.TLSVersion) -> bytes:
        outgoing = ssl.MemoryBIO()
        client = self._contexts["nobody", version].wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        return outgoing.read()

    def make(self, draw: random.Random) -> HandshakeCase:
        client = draw.choice([*CLIENTS, "alice"]) if draw.random() < 0.3 else ""
        is_changed = not client or draw.random() < 0.7
        return HandshakeCase(
            draw.choice(AUTHS),
            client,
            draw.choice(VERSIONS),
            draw.randrange(4),
            draw.randrange(1, 2**32) if is_changed else 0,
            draw.choice([0, 0, 0, 1, 7, 100]) if client else draw.choice([0, 0, 100]),
        )

    def check(self, case: HandshakeCase) -> bool:
        play = self._whole(case) if case.client else self._only_hello(case)
        taken_up = self._loop.run_until_complete(play)
        assert not self.errors, self.errors
        principal = CLIENTS.get(case.client)
        # Without ssl.client.auth, a client's certificate is neither requested nor checked.
        if case.auth == "none" and case.client:
            principal = CLIENTS["nobody"]
        may_enter = principal is not None and not (case.auth == "required" and case.client == "nobody")
        assert taken_up == [(principal, each) for each in FRAMES[: len(taken_up)]]
        assert may_enter or not taken_up
        assert case.twist or not may_enter or len(taken_up) == len(FRAMES)
        return bool(taken_up)

    async def _only_hello(self, case: HandshakeCase) -> list[tuple[str, bytes]]:
        peer = Peer(self._server, case.auth)
        draw = random.Random(case.twist)
        hello = self._hellos[case.version]
        match draw.randrange(8):
            case 0:
                data = draw.randbytes(draw.randrange(1, 200))
            case 1:
                data = hello[: draw.randrange(len(hello))] + hello
            case 2:
                data = b"".join(draw.choices([hello, *(framed(each) for each in FRAMES), hello[5:]], k=3))
            case 3:
                # Spread the message over several records.
                body = mutated(hello[5:], draw)
                at = draw.randrange(1, len(body))
                data = b"".join(
                    b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in (body[:at], body[at:])
                )
            case _:
                data = mutated(hello, draw)
        await peer.receive(data, case.cut)
        peer.transport.abort()
        return peer.taken_up

    async def _whole(self, case: HandshakeCase) -> list[tuple[str, bytes]]:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._contexts[case.client, case.version].wrap_bio(incoming, outgoing, server_hostname="localhost")
        peer = Peer(self._server, case.auth)
        is_open, turn = False, 0
        for _ in range(MOST_TURNS):
            try:
                if not is_open:
                    client.do_handshake()
                    is_open = True
                    for frame in FRAMES:
                        client.write(framed(frame))
                        # Each is a separate turn, so that a mutation can hit any one of them.
                        if frame is not FRAMES[-1]:
                            incoming.write(await self._sent(peer, outgoing.read(), case, turn))
                            turn += 1
                else:
                    client.read(1000)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                await self._sent(peer, outgoing.read(), case, turn)
                break
            data = outgoing.read()
            if not data and is_open:
                break
            incoming.write(await self._sent(peer, data, case, turn))
            turn += 1
            if peer.transport.closed:
                break
        peer.transport.abort()
        return peer.taken_up

    @staticmethod
    async def _sent(peer: Peer, data: bytes, case: HandshakeCase, turn: int) -> bytes:
        if case.twist and turn == case.turn and data:
            data = mutated(data, random.Random(case.twist))
        return await peer.receive(data, case.cut)


@contextmanager
def tls() -> Iterator[Trial]:
    """See `TlsClients`."""
    loop = asyncio.new_event_loop()

    async def made() -> TlsClients:
        return TlsClients(loop)

    trial = loop.run_until_complete(made())
    loop.set_exception_handler(lambda _, context: trial.errors.append(repr(context)))
    try:
        with quiet(trial.errors):
            yield trial
    finally:
        loop.close()


TARGETS = (Target("tls", 2, tls),)
