"""Who leads when a replica cannot be used although its broker lives."""

from __future__ import annotations

from uuid import UUID

from cluster.controller.context import ControllerContext
from cluster.controller.elections import offline_operations
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
        3: (1, (0, 1), 3),
        4: (-1, (0, 7), 4),
    }
    assert [each.offline_replicas for each in topic.partitions] == [(0,)] * 5
    assert [each.partition_epoch for each in topic.partitions] == [9, 9, 9, 8, 9]
    assert operations[1] == SetData(partition_state_path("t", 1), PartitionState(2, 4, (1, 2), 5).encode(), 8)
    assert len(operations) == 4
    assert offline_operations(replicas, 0, context) == ([], {}), "what is known changes nothing"


def test_a_replica_that_was_lost_before_does_not_lead() -> None:
    context = context_of(partition(0, 0, (0, 1, 2), (0, 1, 2)))
    for broker, leader in ((1, 0), (0, 2), (2, -1)):
        _, changed = offline_operations([TopicPartition("t", 0)], broker, context)
        context.put_partitions(changed)
        assert context.topics["t"].partitions[0].leader == leader
    assert context.topics["t"].partitions[0].offline_replicas == (1, 0, 2)
