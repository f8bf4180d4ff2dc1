"""Scenarios of clients that come by TLS. The broker's certificate is on an elliptic curve (P-256), and theirs is not
asked for; both sides agree on TLS 1.3. What is only to be prepared comes in plaintext.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.brokers import Broker
from bench.scenario import Context, Sample, Scenario
from bench.scenarios import consume, produce
from tests.kit.broker_process import free_port
from tests.kit.security.certificates import Authority

HANDSHAKES: Final = 1_000
HANDSHAKES_AT_ONCE: Final = 10


def authority_of(broker: Broker) -> Path:
    """The certificate that the broker's clients trust."""
    return broker.directory / "authority.pem"


def tls_port(broker: Broker) -> int:
    """Where the broker has TLS."""
    return int(broker.settings["listeners"].rpartition(":")[2])


def listen_with_tls(broker: Broker) -> None:
    """Give the broker a certificate, and a listener with TLS beside its own."""
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
    """The broker's address with TLS, and what librdkafka has to know for it."""
    return f"127.0.0.1:{tls_port(broker)};security.protocol=ssl;ssl.ca.location={authority_of(broker)}"


def handshakes(context: Context, broker: Broker, topic: str) -> Sample:  # noqa: ARG001
    """Handshakes a second of clients that come for the first time, ten at once, each until its first answer."""
    count = max(int(HANDSHAKES * context.scale), 20)
    before = broker.cpu_s()
    result = context.load.run("handshakes", str(tls_port(broker)), str(authority_of(broker)), count, HANDSHAKES_AT_ONCE)
    spent = {"broker": broker.cpu_s() - before, "client": result["client_cpu_s"]}
    details = {f"{whose}_CPU_ms_a_handshake": cpu / count * 1e3 for whose, cpu in spent.items()}
    return Sample(count / result["seconds"], details=details)


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
]  # fmt: skip
