"""A real ZooKeeper with TLS and certificates on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.zookeeper.kazoo_session import KazooEnsemble
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from tests.broker.zookeeper.certificates import Authority, with_password
from tests.broker.zookeeper.secure_zookeeper import SecureZookeeper, secure_zookeeper
from tests.kit.coordination_fixtures import in_loop
from tests.kit.network.cutting_proxy import CuttingProxy
from tests.kit.waiting import eventually_on_loop
from zookeeper.coordination import CoordinationError, Create, WatchEvent

pytestmark = [pytest.mark.java]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZookeeper]:
    with secure_zookeeper(tmp_path_factory.mktemp("secure")) as running:
        yield running


async def use(settings: dict[str, str]) -> None:
    """A session with many writes and reads, and one change event."""
    config = BrokerConfig(settings)
    assert config.zookeeper_address is not None
    session = KazooEnsemble(config.zookeeper_address, config).session()
    await session.connect()
    try:
        await session.multi([Create(f"/{number}", b"x" * 50_000) for number in range(10)])
        # One record carries several answers, and one answer spans several records.
        reads = await asyncio.gather(*[session.get(f"/{number % 10}") for number in range(100)])
        assert {data for data, _ in reads} == {b"x" * 50_000}
        events: list[WatchEvent] = []
        for number in range(10):
            await session.get(f"/{number}", events.append)
        for number in range(10):
            await session.delete(f"/{number}")
        assert len(events) == 10
    finally:
        await session.close()


@in_loop
async def test_by_each_version_and_a_suite_of_our_choice(secure: SecureZookeeper) -> None:
    await use(secure.settings())
    await use(secure.settings(ssl_protocol="TLSv1.3"))
    await use(secure.settings(ssl_enabled_protocols="TLSv1.2,TLSv1.3"))
    await use(secure.settings(ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"))


@in_loop
async def test_nodes_belong_to_the_certificate(secure: SecureZookeeper) -> None:
    """A client with another certificate may not write."""
    config = BrokerConfig(secure.settings(set_acl="true"))
    assert config.zookeeper_address is not None
    owner = KazooEnsemble(config.zookeeper_address, config).session()
    await owner.connect()
    await owner.create("/owned", b"mine")
    other = secure.settings(ssl_keystore_location=str(secure.authority.issue("other")))
    config = BrokerConfig(other)
    assert config.zookeeper_address is not None
    stranger = KazooEnsemble(config.zookeeper_address, config).session()
    await stranger.connect()
    assert (await stranger.get("/owned"))[0] == b"mine"
    with pytest.raises(CoordinationError, match="ZooKeeper does not allow it: /owned"):
        await stranger.set("/owned", b"yours")
    await owner.set("/owned", b"still mine")
    await owner.delete("/owned")
    await stranger.close()
    await owner.close()


@in_loop
async def test_a_key_behind_a_password(secure: SecureZookeeper) -> None:
    locked = str(with_password(secure.key_store, "open-sesame"))
    await use(secure.settings(ssl_keystore_location=locked, ssl_keystore_password="open-sesame"))
    for password, complaint in (("", "is encrypted; set its password"), ("wrong", "it does not open the private key")):
        with pytest.raises(ConfigError, match=complaint) as caught:
            await use(secure.settings(ssl_keystore_location=locked, ssl_keystore_password=password))
        assert not password or password not in str(caught.value)


@in_loop
async def test_the_server_is_who_the_certificate_says(secure: SecureZookeeper) -> None:
    elsewhere = {"zookeeper.connect": f"127.0.0.1:{secure.port}"}
    with pytest.raises(CoordinationError, match="IP address mismatch"):
        await use(secure.settings() | elsewhere)
    await use(secure.settings(ssl_endpoint_identification_algorithm="") | elsewhere)


@in_loop
async def test_a_stranger_is_refused_at_once(secure: SecureZookeeper, tmp_path: Path) -> None:
    """On either side, and long before the timeout of the first connection."""
    stranger = Authority(tmp_path)
    patient = {"zookeeper.connection.timeout.ms": "600000"}
    with pytest.raises(CoordinationError, match=f"No session with ZooKeeper at localhost:{secure.port}: .*verify fail"):
        await use(secure.settings(ssl_truststore_location=str(stranger.certificate)) | patient)
    # The system does not trust a test's authority.
    with pytest.raises(CoordinationError, match="verify failed"):
        await use(secure.settings(ssl_truststore_location="") | patient)
    for version in ("TLSv1.2", "TLSv1.3"):
        for key_store in (str(stranger.issue("broker")), ""):
            with pytest.raises(CoordinationError, match=r"(?i)alert"):
                await use(secure.settings(ssl_keystore_location=key_store, ssl_protocol=version) | patient)


@in_loop
async def test_a_session_goes_on_by_another_connection(secure: SecureZookeeper) -> None:
    proxy = CuttingProxy(secure.port)
    try:
        config = BrokerConfig(secure.settings() | {"zookeeper.connect": f"localhost:{await proxy.start()}"})
        assert config.zookeeper_address is not None
        session = KazooEnsemble(config.zookeeper_address, config).session()
        await session.connect()
        _, registered = await session.create("/broker", ephemeral=True)
        events: list[WatchEvent] = []
        await session.get("/broker", events.append)
        proxy.cut()
        assert await session.exists("/broker") is not None
        stat = await session.set("/broker", b"again")
        assert stat.ephemeral_owner == registered.ephemeral_owner
        await eventually_on_loop("the watch fires", lambda: bool(events), pause_s=0.01)
        await session.close()
    finally:
        await proxy.close()


def test_files_that_cannot_be_read(secure: SecureZookeeper, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    for key in ("ssl_truststore_location", "ssl_keystore_location"):
        for path, reason in (
            (tmp_path / "nowhere.pem", "No such file or directory"),
            (empty, "it (does not contain|must have one) "),
        ):
            config = BrokerConfig(secure.settings(**{key: str(path)}))
            assert config.zookeeper_address is not None
            complaint = f"{path} for configuration zookeeper.{key.replace('_', '.')}: .*{reason}"
            with pytest.raises(ConfigError, match=complaint):
                KazooEnsemble(config.zookeeper_address, config)
