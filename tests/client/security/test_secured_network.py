"""A broker trusts another broker's certificate only if it is signed by its authority and names the host."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from client.broker_connection import connect
from client.errors import AuthenticationError
from client.secured_network import SecuredNetwork
from config.broker_config import BrokerConfig
from protocol.wire.frames import ReceiveBuffer
from tests.client.scripted_broker import broker
from tests.kit.security.certificates import Authority, Identity

AUTHORITY = Authority()
BROKER = AUTHORITY.issue("broker")
UNCHECKED = {"ssl.endpoint.identification.algorithm": ""}


def network(**settings: str) -> SecuredNetwork:
    """The network that a broker uses to reach others."""
    config = BrokerConfig(
        {
            "broker.id": "0",
            "listeners": "SSL://localhost:9093",
            "zookeeper.connect": "localhost:2181",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": BROKER.key_pem(),
            "ssl.keystore.certificate.chain": BROKER.certificate_pem,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": AUTHORITY.pem,
            **settings,
        }
    )
    assert config.inter_broker_channel is not None
    return SecuredNetwork(config.inter_broker_channel)


def refusal(identity: Identity, directory: Path, host: str, **settings: str) -> str | None:
    """Why a server with this certificate is not accepted as `host`, or None if it is."""

    async def run() -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.write_pem(directory / "server.pem"))
        context.load_verify_locations(cadata=AUTHORITY.pem)
        context.verify_mode = ssl.CERT_REQUIRED
        limits = {"request_timeout_ms": 60_000, "setup_timeout_ms": 60_000}
        async with broker({}, context) as port:
            try:
                connection = await connect(
                    network(**settings), host, port, client_id="test", receive_buffer=ReceiveBuffer(), **limits
                )
            except AuthenticationError as error:
                return str(error)
            connection.close()
            return None

    return asyncio.run(run())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_broker_of_this_host(host: str, tmp_path: Path) -> None:
    assert refusal(AUTHORITY.issue("another", hosts=(host,)), tmp_path, host) is None


@pytest.mark.parametrize(
    ("hosts", "host"),
    [
        (("elsewhere.example",), "localhost"),
        (("elsewhere.example", "localhost"), "127.0.0.1"),
        (("127.0.0.1",), "localhost"),
        (("xlocalhost", "localhost.example"), "localhost"),
    ],
)
def test_a_broker_of_another_host(hosts: tuple[str, ...], host: str, tmp_path: Path) -> None:
    identity = AUTHORITY.issue("another", hosts=hosts)
    found = refusal(identity, tmp_path, host)
    assert found is not None
    assert "SSL handshake failed: " in found
    assert "mismatch, certificate is not valid for" in found
    assert refusal(identity, tmp_path, host, **UNCHECKED) is None


@pytest.mark.parametrize("settings", [{}, UNCHECKED])
def test_a_broker_of_nobody(settings: dict[str, str], tmp_path: Path) -> None:
    for identity in (Authority().issue("broker"), AUTHORITY.issue("broker", days=-1)):
        found = refusal(identity, tmp_path, "localhost", **settings)
        assert found is not None
        assert "SSL handshake failed: " in found
