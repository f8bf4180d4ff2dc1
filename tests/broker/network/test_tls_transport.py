"""TLS connections: all data arrives, however it is fragmented, and handshakes are limited."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker.broker_environment import system_environment
from broker.network import tls_transport
from broker.network.handshakes import Handshakes
from broker.network.reply_writer import FileSlice
from broker.security.listener_security import SecuredListener, security_of_listeners
from config.broker_config import BrokerConfig
from environment.system import ThreadExecutor
from tests.broker.network.scripted_server import ScriptedServer, framed, is_closed, run
from tests.broker.network.test_connection_files import GeneratedFile
from tests.kit.security.certificates import Authority, Identity, subject
from tests.kit.waiting import eventually_on_loop

pytestmark = pytest.mark.usefixtures("every_loop")

T = TypeVar("T")

AUTHORITY = Authority()
BROKER = AUTHORITY.issue("broker")
ALICE = AUTHORITY.issue(subject("alice", ORGANIZATION_NAME="Odradek"))
RULES = r"RULE:^CN=(\w+),O=Odradek$/$1/"


def server_tls(client_auth: str = "none", most_stalled: int = 256) -> SecuredListener:
    config = BrokerConfig(
        {
            "broker.id": "0",
            "listeners": "PLAINTEXT://:9092,SSL://:9093",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": BROKER.key_pem(),
            "ssl.keystore.certificate.chain": BROKER.certificate_pem,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": AUTHORITY.pem,
            "ssl.client.auth": client_auth,
            "ssl.principal.mapping.rules": RULES,
        }
    )
    environment = system_environment(config)

    async def nobody(_user_or_token: str, _mechanism: str) -> None:
        return None

    security = security_of_listeners(config, environment, nobody, nobody)["SSL"]
    assert security.tls is not None
    security.tls.handshakes = Handshakes(environment.executor, most_stalled)
    return security


def client_context(identity: Identity | None = None, directory: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=AUTHORITY.pem)
    if identity is not None and directory is not None:
        context.load_cert_chain(identity.write_pem(directory / "client.pem"))
    return context


async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes = b"x") -> bool:
    writer.write(framed(payload))
    return await asyncio.wait_for(reader.readexactly(len(payload)), 30) == payload


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_names_the_principal(version: ssl.TLSVersion, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls("requested")) as scripted:
            context = client_context(ALICE, tmp_path)
            context.maximum_version = version
            assert await echoes(*await scripted.connect(context))
            assert await echoes(*await scripted.connect(client_context()))
            names = [str(each.principal) for each in scripted.server.connections]
            assert names == ["User:alice", "User:ANONYMOUS"]
            assert {each.security_protocol for each in scripted.server.connections} == {"SSL"}

    run(scenario())


def test_whoever_is_not_let_in_is_told_and_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls("required")) as scripted:
            outsiders = [
                client_context(),
                client_context(Authority().issue(subject("alice", ORGANIZATION_NAME="Odradek")), tmp_path),
                client_context(AUTHORITY.issue(subject("alice", ORGANIZATION_NAME="Odradek"), days=-1), tmp_path),
                client_context(AUTHORITY.issue("mallory"), tmp_path),
            ]
            for context in outsiders:
                # In TLS 1.3 a client learns only after its own last message whether the server accepts it.
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await echoes(*await scripted.connect(context))
            reader, writer = await scripted.connect()
            writer.write(framed(b"plain text"))
            assert await is_closed(reader)
            assert not scripted.dispatcher.seen
            assert await echoes(*await scripted.connect(client_context(ALICE, tmp_path)))
            await eventually_on_loop("only one is left", lambda: len(scripted.server.connections) == 1)

    run(scenario())
    refused = [each.getMessage() for each in caplog.records if "Failed authentication with 127." in each.getMessage()]
    assert len(refused) == 5
    for reason in ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED", "no rule of", "WRONG_VERSION"):
        assert any(reason in line for line in refused), reason


def test_files_and_pipelined_requests_arrive_whole() -> None:
    async def scenario() -> None:
        file = GeneratedFile(5_000_000)

        def answer(frame: bytes) -> list[object]:
            return [b"head", FileSlice(file, 0, file.size), b"tail"] if frame == b"file" else [frame]  # type: ignore[arg-type]

        async with ScriptedServer(answer, security=server_tls()) as scripted:  # type: ignore[arg-type]
            reader, writer = await scripted.connect(client_context())
            large = random.Random(7).randbytes(900_000)
            writer.write((framed(b"file") + framed(large) + framed(b"x") * 1000) * 3)
            # The client does not read until the socket is full.
            await eventually_on_loop(
                "replies wait", lambda: any(each.unsent_bytes for each in scripted.server.connections)
            )
            for _ in range(3):
                assert await reader.readexactly(4) == b"head"
                assert len(await reader.readexactly(file.size)) == file.size
                assert await reader.readexactly(4) == b"tail"
                assert await reader.readexactly(len(large)) == large
                assert await reader.readexactly(1000) == b"x" * 1000

    run(scenario())


def test_a_handshake_and_requests_may_come_byte_by_byte() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls()) as scripted:
            reader, writer = await scripted.connect()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = client_context().wrap_bio(incoming, outgoing)
            received = b""
            begins = True
            while len(received) < 300:
                try:
                    if begins:
                        client.do_handshake()
                        begins = False
                        client.write(framed(b"abc") * 100)
                    received += client.read(1000)
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        writer.write(bytes([byte]))
                        await asyncio.sleep(0)
                    incoming.write(await asyncio.wait_for(reader.read(1000), 30))
            assert received == b"abc" * 100

    run(scenario())


def test_a_silent_client_is_closed_and_counts_before_its_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_S", 0.3)

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls(), per_ip=1) as scripted:
            silent, _ = await scripted.connect()
            await eventually_on_loop("it is counted", lambda: len(scripted.server.connections) == 1)
            second, _ = await scripted.connect()
            assert await is_closed(second)
            assert await is_closed(silent)
            await eventually_on_loop("it is gone", lambda: not scripted.server.connections)
            assert await echoes(*await scripted.connect(client_context()))

    run(scenario())


class GatedExecutor(ThreadExecutor):
    """Threads that start their work once the gate is open."""

    def __init__(self) -> None:
        super().__init__(1)
        self.gate, self.waiting = threading.Event(), threading.Event()

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        def step() -> T:
            self.waiting.set()
            self.gate.wait(30)
            return function(*args)

        return super().run(step)


def test_a_connection_may_end_while_a_thread_has_its_handshake() -> None:
    """The thread's error then never reaches the event loop."""

    async def scenario() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        executor, security = GatedExecutor(), server_tls()
        assert security.tls is not None
        security.tls.handshakes = Handshakes(executor)
        async with ScriptedServer(lambda frame: [frame], security=security) as scripted:
            reader, writer = await scripted.connect()
            writer.write(hello())
            await eventually_on_loop("a thread has it", executor.waiting.is_set)
            for connection in list(scripted.server.connections):
                connection.close("the test ends it", soon=True)
            await eventually_on_loop("it is gone", lambda: not scripted.server.connections)
            assert await is_closed(reader)
            executor.gate.set()
            assert await echoes(*await scripted.connect(client_context()))
        executor.close()
        gc.collect()
        await asyncio.sleep(0)
        assert not errors, errors

    run(scenario())


