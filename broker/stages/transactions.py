"""The transaction coordinators of this broker, and their ways to partitions, here and on other brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from broker.environment.contract import Environment
from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.stages.coordination import OpenCoordination
from broker.stages.logs import LoadedLogs
from broker.transactions.marker_sender import MarkerSender
from broker.transactions.marker_writer import MarkerWriter
from broker.transactions.markers import WriteMarkers
from broker.transactions.transaction_coordinator_service import TransactionCoordinatorService
from broker.transactions.transaction_guards import TransactionGuards
from broker.transactions.transaction_verifier import TransactionVerifier
from config.broker_config import BrokerConfig
from protocol.topic_partition import TRANSACTION_STATE
from protocol.value import Value

if TYPE_CHECKING:
    from broker.stages.cluster_links import ClusterLinks


class Transactions(Value):
    """What takes part in transactions: their coordinators, and the leaders of their partitions."""

    service: TransactionCoordinatorService
    writer: MarkerWriter
    verifier: TransactionVerifier
    guards: TransactionGuards

    @classmethod
    def of(
        cls,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        coordination: OpenCoordination,
        logs: LoadedLogs,
        groups: GroupCoordinatorService,
        links: ClusterLinks | None,
        next_producer_id: Callable[[], Awaitable[int]],
    ) -> Transactions:
        """Nothing is coordinated until this broker leads a partition of __transaction_state."""
        clock, metadata, configs, replicas = (
            environment.clock,
            coordination.metadata,
            coordination.configs,
            logs.replicas,
        )
        writer = MarkerWriter(replicas, groups, clock, config.request_timeout_ms)
        log = ReplicatedCoordinatorLog(
            TRANSACTION_STATE,
            replicas,
            lambda: metadata.image,
            environment.executor,
            configured_partitions=config.transaction_state_log_num_partitions,
            load_buffer_bytes=config.transaction_state_log_load_buffer_size,
            commit_timeout_ms=config.request_timeout_ms,
        )
        service = TransactionCoordinatorService(
            log,
            clock,
            environment.executor,
            MarkerSender(lambda: metadata.image, partial(_way_to, broker_id, writer, links)),
            lambda topic_partition: replicas.partition(topic_partition).leader_epoch,
            next_producer_id,
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
        )
        ask_broker = None if links is None else links.ask_transaction_coordinator
        verifier = TransactionVerifier(broker_id, service, lambda: metadata.image, ask_broker)
        guards = TransactionGuards(
            replicas, verifier, clock, lambda: configs.current.transaction_partition_verification_enable
        )
        return cls(service, writer, verifier, guards)


def _way_to(own_id: int, writer: MarkerWriter, links: ClusterLinks | None, broker_id: int) -> WriteMarkers | None:
    """How to have a broker write markers; None while there is no such broker."""
    if broker_id == own_id:
        return writer.write
    return None if links is None or broker_id < 0 else partial(links.write_txn_markers, broker_id)
