"""A real ZooKeeper with SASL users, and nodes that belong to a single user."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from broker.zookeeper.kazoo_security import SessionSecurity
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from security.jaas import DigestLogin
from tests.kit.broker_process import BrokerProcess
from tests.kit.coordination_fixtures import in_loop
from tests.kit.network.cutting_proxy import CuttingProxy
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_session, real_zookeeper, served_tree
from tests.kit.zookeeper_process import ZookeeperProcess
from zookeeper.coordination import CoordinationError, Create

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
KAFKA = DigestLogin("kafka", 'se"cret, x')
OWNED = [(31, "sasl", "kafka"), (1, "world", "anyone")]
OPEN = [(31, "world", "anyone")]


@pytest.fixture(
    scope="module",
    params=[pytest.param(real_zookeeper, marks=pytest.mark.java, id="real"), pytest.param(served_tree, id="served")],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "server.conf"
    jaas.write_text(f'Server {{ {MODULE} required user_kafka="se\\"cret, x" user_other="x"; }};')
    settings = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={jaas}")
        with request.param(directory, settings=settings) as running:
            patch.delenv("KAFKA_OPTS")
            yield running


def access(address: str, *paths: str) -> list[list[tuple[int, str, str]] | None]:
    """The ACLs of nodes, as an anonymous client sees them, or None if it may not read them."""
    client = KazooClient(address)
    client.start(30)
    found: list[list[tuple[int, str, str]] | None] = []
    try:
        for path in paths:
            try:
                found.append([(each.perms, each.id.scheme, each.id.id) for each in client.get_acls(path)[0]])
            except NoAuthError:
                found.append(None)
    finally:
        client.stop()
        client.close()
    return found


def jaas_options(directory: Path, password: str) -> str:
    """KAFKA_OPTS for a broker."""
    path = directory / "broker.conf"
    escaped = password.replace('"', '\\"')
    path.write_text(f'Client {{ {MODULE} required username="kafka" password="{escaped}"; }};')
    return f"-Xmx1G -Djava.security.auth.login.config={path}"


def test_the_nodes_of_a_broker_are_its_users(
    server: ZookeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists equal those left by an Apache Kafka 3.9.1 broker with the same settings."""
    monkeypatch.setenv("KAFKA_OPTS", jaas_options(tmp_path, KAFKA.password))
    broker = BrokerProcess(tmp_path, {"zookeeper.connect": f"{server.address}/k", "zookeeper.set.acl": "true"})
    broker.start()
    try:
        readable = ["/k", "/k/brokers/ids/0", "/k/brokers/topics", "/k/controller", "/k/config/topics", "/k/cluster/id"]
        found = eventually("it is registered", partial(access, server.address, *readable), not_yet=(NoNodeError,))
        assert found == [OWNED] * len(readable)
        assert access(server.address, "/k/config/users", "/k/config/brokers", "/k/consumers") == [None, None, OPEN]
    finally:
        broker.stop()


def test_a_wrong_password_is_said_at_once(
    server: ZookeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_OPTS", jaas_options(tmp_path, "wrong"))
    patient = {"zookeeper.connect": f"{server.address}/w", "zookeeper.connection.timeout.ms": "600000"}
    broker = BrokerProcess(tmp_path, patient)
    with broker.output.open("ab") as output:
        assert broker.spawn(output).wait(60) == 1
    reason = "it refused the user kafka of the JAAS file, or the password"
    assert f"No session with ZooKeeper at {server.address}: {reason}" in broker.output.read_text()
    assert "wrong" not in broker.output.read_text()


@in_loop
async def test_a_session_is_the_users_on_each_connection(server: ZookeeperProcess) -> None:
    proxy = CuttingProxy(server.port)
    try:
        session = new_session(
            f"127.0.0.1:{await proxy.start()}/s", security=SessionSecurity(None, KAFKA, sets_acl=True)
        )
        await session.connect()
        await session.multi([Create("/config"), Create("/config/users"), Create("/config/users/alice", b"secret")])
        proxy.cut()
        assert (await session.get("/config/users/alice"))[0] == b"secret"
        await session.set("/config/users/alice", b"changed")
        await session.close()
    finally:
        await proxy.close()
    stranger = new_session(f"{server.address}/s", security=SessionSecurity(None, DigestLogin("other", "x")))
    await stranger.connect()
    assert (await stranger.children("/config"))[0] == ["users"]
    with pytest.raises(CoordinationError, match="ZooKeeper does not allow it: /config/users/alice"):
        await stranger.get("/config/users/alice")
    with pytest.raises(CoordinationError, match="ZooKeeper does not allow it: /config"):
        await stranger.set("/config", b"")
    await stranger.close()


def test_access_control_needs_an_identity() -> None:
    """Like Kafka, which says so when it starts."""
    config = BrokerConfig({"zookeeper.connect": "localhost", "zookeeper.set.acl": "true"})
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl is true, but .* no JAAS login file"):
        SessionSecurity.of(config, None)
    assert SessionSecurity.of(config, KAFKA).sets_acl