def hello() -> bytes:
    """The first message of a client."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def test_half_open_handshakes_keep_nobody_waiting() -> None:
    """However many clients send nothing, half a message, or nothing after the first one."""

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls(most_stalled=2)) as scripted:
            half_open = []
            for sent in (b"", hello()[:50], hello(), hello()):
                for _ in range(5):
                    half_open.append(await scripted.connect())
                    half_open[-1][1].write(sent)
            ends = [asyncio.ensure_future(is_ended(reader)) for reader, _ in half_open]
            await eventually_on_loop("only two wait for their clients", lambda: sum(each.done() for each in ends) == 8)
            assert not any(each.done() for each in ends[:10]), "OpenSSL holds no memory for these"
            assert await echoes(*await scripted.connect(client_context()))
            assert sum(each.done() for each in ends) <= 9

    run(scenario())


async def is_ended(reader: asyncio.StreamReader) -> bool:
    """Wait for the end, skipping all data before it."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


class Stalled:
    """A stalled handshake."""

    def __init__(self) -> None:
        self.gave_way = False

    def make_room(self) -> None:
        self.gave_way = True


def test_the_oldest_handshake_of_the_peers_that_have_most_ends() -> None:
    handshakes = Handshakes(ThreadExecutor(1), most_stalled=4)
    broker, *others = waiting = [Stalled() for _ in range(6)]
    handshakes.wait_for_peer(broker, ("SSL", "10.0.0.1"))
    for each in others:
        handshakes.wait_for_peer(each, ("SSL", "10.0.0.2"))
    assert [each.gave_way for each in waiting] == [False, True, True, False, False, False]
    handshakes.leave(broker, ("SSL", "10.0.0.1"))
    handshakes.leave(broker, ("SSL", "10.0.0.1"))
    handshakes.wait_for_peer(Stalled(), ("SSL", "10.0.0.3"))
    assert not others[2].gave_way


def test_peers_take_turns_and_those_that_left_have_none() -> None:
    class Manual:
        """Runs each step at once, but reports its completion when the test says so."""

        def __init__(self) -> None:
            self.futures: list[asyncio.Future[None]] = []

        def run(self, function: Callable[..., Any], /, *_: object) -> Awaitable[Any]:
            function()
            self.futures.append(asyncio.get_running_loop().create_future())
            return self.futures[-1]

        def close(self) -> None:
            """Do nothing: no thread is running."""

    async def scenario() -> None:
        executor = Manual()
        handshakes = Handshakes(executor)
        names: list[str] = []

        def run(name: str, peers: tuple[str, str]) -> Stalled:
            handshake = Stalled()
            handshakes.run(handshake, peers, lambda: names.append(name), lambda _: None)
            return handshake

        many, gone = ("SSL", "10.0.0.2"), ("SSL", "10.0.0.3")
        for number in range(6):
            run(f"many-{number}", many)
        left = run("left", many), run("left", gone)
        run("broker", ("BROKERS", "10.0.0.1"))
        handshakes.leave(left[0], many)
        handshakes.leave(left[1], gone)
        for number in range(5):
            executor.futures[number].set_result(None)
            await asyncio.sleep(0)
        assert names == ["many-0", "many-1", "many-2", "broker", "many-3", "many-4", "many-5"]

    asyncio.run(scenario())


def test_many_at_once() -> None:
    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls()) as scripted:
            context = client_context()

            async def visit(number: int) -> bool:
                return await echoes(*await scripted.connect(context), payload=b"%d" % number * 20_000)

            assert all(await asyncio.gather(*(visit(number) for number in range(50))))

    run(scenario())


def test_a_connection_over_the_brokers_limit_waits_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_S", 0.3)

    async def scenario() -> None:
        async with ScriptedServer(lambda frame: [frame], security=server_tls(), max_connections=1) as scripted:
            first = await scripted.connect(client_context())
            assert await echoes(*first)
            second = asyncio.ensure_future(scripted.connect(client_context()))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(second), 0.6)
            first[1].close()
            assert await echoes(*await asyncio.wait_for(second, 30))

    run(scenario())
