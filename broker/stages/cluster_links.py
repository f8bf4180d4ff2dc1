"""The connections of a broker to the others of its cluster."""

from __future__ import annotations

from collections.abc import Sequence

from broker.controller.broker_requests import ControllerApi, NewChannel
from broker.environment.contract import Environment
from broker.inter_broker.inter_broker_client import BrokerClients, InterBrokerClient
from broker.inter_broker.remote_channel import remote_channels
from broker.inter_broker.remote_controller import ControllerRouter, RemoteController, controller_address
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.replica_fetcher_manager import ReplicaFetcherManager, fetchers_of
from broker.replication.replica_manager import ReplicaManager
from broker.stages.logs import LoadedLogs
from broker.transactions.marker_writer import Marker, Outcome
from broker.transactions.remote_transactions import ask_coordinator, write_markers
from broker.transactions.transaction_guards import Question, Verdict
from client.environment import Network
from cluster.controller.commands import CommandFence
from config.broker_config import BrokerConfig
from protocol.value import Value


class ClusterLinks(Value):
    """To leaders that this broker follows, to the controller, and as controller to all; to the leaders of partitions in
    transactions, and to coordinators of transactions.
    """

    network: Network
    """By which other brokers are reached."""
    new_channel: NewChannel
    fetchers: ReplicaFetcherManager
    replicas: ReplicaManager
    controller_client: InterBrokerClient
    marker_clients: BrokerClients
    verification_clients: BrokerClients
    """Apart from those for markers, whose answers wait for replicas."""

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
        """Connections are made when they are needed. From now on the replicas of `logs` that follow are fetched for."""
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
        """The way to the controller, which is `controller` while this broker has the office. ISRs are changed by it."""
        timeout_ms = config.controller_socket_timeout_ms
        remote = RemoteController(self.controller_client, metadata, timeout_ms)
        router = ControllerRouter(broker_id, controller, remote, metadata, retry_timeout_ms=timeout_ms)
        self.replicas.isr_changes.connect(router)
        return router

    async def write_txn_markers(self, broker_id: int, markers: Sequence[Marker]) -> Outcome:
        """See `remote_transactions`."""
        return await write_markers(self.marker_clients, broker_id, markers)

    async def ask_transaction_coordinator(self, broker_id: int, question: Question) -> Verdict:
        """See `remote_transactions`."""
        return await ask_coordinator(self.verification_clients, broker_id, question)

    def config_changed(self, config: BrokerConfig) -> None:
        """The broker's configuration is another one."""
        self.fetchers.resize(config.num_replica_fetchers, self.replicas.hosted.follow_anew)

    async def close(self) -> None:
        """Fetch no more, and ask for nothing more. To be called before the logs are closed."""
        await self.fetchers.close()
        await self.replicas.isr_changes.close()
        self.controller_client.close()
        self.marker_clients.close()
        self.verification_clients.close()


def _network(config: BrokerConfig, environment: Environment) -> Network:
    """How other brokers are reached. Raises ConfigError for stores of TLS that cannot be used."""
    if config.inter_broker_channel is None:
        return environment.network
    from client.secured_network import SecuredNetwork

    return SecuredNetwork(config.inter_broker_channel)
