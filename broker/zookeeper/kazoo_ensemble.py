"""A ZooKeeper ensemble, which the brokers of a cluster share."""

from __future__ import annotations

from broker.zookeeper.kazoo_session import KazooCoordination
from config.broker_config import BrokerConfig
from config.zookeeper_connect import ZookeeperAddress


class KazooEnsemble:
    """The servers of `zookeeper.connect`; implements `broker.environment.contract.Ensemble`."""

    is_shared = True

    def __init__(self, address: ZookeeperAddress, config: BrokerConfig) -> None:
        self._address = address
        self._config = config

    def session(self) -> KazooCoordination:
        """A session, not yet connected."""
        return KazooCoordination(
            self._address,
            self._config.zookeeper_session_timeout_ms,
            self._config.zookeeper_connection_timeout_ms,
            self._config.zookeeper_max_in_flight_requests,
        )

    async def close(self) -> None:
        """The ensemble goes on; each session has a connection of its own."""
