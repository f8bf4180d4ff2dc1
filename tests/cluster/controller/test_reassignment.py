"""Partitions move while brokers come and go and controllers crash: no committed record is lost, and the move ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.controller import reassignment
from cluster.controller.context import ControllerContext
from cluster.controller.elections import after, online_state, write
from cluster.controller.start_up import ReadTopic, take_over
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.znodes import PartitionState, TopicAssignment, partition_state_path, topic_path
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.kit.environment import uuid_of
from zookeeper.coordination import Operation, SetData

T0 = TopicPartition("t", 0)
ID = uuid_of(7)
BROKERS = range(1, 6)
TARGETS = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True).map(tuple)


class MovingPartition(RuleBasedStateMachine):
    """One partition, its two nodes, and the brokers that hold every committed record.

    Each transaction may end with a crash after some of its operations: larger ones are split, so that any prefix of it
    may be all that was written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.assignment = TopicAssignment(ID, {0: (1, 2)})
        self.state, self.version = PartitionState(1, 0, (1, 2), 1), 0
        self.holders = {1, 2}
        self.live = dict.fromkeys(BROKERS)
        self.target: tuple[int, ...] | None = None
        self.on_controller_failover()

    # -- the controller

    def on_controller_failover(self) -> None:
        brokers = [BrokerImage(each, each, {}) for each in self.live]
        self.context = ControllerContext(1, 1, brokers)
        read = ReadTopic("t", self.assignment, {0: (self.state, self.version)}, has_partitions_node=True)
        operations, topic = take_over(read, self.context, unclean=False)
        self.transact(operations)
        self.context.put_topics([topic])
        self.complete()

    def transact(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            assert isinstance(operation, SetData)
            if operation.path == topic_path("t"):
                self.assignment = TopicAssignment.decode("t", operation.data)
            else:
                assert operation.path == partition_state_path("t", 0)
                assert operation.version == self.version
                self.state, self.version = PartitionState.decode("t", 0, operation.data), self.version + 1

    @property
    def partition(self) -> PartitionImage:
        partition = self.context.partition(T0)
        assert partition is not None
        return partition

    def put(self, partition: PartitionImage) -> None:
        """Update the controller; brokers that are no longer replicas delete their log."""
        self.context.put_partitions({"t": [partition]})
        self.holders &= set(partition.replicas)

    def begin(self, target: tuple[int, ...] | None, written: int) -> bool:
        wanted = reassignment.plan(T0, target, self.context)
        operations, (moved,) = reassignment.begun(self.context.topics["t"], {0: wanted}, self.context)
        self.transact(operations[:written])
        if written < len(operations):
            self.on_controller_failover()
            return False
        self.put(moved)
        return True

    def complete(self, written: int = 2) -> None:
        state = reassignment.completion("t", self.partition, self.context)
        if state is None:
            return
        before = self.partition
        if written > 0:
            self.transact([write("t", before, state)])
            self.put(reassignment.completed(before, state))
        if written > 1:
            self.transact([reassignment.assignment_operation(self.context.topics["t"])])
        if written < 2:
            self.on_controller_failover()

    # -- what happens

    @rule(wanted=TARGETS, written=st.integers(0, 2))
    def move(self, wanted: tuple[int, ...], written: int) -> None:
        try:
            if self.begin(wanted, written):
                self.target = wanted
        except ApiError as error:
            assert error.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT

    @precondition(lambda self: reassignment.is_being_reassigned(self.partition))
    @rule(written=st.integers(0, 2))
    def cancel(self, written: int) -> None:
        origin = reassignment.origin_replicas(self.partition)
        try:
            if self.begin(None, written):
                self.target = origin
        except ApiError as error:
            assert error.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT

    @rule(written=st.integers(0, 2))
    def go_on(self, written: int) -> None:
        self.complete(written)

    @precondition(lambda self: self.partition.leader in self.live)
    @rule(broker_id=st.sampled_from(BROKERS))
    def join(self, broker_id: int) -> None:
        """A follower catches up, and the leader adds it to the ISR."""
        partition = self.partition
        if broker_id not in partition.replicas or broker_id in partition.isr or broker_id not in self.live:
            return
        self.holders.add(broker_id)
        isr = (*partition.isr, broker_id)
        state = PartitionState(partition.leader, partition.leader_epoch, isr, 1)
        self.transact([write("t", partition, state)])
        self.context.put_partitions({"t": [partition.replace(isr=isr, partition_epoch=self.version)]})

    @precondition(lambda self: self.partition.leader in self.live)
    @rule()
    def commit(self) -> None:
        """Commit a record: brokers outside the ISR do not have it."""
        self.holders = set(self.partition.isr)

    @rule(broker_id=st.sampled_from(BROKERS))
    def die(self, broker_id: int) -> None:
        if broker_id in self.live:
            del self.live[broker_id]
            self.context.remove_live_broker(broker_id)
            self.settle()

    @rule(broker_id=st.sampled_from(BROKERS))
    def come(self, broker_id: int) -> None:
        self.live[broker_id] = None
        self.context.set_live_brokers([BrokerImage(each, each, {}) for each in self.live])
        self.settle()

    def settle(self) -> None:
        state = online_state("t", self.partition, self.context)
        if state is not None:
            before = self.partition
            self.transact([write("t", before, state)])
            self.context.put_partitions({"t": [after(before, state)]})

    @rule()
    def another_controller(self) -> None:
        self.on_controller_failover()

    # -- what must hold

    @invariant()
    def the_isr_has_everything_that_was_committed(self) -> None:
        assert self.state.isr
        assert set(self.state.isr) <= self.holders
        assert self.state.leader == -1 or self.state.leader in self.state.isr
        assert set(self.state.isr) <= set(self.assignment.partitions[0])

    def teardown(self) -> None:
        """Start all brokers and let them catch up: the partition must be at the target of its last move."""
        for broker_id in BROKERS:
            self.come(broker_id)
        for broker_id in BROKERS:
            self.join(broker_id)
        self.complete()
        self.the_isr_has_everything_that_was_committed()
        assert not reassignment.is_being_reassigned(self.partition)
        assert not self.assignment.adding_replicas
        assert not self.assignment.removing_replicas
        assert self.assignment.partitions[0] == self.partition.replicas
        assert set(self.state.isr) == set(self.partition.replicas)
        if self.target is not None:
            assert self.partition.replicas == self.target


MovingPartition.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestMovingPartition = MovingPartition.TestCase


def test_the_last_replica_with_everything_is_not_dropped() -> None:
    """Kafka 3.9 would cancel, and delete the only in-sync replica."""
    machine = MovingPartition()
    assert machine.begin((3,), written=2)
    machine.join(3)
    machine.die(1)
    machine.die(2)
    assert machine.partition.isr == (3,)
    with pytest.raises(ApiError, match="unclean leader election") as raised:
        machine.begin(None, written=2)
    assert raised.value.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
