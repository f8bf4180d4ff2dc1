"""Third stage: the loaded logs and their maintenance."""

from __future__ import annotations

from functools import partial

from broker.broker_environment import Environment
from broker.logs.directory_failures import DirectoryFailures
from broker.logs.log_cleaner import LogCleaner
from broker.logs.log_maintenance import LogMaintenance
from broker.logs.startup_loading import close_logs, load_logs
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.replica_alter_log_dirs import ReplicaAlterLogDirsManager
from broker.replication.replica_manager import ReplicaManager
from broker.replication.replication_quota import ReplicationQuotas
from broker.stages.coordination import OpenCoordination
from broker.stages.directories import LockedDirectories
from cluster.metadata_image import MetadataImage
from cluster.replication.reads import RACK_AWARE_SELECTOR, RackAwareReplicaSelector
from config.broker_keys import ALTER_LOG_DIRS_RATE
from protocol.config_resources import ConfigResourceType
from protocol.value import Value
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.log_directory_survey import LoadReport


class LoadedLogs(Value):
    """All logs of this broker, before it has any role for them."""

    log_manager: LogManager
    report: LoadReport
    replicas: ReplicaManager
    quotas: ReplicationQuotas
    maintenance: LogMaintenance
    cleaner: LogCleaner
    moves: ReplicaAlterLogDirsManager

    @classmethod
    async def load(
        cls, environment: Environment, directories: LockedDirectories, coordination: OpenCoordination
    ) -> LoadedLogs:
        """Open all logs, each with its topic's configuration from the start."""
        log_manager, clock, executor = directories.log_manager, environment.clock, environment.executor
        configs = coordination.configs
        threads = configs.current.num_recovery_threads_per_data_dir
        report = await load_logs(log_manager, _topic_configs(coordination), clock, executor, threads)
        quotas = ReplicationQuotas(
            directories.identity.broker_id,
            clock,
            configs.dynamic_limit,
            coordination.metadata.image,
            samples=configs.current.replication_quota_window_num,
            sample_s=configs.current.replication_quota_window_size_seconds,
        )
        coordination.metadata.add_listener(quotas.image_changed)
        replicas = ReplicaManager(
            directories.identity.broker_id,
            log_manager,
            clock,
            executor,
            coordination.metadata,
            coordination.fence,
            configs.log_config,
            configs.current.replica_lag_time_max_ms,
            quotas.leader,
            _selector(configs.current.replica_selector_class, coordination.metadata),
        )
        maintenance = LogMaintenance(
            log_manager,
            replicas.high_watermarks,
            clock,
            executor,
            replicas.group_commit,
            replicas.log_start_moved,
        )
        cleaner = LogCleaner(
            log_manager,
            replicas.high_watermarks,
            clock,
            executor,
            environment.new_cleaner_worker,
            lambda: configs.current,
            maintenance.checkpoint_recovery_points,
        )
        moves = ReplicaAlterLogDirsManager(
            log_manager,
            replicas,
            maintenance,
            cleaner,
            lambda: configs.dynamic_limit(ALTER_LOG_DIRS_RATE),
            clock,
            executor,
        )
        loaded = cls(log_manager, report, replicas, quotas, maintenance, cleaner, moves)
        loaded._listen(coordination, directories)
        return loaded

    def _listen(self, coordination: OpenCoordination, directories: LockedDirectories) -> None:
        hosted, metadata = self.replicas.hosted, coordination.metadata
        metadata.add_listener(hosted.metadata_changed)
        metadata.add_listener(self.replicas.metadata_changed)
        metadata.add_listener(partial(_offer_truncated_logs, self.log_manager, directories.failures))
        coordination.configs.on_change(self.cleaner.config_changed)
        hosted.strays.complete_deletions_with(self.complete_deletions)

    async def complete_deletions(self) -> None:
        """See `LogMaintenance.complete_deletions`."""
        await self.cleaner.checkpoint()
        await self.maintenance.complete_deletions()

    async def retry_refused_checkpoints(self) -> None:
        """Write the checkpoints that a full disk refused and that still contain deleted logs. Call it regularly."""
        directories = self.log_manager.directories
        if any(each.failure is None and each.has_stale_checkpoints for each in directories):
            await self.complete_deletions()

    async def close(self, environment: Environment, threads_per_directory: int, broker_epoch: int) -> None:
        """Flush everything, and write the markers of a clean shutdown. No other work on the logs may be running."""
        await self.replicas.group_commit.idle()
        await self.maintenance.checkpoint_high_watermarks()
        await close_logs(self.log_manager, environment.executor, threads_per_directory, broker_epoch)


def _topic_configs(coordination: OpenCoordination) -> dict[str, LogConfig]:
    """The configuration of each topic that may override the defaults."""
    configs = coordination.configs
    default = configs.log_config("")
    return {
        name: configs.log_config(name) if overrides else default
        for (resource_type, name), overrides in coordination.metadata.image.configs.items()
        if resource_type == ConfigResourceType.TOPIC
    }


def _selector(class_name: str | None, metadata: MetadataCache) -> RackAwareReplicaSelector | None:
    return RackAwareReplicaSelector(lambda: metadata.image) if class_name == RACK_AWARE_SELECTOR else None


def _offer_truncated_logs(
    log_manager: LogManager, failures: DirectoryFailures, old: MetadataImage, new: MetadataImage
) -> None:
    """A replica whose log was truncated below its high watermark may lead once unclean elections are allowed."""
    if new.configs is not old.configs and log_manager.checkpoints.truncated_below:
        failures.replicas_changed()
