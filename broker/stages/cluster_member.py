"""Fourth stage: this broker is registered, has its roles from the controller, and coordinates groups."""

from __future__ import annotations

from functools import partial

from broker.controller.channels import LocalChannel
from broker.controller.controller_service import ControllerService
from broker.controller.controller_settings import controller_settings
from broker.environment.contract import Environment
from broker.groups.coordinator_log import ReplicatedCoordinatorLog
from broker.groups.group_coordinator_service import GroupCoordinatorService, group_config
from broker.stages.coordination import OpenCoordination
from broker.stages.directories import LockedDirectories
from broker.stages.logs import LoadedLogs
from cluster.controller.start_up import FoundReplica
from cluster.metadata_image import MetadataImage
from cluster.znodes import BrokerRegistration
from config.broker_config import BrokerConfig
from protocol.records.compression import CompressionType
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from protocol.value import Value
from storage.log_manager import LogManager


class ClusterMember(Value):
    """The controller, and the coordinator of the groups whose partitions are led here."""

    controller: ControllerService
    groups: GroupCoordinatorService
    commands: LocalChannel
    """Has this broker obey its controller."""

    @classmethod
    async def join(
        cls,
        config: BrokerConfig,
        environment: Environment,
        directories: LockedDirectories,
        coordination: OpenCoordination,
        logs: LoadedLogs,
        registration: BrokerRegistration,
    ) -> ClusterMember:
        """Register this broker, become controller; leaders are elected when this returns. Raises ClusterError."""
        metadata, configs, hosted = coordination.metadata, coordination.configs, logs.replicas.hosted
        groups = _coordinator(config, environment, coordination, logs)
        hosted.add_leadership_listener(partial(_tell_groups, groups))
        metadata.add_listener(partial(_forget_offsets_of_deleted_topics, groups))

        async def settle_deletions() -> None:
            await logs.settle_deletions()
            await groups.topics_forgotten()

        commands = LocalChannel(hosted, metadata, settle_deletions)
        controller = ControllerService(
            coordination.membership,
            {registration.broker_id: commands},
            environment.random,
            controller_settings(config),
            configs.validate_topic,
            metadata.update_configs,
            directories.space.refuse_new_partitions,
        )
        configs.on_change(controller.config_changed)
        broker = await coordination.membership.register(registration)
        find_replicas = partial(_found_replicas, logs.log_manager)
        await controller.start(broker, find_replicas, unclean=not logs.report.clean)
        if logs.report.has_stale_checkpoints:
            await logs.settle_deletions()
        directories.claim(environment, metadata.image.cluster_id)
        await directories.failures.serve(hosted.directory_failed, controller.log_directory_failed)
        return cls(controller, groups, commands)


def _coordinator(
    config: BrokerConfig, environment: Environment, coordination: OpenCoordination, logs: LoadedLogs
) -> GroupCoordinatorService:
    log = ReplicatedCoordinatorLog(
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


def _found_replicas(log_manager: LogManager) -> list[FoundReplica]:
    return [FoundReplica(*log.topic_partition, log.topic_id, log.latest_epoch()) for log in log_manager.logs.values()]


def _tell_groups(groups: GroupCoordinatorService, topic_partition: TopicPartition, leads: bool) -> None:
    if topic_partition.topic == CONSUMER_OFFSETS:
        if leads:
            groups.elected(topic_partition.partition)
        else:
            groups.resigned(topic_partition.partition)


def _forget_offsets_of_deleted_topics(groups: GroupCoordinatorService, old: MetadataImage, new: MetadataImage) -> None:
    deleted = [name for name in old.topics if name not in new.topics]
    if deleted:
        groups.topics_deleted(deleted)
