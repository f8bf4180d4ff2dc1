"""Invariants of a cluster after every step (C12), named after those of Kafka's TLA+ specification (KafkaReplication).

A step is a change of the tree, or of one replica: its role, its log end, its high watermark. The invariants use the
true state: the tree, and the partitions of all running brokers, paused and partitioned ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from cluster import znodes
from cluster.controller.commands import CommandFence
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams
from cluster.znodes import NO_LEADER, PartitionState, TopicAssignment
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from tests.simulation import history
from tests.simulation.cluster.replica_bytes import (
    CommittedBatches,
    ReplicaBytes,
    aborted_transactions,
    missing_transactions,
)
from tests.simulation.cluster.steps import after_each
from tests.simulation.coordination import SimEnsemble
from tests.simulation.loop import CURRENT, Process
from tests.simulation.world import Machine, World
from zookeeper.coordination import NoNodeError, WatchEvent

_STEPS_OF_REPLICAS = (
    "become_leader",
    "resign",
    "advance_high_watermark",
    "append_as_follower",
    "begin_truncation",
    "begin_full_truncation",
    "end_truncation",
)
_TOPICS = f"{znodes.BROKER_TOPICS}/"


class _InTree(NamedTuple):
    """A partition's state in the tree."""

    topic_id: Uuid
    replicas: tuple[int, ...]
    is_moving: bool
    state: PartitionState

    @property
    def candidates(self) -> tuple[int, ...]:
        """The replicas that may be elected: the ISR, and those eligible by KIP-966."""
        eligible = self.state.eligible
        return self.state.isr if eligible is None else (*self.state.isr, *eligible.replicas)


@dataclass(slots=True)
class _Seen:
    """The history of a partition, for as long as its topic exists."""

    leaders: dict[int, int] = field(default_factory=dict)
    """By leader epoch."""
    committed: int = 0
    """The highest high watermark of all its leaders."""
    batches: CommittedBatches = field(default_factory=CommittedBatches)
    leader_epoch: int = -1


@dataclass(slots=True)
class _Replica:
    """The history of one replica during one process of its broker."""

    bytes: ReplicaBytes
    looked_at: tuple[int, ...] = ()
    epoch: int = -1
    high_watermark: int = 0
    """The leader's high watermark in `epoch`."""


