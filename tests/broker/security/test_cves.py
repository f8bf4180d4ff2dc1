"""Vulnerabilities of other implementations are absent here: the CVEs of Kafka's broker, its clients and the like.

Those of Kafka Connect, of log4j and of the Java classes that a configuration may name (JNDI) do not apply here. The
others, without `CVE-`:

- 2017-12610 (authorization ids), 2021-38153 (comparisons), 2024-56128 (nonces): the exchanges of SASL, below.
- 2018-1288 (clients that pose as followers), 2018-17196 (batches in transactions): below.
- 2022-34917, 2026-111108, 2026-111115 (memory for arrays and tagged fields): below.
- 2023-34455 (Snappy's chunks): `test_compression`.
- 2026-111073 (compressed telemetry), 2026-82266 (Redpanda's admin API): features that do not exist here, below.
- 2024-27309 (DENY forgotten during a migration, which does not exist here): `test_acls_of_a_cluster`.
- 2023-50976 (Redpanda's transactions without authorization): each API without its rights, `test_guards`.
- 2026-33557, 2026-110985 (unsigned tokens), 2025-27817 (URLs that are files): the requirements of OAUTHBEARER, below.
- 2026-10142 and 2026-10143 (kafka-python's frames, and iterations): `test_connection`, `test_client_exchange`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from protocol.acl_types import CLUSTER_NAME, AclOperation, ResourceType
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.records.record_format import ATTRIBUTES_AT, TRANSACTIONAL_FLAG
from security.sasl_exchange import Exchange, PlainExchange, SaslAuthenticationError, ScramCredential, ScramExchange
from tests.broker.network.effect_requests import produce
from tests.broker.network.test_hostile_clients import resident_bytes
from tests.broker.security.secured import ADMIN, SecuredBroker, acl, play
from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.wire_requests import framed, new_topic

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
ELSEWHERE = {
    "CVE-2023-34455": "tests/protocol/test_compression.py",
    "CVE-2023-50976": "tests/broker/security/test_guards.py",
    "CVE-2024-27309": "tests/broker/security/test_acls_of_a_cluster.py",
    "CVE-2026-10142": "tests/client/test_connection.py",
    "CVE-2026-10143": "tests/security/test_client_exchange.py",
}


@pytest.mark.parametrize("cve", ELSEWHERE)
def test_other_modules_have_theirs(cve: str) -> None:
    assert cve in (ROOT / ELSEWHERE[cve]).read_text()


# -- SASL --------------------------------------------------------------------------------------------------------------


def plain() -> PlainExchange:
    return PlainExchange({"alice": "secret", "bob": "other"}, b"key")


def scram() -> ScramExchange:
    salted = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096)
    credential = ScramCredential.from_salted_password("SCRAM-SHA-256", salted, b"salt", 4096)

    async def find(user: str, mechanism: str) -> ScramCredential:
        return credential if user in {"alice", "bob"} else ScramCredential.invented(mechanism, user, b"key", 4096)

    async def find_token(token_id: str, mechanism: str) -> None:
        return None

    return ScramExchange("SCRAM-SHA-256", find, find_token, lambda: "more")


def log_in(exchange: Exchange, first: bytes, password: str = "secret", nonce: str = "") -> str | None:
    """The user that the exchange authenticates, after one token, or two for SCRAM. `nonce` goes into the second, whose
    proof uses the password unprepared.
    """

    async def run() -> None:
        answer = (await exchange.respond(first)).decode()
        if answer:
            bare = first.decode().split(",", 2)[2]
            salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
            client_key = hmac.digest(salted, b"Client Key", "sha256")
            unproved = f"c=biws,r={nonce or 'own' + 'more'}"
            signed = f"{bare},{answer},{unproved}".encode()
            signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
            proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
            await exchange.respond(f"{unproved},p={proof}".encode())

    with contextlib.suppress(SaslAuthenticationError):
        asyncio.run(run())
    return exchange.user


def test_whoever_knows_a_password_is_not_somebody_else() -> None:
    """CVE-2017-12610."""
    assert log_in(plain(), b"alice\0alice\0secret") == "alice"
    assert log_in(plain(), b"bob\0alice\0secret") is None
    assert log_in(scram(), b"n,a=alice,n=alice,r=own") == "alice"
    assert log_in(scram(), b"n,a=bob,n=alice,r=own") is None


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2021-38153: only `compare_digest` decides."""
    tokens = [(plain, b"\0alice\0%s"), (scram, b"n,,n=alice,r=own")]
    for new, token in tokens:
        assert log_in(new(), token.replace(b"%s", b"secret")) == "alice"
        assert log_in(new(), token.replace(b"%s", b"wrong"), "wrong") is None
    for answer, user in ((False, None), (True, "alice")):
        monkeypatch.setattr(hmac, "compare_digest", lambda a, b, answer=answer: answer)
        for new, token in tokens:
            password = "wrong" if answer else "secret"
            assert log_in(new(), token.replace(b"%s", password.encode()), password) == user


