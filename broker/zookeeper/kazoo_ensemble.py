"""A ZooKeeper ensemble, which the brokers of a cluster share."""

from __future__ import annotations

from broker.zookeeper.kazoo_security import SessionSecurity
from broker.zookeeper.kazoo_session import KazooCoordination
from config.broker_config import BrokerConfig
from config.zookeeper_connection import ZookeeperAddress
from security.jaas import ZookeeperLogin


class KazooEnsemble:
    """The servers of `zookeeper.connect`; implements `broker.environment.contract.Ensemble`."""

    is_shared = True

    def __init__(self, address: ZookeeperAddress, config: BrokerConfig, login: ZookeeperLogin | None = None) -> None:
        """Raises ConfigError when a file that `config` names cannot be used."""
        self._address = address
        self._config = config
        self._security = SessionSecurity.of(config, login)

    def session(self) -> KazooCoordination:
        """A session, not yet connected."""
        return KazooCoordination(
            self._address,
            self._config.zookeeper_session_timeout_ms,
            self._config.zookeeper_connection_timeout_ms,
            self._config.zookeeper_max_in_flight_requests,
            self._security,
        )

    async def close(self) -> None:
        """The ensemble goes on; each session has a connection of its own."""
