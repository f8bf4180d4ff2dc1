"""Apache Kafka and Odradek with one secret key on one ZooKeeper: a token created at either is valid at both, also for
Java's clients.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from cluster.security.delegation_token import CHANGES, DelegationToken, token_path
from protocol.errors import ErrorCode
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from security.sasl_config import Login
from security.sasl_exchange import exchange
from tests.kit.apache_kafka import await_controller, java_server, zookeeper
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.tools.tool_pair import Answer, Runner, kafkas_runner

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGE = "org.apache.kafka.common.security."
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
APACHE, ODRADEK = 0, 1
ROUNDS = 5
SOON_S = 1.0


class Mixed(NamedTuple):
    """The SASL addresses of both brokers, and Kafka's tools. Apache's comes first."""

    zookeeper: str
    addresses: tuple[str, str]
    odradek: BrokerProcess
    tools: Runner
    directory: Path

    def connect(self, at: int) -> WireClient:
        return WireClient("127.0.0.1", int(self.addresses[at].rpartition(":")[2]))

    @contextlib.contextmanager
    def alice(self, at: int, user: str = "alice") -> Iterator[WireClient]:
        """A connection of a user authenticated by password."""
        with self.connect(at) as connection:
            connection.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            proof = f"\0{user}\0{user}'s".encode()
            answer: Any = connection.ask(SaslAuthenticateRequest(auth_bytes=proof), 2)
            assert answer.error_code == ErrorCode.NONE, answer
            yield connection

    def make(self, at: int, *renewers: str, lifetime_ms: int = -1) -> Any:
        renewer = CreateDelegationTokenRequest.CreatableRenewers
        named = [renewer(principal_type="User", principal_name=each) for each in renewers]
        with self.alice(at) as connection:
            answer: Any = connection.ask(CreateDelegationTokenRequest(renewers=named, max_lifetime_ms=lifetime_ms), 3)
        assert answer.error_code == ErrorCode.NONE, answer
        return answer

    def make_known(self, at: int, *, lifetime_ms: int = -1) -> Any:
        """A token known to both brokers: Java's clients follow the metadata from one broker to the other."""
        token = self.make(at, lifetime_ms=lifetime_ms)
        for each in (APACHE, ODRADEK):
            eventually("the token", lambda broker=each: self.lets_in(broker, token), pause_s=0.01)
        return token

    def lets_in(self, at: int, token: Any, mechanism: str = MECHANISMS[0]) -> bool:
        """Whether a broker accepts the token in an answer, and serves its owner."""
        tokens = exchange(Login(mechanism, token.token_id, password_of(token), has_token=True), "c" * 32)
        with self.connect(at) as connection:
            connection.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
            answer: Any = connection.ask(SaslAuthenticateRequest(auth_bytes=next(tokens)), 2)
            if answer.error_code == ErrorCode.NONE:
                last = tokens.send(bytes(answer.auth_bytes))
                answer = connection.ask(SaslAuthenticateRequest(auth_bytes=last), 2)
            if answer.error_code:
                return False
            try:
                connection.ask(MetadataRequest(topics=[]), 9)
            except ConnectionClosed:
                return False
            return True

    def properties(self, token: Any, mechanism: str = MECHANISMS[0]) -> str:
        """A file for Java's clients."""
        module = f"{PACKAGE}scram.ScramLoginModule required"
        login = f'{module} username="{token.token_id}" password="{password_of(token)}" tokenauth="true";'
        path = self.directory / "client.properties"
        path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={login}\n")
        return str(path)

    def run(self, tool: str, at: int, *arguments: str, given: str = "") -> Answer:
        """Run one of Kafka's tools."""
        return self.tools.run(tool, ["--bootstrap-server", self.addresses[at], *arguments], given)


