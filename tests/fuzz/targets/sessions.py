"""Everything that a client may send to a listener with SASL, alone or after another client's password.

A model tracks which user has authenticated. Before that, only ApiVersions may be served.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from broker.broker_environment import system_environment
from broker.network.connection import Connection
from broker.network.limits import ConnectionLimits
from broker.network.memory import RequestMemory
from broker.network.socket_server import SocketServer
from broker.security import sasl_session
from broker.security.listener_security import security_of_listeners
from config.broker_config import BrokerConfig
from protocol.errors import DecodeError
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from protocol.wire.schema import Request
from security.sasl_exchange import ScramCredential
from tests.fuzz.mutation import mutated
from tests.fuzz.runner import Target, Trial
from tests.fuzz.targets.passwords import HASHES, LEAST_ITERATIONS, SALT, SALTED, USERS, proof
from tests.kit.environment import InlineExecutor, ManualClock, SeededRandom
from tests.kit.in_process import MemoryNetwork, MemoryTransport
from tests.kit.wire_requests import framed, request_bytes

LIFETIME_MS = 60_000
PLAIN_USERS = ("alice", "Zoë")
MECHANISMS = ("PLAIN", *HASHES)
ANONYMOUS = "User:ANONYMOUS"
KINDS = (
    *("versions", "handshake", "handshake", "plain", "plain", "plain-wrong", "first", "last", "last-wrong", "request"),
    *("request", "noise", "wait", "first", "last"),
)


class Step(NamedTuple):
    """One frame. `twist`, if not 0, changes it; `cut` is the length of the part that the connection sees first."""

    kind: str
    user: str
    mechanism: str
    version: int
    twist: int
    cut: int


Script = tuple[Step, ...]
WHOLE: tuple[tuple[str, ...], ...] = (
    ("handshake", "plain", "request"),
    ("versions", "handshake", "first", "last", "request"),
    ("handshake", "plain", "request", "wait", "handshake", "plain", "request"),
)
"""Steps of well-behaved clients."""


class Listener:
    """A server with a single listener, whose connections are in memory."""

    def __init__(self) -> None:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = " ".join(f'user_{user}="{USERS[user]}"' for user in PLAIN_USERS)
        config = BrokerConfig(
            {
                "broker.id": "0",
                "listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9093",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} {users};",
                "connection.failed.authentication.delay.ms": "0",
                "connections.max.reauth.ms": str(LIFETIME_MS),
            }
        )
        self.clock = ManualClock()
        self.executor = InlineExecutor()
        environment = system_environment(config).replace(
            clock=self.clock, random=SeededRandom(), executor=self.executor
        )
        credentials = {
            (user, mechanism): ScramCredential.from_salted_password(
                mechanism, SALTED[mechanism, user], SALT, LEAST_ITERATIONS
            )
            for user in USERS
            for mechanism in HASHES
        }

        async def stored(user: str, mechanism: str) -> ScramCredential:
            invented = ScramCredential.invented(mechanism, user, b"key", LEAST_ITERATIONS)
            return credentials.get((user, mechanism), invented)

        async def no_token(_token_id: str, _mechanism: str) -> None:
            return None

        self.security = security_of_listeners(config, environment, stored, no_token)["SASL_PLAINTEXT"]
        self.server = SocketServer(
            MemoryNetwork(), self.executor, self.clock, ConnectionLimits(100, 100, {}), RequestMemory(-1),
            max_request_bytes=1_000_000, max_idle_ms=-1,
        )  # fmt: skip


class Client:
    """One connection, and the model of its user."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        protocol = listener.security.protocol(listener.server, self, "SASL_PLAINTEXT")
        assert isinstance(protocol, Connection)
        self.connection = protocol
        self.transport = MemoryTransport()
        self.transport.connection = protocol
        self.proved_ms: dict[str, int] = {}
        """When each user's password was last used, rightly or in the wrong place."""
        self.served = 0
        self.sent = b""
        self.challenge = b""
        self.bare = b""
        self._user: str | None = None
        protocol.connection_made(self.transport)

    def dispatch(self, connection: Connection, frame: memoryview) -> list[bytearray]:
        """Act as the dispatcher behind the session."""
        principal = str(connection.principal)
        if frame[:2] != b"\0\x12" or principal != ANONYMOUS:
            assert principal != ANONYMOUS, "a request of nobody is served"
            user = principal.removeprefix("User:")
            assert self._user in (None, user), "a client became another one"
            self._user = user
            assert user in self.proved_ms, "nobody knew the password"
            assert self.listener.clock.ms <= self.proved_ms[user] + LIFETIME_MS, "the session is over"
            self.served += 1
        return [bytearray(framed(b"\0\0\0\0ok"))]

    def feed(self, data: bytes, cut: int) -> None:
        """Let the connection receive `data`, at first only its beginning."""
        self.sent += data
        for user in PLAIN_USERS:
            if f"\0{user}\0{USERS[user]}".encode() in self.sent:
                self.proved_ms[user] = self.listener.clock.ms
        begin = 0
        for end in (min(cut, len(data)), len(data)):
            while begin < end and not self.transport.closed:
                buffer = self.connection.get_buffer(-1)
                size = min(len(buffer), end - begin)
                buffer[:size] = data[begin : begin + size]
                self.connection.buffer_updated(size)
                begin += size

    async def answer(self) -> bytes:
        """Everything that the broker has sent since the last call."""
        for _ in range(4):
            await asyncio.sleep(0)
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written

    def token(self, step: Step) -> bytes:
        """The token of a step, if it can be made."""
        user, mechanism = step.user, step.mechanism if step.mechanism in HASHES else "SCRAM-SHA-256"
        if step.kind == "plain":
            return f"\0{user}\0{USERS[user]}".encode()
        if step.kind == "plain-wrong":
            return f"\0{user}\0{USERS[user][:-1]}".encode()
        if step.kind == "first":
            written = user.replace("=", "=3D").replace(",", "=2C")
            self.bare = f"n={written},r=c11ent".encode()
            return b"n,," + self.bare
        unproved = b"c=biws," + self.challenge.partition(b",s=")[0]
        message = self.bare + b"," + self.challenge + b"," + unproved
        if step.kind == "last-wrong":
            return unproved + b",p=" + proof(mechanism, b"another", message)
        self.proved_ms[user] = self.listener.clock.ms
        return unproved + b",p=" + proof(mechanism, SALTED[mechanism, user], message)


