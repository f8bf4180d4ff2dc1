"""The controller's decision on an ISR that a leader requests."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.controller.context import ControllerContext
from cluster.controller.isr_decisions import validate_isr_change
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from cluster.replication.isr import IsrChange
from cluster.znodes import PartitionState
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from tests.kit.environment import uuid_of

TOPIC = uuid_of(3)
PARTITION = TopicPartition("t", 0)
NOW = PartitionImage(0, 1, 5, (1, 2, 3), (1, 2), partition_epoch=8, controller_epoch=4)


def context_of(partition: PartitionImage = NOW) -> ControllerContext:
    context = ControllerContext(1, 7, [BrokerImage(number, 100 + number, {}) for number in (1, 2, 3)])
    context.put_topics([TopicImage("t", TOPIC, (partition,))])
    return context


def change(*isr: int, leader_epoch: int = 5, partition_epoch: int = 8, **fields: Any) -> IsrChange:
    members = tuple((member, 100 + member) for member in isr)
    given = {"topic_partition": PARTITION, "topic_id": TOPIC, "new_isr": members} | fields
    return IsrChange(leader_epoch=leader_epoch, partition_epoch=partition_epoch, **given)


def test_a_sound_change_is_the_state_to_write() -> None:
    assert validate_isr_change(change(1, 2, 3), 1, context_of()) == PartitionState(1, 5, (1, 2, 3), 7)
    assert validate_isr_change(change(1), 1, context_of()) == PartitionState(1, 5, (1,), 7)
    assert validate_isr_change(change(1, topic_id=ZERO_UUID), 1, context_of()) == PartitionState(1, 5, (1,), 7)


def test_a_leader_that_asks_again_gets_what_it_has_got_already() -> None:
    """Its first answer was lost, so it still has the previous version (KAFKA-12751)."""
    assert validate_isr_change(change(1, 2, partition_epoch=7), 1, context_of()) == NOW
    assert validate_isr_change(change(1, 2), 1, context_of()) == NOW


@pytest.mark.parametrize(
    ("asked", "asker", "refusal"),
    [
        (change(1, partition_epoch=7), 1, ErrorCode.INVALID_UPDATE_VERSION),
        (change(1, partition_epoch=9), 1, ErrorCode.NOT_CONTROLLER),
        (change(1, leader_epoch=4), 1, ErrorCode.FENCED_LEADER_EPOCH),
        (change(1, leader_epoch=6), 1, ErrorCode.NOT_CONTROLLER),
        (change(1, topic_id=uuid_of(4)), 1, ErrorCode.UNKNOWN_TOPIC_ID),
        (change(1, topic_partition=TopicPartition("t", 1)), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (change(1, topic_partition=TopicPartition("u", 0)), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (change(2, 3), 1, ErrorCode.INVALID_REQUEST),
        (change(2, 3), 2, ErrorCode.INVALID_REQUEST),
        (change(1, 1), 1, ErrorCode.INVALID_REQUEST),
        (change(1, 9), 1, ErrorCode.INVALID_REQUEST),
        (change(1, 2, leader_recovery_state=1), 1, ErrorCode.INVALID_REQUEST),
        (change(1, leader_recovery_state=1), 1, ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_what_is_refused(asked: IsrChange, asker: int, refusal: ErrorCode) -> None:
    assert validate_isr_change(asked, asker, context_of()) is refusal


def test_a_replica_of_an_earlier_life_does_not_join() -> None:
    """M7: since the leader saw it in sync, it came back with an empty disk (KIP-903)."""
    context = context_of()
    old = change(new_isr=((1, 101), (2, 102), (3, 90)))
    assert validate_isr_change(old, 1, context) is ErrorCode.INELIGIBLE_REPLICA
    unknown = change(new_isr=((1, -1), (2, -1), (3, -1)))
    assert validate_isr_change(unknown, 1, context) == PartitionState(1, 5, (1, 2, 3), 7)


def test_who_is_not_there_or_about_to_stop_does_not_join() -> None:
    context = context_of()
    context.shutting_down[3] = None
    assert validate_isr_change(change(1, 2, 3), 1, context) is ErrorCode.INELIGIBLE_REPLICA
    context = context_of()
    del context.live_brokers[3]
    assert validate_isr_change(change(1, 2, 3), 1, context) is ErrorCode.INELIGIBLE_REPLICA
    context = context_of(NOW.replace(offline_replicas=(3,)))
    assert validate_isr_change(change(1, 2, 3), 1, context) is ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_about_to_stop_lets_a_follower_in() -> None:
    """Otherwise it could not hand over."""
    context = context_of(NOW.replace(isr=(1,)))
    context.shutting_down[1] = None
    assert validate_isr_change(change(1, 2), 1, context) == PartitionState(1, 5, (1, 2), 7)


def test_a_recovered_leader_says_so() -> None:
    context = context_of(NOW.replace(isr=(1,), leader_recovery_state=1))
    assert validate_isr_change(change(1), 1, context) == PartitionState(1, 5, (1,), 7)
    assert validate_isr_change(change(1, 2, leader_recovery_state=1), 1, context) is ErrorCode.INVALID_REQUEST


def test_a_topic_that_is_being_deleted_is_gone() -> None:
    context = context_of()
    context.topics_to_be_deleted["t"] = None
    assert validate_isr_change(change(1), 1, context) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_replica_that_its_registration_calls_cut_joins_no_isr() -> None:
    """The next controller reads the registration, and would remove the replica again."""
    context = context_of()
    cut = BrokerImage(3, 103, {}, truncated_replicas={"t": (0,)})
    context.set_live_brokers([*(context.live_brokers[each] for each in (1, 2)), cut])
    assert validate_isr_change(change(1, 2, 3), 1, context) is ErrorCode.INELIGIBLE_REPLICA
    assert validate_isr_change(change(1), 1, context) == PartitionState(1, 5, (1,), 7)
    context.set_live_brokers(
        [*(context.live_brokers[each] for each in (1, 2)), cut.replace(truncated_replicas={"t": (1,)})]
    )
    assert validate_isr_change(change(1, 2, 3), 1, context) == PartitionState(1, 5, (1, 2, 3), 7)
