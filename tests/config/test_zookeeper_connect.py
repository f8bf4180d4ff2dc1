"""zookeeper.connect, as parsed by ZooKeeper's own client."""

from __future__ import annotations

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.zookeeper_connection import ZookeeperAddress, parse_zookeeper_connect


@pytest.mark.parametrize(
    ("text", "servers", "chroot", "shown"),
    [
        ("localhost", (("localhost", 2181),), "", "localhost:2181"),
        (" zk1:2181 , zk2:12181,", (("zk1", 2181), ("zk2", 12181)), "", "zk1:2181,zk2:12181"),
        ("zk1:1,zk2:2/kafka/east", (("zk1", 1), ("zk2", 2)), "/kafka/east", "zk1:1,zk2:2/kafka/east"),
        ("[::1]:2182,10.0.0.1/k", (("::1", 2182), ("10.0.0.1", 2181)), "/k", "[::1]:2182,10.0.0.1:2181/k"),
        ("zk/", (("zk", 2181),), "", "zk:2181"),
    ],
)
def test_servers_and_chroot(text: str, servers: tuple[tuple[str, int], ...], chroot: str, shown: str) -> None:
    address = parse_zookeeper_connect(text)
    assert address == ZookeeperAddress(servers, chroot)
    assert str(address) == shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("zk:port", "'zk:port' is not host:port"),
        ("zk:0", "'zk:0' is not host:port with a port between 1 and 65535"),
        ("zk:65536", "'zk:65536' is not host:port"),
        ("::1:2181", "'::1:2181' is not host:port"),
        ("zk 1:2181", "'zk 1:2181' is not host:port"),
        ("/kafka", "it names no server"),
        (",", "it names no server"),
        ("zk1:2181/a,zk2:2181/a", "the chroot stands once, after the last server"),
        ("zk/a/", "/a/ is not the path of a node"),
        ("zk//a", "//a is not the path of a node"),
        ("zk/a/../b", "/a/../b is not the path of a node"),
    ],
)
def test_what_is_malformed_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({"zookeeper.connect": text})
    assert str(caught.value).startswith(f"Invalid value {text} for configuration zookeeper.connect: {reason}")


def test_without_it_a_broker_has_a_tree_of_its_own() -> None:
    assert BrokerConfig({}).zookeeper_address is None
    assert BrokerConfig({"zookeeper.connect": ""}).zookeeper_address is None


def test_the_first_connection_may_take_as_long_as_a_session_lives() -> None:
    assert BrokerConfig({}).zookeeper_connection_timeout_ms == 18_000
    assert BrokerConfig({"zookeeper.session.timeout.ms": "6000"}).zookeeper_connection_timeout_ms == 6000
    assert BrokerConfig({"zookeeper.connection.timeout.ms": "2000"}).zookeeper_connection_timeout_ms == 2000
