"""The status of a cluster as text: brokers, controller, partitions, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from client.metadata import Metadata, PartitionMetadata
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from tools.local_cluster.cluster_directory import ClusterDirectory, ClusterState, LocalBroker
from tools.local_cluster.cluster_probe import Probe, ReplicaLog, Replicas
from tools.local_cluster.cluster_processes import Condition, Observed, observe
from tools.local_cluster.cluster_secrets import ClusterSecrets
from tools.support.terminal import Part, Table

MISSING = "-"
MOST_PARTITIONS = 20
"""Maximum number of partition lines; partitions that need attention come first."""
STYLES = {
    Condition.RUNNING.value: "green",
    Condition.PAUSED.value: "yellow",
    Condition.DEAD.value: "red",
    "not registered": "yellow",
    "none": "red",
}
"""Colours of cells, for terminals."""
_NO_LOG = ReplicaLog(0, 0)
_UNITS = ("B", "kB", "MB", "GB", "TB")


class ClusterStatus(Value):
    """A snapshot of a cluster. `metadata` is None if no broker answers."""

    state: ClusterState
    zookeeper: Observed
    brokers: Mapping[int, Observed]
    metadata: Metadata | None
    replicas: Replicas


async def gather_status(directory: ClusterDirectory) -> ClusterStatus:
    """Check the processes and ask the brokers. Raises ToolError if the cluster does not exist, AuthenticationError if
    its brokers reject the cluster's user.
    """
    state = directory.load()
    observed = {each.broker_id: observe(each.process) for each in state.brokers}
    running = [each for each in state.brokers if observed[each.broker_id].condition is Condition.RUNNING]
    metadata, replicas = None, {}
    if running:
        security = ClusterSecrets(directory, state.security).client_properties()
        async with Probe(",".join(broker.address for broker in running), security) as probe:
            metadata = await probe.metadata()
            if metadata is not None:
                asked = [each.broker_id for each in running if each.broker_id in metadata.nodes]
                replicas = dict(await probe.replicas(asked))
    return ClusterStatus(state, observe(state.zookeeper.process), observed, metadata, replicas)


def render(status: ClusterStatus) -> list[Part]:
    """The status as lines and tables."""
    parts: list[Part] = [_headline(status), "", *_about_brokers(status), ""]
    return [*parts, *(["No broker answers."] if status.metadata is None else _about_partitions(status.metadata))]


def _headline(status: ClusterStatus) -> str:
    zookeeper = status.state.zookeeper
    if zookeeper.port is None:
        about = f"ZooKeeper {zookeeper.connect}"
    elif zookeeper.process is None or status.zookeeper.condition is Condition.DEAD:
        about = f"{zookeeper.title} {zookeeper.connect} dead"
    else:
        memory = in_units(status.zookeeper.memory_bytes)
        condition = status.zookeeper.condition.value
        about = f"{zookeeper.title} {zookeeper.connect} {condition}, pid {zookeeper.process.pid}, {memory}"
    cluster_id = MISSING if status.metadata is None else status.metadata.cluster_id
    return f"Cluster {cluster_id}, {about}"


# -- brokers -----------------------------------------------------------------------------------------------------------


def _about_brokers(status: ClusterStatus) -> list[Part]:
    titles = ("BROKER", "STATE", "PID", "ADDRESS", "MEMORY", "LEADS", "REPLICAS", "IN SYNC", "BEHIND")
    table = Table([_broker_row(status, broker) for broker in status.state.brokers], titles)
    memory = in_units(sum(observed.memory_bytes for observed in status.brokers.values()))
    controller = -1 if status.metadata is None else status.metadata.controller_id
    chosen = "none" if controller < 0 else str(controller)
    return [table, "", f"Controller: {chosen}. Memory of all brokers: {memory}."]


def _broker_row(status: ClusterStatus, broker: LocalBroker) -> tuple[str, ...]:
    observed = status.brokers[broker.broker_id]
    condition = observed.condition.value
    is_alive = broker.process is not None and observed.condition is not Condition.DEAD
    pid = str(broker.process.pid) if broker.process is not None and is_alive else MISSING
    memory = in_units(observed.memory_bytes) if is_alive else MISSING
    if status.metadata is None:
        return (str(broker.broker_id), condition, pid, broker.address, memory, *(MISSING,) * 4)
    if observed.condition is Condition.RUNNING and broker.broker_id not in status.metadata.nodes:
        condition = "not registered"
    partitions = [partition for _, partition in _partitions(status.metadata)]
    replicas = [each for each in partitions if broker.broker_id in each.replicas]
    counts = (
        sum(each.leader == broker.broker_id for each in partitions),
        len(replicas),
        sum(broker.broker_id in each.isr for each in replicas),
    )
    lag = lag_of(status.metadata, status.replicas, broker.broker_id)
    return (
        *(str(broker.broker_id), condition, pid, broker.address, memory, *map(str, counts)),
        MISSING if lag is None else f"{lag.records} records, {in_units(lag.size_bytes)}",
    )


class Lag(NamedTuple):
    """How far a broker's replicas are behind their leaders. Records are counted by offsets."""

    records: int
    size_bytes: int


