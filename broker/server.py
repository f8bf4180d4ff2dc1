"""KafkaServer: builds every owner of state, starts them in order, stops them in reverse.

Start: take the addresses -> lock the log directories -> open coordination -> load the logs, each by its own topic's
configuration -> register, lead -> serve. Nothing is written before the addresses are known to be free and the log
directories known to be ours.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial

from broker.cleaner_worker import CleanerWorker, ProcessWorker
from broker.config_service import ConfigService
from broker.controller_service import ControllerService
from broker.controller_settings import controller_settings
from broker.coordination.embedded import EmbeddedEnsemble
from broker.coordinator_log import ReplicatedCoordinatorLog
from broker.directory_claim import Claim, claim_directories
from broker.directory_failures import DirectoryFailures
from broker.disk_space import CHECK_MS as DISK_CHECK_MS
from broker.disk_space import DiskSpaceWatch
from broker.dispatcher import Dispatcher
from broker.fetch_session import FetchSessionCache
from broker.group_coordinator_service import GroupCoordinatorService, group_config
from broker.handlers.api_versions import ApiVersionsHandlers
from broker.handlers.configs import ConfigHandlers
from broker.handlers.coordinators import CoordinatorHandlers
from broker.handlers.fetch import FetchHandlers
from broker.handlers.group_offsets import GroupOffsetHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.log_dirs import LogDirHandlers
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.produce import ProduceHandlers
from broker.handlers.producer_ids import ProducerIdHandlers
from broker.handlers.topics import TopicHandlers
from broker.internal_topics import InternalTopicCreator
from broker.kafka_zk_client import ClusterError
from broker.log_cleaner import LogCleaner
from broker.log_loading import close_logs, load_logs
from broker.log_upkeep import LogUpkeep
from broker.logger_levels import LoggerLevels
from broker.metrics import BrokerCollector, MetricsServer
from broker.network.limits import ConnectionLimits, RequestMemory
from broker.network.server import Endpoint, SocketServer
from broker.producer_ids import ProducerIds
from broker.registry import HandlerRegistry
from broker.replica_alter_log_dirs import ReplicaAlterLogDirsManager
from broker.replica_manager import ReplicaManager
from broker.scrubber import Scrubber
from broker.seams import Clock, Executor, Network, Random
from broker.supervisor import Supervisor
from broker.system import (
    SystemClock,
    SystemRandom,
    TcpNetwork,
    ThreadExecutor,
    room_for_connections,
    with_open_file_limit,
)
from broker.topic_configs import log_config_of
from broker.znode_offsets import ZnodeOffsets
from cluster import znodes
from cluster.controller.start_up import FoundReplica
from cluster.coordination.contract import Coordination, CoordinationError
from cluster.coordination.embedded import JOURNAL_NAME, DurableTree, JournalError
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.compression import CompressionType
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from storage.file_system import FileSystem, OsFileSystem
from storage.log_directory_survey import LoadReport
from storage.log_manager import LogManager
from storage.meta_properties import LogDirError, write_meta_properties

logger = logging.getLogger("kafka.server.KafkaServer")
corruption_logger = logging.getLogger("kafka.log.UnifiedLog")


class StartupError(Exception):
    """The broker cannot start; the message is the one line that says why."""


class KafkaServer:
    """One broker. `failed` is set when it must not go on (its coordination journal or all its disks are gone)."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        random: Random,
        executor: Executor,
        network: Network,
        file_system: FileSystem,
        new_cleaner_worker: Callable[[], CleanerWorker],
        most_connections: int | None = None,
        launched_s: float | None = None,
    ) -> None:
        """`most_connections` may be open, because of what the operating system allows; None: as many as come."""
        self._config = config
        self._clock = clock
        self._random = random
        self._executor = executor
        self._file_system = file_system
        self._new_cleaner_worker = new_cleaner_worker
        self._launched_s = clock.monotonic_s() if launched_s is None else launched_s
        self.failed = asyncio.Event()
        self._directory_failures = DirectoryFailures(self.failed)
        self._supervisor = Supervisor()
        self._connection_limits = ConnectionLimits(
            config.max_connections,
            config.max_connections_per_ip,
            config.max_connections_per_ip_overrides,
            most_connections,
        )
        self._socket_server = SocketServer(
            network,
            executor,
            self._connection_limits,
            RequestMemory(config.queued_max_request_bytes),
            max_request_bytes=config.socket_request_max_bytes,
            max_idle_ms=config.connections_max_idle_ms,
            on_read_error=self._reading_failed,
        )
        self._metrics_server: MetricsServer | None = None
        # Set one after the other by `start`.
        self._log_manager: LogManager | None = None
        self._claim: Claim
        self._space: DiskSpaceWatch
        self._load_report: LoadReport
        self._ensemble: EmbeddedEnsemble
        self._coordination: Coordination
        self._controller: ControllerService
        self._configs: ConfigService
        self._replica_manager: ReplicaManager
        self._groups: GroupCoordinatorService
        self._internal_topics: InternalTopicCreator
        self.registry: HandlerRegistry
        self._dispatcher: Dispatcher
        self._upkeep: LogUpkeep
        self._cleaner: LogCleaner
        self._moves: ReplicaAlterLogDirsManager

    @classmethod
    def on_this_machine(cls, config: BrokerConfig, launched_s: float | None = None) -> KafkaServer:
        """A broker on real clocks, disks, threads and sockets. Call it on the event loop."""
        threads = max(config.num_io_threads, config.num_recovery_threads_per_data_dir * len(config.log_dirs))
        file_system = OsFileSystem()
        return cls(
            config,
            clock=SystemClock(),
            random=SystemRandom(),
            executor=ThreadExecutor(threads),
            network=TcpNetwork(config.socket_listen_backlog_size),
            file_system=file_system,
            new_cleaner_worker=ProcessWorker,
            most_connections=room_for_connections(file_system.max_open_files),
            launched_s=launched_s,
        )

    @property
    def ports(self) -> dict[str, int]:
        """The port each listener really has."""
        return self._socket_server.ports

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises StartupError with one line that says what is in the way; call `abandon` then."""
        try:
            await self._socket_server.bind(
                [Endpoint(each.listener_name, each.host, each.port) for each in self._config.listeners]
            )
            if self._config.metrics_listener:
                self._metrics_server = MetricsServer(self._config.metrics_listener)
            log_manager = self._lock_directories()
            image = await self._open_coordination()
            await self._load_logs(log_manager, image)
            await self._join(log_manager)
            await self._serve(log_manager)
        except (OSError, LogDirError, ClusterError, JournalError, CoordinationError, ApiError) as error:
            raise StartupError(with_open_file_limit(error)) from error
        milliseconds = (self._clock.monotonic_s() - self._launched_s) * 1000
        logger.info("[KafkaServer id=%d] started (%.0f ms)", self._claim.broker_id, milliseconds)

    def _lock_directories(self) -> LogManager:
        config = self._config
        log_manager = LogManager(
            self._file_system,
            config.log_dirs,
            log_config_of(config, MetadataImage(), ""),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failure=self._directory_failures.report,
            on_corruption=corruption_logger.error,
        )
        # Whose the directories are is settled before anything in them, the lock files included, is touched.
        self._claim = claim_directories(self._file_system, config)
        for path, reason in self._claim.unreadable.items():
            log_manager.take_offline(path, reason)
        log_manager.lock_directories()
        first = log_manager.directories[0]
        if first.failure is not None:
            raise LogDirError(f"{JOURNAL_NAME} is kept in the first log directory, which is offline: {first.failure}")
        self._log_manager = log_manager
        self._directory_failures.watch(log_manager)
        self._space = DiskSpaceWatch(log_manager, self._executor, config.log_dir_reserve_bytes)
        return log_manager

    async def _open_coordination(self) -> MetadataImage:
        """Open the tree and those who live by it; gives an image that has the configurations and nothing else."""
        config = self._config
        tree = await self._executor.run(DurableTree.open, self._file_system, config.log_dirs[0], self._clock.now_ms())
        self._ensemble = ensemble = EmbeddedEnsemble(tree, self._executor, self._clock, self._on_journal_failure)
        self._coordination = ensemble.session()
        self._controller = controller = ControllerService(
            self._registration(),
            self._coordination,
            self._clock,
            self._random,
            controller_settings(config),
            lambda overrides: configs.validate_topic(overrides),  # noqa: PLW0108  made on the next line
            self._space.refuse_new_partitions,
        )
        self._configs = configs = ConfigService(config, lambda: controller.image)
        configs.broker_id = self._claim.broker_id
        return MetadataImage(configs=await controller.connect())

    async def _load_logs(self, log_manager: LogManager, image: MetadataImage) -> None:
        """Open all logs, those of a topic that `image` configures by that configuration from the first moment on."""
        config = self._configs.in_force(image)
        default = self._configs.log_config(image, "")
        topic_configs = {
            name: self._configs.log_config(image, name) if overrides else default
            for (resource_type, name), overrides in image.configs.items()
            if resource_type == ConfigResourceType.TOPIC
        }
        self._load_report = await load_logs(
            log_manager, topic_configs, self._clock, self._executor, config.num_recovery_threads_per_data_dir
        )

    async def _join(self, log_manager: LogManager) -> None:
        """Register this broker, become controller; leaders are elected when this returns."""
        config, controller, configs = self._config, self._controller, self._configs
        self._replica_manager = replicas = ReplicaManager(
            self._claim.broker_id, log_manager, self._clock, self._executor, configs.log_config
        )
        self._upkeep = LogUpkeep(
            log_manager, replicas.high_watermarks, self._clock, self._executor, replicas.group_commit
        )
        self._cleaner = LogCleaner(
            log_manager,
            replicas.high_watermarks,
            self._clock,
            self._executor,
            self._new_cleaner_worker,
            lambda: configs.current,
            self._upkeep.checkpoint_recovery_points,
        )
        self._groups = groups = GroupCoordinatorService(
            group_config(config),
            ReplicatedCoordinatorLog(
                replicas,
                lambda: controller.image,
                self._executor,
                configured_partitions=config.offsets_topic_num_partitions,
                load_buffer_bytes=config.offsets_load_buffer_size,
                compression=CompressionType(config.offsets_topic_compression_codec),
            ),
            self._clock,
            self._random,
            self._executor,
        )
        replicas.add_leadership_listener(partial(_tell_groups, groups))
        controller.add_preparation(replicas.prepare_image)
        controller.add_listener(replicas.apply_image)
        controller.add_listener(partial(_forget_offsets_of_deleted_topics, groups))
        controller.add_listener(configs.image_changed)
        configs.on_change(self._apply_dynamic_config)
        controller.add_completion(self._image_is_applied)
        loaded = dict(log_manager.logs)
        await controller.start(
            self._claim.cluster_id, partial(_found_replicas, log_manager), unclean=not self._load_report.clean
        )
        if self._load_report.has_stale_checkpoints or any(log_manager.get(at) is not log for at, log in loaded.items()):
            await self._settle_deletions()
        for directory in log_manager.directories:
            if directory.path in self._claim.unclaimed and directory.failure is None:
                write_meta_properties(
                    self._file_system, directory.path, self._claim.broker_id, controller.image.cluster_id
                )
        await self._directory_failures.serve(replicas, controller)

    def _reading_failed(self, path: str, error: OSError) -> None:
        if self._log_manager is not None:
            self._log_manager.reading_failed(path, error)

    async def _image_is_applied(self, old: MetadataImage, new: MetadataImage) -> None:
        if _deletes_topics(old, new):
            await self._settle_deletions()

    async def _settle_deletions(self) -> None:
        await self._cleaner.checkpoint()
        await self._upkeep.settle_deletions()

    def _apply_dynamic_config(self, config: BrokerConfig) -> None:
        """What was copied out of the configuration at the start is copied again; topics' defaults are derived."""
        self._controller.settings = controller_settings(config)
        self._cleaner.config_changed(config)
        self._socket_server.limits.change(
            config.max_connections, config.max_connections_per_ip, config.max_connections_per_ip_overrides
        )

    async def _serve(self, log_manager: LogManager) -> None:
        config = self._config
        controller, replicas, groups = self._controller, self._replica_manager, self._groups
        sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, self._random, self._clock.monotonic_s
        )
        upkeep = self._upkeep
        self._moves = moves = ReplicaAlterLogDirsManager(
            log_manager,
            replicas,
            upkeep,
            self._cleaner,
            lambda: self._configs.alter_log_dirs_bytes_per_second,
            self._clock,
            self._executor,
        )
        self._internal_topics = InternalTopicCreator(controller.ensure_internal_topic)
        config_handlers = ConfigHandlers(self._configs, controller, LoggerLevels())
        self.registry = registry = HandlerRegistry(
            [
                ProduceHandlers(replicas),
                FetchHandlers(replicas, sessions, self._executor, config.fetch_max_bytes),
                OffsetHandlers(replicas, self._executor, upkeep.checkpoint_log_start_offsets),
                MetadataHandlers(controller),
                TopicHandlers(controller, config_handlers.describe_topic_config),
                config_handlers,
                LogDirHandlers(self._file_system, log_manager, replicas, moves.alter),
                GroupHandlers(groups),
                GroupOffsetHandlers(
                    groups,
                    lambda: controller.image,
                    ZnodeOffsets(self._coordination),
                    config.offset_metadata_max_bytes,
                ),
                CoordinatorHandlers(groups, lambda: controller.image, self._internal_topics),
                ProducerIdHandlers(ProducerIds(controller.allocate_producer_ids)),
            ]
        )
        registry.add(ApiVersionsHandlers(registry))
        scrubber = Scrubber(
            log_manager,
            self._clock,
            self._executor,
            interval_ms=config.log_scrub_interval_ms,
            bytes_per_second=config.log_scrub_max_bytes_per_second,
        )
        if self._metrics_server is not None:
            collector = BrokerCollector(
                registry,
                replicas,
                self._socket_server,
                sessions,
                groups,
                log_manager.directories,
                scrubber.scrub,
                self._cleaner,
                moves,
            )
            self._metrics_server.show(collector)
        upkeep.schedule(self._supervisor, config)
        self._cleaner.start()
        scrubber.schedule(self._supervisor)
        await self._space.check()
        self._supervisor.every(DISK_CHECK_MS, "disk-space", self._space.check)
        self._supervisor.every(DISK_CHECK_MS, "refused-logs", replicas.make_refused_logs)
        moves.resume()
        self._supervisor.every(config.offsets_retention_check_interval_ms, "offset-expiration", groups.expire_offsets)
        self._dispatcher = Dispatcher(registry, self._clock)
        await self._socket_server.start(self._dispatcher)

    # -- stop ----------------------------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Stop serving, flush everything, leave the markers of a clean stop. To be called after `start` only."""
        logger.info("[KafkaServer id=%d] shutting down", self._claim.broker_id)
        await self._socket_server.stop_listening()
        await self._internal_topics.close()
        await self._groups.close()
        self._socket_server.close_connections()
        await self._dispatcher.drain()
        await self._moves.close()
        await self._directory_failures.close()
        await self._cleaner.close()
        await self._supervisor.stop()
        await self._replica_manager.group_commit.idle()
        if self._metrics_server is not None:
            self._metrics_server.close()
        broker = self._controller.image.brokers.get(self._claim.broker_id)
        broker_epoch = -1 if broker is None else broker.epoch
        if self._log_manager is not None:
            await self._upkeep.checkpoint_high_watermarks()
            await close_logs(
                self._log_manager,
                self._clock,
                self._executor,
                self._config.num_recovery_threads_per_data_dir,
                broker_epoch,
            )
        if not self.failed.is_set():
            await self._controller.close()
        await self._ensemble.close()
        self._executor.close()
        logger.info("[KafkaServer id=%d] shut down completed", self._claim.broker_id)

    async def abandon(self) -> None:
        """Give up a start that failed: let go of addresses and locks, write nothing."""
        await self._socket_server.stop_listening()
        if self._metrics_server is not None:
            self._metrics_server.close()
        await self._supervisor.stop()
        if self._log_manager is not None:
            self._log_manager.unlock_directories()
        self._executor.close()

    def _registration(self) -> znodes.BrokerRegistration:
        """What this broker tells the cluster: its advertised listeners, with the ports they really have."""
        endpoints = []
        for each in self._config.advertised_listeners:
            host = each.host or socket.getfqdn()
            port = each.port or self._socket_server.ports[each.listener_name]
            endpoints.append(znodes.Endpoint(each.listener_name, host, port, each.security_protocol))
        return znodes.BrokerRegistration(self._claim.broker_id, tuple(endpoints), self._config.broker_rack)

    def _on_journal_failure(self, error: OSError) -> None:
        logger.critical("The coordination journal failed, the broker cannot go on: %s", error)
        self.failed.set()


def _found_replicas(log_manager: LogManager) -> list[FoundReplica]:
    return [FoundReplica(*log.topic_partition, log.topic_id, log.latest_epoch()) for log in log_manager.logs.values()]


def _deletes_topics(old: MetadataImage, new: MetadataImage) -> bool:
    return any(
        name not in new.topics or new.topics[name].topic_id != topic.topic_id for name, topic in old.topics.items()
    )


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
