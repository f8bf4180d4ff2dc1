"""The leader and the ISR when brokers come and go or lose a disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.context import ControllerContext
from cluster.controller.elections import (
    NO_STATE,
    after,
    decide_election,
    elected,
    imbalanced,
    offline_operations,
    online_state,
    state_change,
)
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from cluster.znodes import PartitionState, partition_state_path
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition
from tests.kit.environment import uuid_of
from zookeeper.coordination import SetData


def context_of(*partitions: PartitionImage) -> ControllerContext:
    context = ControllerContext(0, 5, [BrokerImage(number, 10 + number, {}) for number in (0, 1, 2)])
    context.put_topics([TopicImage("t", uuid_of(1), partitions)])
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
    """Kafka's OfflinePartition election: the new ISR consists of the live members."""
    context = context_of()
    state = online_state("t", partition(0, 7, (7, 2, 8, 0), (7, 0, 2, 8)), context)
    assert state == PartitionState(2, 4, (0, 2), 5)


def test_a_dead_follower_leaves_the_isr_and_the_leader_stays() -> None:
    context = context_of()
    assert online_state("t", partition(0, 1, (7, 1), (7, 1)), context) == PartitionState(1, 4, (1,), 5)
    assert online_state("t", partition(0, 1, (7, 1), (1,)), context) is None


def test_without_a_live_member_nobody_leads_and_the_isr_stays() -> None:
    context = context_of()
    state = online_state("t", partition(0, 7, (7, 8, 1), (7, 8)), context)
    assert state == PartitionState(-1, 4, (7, 8), 5)
    assert online_state("t", partition(0, -1, (7, 8, 1), (7, 8)), context) is None
    context.set_live_brokers([BrokerImage(8, 3, {})])
    assert online_state("t", partition(0, -1, (7, 8, 1), (7, 8)), context) == PartitionState(8, 4, (8,), 5)


def test_a_broker_about_to_stop_leads_nothing_that_others_can() -> None:
    context = context_of()
    context.shutting_down[1] = None
    assert online_state("t", partition(0, 1, (1, 2), (1, 2)), context) == PartitionState(2, 4, (2,), 5)
    assert online_state("t", partition(0, 2, (1, 2), (1, 2)), context) == PartitionState(2, 4, (2,), 5)
    assert online_state("t", partition(0, 1, (1, 2), (1,)), context) is None, "it is the last one"
    assert online_state("t", partition(0, 7, (7, 1), (7, 1)), context) == PartitionState(-1, 4, (7, 1), 5)


def test_a_partition_without_a_state_is_not_elected() -> None:
    context = context_of(partition(0, -1, (7,), ()).replace(partition_epoch=NO_STATE, leader_epoch=NO_STATE))
    assert state_change("t", context.topics["t"].partitions[0], context) is None


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
    state = online_state("t", before, context)
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
    assert online_state("t", before.replace(leader=state.leader, isr=state.isr), context) is None, "once is enough"


class Unclean:
    """A rule that allows unclean elections in the topic `t`, and records them."""

    def __init__(self) -> None:
        self.elections: list[tuple[str, int, int]] = []

    def allows(self, topic: str) -> bool:
        return topic == "t"

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        self.elections.append((topic, partition.partition, leader))


def test_where_it_is_allowed_a_replica_that_is_not_in_sync_leads_and_is_the_whole_isr() -> None:
    """M12: the epoch is bumped, and the partition is marked as recovering (KIP-704)."""
    dead = partition(0, 7, (7, 8, 2, 1), (7, 8))
    context = context_of(dead)
    assert elected("t", dead, context) == PartitionState(-1, 4, (7, 8), 5), "it is off by default"
    context.unclean = rule = Unclean()
    assert elected("other", dead, context) == PartitionState(-1, 4, (7, 8), 5)
    assert elected("t", dead, context) == PartitionState(2, 4, (2,), 5, 1)
    assert elected("t", dead.replace(leader=-1), context) == PartitionState(2, 4, (2,), 5, 1)
    assert rule.elections == [], "nothing is written yet"
    context.shutting_down[2] = None
    assert elected("t", dead, context) == PartitionState(1, 4, (1,), 5, 1)
    assert elected("t", dead.replace(offline_replicas=(1,)), context) == PartitionState(-1, 4, (7, 8), 5)


def test_an_unclean_election_counts_once_the_tree_has_it() -> None:
    dead = partition(0, 7, (7, 8, 2, 1), (7, 8))
    context = context_of(dead)
    context.unclean = rule = Unclean()
    settled_now = state_change("t", dead, context)
    assert settled_now is not None
    _, changed = settled_now
    assert rule.elections == [], "the write may fail"
    context.put_partitions({"t": [changed]})
    assert rule.elections == [("t", 0, 2)]
    context.put_partitions({"t": [after(changed, PartitionState(2, 4, (2, 1), 5, 1))]})
    assert rule.elections == [("t", 0, 2)], "a larger ISR is not an election"
    context.put_partitions({"t": [after(changed, PartitionState(1, 5, (1,), 5, 1))]})
    assert rule.elections == [("t", 0, 2)], "its leader was in sync"