def password_of(token: Any) -> str:
    return base64.b64encode(bytes(token.hmac)).decode()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    directory = tmp_path_factory.mktemp("mixed")
    plain, secured = ([f"127.0.0.1:{free_port()}" for _ in range(2)] for _ in range(2))
    users = " ".join(f'user_{user}="{user}\'s"' for user in ("alice", "bob"))
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(zookeeper(directory / "zookeeper"))
        settings = {
            "zookeeper.connect": tree,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)),
            "listener.name.users.plain.sasl.jaas.config": f"{PACKAGE}plain.PlainLoginModule required {users};",
            **{
                f"listener.name.users.{each.lower()}.sasl.jaas.config": f"{PACKAGE}scram.ScramLoginModule required;"
                for each in MECHANISMS
            },
            "delegation.token.secret.key": "the brokers' secret",
            "delegation.token.expiry.check.interval.ms": "500",
            "offsets.topic.replication.factor": "1",
            "zookeeper.session.timeout.ms": "6000",
            # The other broker stops first, so no broker can take over.
            "controlled.shutdown.enable": "false",
        }

        def of(at: int, **own: str) -> dict[str, str]:
            listeners = f"PLAINTEXT://{plain[at]},USERS://{secured[at]}"
            return {**settings, "listeners": listeners, **{key.replace("_", "."): text for key, text in own.items()}}

        properties = directory / "server.properties"
        apaches = of(APACHE, broker_id="0", log_dirs=str(directory / "apache"))
        properties.write_text("".join(f"{key}={value}\n" for key, value in apaches.items()))
        stack.enter_context(java_server("kafka.Kafka", properties, int(plain[APACHE].rpartition(":")[2])))
        await_controller(plain[APACHE])
        odradek = BrokerProcess(directory / "odradek", of(ODRADEK, broker_id="7"))
        odradek.address = plain[ODRADEK]
        odradek.start()
        stack.callback(odradek.stop)
        tools = kafkas_runner(directory)
        stack.callback(tools.close)
        yield Mixed(tree, (secured[APACHE], secured[ODRADEK]), odradek, tools, directory)
    assert "Traceback" not in odradek.output.read_text()


