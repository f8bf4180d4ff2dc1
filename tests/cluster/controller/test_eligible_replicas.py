"""KIP-966: which replicas may lead when the ISR is dead, and how partitions record that."""

from __future__ import annotations

import pytest

from cluster.controller.context import ControllerContext
from cluster.controller.elections import after, elected, offline_operations
from cluster.controller.isr_decisions import validate_isr_change
from cluster.controller.reassignment import begun, reassigned
from cluster.controller.start_up import ReadTopic, take_over
from cluster.eligible_leaders import EligibleLeaders
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from cluster.replication.isr import IsrChange
from cluster.znodes import NO_LEADER, PartitionState, TopicAssignment, partition_state_path
from protocol.topic_partition import TopicPartition
from tests.kit.environment import uuid_of
from zookeeper.coordination import SetData

ID = uuid_of(1)
T0 = TopicPartition("t", 0)
NAME = "t"
OURS = PartitionImage(0, 1, 3, (1, 2, 3), (1, 2, 3), partition_epoch=8, controller_epoch=4)
UNCLEAN = -1


def broker(broker_id: int, epoch: int, previous: int | None = UNCLEAN) -> BrokerImage:
    return BrokerImage(broker_id, epoch, {}, None, {}, previous)


class Cluster:
    """A controller, and the brokers 1 to 3, whose epochs are 11 to 13."""

    def __init__(self, partition: PartitionImage = OURS, min_isr: int = 2) -> None:
        self.min_isr = min_isr
        brokers = [broker(each, 10 + each) for each in (1, 2, 3)]
        self.context = ControllerContext(1, 5, brokers, min_isr=lambda _topic: self.min_isr)
        self.context.put_topics([TopicImage(NAME, ID, (partition,))])

    @property
    def partition(self) -> PartitionImage:
        return self.context.topics[NAME].partitions[0]

    def settle(self) -> PartitionImage:
        """The partition after all events so far."""
        state = elected(NAME, self.partition, self.context)
        if state is not None:
            assert PartitionState.decode(NAME, 0, state.encode()) == state
            self.context.put_partitions({NAME: [after(self.partition, state)]})
        return self.partition

    def goes(self, *broker_ids: int) -> PartitionImage:
        for each in broker_ids:
            self.context.remove_live_broker(each)
        return self.settle()

    def comes(self, broker_id: int, epoch: int, previous: int | None = UNCLEAN) -> PartitionImage:
        self.context.set_live_brokers([*self.context.live_brokers.values(), broker(broker_id, epoch, previous)])
        return self.settle()

    def alter(self, *isr: int) -> PartitionImage:
        """Change the ISR as the leader would."""
        now = self.partition
        change = IsrChange(T0, ID, now.leader_epoch, now.partition_epoch, tuple((each, -1) for each in isr))
        state = validate_isr_change(change, now.leader, self.context)
        assert isinstance(state, PartitionState), state
        self.context.put_partitions({NAME: [after(now, state)]})
        return self.partition


def told(partition: PartitionImage) -> tuple[int, tuple[int, ...], tuple[int, ...] | None]:
    """Leader, ISR, and eligible replicas."""
    return partition.leader, partition.isr, None if partition.eligible is None else partition.eligible.replicas


def test_the_last_replica_standing_is_followed_by_an_eligible_one() -> None:
    """The example of KIP-966."""
    cluster = Cluster()
    assert told(cluster.alter(1, 2)) == (1, (1, 2), None)
    assert told(cluster.alter(1)) == (1, (1,), (2,)), "3 left when there were enough others, who went on"
    assert told(cluster.goes(1)) == (2, (2,), (1,))
    assert told(cluster.comes(1, 20, UNCLEAN)) == (2, (2,), ()), "it may have lost what it had"
    assert told(cluster.alter(2, 1)) == (2, (2, 1), None)


def test_without_the_option_nobody_leads() -> None:
    cluster = Cluster()
    cluster.context.min_isr = None
    cluster.alter(1, 2)
    assert told(cluster.alter(1)) == (1, (1,), None)
    assert told(cluster.goes(1)) == (NO_LEADER, (1,), None)


def test_a_life_that_follows_a_clean_end_is_as_good_as_the_one_before() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    assert told(cluster.goes(2)) == (1, (1,), (2,))
    assert told(cluster.goes(1)) == (NO_LEADER, (1,), (2,))
    assert told(cluster.comes(2, 21, 12)) == (2, (2,), (1,))
    assert told(cluster.comes(1, 22, 11)) == (2, (2,), (1,)), "it is eligible still, and has to catch up"
    assert told(cluster.goes(2)) == (1, (1,), (2,))


def test_a_life_between_that_nobody_saw_is_not_trusted() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.goes(2)
    cluster.goes(1)
    assert told(cluster.comes(2, 30, 21)) == (NO_LEADER, (1,), ())


def test_who_comes_back_unclean_leaves_the_isr_while_another_has_everything() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    assert told(cluster.goes(1, 2)) == (NO_LEADER, (1, 2), ()), "both may come back whole"
    assert told(cluster.comes(2, 20, UNCLEAN)) == (NO_LEADER, (1,), ())
    assert told(cluster.comes(1, 21, 11)) == (1, (1,), ())


def test_eligible_replicas_take_the_place_of_an_isr_that_is_not_trusted() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.goes(2)
    cluster.goes(1)
    assert told(cluster.comes(1, 20, UNCLEAN)) == (NO_LEADER, (2,), ()), "2 has everything, wherever it is"
    assert told(cluster.comes(2, 21, 12)) == (2, (2,), ())


