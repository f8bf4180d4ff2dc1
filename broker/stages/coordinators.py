"""The coordinators of groups and transactions on this broker, and their connections to local and remote partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.broker_environment import Environment
from broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from broker.coordinators.coordinator_service import CoordinatorService
from broker.groups.group_coordinator_service import GroupCoordinatorService, group_config
from broker.stages.coordination import OpenCoordination
from broker.stages.logs import LoadedLogs
from broker.transactions.marker_sender import MarkerSender, WriteMarkers
from broker.transactions.marker_writer import MarkerWriter
from broker.transactions.transaction_coordinator_service import ProducerIds, TransactionCoordinatorService
from broker.transactions.transaction_guards import TransactionVerifier, VerificationGuards
from cluster.metadata_image import MetadataImage
from cluster.znodes import ProducerIdBlock
from config.broker_config import BrokerConfig
from protocol.records.compression import CompressionType
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from protocol.value import Value

if TYPE_CHECKING:
    from broker.stages.cluster_links import ClusterLinks


class CoordinatorServices(Value):
    """The coordinators, and the participants in transactions as leaders of their partitions. They are idle until this
    broker leads a partition of an internal topic.
    """

    groups: GroupCoordinatorService
    producer_ids: ProducerIds
    transactions: TransactionCoordinatorService
    marker_writer: MarkerWriter
    verifier: TransactionVerifier
    guards: VerificationGuards

    @classmethod
    def of(
        cls,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        coordination: OpenCoordination,
        logs: LoadedLogs,
        links: ClusterLinks | None,
        allocate_producer_ids: Callable[[], Awaitable[ProducerIdBlock]],
    ) -> CoordinatorServices:
        """`allocate_producer_ids` requests a block of ids from the controller."""
        clock, replicas, configs = environment.clock, logs.replicas, coordination.configs
        metadata, producer_ids = coordination.metadata, ProducerIds(allocate_producer_ids)
        groups = _groups(config, environment, coordination, logs)
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
        transactions = TransactionCoordinatorService(
            log,
            clock,
            environment.executor,
            MarkerSender(lambda: metadata.image, partial(_way_to, broker_id, writer, links)),
            lambda topic_partition: replicas.partition(topic_partition).leader_epoch,
            producer_ids.next_id,
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
        )
        ask_broker = None if links is None else links.ask_transaction_coordinator
        verifier = TransactionVerifier(broker_id, transactions, lambda: metadata.image, ask_broker)
        guards = VerificationGuards(
            replicas, verifier, clock, lambda: configs.current.transaction_partition_verification_enable
        )
        coordinators = cls(groups, producer_ids, transactions, writer, verifier, guards)
        replicas.hosted.add_leadership_listener(coordinators.leadership_changed)
        metadata.add_listener(coordinators.image_changed)
        return coordinators

    def leadership_changed(self, topic_partition: TopicPartition, leads: bool) -> None:
        """Called when this broker starts or stops leading a partition."""
        service: CoordinatorService[Any]
        if topic_partition.topic == CONSUMER_OFFSETS:
            service = self.groups
        elif topic_partition.topic == TRANSACTION_STATE:
            service = self.transactions
        else:
            return
        if leads:
            service.elected(topic_partition.partition)
        else:
            service.resigned(topic_partition.partition)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply a new metadata image: groups drop the offsets of deleted topics."""
        deleted = [name for name in old.topics if name not in new.topics]
        if deleted:
            self.groups.topics_deleted(deleted)

    async def close(self) -> None:
        """Stop coordinating."""
        await self.transactions.close()
        await self.groups.close()


def _groups(
    config: BrokerConfig, environment: Environment, coordination: OpenCoordination, logs: LoadedLogs
) -> GroupCoordinatorService:
    log = ReplicatedCoordinatorLog(
        CONSUMER_OFFSETS,
        logs.replicas,
        lambda: coordination.metadata.image,
        environment.executor,
        configured_partitions=config.offsets_topic_num_partitions,
        load_buffer_bytes=config.offsets_load_buffer_size,
        commit_timeout_ms=config.offsets_commit_timeout_ms,
        compression=CompressionType(config.offsets_topic_compression_codec),
    )
    return GroupCoordinatorService(
        group_config(config), log, environment.clock, environment.random, environment.executor
    )


def _way_to(own_id: int, writer: MarkerWriter, links: ClusterLinks | None, broker_id: int) -> WriteMarkers | None:
    """A function that makes the broker write markers, or None if no such broker is reachable."""
    if broker_id == own_id:
        return writer.write
    return None if links is None or broker_id < 0 else partial(links.write_txn_markers, broker_id)