class Invariants:
    """Checks every change while `watching` lasts. A violation is reported once for each partition or broker."""

    def __init__(self, world: World, ensemble: SimEnsemble, feed: Callable[[history.Event], None]) -> None:
        self.ensemble = ensemble
        self.partitions: dict[TopicPartition, _InTree] = {}
        """All partitions with a state in the tree."""
        self.tainted: dict[tuple[int, TopicPartition], None] = {}
        """Replicas, by broker id, that may have lost records in a power cut, while they remain in the ISR."""
        self._powerless: dict[int, tuple[int, frozenset[str]]] = {}
        """Brokers that lost power: their registrations, and the topics that lost records."""
        self._world = world
        self._tree = ensemble.tree
        self._feed = feed
        self._seen: dict[tuple[TopicPartition, Uuid], _Seen] = {}
        self._replicas: dict[tuple[str, int, TopicPartition, Uuid], _Replica] = {}
        self._told: dict[tuple[str, str], None] = {}
        self._controller_epoch = 0
        self._obeyed: dict[Process, int] = {}
        """The newest controller epoch that a broker has obeyed."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check each step of the brokers and of the tree."""
        with ExitStack() as stack:
            for name in _STEPS_OF_REPLICAS:
                stack.enter_context(after_each(Partition, name, lambda partition, _given: self._stepped(partition)))
            stack.enter_context(after_each(Partition, "read", self._was_read))
            stack.enter_context(after_each(CommandFence, "admit", lambda fence, _given: self._obeys(fence)))
            self.ensemble.listeners.append(self._tree_changed)
            yield

    def lose_power(self, broker_id: int, topics: Iterable[str]) -> None:
        """A broker loses power, and with it the unflushed records of these topics."""
        lost = frozenset(topics)
        self._powerless[broker_id] = self._registration(broker_id), lost
        for topic_partition, known in self.partitions.items():
            if broker_id in known.candidates and topic_partition.topic in lost:
                self.tainted[broker_id, topic_partition] = None

    def _registration(self, broker_id: int) -> int:
        stat = self._tree.exists(znodes.broker_path(broker_id))
        return -1 if stat is None else stat.czxid

    def _joins_by_what_it_lost(self, broker_id: int, topic: str) -> bool:
        """Whether a broker enters an ISR with offsets that it confirmed before a power cut and has lost since. The
        controller does not yet know of the power cut, as in Kafka.
        """
        registration, lost = self._powerless.get(broker_id, (-1, frozenset()))
        return topic in lost and 0 <= registration == self._registration(broker_id)

    def _violated(self, name: str, subject: object, text: str) -> None:
        if (name, str(subject)) not in self._told:
            self._told[name, str(subject)] = None
            self._feed(history.Trouble(self._world.loop.time(), "C12", f"{name}: {subject}: {text}"))

    def _seen_of(self, topic_partition: TopicPartition, topic_id: Uuid) -> _Seen:
        key = topic_partition, topic_id
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen()
        return seen

    def _running(self) -> Machine | None:
        """The machine of the broker whose code is running. Changes of a killed process have no effect."""
        process = CURRENT.get()
        for machine in self._world.machines:
            if machine.process is process and process.alive:
                return machine
        return None

    # -- the tree ------------------------------------------------------------------------------------------------------

    def _tree_changed(self, events: Sequence[WatchEvent]) -> None:
        topics: dict[str, None] = {}
        for event in events:
            if event.path.startswith(_TOPICS):
                topics[event.path.removeprefix(_TOPICS).partition("/")[0]] = None
            elif event.path == znodes.CONTROLLER_EPOCH:
                self._controller_epoch = znodes.decode_controller_epoch(self._tree.get(event.path)[0])
        for topic in topics:
            self._topic_changed(topic)

    def _topic_changed(self, topic: str) -> None:
        names = [each for each in self.partitions if each.topic == topic]
        before = {topic_partition: self.partitions.pop(topic_partition).candidates for topic_partition in names}
        if self._tree.exists(znodes.topic_path(topic)) is not None:
            for topic_partition, known in self._read_topic(topic):
                self.partitions[topic_partition] = known
                for broker_id in known.candidates:
                    joins = broker_id not in before.get(topic_partition, ())
                    if joins and self._joins_by_what_it_lost(broker_id, topic):
                        self.tainted[broker_id, topic_partition] = None
        for broker_id, topic_partition in list(self.tainted):
            known = self.partitions.get(topic_partition)
            if known is None or broker_id not in known.candidates:
                del self.tainted[broker_id, topic_partition]

    def _read_topic(self, topic: str) -> Iterator[tuple[TopicPartition, _InTree]]:
        tree = self._tree
        assignment = TopicAssignment.decode(topic, tree.get(znodes.topic_path(topic))[0])
        for number, replicas in assignment.partitions.items():
            try:
                data, stat = tree.get(znodes.partition_state_path(topic, number))
            except NoNodeError:
                continue
            topic_partition, state = TopicPartition(topic, number), PartitionState.decode(topic, number, data)
            is_moving = bool(assignment.adding_replicas.get(number) or assignment.removing_replicas.get(number))
            known = _InTree(assignment.topic_id, replicas, is_moving, state)
            if stat.mzxid == tree.last_zxid:
                self._check_state(topic_partition, known)
            yield topic_partition, known

    def _check_state(self, topic_partition: TopicPartition, known: _InTree) -> None:
        """Check a newly written state."""
        state, seen = known.state, self._seen_of(topic_partition, known.topic_id)
        candidates = known.candidates
        is_set = len(dict.fromkeys(candidates)) == len(candidates)
        if not state.isr or not is_set or not set(candidates) <= set(known.replicas):
            self._violated("TypeOk", topic_partition, f"{state} of the replicas {known.replicas}")
        if state.leader not in (NO_LEADER, *state.isr):
            self._violated("LeaderInIsr", topic_partition, f"{state.leader} leads, the ISR is {state.isr}")
        if state.controller_epoch != self._controller_epoch:
            text = f"controller {state.controller_epoch} writes in the term of {self._controller_epoch}"
            self._violated("OneController", topic_partition, text)
        if state.leader_epoch < seen.leader_epoch:
            self._violated("LeaderEpochRises", topic_partition, f"{seen.leader_epoch}, then {state.leader_epoch}")
        seen.leader_epoch = state.leader_epoch
        self._strong_isr(topic_partition, known, seen)

    # -- the brokers ---------------------------------------------------------------------------------------------------

    def _obeys(self, fence: CommandFence) -> None:
        process = CURRENT.get()
        before = self._obeyed.get(process, 0)
        if fence.controller_epoch < before:
            text = f"controller {fence.controller_epoch} is obeyed after {before}"
            self._violated("NewestControllerObeyed", process, text)
        self._obeyed[process] = max(before, fence.controller_epoch)

    def _was_read(self, leader: Partition, given: tuple[FetchParams, ...]) -> None:
        """A follower that was served knows the leader's epoch, so its state of an older epoch is obsolete."""
        replica_id = given[0].replica_id
        if replica_id < 0 or self._running() is None:
            return
        follower = _hosted_at(self._world.machines[replica_id], leader.topic_partition)
        if follower is not None and follower.leader_epoch < leader.leader_epoch:
            text = f"in epoch {leader.leader_epoch} broker {replica_id} is served, which is in {follower.leader_epoch}"
            self._violated("FollowerInEpoch", leader.topic_partition, text)

    def _stepped(self, partition: Partition) -> None:
        machine = self._running()
        if machine is None:
            return
        log = partition.log
        topic_partition, topic_id = partition.topic_partition, log.topic_id or ZERO_UUID
        key = (machine.name, machine.lives, topic_partition, topic_id)
        replica = self._replicas.get(key)
        if replica is None or replica.bytes.log is not log:  # a log set aside as a stray is a different one
            replica = self._replicas[key] = _Replica(ReplicaBytes(log, machine.disk))
        bounds = log.log_start_offset, partition.high_watermark, log.log_end_offset
        looked_at = *bounds, partition.leader_epoch, int(partition.is_leader), log.truncations
        if looked_at != replica.looked_at:
            replica.looked_at = looked_at
            if not bounds[0] <= bounds[1] <= bounds[2] and log.local.truncation is None:  # until it is truncated
                self._violated("OffsetsInOrder", topic_partition, f"{bounds} at {machine.name}")
            self._check_replica(machine, partition, replica, self._seen_of(topic_partition, topic_id))

    def _check_replica(self, machine: Machine, partition: Partition, replica: _Replica, seen: _Seen) -> None:
        topic_partition, epoch = partition.topic_partition, partition.leader_epoch
        high_watermark, known = partition.high_watermark, self.partitions.get(topic_partition)
        if partition.is_leader:
            leader = seen.leaders.setdefault(epoch, machine.broker_id)
            if leader != machine.broker_id:
                text = f"{leader} and {machine.broker_id} lead in epoch {epoch}"
                self._violated("OneLeaderPerEpoch", topic_partition, text)
            is_lower = high_watermark < replica.high_watermark and not self._is_going(topic_partition.topic)
            if epoch == replica.epoch and is_lower:
                text = f"from {replica.high_watermark} to {high_watermark} in epoch {epoch} at {machine.name}"
                self._violated("HighWatermarkRises", topic_partition, text)
            replica.epoch, replica.high_watermark = epoch, high_watermark
            seen.committed = max(seen.committed, high_watermark)
        elif high_watermark > seen.committed:
            text = f"{high_watermark} at {machine.name}, of {seen.committed} that any leader has committed"
            self._violated("HighWatermarkIsCommitted", topic_partition, text)
        if known is not None and known.topic_id == partition.log.topic_id:
            self._strong_isr(topic_partition, known, seen)
        if not topic_partition.topic.startswith("__"):  # each broker compacts these on its own
            difference = replica.bytes.verify(seen.batches, high_watermark)
            if difference is not None:
                self._violated("CommittedLogsAreEqual", topic_partition, f"at {machine.name}: {difference}")

    def _strong_isr(self, topic_partition: TopicPartition, known: _InTree, seen: _Seen) -> None:
        """Every running replica that may be elected has all committed records (LeaderCandidateCompleteness)."""
        for broker_id in known.candidates:
            partition = _hosted_at(self._world.machines[broker_id], topic_partition)
            if partition is None or partition.log.topic_id != known.topic_id:
                continue
            end = partition.log.log_end_offset
            if end >= seen.committed:
                self.tainted.pop((broker_id, topic_partition), None)
            elif (broker_id, topic_partition) not in self.tainted and not self._is_going(topic_partition.topic):
                text = f"broker {broker_id} may lead by {known.state}, but ends at {end} of {seen.committed}"
                self._violated("StrongIsr", topic_partition, text)

    def _is_going(self, topic: str) -> bool:
        """Whether the topic is being deleted: a new controller makes brokers create its log once more, and then deletes
        it.
        """
        return self._tree.exists(znodes.delete_topic_path(topic)) is not None

    # -- the end -------------------------------------------------------------------------------------------------------

    def not_in_sync(self) -> list[str]:
        """Partitions without a leader, those being moved, and those with replicas that are outside the ISR or do not
        know what is committed.
        """
        lagging = []
        for topic_partition, known in self.partitions.items():
            state = known.state
            if state.leader == NO_LEADER or len(state.isr) < len(known.replicas) or known.is_moving:
                lagging.append(f"{topic_partition} (leader {state.leader}, ISR {state.isr} of {known.replicas})")
                continue
            hosted = [_hosted_at(self._world.machines[each], topic_partition) for each in known.replicas]
            bounds = dict.fromkeys((each.high_watermark, each.log.log_end_offset) for each in hosted if each)
            if len(bounds) != 1 or any(high_watermark < end for high_watermark, end in bounds):
                lagging.append(f"{topic_partition} (high watermarks and ends: {list(bounds)})")
        return lagging

    def compare_aborted(self) -> None:
        """In-sync replicas report the same aborted transactions to readers, whichever leads next."""
        machines = self._world.machines
        for topic_partition, known in self.partitions.items():
            if topic_partition.topic.startswith("__"):  # as above
                continue
            hosted = {each: _hosted_at(machines[each], topic_partition) for each in known.replicas}
            logs = {broker_id: each.log for broker_id, each in hosted.items() if each is not None}
            found = {each: aborted_transactions(log, machines[each].disk) for each, log in logs.items()}
            start = max((log.log_start_offset for log in logs.values()), default=0)
            for broker_id, missing in missing_transactions(found, start).items():
                self._violated("AbortedAreEqual", topic_partition, f"broker {broker_id} does not know of {missing}")


def _hosted_at(machine: Machine, topic_partition: TopicPartition) -> Partition | None:
    """The replica of a running broker, whether it serves or not."""
    server = machine.server
    if not machine.is_up or server is None or server._serving is None:
        return None
    partitions: Mapping[TopicPartition, Partition] = server.serving.logs.replicas.hosted.partitions
    return partitions.get(topic_partition)