def test_when_all_are_unclean_the_last_leader_leads() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.goes(2)
    cluster.goes(1)
    assert told(cluster.comes(1, 20, UNCLEAN)) == (NO_LEADER, (2,), ())
    assert told(cluster.comes(2, 21, UNCLEAN)) == (1, (1,), ())
    assert cluster.partition.leader_recovery_state == 0


def test_the_last_leader_is_waited_for() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.goes(1, 2)
    assert told(cluster.comes(2, 21, UNCLEAN)) == (NO_LEADER, (1,), ())
    assert told(cluster.comes(1, 22, UNCLEAN)) == (1, (1,), ())


def test_a_partition_with_one_replica_has_nobody_else() -> None:
    cluster = Cluster(OURS.replace(replicas=(1,), isr=(1,)))
    assert told(cluster.goes(1)) == (NO_LEADER, (1,), ())
    assert told(cluster.comes(1, 20, UNCLEAN)) == (1, (1,), None)


def test_who_is_about_to_stop_leads_to_the_end() -> None:
    """Its log may have uncommitted records."""
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.alter(1)
    cluster.context.shutting_down[1] = None
    assert told(cluster.settle()) == (1, (1,), (2,))
    assert told(cluster.goes(1)) == (2, (2,), (1,))


@pytest.mark.parametrize("lost", [1, 2])
def test_a_replica_without_its_disk_is_not_eligible(lost: int) -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.alter(1)
    _, changed = offline_operations([T0], lost, cluster.context)
    cluster.context.put_partitions(changed)
    assert told(cluster.partition) == ((2, (2,), ()) if lost == 1 else (1, (1,), ()))


def test_other_limits_of_the_topic() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.alter(1)
    before = cluster.partition
    cluster.min_isr = 1
    assert told(cluster.settle()) == (1, (1,), None), "the leader commits again"
    assert cluster.partition.leader_epoch == before.leader_epoch + 1, "and has to be told so"
    cluster.min_isr = 3
    assert told(cluster.settle()) == (1, (1,), None), "nobody knows who has what is committed"


def test_another_kind_of_broker_turns_it_off() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.alter(1)
    assert told(cluster.comes(4, 20, None)) == (1, (1,), None)
    cluster.goes(4)
    assert told(cluster.goes(1)) == (NO_LEADER, (1,), ()), "what has been since is not known"


def test_an_unclean_election_leaves_nobody_eligible() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.alter(1)
    cluster.goes(2)
    cluster.goes(1)
    state = elected(NAME, cluster.partition, cluster.context, allow_unclean=True)
    assert state is not None
    assert (state.leader, state.isr, state.leader_recovery_state) == (3, (3,), 1)
    assert state.eligible == EligibleLeaders((), 3, {3: 13})


def test_replicas_that_are_no_longer_assigned_are_not_eligible() -> None:
    cluster = Cluster()
    cluster.alter(1, 2)
    cluster.alter(1)
    topic = cluster.context.topics[NAME]
    _, [partition] = begun(topic, {0: reassigned(cluster.partition, (1, 3)).replace(replicas=(1, 3))}, cluster.context)
    assert told(partition) == (1, (1,), ())


# -- a new controller --------------------------------------------------------------------------------------------------


def taken_over(state: PartitionState, written_at: int, *brokers: BrokerImage) -> tuple[PartitionImage, bool]:
    """The partition after a controller's election, and whether it needed a write."""
    context = ControllerContext(1, 5, brokers, min_isr=lambda _topic: 2)
    topic = ReadTopic(NAME, TopicAssignment(ID, {0: (1, 2, 3)}), {0: (state, 8)}, True, {0: written_at})
    operations, image = take_over(topic, context, unclean=False)
    written = [each for each in operations if isinstance(each, SetData) and each.path == partition_state_path(NAME, 0)]
    return image.partitions[0], bool(written)


def test_a_new_controller_leaves_what_is_well() -> None:
    state = PartitionState(1, 3, (1, 2), 4)
    image, is_written = taken_over(state, 15, broker(1, 11), broker(2, 12))
    assert (told(image), is_written) == ((1, (1, 2), None), False)


@pytest.mark.parametrize(("previous", "leader", "isr"), [(UNCLEAN, NO_LEADER, (2,)), (11, 1, (1,))])
def test_a_new_controller_knows_who_came_since(previous: int, leader: int, isr: tuple[int, ...]) -> None:
    """The last controller died with them."""
    image, is_written = taken_over(PartitionState(1, 3, (1, 2), 4), 15, broker(1, 20, previous))
    assert ((image.leader, image.isr), is_written) == ((leader, isr), True)


def test_a_new_controller_goes_on_with_what_the_last_one_knew() -> None:
    eligible = EligibleLeaders((2,), 1, {1: 11, 2: 12})
    state = PartitionState(1, 3, (1,), 4, 0, eligible)
    image, _ = taken_over(state, 15, broker(2, 12), broker(3, 13))
    assert told(image) == (2, (2,), (1,))
    image, _ = taken_over(state, 15, broker(2, 14), broker(3, 13))
    assert told(image) == (NO_LEADER, (1,), ()), "it registered before the state was written, unknown to who wrote it"


def test_a_new_controller_notes_the_lives_of_who_is_waited_for() -> None:
    image, is_written = taken_over(PartitionState(-1, 3, (1, 2), 4), 15, broker(3, 13))
    assert is_written
    assert image.eligible == EligibleLeaders((), -1, {1: 15, 2: 15})
