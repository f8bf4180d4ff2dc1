"""Invariants of a cluster at every moment (C12), named after those of Kafka's TLA+ specification (KafkaReplication).

They are read off the true state: the tree, and the partitions of all brokers that run, paused and partitioned ones
included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from cluster import znodes
from cluster.replication.partition import Partition
from cluster.znodes import NO_LEADER, PartitionState, TopicAssignment
from cluster.zookeeper.coordination import NoNodeError
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from tests.simulation import history
from tests.simulation.cluster.replica_bytes import CommittedBatches, ReplicaBytes
from tests.simulation.coordination import SimEnsemble
from tests.simulation.world import Machine, World

CHECK_EVERY_S = 0.1


class _InTree(NamedTuple):
    """A partition as the tree has it."""

    topic_id: UUID
    replicas: tuple[int, ...]
    state: PartitionState
    partition_epoch: int


@dataclass(slots=True)
class _Seen:
    """The past of a partition, for as long as its topic exists."""

    leaders: dict[int, int] = field(default_factory=dict)
    """By leader epoch."""
    committed: int = 0
    """The highest high watermark of all leaders there were."""
    batches: CommittedBatches = field(default_factory=CommittedBatches)
    leader_epoch: int = -1
    partition_epoch: int = -1
    controller_epoch: int = -1
    lost_in_epoch: int = -1
    """Replicas of this leader epoch and older ones are not compared: records may have been lost."""


@dataclass(slots=True)
class _Replica:
    """The past of one replica in one life of its broker."""

    bytes: ReplicaBytes
    epoch: int = -1
    high_watermark: int = 0


class Invariants:
    """`check` looks at everything once. A violation is told once for each partition."""

    def __init__(self, world: World, ensemble: SimEnsemble, feed: Callable[[history.Event], None]) -> None:
        self._world = world
        self.ensemble = ensemble
        self._tree = ensemble.tree
        self._feed = feed
        self._seen: dict[tuple[TopicPartition, UUID], _Seen] = {}
        self._replicas: dict[tuple[str, int, TopicPartition, UUID], _Replica] = {}
        self._told: dict[tuple[str, str], None] = {}
        self._in_tree: dict[TopicPartition, _InTree] = {}
        self._zxid = -1
        self._controller_epoch = 0
        self.tainted: dict[tuple[int, TopicPartition], None] = {}
        """Replicas, by broker id, that may have lost records with their power, as long as they are in the ISR."""

    def begin(self) -> None:
        """Check from now on, again and again."""
        self.check()
        self._world.kernel_later(CHECK_EVERY_S, self.begin)

    def check(self) -> None:
        """Look at the tree and at all brokers."""
        self._read_tree()
        for machine in self._world.machines:
            for partition in hosted(machine):
                self._check_replica(machine, partition)
        for machine in self._world.machines:
            for partition in hosted(machine):
                self._strong_isr(machine, partition)

    def _violated(self, name: str, subject: object, text: str) -> None:
        if (name, str(subject)) not in self._told:
            self._told[name, str(subject)] = None
            self._feed(history.Trouble(self._world.loop.time(), "C12", f"{name}: {subject}: {text}"))

    def _seen_of(self, topic_partition: TopicPartition, topic_id: UUID) -> _Seen:
        return self._seen.setdefault((topic_partition, topic_id), _Seen())

    # -- the tree ------------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[TopicPartition, _InTree]:
        """All partitions with a state, as the tree has them now."""
        self._read_tree()
        return self._in_tree

    def _read_tree(self) -> None:
        tree = self._tree
        if tree.last_zxid == self._zxid:
            return
        self._zxid = tree.last_zxid
        self._in_tree = dict(self._partitions_in_tree())
        for topic_partition, known in self._in_tree.items():
            self._check_state(topic_partition, known)
        for replica in [each for each in self.tainted if not self._is_in_isr(*each)]:
            del self.tainted[replica]
        if tree.exists(znodes.CONTROLLER_EPOCH) is not None:
            epoch = znodes.decode_controller_epoch(tree.get(znodes.CONTROLLER_EPOCH)[0])
            if epoch < self._controller_epoch:
                self._violated("ControllerEpochRises", "/controller_epoch", f"{self._controller_epoch}, then {epoch}")
            self._controller_epoch = epoch

    def _is_in_isr(self, broker_id: int, topic_partition: TopicPartition) -> bool:
        known = self._in_tree.get(topic_partition)
        return known is not None and broker_id in known.state.isr

    def _partitions_in_tree(self) -> Iterator[tuple[TopicPartition, _InTree]]:
        tree = self._tree
        if tree.exists(znodes.BROKER_TOPICS) is None:
            return
        for topic in tree.children(znodes.BROKER_TOPICS)[0]:
            assignment = TopicAssignment.decode(topic, tree.get(znodes.topic_path(topic))[0])
            for number, replicas in assignment.partitions.items():
                try:
                    data, stat = tree.get(znodes.partition_state_path(topic, number))
                except NoNodeError:
                    continue
                state = PartitionState.decode(topic, number, data)
                yield TopicPartition(topic, number), _InTree(assignment.topic_id, replicas, state, stat.version)

    def _check_state(self, topic_partition: TopicPartition, known: _InTree) -> None:
        state, seen = known.state, self._seen_of(topic_partition, known.topic_id)
        if not state.isr or len(dict.fromkeys(state.isr)) < len(state.isr) or not set(state.isr) <= set(known.replicas):
            self._violated("TypeOk", topic_partition, f"the ISR is {state.isr}, the replicas are {known.replicas}")
        if state.leader not in (NO_LEADER, *state.isr):
            self._violated("LeaderInIsr", topic_partition, f"{state.leader} leads, the ISR is {state.isr}")
        for name, before, now in (
            ("PartitionEpochRises", seen.partition_epoch, known.partition_epoch),
            ("LeaderEpochRises", seen.leader_epoch, state.leader_epoch),
            ("ControllerEpochRises", seen.controller_epoch, state.controller_epoch),
        ):
            if now < before:
                self._violated(name, topic_partition, f"{before}, then {now}")
        seen.partition_epoch, seen.leader_epoch = known.partition_epoch, state.leader_epoch
        seen.controller_epoch = state.controller_epoch

    # -- the replicas --------------------------------------------------------------------------------------------------

    def _check_replica(self, machine: Machine, partition: Partition) -> None:
        log, epoch = partition.log, partition.leader_epoch
        topic_partition, topic_id = partition.topic_partition, log.topic_id or ZERO_UUID
        seen = self._seen_of(topic_partition, topic_id)
        key = (machine.name, machine.lives, topic_partition, topic_id)
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = _Replica(ReplicaBytes(log, machine.disk))
        high_watermark = partition.high_watermark
        if not log.log_start_offset <= high_watermark <= log.log_end_offset:
            text = f"{log.log_start_offset} <= {high_watermark} <= {log.log_end_offset} at {machine.name}"
            self._violated("OffsetsInOrder", topic_partition, text)
        if partition.is_leader:
            leader = seen.leaders.setdefault(epoch, machine.broker_id)
            if leader != machine.broker_id:
                text = f"{leader} and {machine.broker_id} lead in epoch {epoch}"
                self._violated("OneLeaderPerEpoch", topic_partition, text)
            if epoch == replica.epoch and high_watermark < replica.high_watermark:
                text = f"from {replica.high_watermark} to {high_watermark} in epoch {epoch} at {machine.name}"
                self._violated("HighWatermarkRises", topic_partition, text)
            replica.epoch, replica.high_watermark = epoch, high_watermark
        if epoch <= seen.lost_in_epoch:
            return
        if partition.is_leader:
            seen.committed = max(seen.committed, high_watermark)
        if topic_partition.topic.startswith("__"):
            return  # compacted by each broker for itself
        difference = replica.bytes.verify(seen.batches, high_watermark)
        if difference is not None:
            self._violated("CommittedLogsAreEqual", topic_partition, f"at {machine.name}: {difference}")

    def _strong_isr(self, machine: Machine, partition: Partition) -> None:
        """Every member of the ISR has all that is committed."""
        topic_partition = partition.topic_partition
        known = self._in_tree.get(topic_partition)
        if known is None or machine.broker_id not in known.state.isr or known.topic_id != partition.log.topic_id:
            return
        if self._tree.exists(znodes.delete_topic_path(topic_partition.topic)) is not None:
            return  # a new controller has the log begun once more, and then deleted
        seen, end = self._seen_of(topic_partition, known.topic_id), partition.log.log_end_offset
        if partition.leader_epoch <= seen.lost_in_epoch:
            return
        if end >= seen.committed:
            self.tainted.pop((machine.broker_id, topic_partition), None)
        elif (machine.broker_id, topic_partition) not in self.tainted:
            text = f"{machine.name} is in the ISR {known.state.isr}, but ends at {end} of {seen.committed}"
            self._violated("StrongIsr", topic_partition, text)

    def may_have_lost(self, topics: Iterable[str]) -> None:
        """Committed records of these topics may be gone, so what comes next is not compared with them."""
        for topic_partition, known in self.partitions.items():
            if topic_partition.topic in topics:
                lost = _Seen(self._seen_of(topic_partition, known.topic_id).leaders)
                lost.lost_in_epoch = known.state.leader_epoch
                self._seen[topic_partition, known.topic_id] = lost

    # -- the end -------------------------------------------------------------------------------------------------------

    def not_in_sync(self) -> list[str]:
        """Partitions without a leader, or with replicas that are not in the ISR or do not know what is committed."""
        lagging = []
        for topic_partition, known in self.partitions.items():
            state = known.state
            if state.leader == NO_LEADER or len(state.isr) < len(known.replicas):
                lagging.append(f"{topic_partition} (leader {state.leader}, ISR {state.isr} of {known.replicas})")
                continue
            bounds = dict.fromkeys(
                (partition.high_watermark, partition.log.log_end_offset)
                for machine in self._world.machines
                for partition in hosted(machine)
                if partition.topic_partition == topic_partition and machine.broker_id in known.replicas
            )
            if len(bounds) != 1 or any(high_watermark < end for high_watermark, end in bounds):
                lagging.append(f"{topic_partition} (high watermarks and ends: {list(bounds)})")
        return lagging


def hosted(machine: Machine) -> list[Partition]:
    """The partitions of a broker that runs, whether it serves or not."""
    server = machine.server
    if not machine.is_up or server is None or server._serving is None:
        return []
    return list(server.serving.logs.replicas.hosted.partitions.values())
