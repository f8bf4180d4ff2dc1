"""The connections of a broker to the others of its cluster."""

from __future__ import annotations

from collections.abc import Sequence

from broker.broker_environment import Environment
from broker.controller.broker_requests import ControllerApi, NewChannel
from broker.inter_broker.inter_broker_client import BrokerClients, InterBrokerClient
from broker.inter_broker.remote_channel import remote_channels
from broker.inter_broker.remote_controller import ControllerRouter, RemoteController, controller_address
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.replica_fetcher_manager import ReplicaFetcherManager, fetchers_of
from broker.replication.replica_manager import ReplicaManager
from broker.stages.logs import LoadedLogs
from broker.transactions.marker_writer import Marker, MarkerResults
from broker.transactions.remote_transactions import ask_coordinator, write_markers
from broker.transactions.transaction_guards import Verdict, VerificationRequest
from client.environment import Network
from cluster.controller.commands import CommandFence
from config.broker_config import BrokerConfig
from protocol.value import Value


class ClusterLinks(Value):
    """Connections to the leaders of followed replicas, to the controller, and, as controller, to all brokers; to the
    leaders of partitions in transactions, and to transaction coordinators.
    """

    network: Network
    """The network to the other brokers."""
    new_channel: NewChannel
    fetchers: ReplicaFetcherManager
    replicas: ReplicaManager
    controller_client: InterBrokerClient
    marker_clients: BrokerClients
    verification_clients: BrokerClients
    """Separate from the clients for markers, whose answers wait for replicas."""

    @classmethod
    def of(
        cls,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        metadata: MetadataCache,
        fence: CommandFence,
        logs: LoadedLogs,
    ) -> ClusterLinks:
        """Connections are opened on demand. From now on the followers among the replicas of `logs` are fetched."""
        listener, timeout_ms = config.inter_broker_listener_name, config.controller_socket_timeout_ms
        network = _network(config, environment)
        client = InterBrokerClient(
            network, lambda: controller_address(metadata.image, listener), str(broker_id), timeout_ms
        )
        channels = remote_channels(network, environment.clock, listener, broker_id, timeout_ms)
        keep = logs.maintenance.checkpoint_log_start_offsets
        fetchers = fetchers_of(
            broker_id, config, environment, network, metadata, fence, logs.replicas, logs.quotas.follower, keep
        )

        def clients() -> BrokerClients:
            request_timeout_ms = config.request_timeout_ms
            return BrokerClients(network, lambda: metadata.image, listener, str(broker_id), request_timeout_ms)

        return cls(network, channels, fetchers, logs.replicas, client, clients(), clients())

    def router(
        self, broker_id: int, config: BrokerConfig, metadata: MetadataCache, controller: ControllerApi
    ) -> ControllerApi:
        """Return the route to the controller: `controller` while this broker is the controller, else a remote one. ISR
        changes use it from now on.
        """
        timeout_ms = config.controller_socket_timeout_ms
        remote = RemoteController(self.controller_client, metadata, timeout_ms)
        router = ControllerRouter(broker_id, controller, remote, metadata, retry_timeout_ms=timeout_ms)
        self.replicas.isr_changes.connect(router)
        return router

    async def write_txn_markers(self, broker_id: int, markers: Sequence[Marker]) -> MarkerResults:
        """See `remote_transactions`."""
        return await write_markers(self.marker_clients, broker_id, markers)

    async def ask_transaction_coordinator(self, broker_id: int, verification: VerificationRequest) -> Verdict:
        """See `remote_transactions`."""
        return await ask_coordinator(self.verification_clients, broker_id, verification)

    def config_changed(self, config: BrokerConfig) -> None:
        """Apply a changed broker configuration."""
        self.fetchers.resize(config.num_replica_fetchers, self.replicas.hosted.restart_fetchers)

    async def close(self) -> None:
        """Stop fetching and sending requests. Call it before the logs are closed."""
        await self.fetchers.close()
        await self.replicas.isr_changes.close()
        self.controller_client.close()
        self.marker_clients.close()
        self.verification_clients.close()


def _network(config: BrokerConfig, environment: Environment) -> Network:
    """The network for inter-broker connections. Raises ConfigError for TLS stores that cannot be used."""
    if config.inter_broker_channel is None:
        return environment.network
    from client.secured_network import SecuredNetwork

    return SecuredNetwork(config.inter_broker_channel)
