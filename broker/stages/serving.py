"""Last stage: handlers for all requests, and the background work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.broker_environment import Environment
from broker.handlers.cluster_commands import ClusterCommandHandlers
from broker.handlers.cluster_requests import ClusterRequestHandlers
from broker.handlers.configs import ConfigHandlers
from broker.handlers.connection_requests import ApiVersionsHandlers, SaslHandlers
from broker.handlers.coordinators import CoordinatorHandlers
from broker.handlers.fetch import FetchHandlers
from broker.handlers.group_offsets import GroupOffsetHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.log_dirs import LogDirHandlers
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.produce import ProduceHandlers
from broker.handlers.producer_ids import ProducerHandlers, ProducerIdHandlers
from broker.handlers.reassignments import ElectionHandlers, ReassignmentHandlers
from broker.handlers.security.client_quotas import ClientQuotaHandlers
from broker.handlers.security.delegation_tokens import DelegationTokenHandlers
from broker.handlers.security.scram_users import ScramUserHandlers
from broker.handlers.topics import TopicHandlers
from broker.handlers.transaction_admin import TransactionAdminHandlers
from broker.handlers.transactional_offsets import TransactionalOffsetHandlers
from broker.handlers.transactions import MarkerHandlers, TransactionHandlers
from broker.logs.disk_tasks import CHECK_MS as DISK_CHECK_MS
from broker.logs.disk_tasks import Scrubber
from broker.metadata.auto_topic_creation import InternalTopicCreator
from broker.network.client_quotas import LOOKUP_PERIOD_MS, ClientQuotas
from broker.network.dispatcher import Dispatcher
from broker.network.memory import LargeRequestMemory
from broker.network.registry import HandlerRegistry
from broker.network.socket_server import SocketServer
from broker.replication.fetch_session import FetchSessionCache
from broker.security.access import OPEN, Access
from broker.security.acl_requests import AclHandlers
from broker.security.rights import install_rights
from broker.stages.cluster_member import ClusterMember
from broker.stages.coordination import OpenCoordination
from broker.stages.directories import LockedDirectories
from broker.stages.logs import LoadedLogs
from broker.supervisor import Supervisor
from cluster.quotas.client_quota import QuotaWindow
from config.broker_config import BrokerConfig
from environment.contract import Clock
from environment.logging_setup import LoggerLevels
from protocol.value import Value

if TYPE_CHECKING:
    from broker.observability.metrics import MetricsServer

MEMORY_FOR_LARGE_REQUESTS = 8
"""The divisor for the share of memory for requests that are decoded in slices."""
MEMORY_FOR_FETCH_SESSIONS = 16
"""The divisor for the fetch sessions of consumers."""


class ServingBroker(Value):
    """A serving broker with all its parts."""

    directories: LockedDirectories
    coordination: OpenCoordination
    logs: LoadedLogs
    member: ClusterMember
    registry: HandlerRegistry
    sessions: FetchSessionCache
    internal_topics: InternalTopicCreator
    scrubber: Scrubber
    supervisor: Supervisor
    dispatcher: Dispatcher
    quotas: ClientQuotas
    clock: Clock

    @classmethod
    def of(
        cls,
        config: BrokerConfig,
        environment: Environment,
        directories: LockedDirectories,
        coordination: OpenCoordination,
        logs: LoadedLogs,
        member: ClusterMember,
    ) -> ServingBroker:
        """Create the handlers and the background work; `start` starts them."""
        clock = environment.clock
        sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            environment.random,
            clock.monotonic_s,
            environment.share_of_memory(MEMORY_FOR_FETCH_SESSIONS),
        )
        internal_topics = InternalTopicCreator(member.auto_topics.ensure_internal_topic)
        quotas = _client_quotas(config, environment, coordination)
        registry = _registry(config, environment, coordination, logs, member, sessions, internal_topics, quotas)
        scrubber = Scrubber(
            logs.log_manager,
            clock,
            environment.executor,
            interval_ms=config.log_scrub_interval_ms,
            bytes_per_second=config.log_scrub_max_bytes_per_second,
        )
        return cls(
            directories,
            coordination,
            logs,
            member,
            registry,
            sessions,
            internal_topics,
            scrubber,
            Supervisor(),
            Dispatcher(
                registry, clock, quotas, LargeRequestMemory(environment.share_of_memory(MEMORY_FOR_LARGE_REQUESTS))
            ),
            quotas,
            clock,
        )

    async def start(
        self, config: BrokerConfig, socket_server: SocketServer, metrics_server: MetricsServer | None
    ) -> None:
        """Start the background work, then accept connections."""
        logs, supervisor, space = self.logs, self.supervisor, self.directories.space
        groups, transactions = self.member.coordinators.groups, self.member.coordinators.transactions
        if metrics_server is not None:
            from broker.observability.metrics import BrokerCollector

            collector = BrokerCollector(
                self.registry,
                logs.replicas,
                socket_server,
                self.sessions,
                groups,
                logs.log_manager.directories,
                self.scrubber.scrub,
                logs.cleaner,
                logs.moves,
                self.member.unclean_elections,
                self.quotas,
                self.clock,
            )
            metrics_server.show(collector)
        logs.maintenance.schedule(supervisor, config)
        logs.cleaner.start()
        self.scrubber.schedule(supervisor)
        await space.check()
        supervisor.every(DISK_CHECK_MS, "disk-space", space.check)
        supervisor.every(DISK_CHECK_MS, "refused-logs", logs.replicas.hosted.retry_failed_logs)
        supervisor.every(DISK_CHECK_MS, "refused-checkpoints", logs.retry_refused_checkpoints)
        logs.moves.resume()
        supervisor.every(LOOKUP_PERIOD_MS, "quota-hosts", self.quotas.look_up_hosts, asks_others=True)
        supervisor.every(config.offsets_retention_check_interval_ms, "offset-expiration", groups.expire_offsets)
        supervisor.every(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            "transaction-abort",
            transactions.abort_late_transactions,
        )
        supervisor.every(
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            "transactionalId-expiration",
            transactions.forget_unused_ids,
        )
        if self.member.links is not None:
            # With this interval a lagging follower is detected after at most one and a half times its limit, as in
            # Kafka.
            supervisor.every(config.replica_lag_time_max_ms // 2, "isr-expiration", logs.replicas.check_lag)
            supervisor.every(
                DISK_CHECK_MS, "truncated-replicas", lambda: self.member.publish_truncated_replicas(logs.log_manager)
            )
            if config.auto_leader_rebalance_enable:
                interval_ms = config.leader_imbalance_check_interval_seconds * 1000
                supervisor.every(interval_ms, "auto-leader-rebalance", self.member.controller.balance_leaders)
        tokens = self.member.delegation_tokens
        if tokens is not None:
            interval_ms = tokens.settings.expiry_check_interval_ms
            remove = self.member.remove_expired_tokens
            supervisor.every(interval_ms, "delete-expired-tokens", remove, initial_delay_ms=0)
        await socket_server.start(self.dispatcher, self.quotas.charge_connection)

    async def stop(self, socket_server: SocketServer) -> None:
        """Stop serving, and end the background work."""
        await socket_server.stop_listening()
        await self.internal_topics.close()
        await self.member.coordinators.close()
        socket_server.close_connections()
        await self.dispatcher.drain()
        await self.logs.moves.close()
        await self.directories.failures.close()
        await self.logs.cleaner.close()
        await self.supervisor.stop()


def window_of_quotas(config: BrokerConfig) -> QuotaWindow:
    """The measuring window for rates of clients and connections."""
    return QuotaWindow(config.quota_window_num, config.quota_window_size_seconds * 1000)


def _client_quotas(config: BrokerConfig, environment: Environment, coordination: OpenCoordination) -> ClientQuotas:
    mutation_window = QuotaWindow(
        config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
    )
    quotas = ClientQuotas(
        environment.clock, coordination.metadata.image, environment.network, window_of_quotas(config), mutation_window
    )
    coordination.metadata.add_listener(quotas.image_changed)
    return quotas


def _registry(
    config: BrokerConfig,
    environment: Environment,
    coordination: OpenCoordination,
    logs: LoadedLogs,
    member: ClusterMember,
    sessions: FetchSessionCache,
    internal_topics: InternalTopicCreator,
    quotas: ClientQuotas,
) -> HandlerRegistry:
    clock, executor, file_system = environment.clock, environment.executor, environment.file_system
    metadata, configs, controller = coordination.metadata, coordination.configs, member.controller
    coordinators, image = member.coordinators, lambda: coordination.metadata.image
    groups, transactions = coordinators.groups, coordinators.transactions
    access = _access(member)
    changing_users = asyncio.Lock()
    registry = HandlerRegistry(
        [
            ProduceHandlers(logs.replicas, coordinators.guards, clock),
            FetchHandlers(logs.replicas, sessions, config.fetch_max_bytes, quotas, clock, access),
            OffsetHandlers(logs.replicas, executor, logs.maintenance.checkpoint_log_start_offsets),
            MetadataHandlers(metadata, member.auto_topics, clock, access),
            TopicHandlers(metadata, controller, configs.describe_topic, quotas),
            ConfigHandlers(configs, metadata, member.dynamic_configs, LoggerLevels(), clock),
            ClientQuotaHandlers(
                metadata, member.dynamic_configs, changing_users, environment.network.addresses_of, clock
            ),
            LogDirHandlers(file_system, logs.log_manager, logs.replicas, logs.moves.alter, clock),
            GroupHandlers(groups, access),
            GroupOffsetHandlers(groups, image),
            CoordinatorHandlers(groups, transactions, image, internal_topics),
            ProducerIdHandlers(coordinators.producer_ids, transactions),
            TransactionHandlers(transactions, groups, coordinators.verifier, image),
            TransactionalOffsetHandlers(groups, coordinators.guards, image),
            MarkerHandlers(coordinators.marker_writer),
            TransactionAdminHandlers(transactions),
            ProducerHandlers(logs.replicas, lambda: metadata.image, clock),
            DelegationTokenHandlers(member.delegation_tokens, access, clock),
            SaslHandlers(),
            ScramUserHandlers(coordination.membership, controller, changing_users, clock),
            AclHandlers(member.authorizer),
            ReassignmentHandlers(controller),
            ClusterCommandHandlers(member.commands, clock),
            ClusterRequestHandlers(controller, lambda: metadata.image, clock),
            ElectionHandlers(controller, lambda: metadata.image),
        ]
    )
    registry.add(ApiVersionsHandlers(registry))
    if not access.is_open:
        install_rights(registry, access, clock)
    return registry


def _access(member: ClusterMember) -> Access:
    """The access rules; without an authorizer everyone may do everything."""
    if member.authorizer is None:
        return OPEN
    from broker.security.acl_access import AclAccess

    return AclAccess(member.authorizer.rules)
