"""KafkaServer: builds every owner of state, starts them in order, stops them in reverse.

Start: take the addresses -> load the logs -> open coordination -> register, lead -> serve. Nothing is written before
the addresses are known to be free and the log directories known to be ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from functools import partial

from broker.config_service import ConfigService
from broker.controller_service import ControllerService, ControllerSettings, InternalTopic
from broker.controller_service import StartUpError as ClusterError
from broker.coordination.embedded import EmbeddedEnsemble
from broker.dispatcher import Dispatcher
from broker.fetch_session import FetchSessionCache
from broker.handlers.api_versions import ApiVersionsHandlers
from broker.handlers.configs import ConfigHandlers
from broker.handlers.fetch import FetchHandlers
from broker.handlers.log_dirs import LogDirHandlers
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.produce import ProduceHandlers
from broker.handlers.topics import TopicHandlers
from broker.logger_levels import LoggerLevels
from broker.metrics import BrokerCollector, MetricsServer
from broker.network.limits import ConnectionLimits, RequestMemory
from broker.network.server import Endpoint, SocketServer
from broker.registry import HandlerRegistry
from broker.replica_manager import ReplicaManager
from broker.seams import Clock, Executor, Network, Random
from broker.supervisor import Supervisor
from broker.system import SystemClock, SystemRandom, TcpNetwork, ThreadExecutor
from broker.topic_configs import log_config_of
from cluster import znodes
from cluster.controller.start_up import FoundReplica
from cluster.coordination.embedded import DurableTree, JournalError
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.errors import ApiError
from protocol.topic_partition import CONSUMER_OFFSETS
from storage.file_system import FileSystem, OsFileSystem
from storage.log_manager import LoadProgress, LogDirError, LogManager

logger = logging.getLogger("kafka.server.KafkaServer")

FLUSH_CHECK_MS = 1_000
"""How often sealed segments and logs whose flush.ms is over are looked for."""

FILE_DELETION_CHECK_MS = 1_000
"""How often files whose file.delete.delay.ms is over are looked for."""


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
    ) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self._executor = executor
        self._file_system = file_system
        self._started_s = clock.monotonic_s()
        self.failed = asyncio.Event()
        self._supervisor = Supervisor()
        self._connection_limits = ConnectionLimits(
            config.max_connections, config.max_connections_per_ip, config.max_connections_per_ip_overrides
        )
        self._socket_server = SocketServer(
            network,
            executor,
            self._connection_limits,
            RequestMemory(config.queued_max_request_bytes),
            max_request_bytes=config.socket_request_max_bytes,
            max_idle_ms=config.connections_max_idle_ms,
        )
        self._log_manager: LogManager | None = None
        self._metrics_server: MetricsServer | None = None
        self._ensemble: EmbeddedEnsemble | None = None
        self._controller: ControllerService | None = None

    @classmethod
    def on_this_machine(cls, config: BrokerConfig) -> KafkaServer:
        """A broker on real clocks, disks, threads and sockets. Call it on the event loop."""
        return cls(
            config,
            clock=SystemClock(),
            random=SystemRandom(),
            executor=ThreadExecutor(config.num_io_threads),
            network=TcpNetwork(config.socket_listen_backlog_size),
            file_system=OsFileSystem(),
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
            log_manager = await self._load_logs()
            controller = await self._join(log_manager)
            await self._serve(log_manager, controller)
        except (OSError, LogDirError, ClusterError, JournalError, ApiError) as error:
            raise StartupError(str(error)) from error
        milliseconds = (self._clock.monotonic_s() - self._started_s) * 1000
        logger.info("[KafkaServer id=%d] started (%.0f ms)", self._config.broker_id, milliseconds)

    async def _load_logs(self) -> LogManager:
        config = self._config
        log_manager = LogManager(
            self._file_system,
            config.log_dirs,
            log_config_of(config, MetadataImage(), ""),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failure=self._on_directory_failure,
        )
        log_manager.lock_directories()
        self._log_manager = log_manager
        progress = LoadProgressLog(self._clock)
        report = await self._executor.run(partial(log_manager.load, self._clock.now_ms(), on_progress=progress))
        for result in report.repaired:
            logger.warning(
                "Recovered %s: truncated %d bytes%s",
                result.log.topic_partition,
                result.truncated_bytes,
                ", some of them below the high watermark" if result.lost_below_high_watermark else "",
            )
        for topic_partition, reason in report.refused.items():
            logger.error("The log of %s cannot be used: %s", topic_partition, reason)
        return log_manager

    async def _join(self, log_manager: LogManager) -> ControllerService:
        """Open coordination, register this broker, become controller; leaders are elected when this returns."""
        config = self._config
        tree = await self._executor.run(DurableTree.open, self._file_system, config.log_dirs[0], self._clock.now_ms())
        self._ensemble = EmbeddedEnsemble(tree, self._executor, self._clock, self._on_journal_failure)
        self._config_service = config_service = ConfigService(config, lambda: controller.image)
        controller = ControllerService(
            self._registration(),
            self._ensemble.session(),
            self._clock,
            self._random,
            self._controller_settings(),
            config_service.validate_topic,
        )
        self._controller = controller
        config_service.on_change(self._apply_config)
        controller.add_listener(config_service.image_changed)
        replica_manager = ReplicaManager(
            config.broker_id, log_manager, self._clock, self._executor, config_service.log_config
        )
        self._replica_manager = replica_manager
        controller.add_listener(replica_manager.apply_image)
        found = (
            [
                FoundReplica(log.topic_partition.topic, log.topic_partition.partition, log.topic_id, log.latest_epoch())
                for log in log_manager.logs.values()
            ]
            if self._ensemble.is_new
            else []
        )
        await controller.start(None, found)
        return controller

    async def _serve(self, log_manager: LogManager, controller: ControllerService) -> None:
        config = self._config
        replica_manager = self._replica_manager
        sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, self._random, self._clock.monotonic_s
        )
        configs = ConfigHandlers(self._config_service, controller, LoggerLevels())
        registry = HandlerRegistry(
            [
                configs,
                TopicHandlers(controller, configs.describe_topic_config),
                ProduceHandlers(replica_manager),
                FetchHandlers(replica_manager, sessions, config.fetch_max_bytes),
                OffsetHandlers(replica_manager),
                MetadataHandlers(controller),
                LogDirHandlers(log_manager, replica_manager),
            ]
        )
        registry.add(ApiVersionsHandlers(registry))
        if config.metrics_listener:
            host, _, port = config.metrics_listener.rpartition(":")
            collector = BrokerCollector(registry, replica_manager, self._socket_server, sessions)
            self._metrics_server = MetricsServer(collector, host.strip("[]"), int(port))
        self._start_background_work(log_manager, replica_manager)
        await self._socket_server.start(Dispatcher(registry, self._clock))

    def _start_background_work(self, log_manager: LogManager, replica_manager: ReplicaManager) -> None:
        config = self._config
        every = self._supervisor.every
        run = self._executor.run

        async def flush() -> None:
            for task in log_manager.flush_tasks(self._clock.now_ms()):
                await run(task.run)
                with contextlib.suppress(ApiError):  # the directory is offline now, and its owner has been told
                    task.complete(self._clock.now_ms())

        async def delete_files() -> None:
            log_manager.delete_expired(self._clock.now_ms())

        async def checkpoint_recovery_points() -> None:
            log_manager.checkpoint_recovery_points()

        async def checkpoint_log_starts() -> None:
            log_manager.checkpoint_log_start_offsets()

        async def checkpoint_high_watermarks() -> None:
            replica_manager.checkpoint_high_watermarks()

        async def expire_producers() -> None:
            log_manager.remove_expired_producers(self._clock.now_ms())

        every(min(config.log_flush_scheduler_interval_ms, FLUSH_CHECK_MS), "log-flusher", flush)
        every(FILE_DELETION_CHECK_MS, "delete-files", delete_files)
        every(config.log_flush_offset_checkpoint_interval_ms, "recovery-point-checkpoint", checkpoint_recovery_points)
        every(config.log_flush_start_offset_checkpoint_interval_ms, "log-start-checkpoint", checkpoint_log_starts)
        every(
            config.replica_high_watermark_checkpoint_interval_ms,
            "high-watermark-checkpoint",
            checkpoint_high_watermarks,
        )
        every(config.producer_id_expiration_check_interval_ms, "producer-expiration", expire_producers)

    # -- stop ----------------------------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Stop serving, flush everything, leave the markers of a clean stop."""
        logger.info("[KafkaServer id=%d] shutting down", self._config.broker_id)
        await self._socket_server.stop_listening()
        self._socket_server.close_connections()
        await self._supervisor.stop()
        if self._metrics_server is not None:
            self._metrics_server.close()
        broker_epoch = -1
        if self._controller is not None:
            broker = self._controller.image.brokers.get(self._config.broker_id)
            broker_epoch = -1 if broker is None else broker.epoch
        self._replica_manager.checkpoint_high_watermarks()
        if self._log_manager is not None:
            await self._executor.run(self._log_manager.close_cleanly, self._clock.now_ms(), broker_epoch)
        if self._controller is not None and not self.failed.is_set():
            await self._controller.close()
        if self._ensemble is not None:
            await self._ensemble.close()
        self._executor.close()
        logger.info("[KafkaServer id=%d] shut down completed", self._config.broker_id)

    async def abandon(self) -> None:
        """Give up a start that failed: let go of addresses and locks, write nothing."""
        await self._socket_server.stop_listening()
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
        return znodes.BrokerRegistration(self._config.broker_id, tuple(endpoints), self._config.broker_rack)

    def _controller_settings(self) -> ControllerSettings:
        config = self._config
        offsets_topic = InternalTopic(
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
                "compression.type": "producer",
            },
        )
        return ControllerSettings(
            config.num_partitions,
            config.default_replication_factor,
            config.auto_create_topics_enable,
            config.delete_topic_enable,
            {CONSUMER_OFFSETS: offsets_topic},
        )

    def _apply_config(self, config: BrokerConfig) -> None:
        """Dynamic changes that are not read where they are used."""
        limits = self._connection_limits
        limits.set_max_connections(config.max_connections)
        limits.max_per_ip = config.max_connections_per_ip
        limits.per_ip_overrides = config.max_connections_per_ip_overrides

    def _on_journal_failure(self, error: OSError) -> None:
        logger.critical("The coordination journal failed, the broker cannot go on: %s", error)
        self.failed.set()

    def _on_directory_failure(self, path: str, reason: str) -> None:
        logger.error("Stopping serving logs in dir %s: %s", path, reason)
        if self._log_manager is not None and all(each.failure for each in self._log_manager.directories):
            logger.critical("Shutdown broker because all log dirs in %s have failed", ", ".join(self._config.log_dirs))
            self.failed.set()


class LoadProgressLog:
    """Says how far loading is once it takes longer than a second. Called on the loading thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s = clock.monotonic_s() + 1.0

    def __call__(self, progress: LoadProgress) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + 1.0
            logger.info(
                "Loading logs of %s: %d of %d done, %d MB recovered",
                progress.directory,
                progress.logs_done,
                progress.logs_total,
                progress.recovered_bytes >> 20,
            )
