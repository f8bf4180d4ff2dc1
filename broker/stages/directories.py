"""First stage: the log directories, and whose they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from broker.broker_identity import BrokerIdentity, identify_broker
from broker.environment.contract import Environment
from broker.logs.directory_failures import DirectoryFailures
from broker.logs.disk_tasks import DiskSpaceWatch
from broker.metadata.topic_configs import log_config_of
from cluster.metadata_image import MetadataImage
from cluster.zookeeper.durable_tree import JOURNAL_NAME
from config.broker_config import BrokerConfig
from protocol.value import Value
from storage.directory.meta_properties import LogDirError, write_meta_properties
from storage.log_manager import LogManager

corruption_logger = logging.getLogger("kafka.log.UnifiedLog")

KEEP_EVERYTHING: Final[Mapping[str, Any]] = MappingProxyType(
    {"retention_ms": -1, "retention_bytes": -1, "cleanup_policy": frozenset({"delete"})}
)
"""A log is under its topic's limits once a controller has said that it is wanted."""


class LockedDirectories(Value):
    """Directories that no other broker has. Their logs are not loaded yet."""

    identity: BrokerIdentity
    log_manager: LogManager
    space: DiskSpaceWatch
    failures: DirectoryFailures

    @classmethod
    def lock(cls, config: BrokerConfig, environment: Environment, failures: DirectoryFailures) -> LockedDirectories:
        """Lock all that work. Raises LogDirError."""
        log_manager = LogManager(
            environment.file_system,
            config.log_dirs,
            log_config_of(config, MetadataImage(), "").replace(**KEEP_EVERYTHING),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failure=failures.report,
            on_corruption=corruption_logger.error,
        )
        # Whose the directories are is settled before anything in them, the lock files included, is touched.
        identity = identify_broker(environment.file_system, config)
        for path, reason in identity.unreadable.items():
            log_manager.directories.take_offline(path, reason)
        log_manager.directories.lock()
        first = log_manager.directories[0]
        if first.failure is not None and not config.zookeeper_connect:
            log_manager.directories.unlock()
            raise LogDirError(f"{JOURNAL_NAME} is kept in the first log directory, which is offline: {first.failure}")
        failures.watch(log_manager.directories)
        space = DiskSpaceWatch(log_manager, environment.executor, config.log_dir_reserve_bytes)
        return cls(identity, log_manager, space, failures)

    def claim(self, environment: Environment, cluster_id: str) -> None:
        """Write meta.properties where there is none yet."""
        for directory in self.log_manager.directories:
            if directory.path in self.identity.unclaimed and directory.failure is None:
                write_meta_properties(environment.file_system, directory.path, self.identity.broker_id, cluster_id)

    def release(self) -> None:
        """Release the locks, so that other brokers can use the directories."""
        self.log_manager.directories.unlock()