def _request(step: Step, token: bytes) -> Request | None:
    if step.kind == "versions":
        return ApiVersionsRequest(client_software_name="fuzz", client_software_version="1")
    if step.kind == "handshake":
        return SaslHandshakeRequest(mechanism=step.mechanism)
    if step.kind == "request":
        return MetadataRequest(topics=[])
    return None if step.kind == "noise" else SaslAuthenticateRequest(auth_bytes=token)


class Sessions:
    """Scripts of steps, valid and invalid ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listener = Listener()
        self.errors: list[str] = []

    def make(self, draw: random.Random) -> Script:
        user = draw.choice(PLAIN_USERS)
        scram = draw.choice(list(HASHES))
        kind = draw.random()
        if kind < 0.15:
            kinds: Sequence[str] = draw.choice(WHOLE)
        elif kind < 0.6:
            kinds = [draw.choice(KINDS) if draw.random() < 0.3 else each for each in draw.choice(WHOLE)]
        else:
            kinds = draw.choices(KINDS, k=draw.randrange(1, 7))
        mechanism = scram if "first" in kinds else "PLAIN"
        is_old = draw.random() < 0.3
        steps = []
        for each in kinds:
            is_odd = kind >= 0.15 and draw.random() < 0.1
            steps.append(
                Step(
                    each,
                    draw.choice(list(USERS)) if is_odd else user,
                    draw.choice([*MECHANISMS, "GSSAPI", ""]) if is_odd else mechanism,
                    draw.randrange(4) if is_odd else 0 if is_old else 1,
                    draw.randrange(1, 2**32) if kind >= 0.15 and draw.random() < 0.25 else 0,
                    draw.choice([0, 0, 1, 4, 5, 9]),
                )
            )
        return tuple(steps)

    def check(self, case: Script) -> bool:
        served = self._loop.run_until_complete(self._play(case))
        assert not self.errors, self.errors
        kinds = tuple(step.kind for step in case)
        is_right = kinds in WHOLE and not any(step.twist for step in case) and len({step[1:4] for step in case}) == 1
        if is_right and case[0].mechanism in (MECHANISMS if "first" not in kinds else HASHES):
            # A client without headers cannot authenticate again, but its handshake has a header.
            assert served == kinds.count("request"), served
        return served > 0

    async def _play(self, script: Script) -> int:
        client = Client(self._listener)
        has_headers = True
        for step in script:
            if step.kind == "wait":
                self._listener.clock.ms += random.Random(step.twist).choice(
                    [500, 5000, LIFETIME_MS // 2, LIFETIME_MS + 1]
                )
                continue
            data, is_token = self._frame(client, step, has_headers=has_headers)
            client.feed(data, step.cut)
            answer = await client.answer()
            if client.transport.closed:
                break
            if step.kind == "handshake":
                has_headers = step.version != 0
            elif step.kind == "first" and is_token:
                client.challenge = _challenge(answer, step.version if has_headers else None)
            if step.kind in ("last", "plain"):
                has_headers = True
        client.transport.abort()
        await asyncio.sleep(0)
        return client.served

    @staticmethod
    def _frame(client: Client, step: Step, *, has_headers: bool) -> tuple[bytes, bool]:
        twist = random.Random(step.twist)
        if step.kind == "noise":
            return twist.randbytes(twist.randrange(30)), False
        is_token = step.kind not in ("versions", "handshake", "request")
        token = client.token(step) if is_token else b""
        if is_token and not has_headers:
            content = token
        else:
            request = _request(step, token)
            assert request is not None
            version = min(step.version, request.max_version) if step.kind != "request" else 1
            content = request_bytes(request, version, 7)
        frame = framed(content)
        if step.twist:
            frame = mutated(frame, twist) if twist.random() < 0.2 else framed(mutated(content, twist))
        return frame, is_token


def _challenge(answer: bytes, version: int | None) -> bytes:
    """The server's token in an answer, if any."""
    if version is None:
        return answer[4:]
    head = 4 + 4 + SaslAuthenticateResponse.api_key.response_header_version(version)
    try:
        decoded: Any = SaslAuthenticateResponse.decode(answer[head:], min(version, 2))
    except DecodeError:
        return b""
    return bytes(decoded.auth_bytes)


class _Recorder(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(self.format(record))


@contextmanager
def quiet(errors: list[str]) -> Iterator[None]:
    """Collect logged errors only; a line per refusal would be most of the work."""
    recorder = _Recorder(errors)
    root, disabled = logging.getLogger(), logging.root.manager.disable
    root.addHandler(recorder)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.removeHandler(recorder)


@contextmanager
def sessions() -> Iterator[Trial]:
    """See `Sessions`. Clients may reauthenticate at once."""
    loop = asyncio.new_event_loop()
    least, sasl_session.LEAST_BETWEEN_S = sasl_session.LEAST_BETWEEN_S, 0.0  # type: ignore[misc]
    trial = Sessions(loop)
    loop.set_exception_handler(lambda _, context: trial.errors.append(repr(context)))
    try:
        with quiet(trial.errors):
            yield trial
    finally:
        sasl_session.LEAST_BETWEEN_S = least  # type: ignore[misc]
        loop.close()


TARGETS = (Target("sasl-sessions", 10, sessions),)