@pytest.mark.parametrize(
    "nonce", ["own", "ownmorf", "nmore", "more", "ownmoremore", "Xownmore", "ownMore", "ownXownmore", "ownownownmore"]
)
def test_a_nonce_that_is_not_the_servers(nonce: str) -> None:
    """CVE-2024-56128: the client signs its own message, so only the comparison of nonces can refuse it.

    librdkafka before 2.6.1 repeats its own nonce, and Kafka accepts it.
    """
    for right in ("ownmore", "ownownmore"):
        assert log_in(scram(), b"n,,n=alice,r=own", nonce=right) == "alice"
    assert log_in(scram(), b"n,,n=alice,r=own", nonce=nonce) is None


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"jwks.endpoint.url": ""},
        {"jwks.endpoint.url": "file://169.254.169.254/keys.json"},
        {"jwks.endpoint.url": "http://169.254.169.254/latest/meta-data"},
        {"jwks.endpoint.url": "ftp://127.0.0.1/keys"},
    ],
)
def test_tokens_are_not_believed_without_a_source_of_keys(others: dict[str, str]) -> None:
    """CVE-2026-33557, CVE-2026-110985, CVE-2025-27817: unless enabled by name, they prevent the start."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    prefix = "listener.name.sasl_plaintext.oauthbearer."
    settings = {
        "broker.id": "0",
        "listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9093",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}sasl.jaas.config": f"{module} required;",
        **({f"{prefix}sasl.server.callback.handler.class": handler} if others else {}),
        **{f"sasl.oauthbearer.{name}": value for name, value in others.items()},
    }
    with pytest.raises(ConfigError):
        BrokerConfig(settings)


# -- rights ------------------------------------------------------------------------------------------------------------


def test_a_client_that_pretends_to_follow_gets_nothing_and_moves_nothing() -> None:
    """CVE-2018-1288."""

    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        await broker.wire(ADMIN).ask(produce(("t",), (0,), b"v"), 9)
        await broker.allow(acl(TOPIC, "t", AclOperation.READ))
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
        asked = FetchRequest(replica_id=5, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic], session_epoch=0)
        answer: Any = await broker.wire().ask(asked, 11)
        (data,) = answer.responses[0].partitions
        assert (data.error_code, len(data.records or b"")) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
        assert answer.session_id == 0
        await broker.allow(acl(CLUSTER, CLUSTER_NAME, AclOperation.CLUSTER_ACTION))
        answer = await broker.wire().ask(asked, 11)
        assert answer.responses[0].partitions[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED

    play(scenario)


def test_a_transactional_batch_needs_a_transactional_id() -> None:
    """CVE-2018-17196."""

    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        await broker.allow(acl(TOPIC, "t", AclOperation.WRITE))
        request = produce(("t",), (0,), b"v")
        data = request.topic_data[0].partition_data[0]
        records = bytearray(data.records or b"")
        records[ATTRIBUTES_AT + 1] |= TRANSACTIONAL_FLAG
        data.records = bytes(records)
        for transactional_id in (None, "x"):
            request.transactional_id = transactional_id
            answer: Any = await broker.wire().ask(request, 9)
            (refused,) = answer.responses[0].partition_responses
            assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    play(scenario)


# -- memory, and what is not there -------------------------------------------------------------------------------------


class Site:
    """A broker with a plain-text listener and one that requires a password."""

    def __init__(self, process: BrokerProcess, sasl_port: int, metrics_port: int) -> None:
        self.process = process
        self.ports = {"PLAINTEXT": int(process.address.rpartition(":")[2]), "SASL_PLAINTEXT": sasl_port}
        self.metrics_port = metrics_port

    def refusal(self, listener: str, *parts: bytes) -> str:
        """The logged reason for closing the connection of a client that sends this."""
        with socket.create_connection(("127.0.0.1", self.ports[listener]), 60) as connection:
            with contextlib.suppress(ConnectionError):  # the broker may close before it has read everything
                for part in parts:
                    connection.sendall(part)
            answer = b"?"
            with contextlib.suppress(ConnectionResetError):
                answer = connection.recv(1)
            assert answer == b""
            port = connection.getsockname()[1]
        said = f"Closing connection of 127.0.0.1:{port}: "
        return self.process.output.read_text().partition(said)[2].partition("\n")[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port, sasl_port, metrics_port = free_port(), free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
        "metrics.listener": f"127.0.0.1:{metrics_port}",
    }
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    process.address = f"127.0.0.1:{port}"
    process.start()
    yield Site(process, sasl_port, metrics_port)
    assert process.stop() == 0


MILLIONS = 4_000_000
TAGS = struct.pack(">hhih", 18, 3, 1, -1) + b"\x80\x92\xf4\x01" + b"\x01\x00" * MILLIONS
ARRAY = struct.pack(">hhihi", 15, 0, 1, -1, MILLIONS) + b"\0\0" * MILLIONS
CLAIMED = struct.pack(">hhihi", 15, 0, 1, -1, 2**31 - 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
@pytest.mark.parametrize(
    ("listener", "sent", "reason"),
    [
        ("PLAINTEXT", framed(TAGS), f"{MILLIONS} tagged fields; 10000 are allowed"),
        ("PLAINTEXT", framed(ARRAY), f"array of {MILLIONS} elements; 1000000 are allowed"),
        ("PLAINTEXT", framed(CLAIMED), "array of 2147483647 elements; 1000000 are allowed"),
        ("SASL_PLAINTEXT", framed(TAGS), f"size = {len(TAGS)} larger than 524288"),
        ("SASL_PLAINTEXT", framed(ARRAY[:500_000]), "came instead of SASL_HANDSHAKE"),
        ("SASL_PLAINTEXT", framed(TAGS[:500_000]), "tagged fields; 10000 are allowed"),
    ],
    ids=["tags", "array", "claimed", "size", "unauthenticated array", "unauthenticated tags"],
)
def test_a_request_costs_no_more_than_its_bytes(site: Site, listener: str, sent: bytes, reason: str) -> None:
    """CVE-2022-34917, CVE-2026-111108, CVE-2026-111115."""
    before = resident_bytes(site.process)
    for _ in range(3):
        assert reason in site.refusal(listener, sent)
    assert resident_bytes(site.process) - before < 48 << 20


@pytest.mark.parametrize("api_key", [71, 72])
def test_telemetry_is_not_taken(site: Site, api_key: int) -> None:
    """CVE-2026-111073: telemetry from clients is not even decompressed."""
    request = struct.pack(">hhih", api_key, 0, 1, -1) + b"\0" * 20
    assert f"api key {api_key} which is not enabled" in site.refusal("PLAINTEXT", framed(request))


def test_nothing_is_changed_over_http(site: Site) -> None:
    """CVE-2026-82266: HTTP serves only the metrics, if configured."""
    assert BrokerConfig({"broker.id": "0"}).metrics_listener is None
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        connection = HTTPConnection("127.0.0.1", site.metrics_port, timeout=60)
        connection.request(method, "/v1/security/users", b"{}")
        assert connection.getresponse().status in {405, 501}
        connection.close()
