"""A real ZooKeeper and a real KDC: brokers that authenticate with a Kerberos principal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.zookeeper.kazoo_security import SessionSecurity
from config.definitions import ConfigError
from security.jaas import zookeeper_login
from security.kerberos_login import KerberosLogin
from tests.kit.coordination_fixtures import in_loop
from tests.kit.network.cutting_proxy import CuttingProxy
from tests.kit.security.kerberos import Realm, module, realm_of_this_process
from tests.kit.zookeeper import new_session, real_zookeeper
from tests.kit.zookeeper_process import ZookeeperProcess
from zookeeper.coordination import CoordinationError, Create

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm_of_this_process(tmp_path_factory.mktemp("realm")) as realm:
        yield realm


@pytest.fixture(scope="module")
def server(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    directory = tmp_path_factory.mktemp("zookeeper")
    principal = "zookeeper/localhost"
    jaas = directory / "server.conf"
    jaas.write_text(f"Server {{ {module(realm.keytab(principal), principal)} }};")
    with pytest.MonkeyPatch.context() as patch:
        options = f"-Djava.security.auth.login.config={jaas} -Djava.security.krb5.conf={realm.config}"
        patch.setenv("KAFKA_OPTS", options)
        settings = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
        with real_zookeeper(directory, settings=settings) as running:
            yield running


def login_of(keytab: str, principal: str) -> KerberosLogin:
    """The login configured by a JAAS file."""
    text = f"Client {{ {module(keytab, principal, 'serviceName=ignored')} }};"
    login = zookeeper_login({"java.security.auth.login.config": "/jaas.conf"}, lambda _path: text)
    assert isinstance(login, KerberosLogin)
    assert login.service_name == "zookeeper"
    return login


@in_loop
async def test_a_session_is_the_principals_on_each_connection(realm: Realm, server: ZookeeperProcess) -> None:
    kafka = login_of(realm.keytab("kafka/localhost"), "kafka/localhost")
    proxy = CuttingProxy(server.port)
    try:
        session = new_session(
            f"localhost:{await proxy.start()}/k", security=SessionSecurity(None, kafka, sets_acl=True)
        )
        await session.connect()
        await session.multi([Create("/config"), Create("/config/users"), Create("/config/users/alice", b"secret")])
        proxy.cut()
        assert (await session.get("/config/users/alice"))[0] == b"secret"
        await session.close()
    finally:
        await proxy.close()
    other = login_of(realm.keytab("other"), "other")
    stranger = new_session(f"localhost:{server.port}/k", security=SessionSecurity(None, other))
    await stranger.connect()
    with pytest.raises(CoordinationError, match="ZooKeeper does not allow it: /config/users/alice"):
        await stranger.get("/config/users/alice")
    await stranger.close()


def test_a_keytab_that_is_not_there_is_said_at_the_start(realm: Realm) -> None:
    from config.broker_config import BrokerConfig

    with pytest.raises(ConfigError, match=r"java\.security\.auth\.login\.config: .*none\.keytab"):
        SessionSecurity.of(BrokerConfig({"zookeeper.connect": "localhost"}), login_of("/none.keytab", "kafka"))


@in_loop
async def test_the_reason_is_said_when_there_is_no_ticket(realm: Realm, server: ZookeeperProcess) -> None:
    gone = login_of(realm.keytab("gone"), "gone")
    realm.delete("gone")
    session = new_session(f"localhost:{server.port}", connection_timeout_ms=1000, security=SessionSecurity(None, gone))
    with pytest.raises(CoordinationError, match=r"there is no ticket for the server localhost: .*gone"):
        await session.connect()


@in_loop
async def test_a_ticket_that_the_server_cannot_read_is_refused(realm: Realm, server: ZookeeperProcess) -> None:
    kafka = login_of(realm.keytab("kafka"), "kafka")
    realm.change_key("zookeeper/localhost")
    session = new_session(f"localhost:{server.port}", security=SessionSecurity(None, kafka))
    with pytest.raises(CoordinationError, match="it refused the user of the JAAS file"):
        await session.connect()
