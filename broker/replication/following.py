"""The fetchers of a broker in a cluster, as its configuration says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from broker.environment.contract import Environment
from broker.inter_broker.inter_broker_client import InterBrokerClient
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.follower_repairs import FetcherSettings
from broker.replication.replica_fetcher import ReplicaFetcher
from broker.replication.replica_fetcher_manager import ReplicaFetcherManager
from broker.replication.replica_manager import ReplicaManager
from broker.replication.replication_quota import ReplicationQuota
from client.environment import Network
from cluster.controller.commands import CommandFence
from config.broker_config import BrokerConfig
from protocol.wire.frames import ReceiveBuffer


def fetchers_of(
    broker_id: int,
    config: BrokerConfig,
    environment: Environment,
    network: Network,
    metadata: MetadataCache,
    fence: CommandFence,
    replicas: ReplicaManager,
    quota: ReplicationQuota,
    keep_log_starts: Callable[[], Awaitable[None]],
) -> ReplicaFetcherManager:
    """The fetchers for `replicas`, which has them fetch from now on for what follows. `quota` limits what they
    fetch; `keep_log_starts` returns once the log starts of this moment are on disk. To be closed before the logs.
    """
    settings = FetcherSettings(
        broker_id,
        config.replica_fetch_max_bytes,
        config.replica_fetch_response_max_bytes,
        config.replica_fetch_min_bytes,
        config.replica_fetch_wait_max_ms,
        config.replica_fetch_backoff_ms,
    )
    receive_buffer = ReceiveBuffer()

    def connect(leader_id: int) -> InterBrokerClient:
        return InterBrokerClient(
            network,
            lambda: metadata.image.address_of(leader_id, config.inter_broker_listener_name),
            f"broker-{broker_id}-fetcher",
            config.replica_socket_timeout_ms,
            receive_buffer=receive_buffer,
        )

    def new_fetcher(leader_id: int) -> ReplicaFetcher:
        return ReplicaFetcher(
            leader_id,
            partial(connect, leader_id),
            settings,
            environment.clock,
            environment.executor,
            replicas.group_commit,
            lambda: fence.broker_epoch,
            replicas.high_watermark_moved,
            quota,
            keep_log_starts,
        )

    manager = ReplicaFetcherManager(new_fetcher, config.num_replica_fetchers)
    replicas.hosted.fetch_with(manager)
    return manager
