"""First stage: the log directories and their ownership, which is determined before anything in them changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from broker.broker_environment import Environment
from broker.logs.directory_failures import DirectoryFailures
from broker.logs.disk_tasks import DiskSpaceWatch
from broker.metadata.topic_configs import log_config_of
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.value import Value
from storage.directory.meta_properties import (
    META_PROPERTIES,
    LogDirError,
    check_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from storage.io.file_system import FileSystem
from storage.log_manager import LogManager
from zookeeper.durable_tree import JOURNAL_NAME

NO_BROKER_ID = -1
KRAFT_METADATA = "__cluster_metadata-0"
"""The log of Apache Kafka's KRaft controllers."""


class BrokerIdentity(Value):
    """This broker's identity according to its log directories. `cluster_id` is None before the first start."""

    broker_id: int
    """NO_BROKER_ID if the shared tree must assign one."""
    cluster_id: str | None
    unclaimed: list[str]
    """Directories without meta.properties yet."""
    unreadable: dict[str, str]
    """Directories whose meta.properties cannot be read, with the reason."""


def identify_broker(file_system: FileSystem, config: BrokerConfig) -> BrokerIdentity:
    """Read every meta.properties; changes nothing. Raises LogDirError for the directory of another broker or cluster,
    and if none can be read.

    Without broker.id the broker keeps its previous id. A new broker gets one from ZooKeeper, or without ZooKeeper the
    first above reserved.broker.max.id.
    """
    found, unreadable = [], {}
    kraft = config.values["metadata.log.dir"]
    for path in (*config.log_dirs, *([kraft] if isinstance(kraft, str) else [])):
        if file_system.exists(f"{path}/{KRAFT_METADATA}"):
            raise LogDirError(
                f"{path} belongs to Apache Kafka in KRaft mode ({KRAFT_METADATA}), whose metadata cannot be read here: "
                "use empty log.dirs, and copy topics and groups with the Spark jobs mirror and move-group"
            )
    for path in config.log_dirs:
        try:
            known = read_meta_properties(file_system, path)
        except OSError as error:
            unreadable[path] = f"{path}/{META_PROPERTIES} cannot be read: {error}"
        else:
            found += [known] if known is not None else []
    if len(unreadable) == len(config.log_dirs):
        raise LogDirError("; ".join(unreadable.values()))
    broker_id = config.broker_id
    if broker_id == NO_BROKER_ID:
        stored = (known.broker_id for known in found if known.broker_id is not None)
        first = NO_BROKER_ID if config.zookeeper_connect else config.reserved_broker_max_id + 1
        broker_id = next(stored, first)
    cluster_id = next((known.cluster_id for known in found if known.cluster_id is not None), None)
    readable = [path for path in config.log_dirs if path not in unreadable]
    unclaimed = check_meta_properties(file_system, readable, broker_id, cluster_id)
    return BrokerIdentity(broker_id, cluster_id, unclaimed, unreadable)


corruption_logger = logging.getLogger("kafka.log.UnifiedLog")

KEEP_EVERYTHING: Final[Mapping[str, Any]] = MappingProxyType(
    {"retention_ms": -1, "retention_bytes": -1, "cleanup_policy": frozenset({"delete"})}
)
"""A log is subject to its topic's limits only once a controller has confirmed that it is needed."""


class LockedDirectories(Value):
    """Directories that this broker has locked. Their logs are not loaded yet."""

    identity: BrokerIdentity
    log_manager: LogManager
    space: DiskSpaceWatch
    failures: DirectoryFailures

    @classmethod
    def lock(cls, config: BrokerConfig, environment: Environment, failures: DirectoryFailures) -> LockedDirectories:
        """Lock all working directories. Raises LogDirError."""
        log_manager = LogManager(
            environment.file_system,
            config.log_dirs,
            log_config_of(config, MetadataImage(), "").replace(**KEEP_EVERYTHING),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failure=failures.report,
            on_corruption=corruption_logger.error,
        )
        # Ownership is determined before anything in the directories is touched, including the lock files.
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
        """Write missing meta.properties."""
        for directory in self.log_manager.directories:
            if directory.path in self.identity.unclaimed and directory.failure is None:
                write_meta_properties(environment.file_system, directory.path, self.identity.broker_id, cluster_id)

    def release(self) -> None:
        """Release the locks, so that other brokers can use the directories."""
        self.log_manager.directories.unlock()