@pytest.fixture
def tree(mixed: Mixed) -> Iterator[KazooClient]:
    client = KazooClient(mixed.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


def waited_s(what: str, is_so: Any) -> float:
    """How long it took."""
    started = time.monotonic()
    eventually(what, is_so, pause_s=0.01)
    return time.monotonic() - started


@pytest.mark.parametrize("at", [APACHE, ODRADEK], ids=["apache", "odradek"])
def test_a_token_made_at_one_broker_counts_at_the_other(mixed: Mixed, at: int) -> None:
    times = []
    for number in range(ROUNDS):
        token = mixed.make(at)
        mechanism = MECHANISMS[number % 2]
        times.append(waited_s("the token", lambda t=token, m=mechanism: mixed.lets_in(1 - at, t, m)))
        with mixed.alice(at) as alice:
            alice.ask(ExpireDelegationTokenRequest(hmac=bytes(token.hmac), expiry_time_period_ms=-1), 2)
        times.append(waited_s("the token's end", lambda t=token: not mixed.lets_in(1 - at, t)))
    assert min(times) < SOON_S, times


@pytest.mark.parametrize("at", [APACHE, ODRADEK], ids=["apache", "odradek"])
def test_a_token_is_renewed_at_the_other(mixed: Mixed, at: int) -> None:
    token = mixed.make(at, "bob", lifetime_ms=100_000_000)
    with mixed.alice(1 - at, "bob") as bob, mixed.alice(at) as alice:

        def renewed() -> Any:
            answer: Any = bob.ask(RenewDelegationTokenRequest(hmac=bytes(token.hmac), renew_period_ms=500_000_000), 2)
            return answer.error_code == ErrorCode.NONE and answer

        end_ms = eventually("the token at the other broker", renewed, pause_s=0.01).expiry_timestamp_ms
        assert end_ms == token.max_timestamp_ms

        def seen() -> list[tuple[int, bytes]]:
            answer: Any = alice.ask(DescribeDelegationTokenRequest(owners=None), 3)
            return [(one.expiry_timestamp, bytes(one.hmac)) for one in answer.tokens if one.token_id == token.token_id]

        eventually("the new end", seen, lambda found: found == [(end_ms, bytes(token.hmac))], pause_s=0.01)


def test_both_write_the_same(mixed: Mixed, tree: KazooClient) -> None:
    written = []
    for at in (APACHE, ODRADEK):
        token = mixed.make(at, "CN=é, O=b", "bob")
        data = tree.get(token_path(token.token_id))[0]
        assert DelegationToken.decode(token.token_id, data).encode() == data, "byte for byte, Kafka's too"
        value = json.loads(data)
        times = {"issueTimestamp": token.issue_timestamp_ms, "maxTimestamp": token.max_timestamp_ms}
        assert {name: value.pop(name) for name in times} == times
        assert value.pop("expiryTimestamp") == token.expiry_timestamp_ms
        assert value.pop("tokenId") == token.token_id
        written.append(value)
        last = sorted(tree.get_children(CHANGES))[-1]
        assert last.startswith("token_change_")
        assert tree.get(f"{CHANGES}/{last}")[0] == token.token_id.encode()
    assert written[APACHE] == written[ODRADEK]


@pytest.mark.parametrize("at", [APACHE, ODRADEK], ids=["apache", "odradek"])
def test_the_controller_removes_what_has_expired(mixed: Mixed, tree: KazooClient, at: int) -> None:
    token = mixed.make(at, lifetime_ms=1)
    eventually("its removal", lambda: tree.exists(token_path(token.token_id)) is None, pause_s=0.05)
    for each in (APACHE, ODRADEK):
        eventually("its end", lambda broker=each: not mixed.lets_in(broker, token), pause_s=0.05)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_clients_show_a_token(mixed: Mixed, mechanism: str) -> None:
    token = mixed.make_known(APACHE)
    file, topic = mixed.properties(token, mechanism), f"topic-{mechanism}"
    created = mixed.run("topics", ODRADEK, "--command-config", file, "--create", "--topic", topic)
    assert created.code == 0, created
    lines = "".join(f"line {number}\n" for number in range(100))
    sent = mixed.run("console_producer", ODRADEK, "--producer.config", file, "--topic", topic, given=lines)
    assert sent.code == 0, sent
    options = ["--topic", topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000"]
    read = mixed.run("console_consumer", ODRADEK, "--consumer.config", file, *options)
    assert read.stdout == lines, read.stderr
    refused = mixed.run("delegation_tokens", ODRADEK, "--command-config", file, "--create", "--max-life-time-period=-1")
    assert refused.code == 1
    assert "UnsupportedByAuthenticationException" in refused.stderr


def test_javas_clients_are_refused_once_the_token_is_gone(mixed: Mixed) -> None:
    token = mixed.make_known(ODRADEK)
    file = mixed.properties(token)
    assert mixed.run("topics", ODRADEK, "--command-config", file, "--list").code == 0
    with mixed.alice(ODRADEK) as alice:
        alice.ask(ExpireDelegationTokenRequest(hmac=bytes(token.hmac), expiry_time_period_ms=-1), 2)
    refused = mixed.run("topics", ODRADEK, "--command-config", file, "--list")
    assert refused.code == 1
    assert "due to invalid credentials with SASL mechanism SCRAM-SHA-256" in refused.stdout + refused.stderr


def test_javas_consumer_ends_with_its_token(mixed: Mixed) -> None:
    """It reauthenticates again and again, for as long as the token is valid.

    It exits with 1 if a connection is also refused while it closes, otherwise with 0.
    """
    started = time.monotonic()
    token = mixed.make_known(ODRADEK, lifetime_ms=4_000)
    options = ["--topic", "waiting", "--timeout-ms", "40000"]
    read = mixed.run("console_consumer", ODRADEK, "--consumer.config", mixed.properties(token), *options)
    assert 3 < time.monotonic() - started < 35
    assert read.code in (0, 1), read
    refusal = "due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    pattern = f"Error processing message, terminating consumer process: .*SaslAuthenticationException: .*{refusal}"
    assert re.search(pattern, read.stderr, re.DOTALL), read


def test_a_token_outlives_a_broker_that_is_killed(mixed: Mixed) -> None:
    token = mixed.make_known(ODRADEK)
    mixed.odradek.kill()
    mixed.odradek.start()
    assert mixed.lets_in(ODRADEK, token)
    assert mixed.run("topics", ODRADEK, "--command-config", mixed.properties(token), "--list").code == 0
