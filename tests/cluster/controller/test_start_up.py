"""A controller's decisions at its start, and the conversion of operations into fenced transactions."""

from __future__ import annotations

import pytest

from cluster.controller.context import ControllerContext
from cluster.controller.elections import elect_at_start, initial_state
from cluster.controller.start_up import FoundReplica, ReadTopic, adopt, keep_leader_epochs, take_over
from cluster.controller.transactions import ControllerEpoch, fenced
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from cluster.znodes import CONTROLLER_EPOCH, PartitionState, TopicAssignment, partition_state_path, partitions_path
from protocol.uuids import ZERO_UUID, Uuid
from tests.kit.environment import uuid_of
from zookeeper.coordination import Check, Create, SetData

ID = uuid_of(9)


def context_of(*brokers: int) -> ControllerContext:
    return ControllerContext(1, 7, [BrokerImage(broker, 1, {}) for broker in brokers])


def partition(leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionImage:
    return PartitionImage(0, leader, 4, replicas, isr, partition_epoch=10, controller_epoch=6)


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    assert initial_state((3, 1, 2), context_of(1, 2)) == PartitionState(1, 0, (1, 2), 7)
    assert initial_state((3,), context_of(1, 2)) is None


def test_a_live_leader_stays_with_its_epoch_after_a_clean_stop() -> None:
    assert elect_at_start("t", partition(1, (1, 2)), context_of(1, 2), unclean=False) is None


def test_a_live_leader_gets_a_new_epoch_after_an_unclean_stop() -> None:
    state = elect_at_start("t", partition(1, (1, 2)), context_of(1, 2), unclean=True)
    assert state == PartitionState(1, 5, (1, 2), 7)


@pytest.mark.parametrize("unclean", [True, False])
def test_a_dead_leader_is_followed_by_the_first_live_replica_in_the_isr(unclean: bool) -> None:
    state = elect_at_start("t", partition(1, (1, 3, 2)), context_of(2, 3), unclean=unclean)
    assert state == PartitionState(2, 5, (3, 2), 7)


def test_nobody_outside_the_isr_is_elected_and_the_isr_stays() -> None:
    state = elect_at_start("t", partition(1, (1,)), context_of(2, 3), unclean=True)
    assert state == PartitionState(-1, 5, (1,), 7)
    assert state is not None
    leaderless = partition(1, (1,)).replace(leader=-1)
    assert elect_at_start("t", leaderless, context_of(2, 3), unclean=True) is None
    assert elect_at_start("t", leaderless, context_of(1), unclean=False) == PartitionState(1, 5, (1,), 7)


def test_a_partition_in_recovery_stays_in_recovery() -> None:
    recovering = partition(1, (1,)).replace(leader_recovery_state=1)
    state = elect_at_start("t", recovering, context_of(1), unclean=True)
    assert state is not None
    assert state.leader_recovery_state == 1


def test_taking_over_completes_and_elects_with_versions() -> None:
    topic = ReadTopic(
        "t",
        TopicAssignment(ID, {0: (1,), 1: (1,), 2: (2,)}),
        {0: (PartitionState(1, 3, (1,), 1), 8)},
        has_partitions_node=True,
    )
    operations, image = take_over(topic, context_of(1), unclean=True)
    assert operations == [
        Create("/brokers/topics/t/partitions/1"),
        Create(partition_state_path("t", 1), PartitionState(1, 0, (1,), 7).encode()),
        SetData(partition_state_path("t", 0), PartitionState(1, 4, (1,), 7).encode(), 8),
    ]
    assert [(each.leader, each.leader_epoch, each.partition_epoch) for each in image.partitions] == [
        (1, 4, 9),
        (1, 0, 0),
        (-1, -1, -1),
    ]
    assert image.topic_id == ID


@pytest.mark.parametrize(
    ("isr", "became"),
    [
        ((1, 2), (2, (2,))),
        ((1,), (1, (1,))),
        ((1, 3), (1, (1,))),
    ],
)
def test_taking_over_trusts_no_broker_that_came_back_unnoticed(isr: tuple[int, ...], became: object) -> None:
    """Broker 1, the leader, registered again after the state was written: it may have lost its log. Broker 3 is down.
    If the ISR has no one else, broker 1 must do.
    """
    context = ControllerContext(2, 7, [BrokerImage(1, 60, {}), BrokerImage(2, 40, {})])
    topic = ReadTopic(
        "t",
        TopicAssignment(ID, {0: (1, 2, 3)}),
        {0: (PartitionState(1, 3, isr, 1), 8)},
        has_partitions_node=True,
        written_at={0: 50},
    )
    _, image = take_over(topic, context, unclean=False)
    assert (image.partitions[0].leader, image.partitions[0].isr) == became


def test_brokers_that_came_back_together_are_trusted_once() -> None:
    """The state is rewritten, so that the next controller sees which of them came back later."""
    context = ControllerContext(2, 7, [BrokerImage(1, 60, {}), BrokerImage(2, 61, {})])
    state = PartitionState(1, 3, (1, 2), 1)
    topic = ReadTopic("t", TopicAssignment(ID, {0: (1, 2)}), {0: (state, 8)}, True, written_at={0: 50})
    operations, image = take_over(topic, context, unclean=False)
    renewed = PartitionState(1, 4, (1, 2), 7)
    assert operations == [SetData(partition_state_path("t", 0), renewed.encode(), 8)]
    assert image.partitions[0].leader_epoch == 4
    assert take_over(topic.replace(written_at={0: 62}), context, unclean=False)[0] == []


@pytest.mark.parametrize(("known_id", "becomes"), [(ID, 8), (uuid_of(2), 4)], ids=["its own", "an earlier topic's"])
def test_leader_epochs_continue_those_known_where_the_tree_was_set_back(known_id: Uuid, becomes: int) -> None:
    found = ReadTopic("t", TopicAssignment(ID, {0: (1, 2)}), {0: (PartitionState(1, 4, (1, 2), 5), 8)}, True)
    known = TopicImage("t", known_id, (partition(2, (1, 2), (1, 2)).replace(leader_epoch=7),))
    assert keep_leader_epochs(found, None) is found
    read = keep_leader_epochs(found, known)
    _, image = take_over(read, context_of(1, 2), unclean=read is not found)
    assert image.partitions[0].leader_epoch == becomes


def test_a_topic_without_any_partition_node() -> None:
    topic = ReadTopic("t", TopicAssignment(ID, {0: (1,)}), {}, has_partitions_node=False)
    operations, _ = take_over(topic, context_of(1), unclean=False)
    assert operations[0] == Create(partitions_path("t"))


def test_adoption_takes_the_id_that_most_logs_carry() -> None:
    found = [FoundReplica("t", 0, uuid_of(1)), FoundReplica("t", 1, ID), FoundReplica("t", 2, ID, 3)]
    operations, (topic,) = adopt(found, 1, context_of(1), {"t": {"a": "b"}}, lambda: ZERO_UUID)
    assert topic.topic_id == ID
    assert [each.leader_epoch for each in topic.partitions] == [0, 0, 4]
    assert operations[0] == Create("/config/topics/t", b'{"version":1,"config":{"a":"b"}}')


def test_adoption_of_nothing() -> None:
    assert adopt([], 1, context_of(1), {}, lambda: ID) == ([], [])


def test_every_transaction_checks_the_term_and_keeps_to_the_limit() -> None:
    epoch = ControllerEpoch(epoch=3, znode_version=12)
    operations = [Create(f"/{number}", bytes(100)) for number in range(10)]
    transactions = list(fenced(operations, epoch, 700))
    assert [len(transaction) for transaction in transactions] == [4, 4, 4, 2]
    assert all(transaction[0] == Check(CONTROLLER_EPOCH, 12) for transaction in transactions)
    assert [operation for transaction in transactions for operation in transaction[1:]] == operations
    assert list(fenced([], epoch, 700)) == []
    assert len(list(fenced(operations, epoch, 1))) == 10
