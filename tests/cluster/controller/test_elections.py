"""Who leads, and who is in the ISR, when brokers come and go or lose a disk."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.context import ControllerContext
from cluster.controller.elections import NO_STATE, offline_operations, settle, settled
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from cluster.znodes import PartitionState, partition_state_path
from cluster.zookeeper.coordination import SetData
from protocol.topic_partition import TopicPartition


def context_of(*partitions: PartitionImage) -> ControllerContext:
    context = ControllerContext(0, 5, [BrokerImage(number, 10 + number, {}) for number in (0, 1, 2)])
    context.put_topics([TopicImage("t", UUID(int=1), partitions)])
    return context


def partition(number: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(number, leader, 3, replicas, isr, partition_epoch=8, controller_epoch=4)


def test_the_next_in_sync_replica_leads_or_nobody() -> None:
    context = context_of(
        partition(0, 0, (0,), (0,)),
        partition(1, 0, (0, 2, 1), (0, 1, 2)),
        partition(2, 0, (0, 2, 1), (0, 1)),
        partition(3, 1, (0, 1), (0, 1)),
        partition(4, 0, (0, 7), (0, 7)),
    )
    replicas = [TopicPartition("t", number) for number in range(6)] + [TopicPartition("gone", 0)]
    operations, changed = offline_operations(replicas, 0, context)
    context.put_partitions(changed)
    topic = context.topics["t"]
    found = {each.partition: (each.leader, each.isr, each.leader_epoch) for each in topic.partitions}
    assert found == {
        0: (-1, (0,), 4),
        1: (2, (1, 2), 4),
        2: (1, (1,), 4),
        3: (1, (1,), 4),
        4: (-1, (0, 7), 4),
    }
    assert [each.offline_replicas for each in topic.partitions] == [(0,)] * 5
    assert [each.partition_epoch for each in topic.partitions] == [9] * 5
    assert operations[1] == SetData(partition_state_path("t", 1), PartitionState(2, 4, (1, 2), 5).encode(), 8)
    assert len(operations) == 5
    assert offline_operations(replicas, 0, context) == ([], {}), "what is known changes nothing"


def test_a_replica_that_was_lost_before_does_not_lead() -> None:
    context = context_of(partition(0, 0, (0, 1, 2), (0, 1, 2)))
    for broker, leader in ((1, 0), (0, 2), (2, -1)):
        _, changed = offline_operations([TopicPartition("t", 0)], broker, context)
        context.put_partitions(changed)
        assert context.topics["t"].partitions[0].leader == leader
    assert context.topics["t"].partitions[0].offline_replicas == (1, 0, 2)


def test_a_dead_leader_is_followed_and_leaves_the_isr_with_the_other_dead() -> None:
    """Kafka's OfflinePartition election: the new ISR are the members that live."""
    context = context_of()
    state = settled(partition(0, 7, (7, 2, 8, 0), (7, 0, 2, 8)), context)
    assert state == PartitionState(2, 4, (0, 2), 5)


def test_a_dead_follower_leaves_the_isr_and_the_leader_stays() -> None:
    context = context_of()
    assert settled(partition(0, 1, (7, 1), (7, 1)), context) == PartitionState(1, 4, (1,), 5)
    assert settled(partition(0, 1, (7, 1), (1,)), context) is None


def test_without_a_live_member_nobody_leads_and_the_isr_stays() -> None:
    context = context_of()
    state = settled(partition(0, 7, (7, 8, 1), (7, 8)), context)
    assert state == PartitionState(-1, 4, (7, 8), 5)
    assert settled(partition(0, -1, (7, 8, 1), (7, 8)), context) is None
    context.brokers_are([BrokerImage(8, 3, {})])
    assert settled(partition(0, -1, (7, 8, 1), (7, 8)), context) == PartitionState(8, 4, (8,), 5)


def test_a_broker_about_to_stop_leads_nothing_that_others_can() -> None:
    context = context_of()
    context.shutting_down[1] = None
    assert settled(partition(0, 1, (1, 2), (1, 2)), context) == PartitionState(2, 4, (2,), 5)
    assert settled(partition(0, 2, (1, 2), (1, 2)), context) == PartitionState(2, 4, (2,), 5)
    assert settled(partition(0, 1, (1, 2), (1,)), context) is None, "it is the last one"
    assert settled(partition(0, 7, (7, 1), (7, 1)), context) == PartitionState(-1, 4, (7, 1), 5)


def test_a_partition_without_a_state_is_not_elected() -> None:
    context = context_of(partition(0, -1, (7,), ()).replace(partition_epoch=NO_STATE, leader_epoch=NO_STATE))
    topic = context.topics["t"]
    assert settle(topic.partitions, topic, context) == ([], [])


@given(
    st.permutations([0, 1, 2, 3]).flatmap(
        lambda replicas: st.tuples(
            st.just(tuple(replicas)), st.lists(st.sampled_from(replicas), min_size=1, unique=True)
        )
    ),
    st.lists(st.integers(0, 3), unique=True),
    st.lists(st.integers(0, 3), unique=True),
    st.integers(-1, 3),
)
def test_whoever_is_elected_has_every_committed_record(
    members: tuple[tuple[int, ...], list[int]], live: list[int], stopping: list[int], leader: int
) -> None:
    replicas, isr = members
    before = partition(0, leader if leader in isr else -1, replicas, tuple(isr))
    context = ControllerContext(0, 5, [BrokerImage(number, 10, {}) for number in live])
    context.shutting_down = {each: None for each in stopping if each in live}
    state = settled(before, context)
    if state is None:
        assert before.leader == -1 or before.leader in live
        return
    assert set(state.isr) <= set(isr)
    assert state.isr
    assert state.leader_epoch == before.leader_epoch + 1
    if state.leader == -1:
        assert state.isr == before.isr
        assert not set(isr) & set(live) - set(stopping)
    else:
        assert state.leader in state.isr
        assert set(state.isr) <= set(live)
    assert settled(before.replace(leader=state.leader, isr=state.isr), context) is None, "once is enough"
