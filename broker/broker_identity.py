"""The owner of the log directories, decided before anything in them is changed."""

from __future__ import annotations

from config.broker_config import BrokerConfig
from protocol.value import Value
from storage.directory.meta_properties import META_PROPERTIES, LogDirError, check_meta_properties, read_meta_properties
from storage.io.file_system import FileSystem

NO_BROKER_ID = -1
KRAFT_METADATA = "__cluster_metadata-0"
"""The log of Apache Kafka's KRaft controllers."""


class BrokerIdentity(Value):
    """This broker's identity according to its log directories. `cluster_id` is None before the first start."""

    broker_id: int
    """NO_BROKER_ID where the tree that brokers share has to give one."""
    cluster_id: str | None
    unclaimed: list[str]
    """Directories without meta.properties yet."""
    unreadable: dict[str, str]
    """Directories whose meta.properties the disk does not give, and why."""


def identify_broker(file_system: FileSystem, config: BrokerConfig) -> BrokerIdentity:
    """Read every meta.properties; changes nothing. Raises LogDirError for another broker's or cluster's directory, and
    when none can be read.

    Without broker.id the broker keeps the one it had. A new broker gets one from ZooKeeper, or without
    ZooKeeper the first above reserved.broker.max.id.
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