def lag_of(metadata: Metadata, replicas: Replicas, broker_id: int) -> Lag | None:
    """The lag of one broker, or None if unknown. Leaders that do not answer are left out."""
    own = replicas.get(broker_id)
    if own is None:
        return None
    records = size_bytes = 0
    for name, partition in _partitions(metadata):
        leader = replicas.get(partition.leader, {}).get(name)
        if broker_id not in partition.replicas or leader is None:
            continue
        replica = own.get(name, _NO_LOG)
        size_bytes += max(0, leader.size_bytes - replica.size_bytes)
        if leader.end_offset is not None and replica.end_offset is not None:
            records += max(0, leader.end_offset - replica.end_offset)
    return Lag(records, size_bytes)


# -- partitions --------------------------------------------------------------------------------------------------------


def _partitions(metadata: Metadata) -> Iterable[tuple[TopicPartition, PartitionMetadata]]:
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            yield TopicPartition(topic.name, partition.partition), partition


def _about_partitions(metadata: Metadata) -> list[Part]:
    """A line with the counts, then a table of the first partitions: leaderless ones, ones with out-of-sync replicas,
    then others of user topics.
    """
    partitions = sorted(_partitions(metadata))
    if not partitions:
        return ["No topics."]
    leaderless = [each for each in partitions if each[1].leader not in metadata.nodes]
    led = [each for each in partitions if each[1].leader in metadata.nodes]
    short = [each for each in led if len(each[1].isr) < len(each[1].replicas)]
    well = [each for each in led if len(each[1].isr) >= len(each[1].replicas)]
    of_users = [each for each in well if not metadata.topics[each[0].topic].is_internal]
    shown = [*leaderless, *short, *of_users][:MOST_PARTITIONS]
    under_replicated = len(short) + len(leaderless)
    counts = f"{len(partitions)}, under-replicated {under_replicated}, without a leader {len(leaderless)}"
    parts: list[Part] = [f"Topics: {len(metadata.topics)}. Partitions: {counts}."]
    if shown:
        parts += ["", Table([*_partition_rows(metadata, shown)], ("PARTITION", "LEADER", "REPLICAS", "ISR"))]
    hidden = len(partitions) - len(shown)
    return [*parts, f"... and {hidden} more"] if hidden else parts


def _partition_rows(
    metadata: Metadata, partitions: Iterable[tuple[TopicPartition, PartitionMetadata]]
) -> Iterable[tuple[str, ...]]:
    for (topic, number), partition in partitions:
        leader = str(partition.leader) if partition.leader in metadata.nodes else "none"
        yield f"{topic}-{number}", leader, _ids(partition.replicas), _ids(partition.isr)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or MISSING


# -- text --------------------------------------------------------------------------------------------------------------


def in_units(size_bytes: int) -> str:
    """A size with a unit for people, in powers of 1000."""
    size, unit = float(size_bytes), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit and size < 9.95 else f"{size:.0f} {_UNITS[unit]}"