def test_nothing_is_lost_where_a_member_of_the_isr_lives() -> None:
    before = partition(0, 7, (2, 7, 1), (7, 1))
    context = context_of(before)
    context.unclean = rule = Unclean()
    assert elected("t", before, context) == PartitionState(1, 4, (1,), 5)
    context.shutting_down[1] = None
    last = before.replace(leader=1)
    assert elected("t", last, context) is None, "it still leads until it stops"
    assert rule.elections == []


@pytest.mark.parametrize("how", ["state_change", "offline"])
def test_every_way_to_a_new_leader_knows_the_rule(how: str) -> None:
    before = partition(0, 0, (0, 2), (0,))
    context = context_of(before)
    context.unclean = Unclean()
    if how == "state_change":
        context.remove_live_broker(0)
        settled_now = state_change("t", context.topics["t"].partitions[0], context)
        assert settled_now is not None
        _, now = settled_now
    else:
        ((now,),) = offline_operations([TopicPartition("t", 0)], 0, context)[1].values()
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), 1)


def decision(before: PartitionImage, election_type: ElectionType, context: ControllerContext) -> object:
    context.put_topics([TopicImage("t", uuid_of(1), (before,))])
    try:
        return decide_election(TopicPartition("t", 0), election_type, context)
    except ApiError as error:
        return error.error_code


def test_the_preferred_replica_is_elected_if_it_is_live_and_in_sync() -> None:
    context, kind = context_of(), ElectionType.PREFERRED
    assert decision(partition(0, 1, (2, 1), (1, 2)), kind, context) == PartitionState(2, 4, (1, 2), 5)
    assert decision(partition(0, 2, (2, 1), (1, 2)), kind, context) is ErrorCode.ELECTION_NOT_NEEDED
    unavailable = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert decision(partition(0, 1, (2, 1), (1,)), kind, context) is unavailable
    assert decision(partition(0, 1, (7, 1), (7, 1)), kind, context) is unavailable
    assert decision(partition(0, 1, (2, 1), (1, 2)).replace(offline_replicas=(2,)), kind, context) is unavailable
    context.shutting_down[2] = None
    assert decision(partition(0, 1, (2, 1), (1, 2)), kind, context) is unavailable
    new = partition(0, -1, (1, 2), ()).replace(partition_epoch=NO_STATE, leader_epoch=NO_STATE)
    assert decision(new, kind, context) is unavailable


def test_an_unclean_election_that_is_asked_for_needs_no_configuration() -> None:
    context, kind = context_of(), ElectionType.UNCLEAN
    assert decision(partition(0, -1, (7, 1), (7,)), kind, context) == PartitionState(1, 4, (1,), 5, 1)
    assert decision(partition(0, -1, (7, 1), (7, 1)), kind, context) == PartitionState(1, 4, (1,), 5)
    assert decision(partition(0, 1, (2, 1), (1,)), kind, context) is ErrorCode.ELECTION_NOT_NEEDED
    assert decision(partition(0, -1, (7, 8), (7,)), kind, context) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_what_does_not_exist_is_not_elected() -> None:
    context = context_of(partition(0, 1, (2, 1), (1, 2)))
    for missing in (TopicPartition("t", 1), TopicPartition("missing", 0)):
        with pytest.raises(ApiError, match="The partition does not exist") as raised:
            decide_election(missing, ElectionType.PREFERRED, context)
        assert raised.value.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    context.topics_to_be_deleted["t"] = None
    with pytest.raises(ApiError, match="The topic is being deleted") as raised:
        decide_election(TopicPartition("t", 0), ElectionType.PREFERRED, context)
    assert raised.value.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_brokers_get_back_what_they_should_lead_when_it_is_more_than_the_limit() -> None:
    context = context_of(
        *(partition(number, 1 if number < 2 else 0, (0, 1), (0, 1)) for number in range(4)),
        partition(4, 2, (1, 2), (2,)),
        partition(5, 0, (2, 0), (0, 2)),
    )
    assert [each.partition for each in imbalanced(context, 49)] == [0, 1, 5]
    assert [each.partition for each in imbalanced(context, 50)] == [5], "not more than the limit"
    assert imbalanced(context, 100) == []
    context.remove_live_broker(0)
    assert [each.partition for each in imbalanced(context, 10)] == [5], "who is gone cannot lead"
    context.topics_to_be_deleted["t"] = None
    assert imbalanced(context, 10) == []
