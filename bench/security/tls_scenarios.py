"""Scenarios with TLS clients. The broker's certificate is on an elliptic curve (P-256), clients have none, and both
sides use TLS 1.3. Preparation uses plaintext.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.brokers import Broker
from bench.probe import ask_on
from bench.scenario import Context, Sample, Scenario
from bench.scenarios import consume, produce
from protocol.messages.api_versions import ApiVersionsRequest
from tests.kit.broker_process import free_port
from tests.kit.security.certificates import Authority
from tests.kit.wire_requests import framed, request_bytes

HANDSHAKES: Final = 1_000
HANDSHAKES_AT_ONCE: Final = 10
HALF_OPEN: Final = 600
HALF_A_HELLO: Final = bytes.fromhex("1603010200") + bytes(200)
"""The header of a TLS record of 512 bytes, and a part of it."""
PATIENCE_S: Final = 60


def authority_of(broker: Broker) -> Path:
    """The certificate that the broker's clients trust."""
    return broker.directory / "authority.pem"


def tls_port(broker: Broker) -> int:
    """The broker's TLS port."""
    return int(broker.settings["listeners"].rpartition(":")[2])


def listen_with_tls(broker: Broker) -> None:
    """Give the broker a certificate, and an additional TLS listener."""
    authority = Authority()
    authority.write_pem(authority_of(broker))
    identity = authority.issue("broker").write_pem(broker.directory / "broker.pem")
    broker.settings = {
        **broker.settings,
        "listeners": f"PLAINTEXT://{broker.address},SSL://127.0.0.1:{free_port()}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(identity),
    }


def bootstrap(broker: Broker) -> str:
    """The broker's TLS address, and the TLS settings of librdkafka."""
    return f"127.0.0.1:{tls_port(broker)};security.protocol=ssl;ssl.ca.location={authority_of(broker)}"


def handshakes(context: Context, broker: Broker, topic: str) -> Sample:  # noqa: ARG001
    """Handshakes a second of new clients, ten at once, each until its first response."""
    count = max(int(HANDSHAKES * context.scale), 20)
    before = broker.cpu_s()
    result = context.load.run("handshakes", str(tls_port(broker)), str(authority_of(broker)), count, HANDSHAKES_AT_ONCE)
    spent = {"broker": broker.cpu_s() - before, "client": result["client_cpu_s"]}
    details = {f"{whose}_CPU_ms_a_handshake": cpu / count * 1e3 for whose, cpu in spent.items()}
    return Sample(count / result["seconds"], details=details)


def wait_beside_half_open(context: Context, broker: Broker, topic: str) -> Sample:  # noqa: ARG001
    """Milliseconds until a client gets its first response over TLS, while 600 others have sent half a hello."""
    context_of_client = ssl.create_default_context(cafile=str(authority_of(broker)))
    request = framed(request_bytes(ApiVersionsRequest(), 0, client_id="probe"))
    address = ("127.0.0.1", tls_port(broker))
    before = broker.cpu_s()
    with ExitStack() as stack:
        for _ in range(max(int(HALF_OPEN * context.scale), 20)):
            stack.enter_context(socket.create_connection(address, PATIENCE_S)).sendall(HALF_A_HELLO)
        began = time.monotonic()
        with (
            socket.create_connection(address, PATIENCE_S) as connection,
            context_of_client.wrap_socket(connection, server_hostname="localhost") as client,
        ):
            ask_on(client, request)
        waited_ms = (time.monotonic() - began) * 1000
    return Sample(waited_ms, broker.cpu_s() - before)


SCENARIOS = [
    Scenario("tls-produce", "produce 1 kB, acks=1, TLS", "records/s",
        produce(1_000_000, 1000, at=bootstrap), target=1.0, cpu_target=0.5, also_warm=True, prepare=listen_with_tls,
    ),
    Scenario("tls-consume", "consume 1 kB, TLS", "records/s",
        consume(1_000_000, 1000, at=bootstrap), target=1.0, cpu_target=0.5, also_warm=True, prepare=listen_with_tls,
    ),
    Scenario("tls-handshakes", "1,000 TLS handshakes, 10 at once", "a second",
        handshakes, rounds=5, target=1.0, also_warm=True, prepare=listen_with_tls,
    ),
    Scenario("wait-handshakes", "wait: TLS beside 600 half-open", "ms",
        wait_beside_half_open, higher_is_better=False, limit=100, either=True, prepare=listen_with_tls,
    ),
]  # fmt: skip
