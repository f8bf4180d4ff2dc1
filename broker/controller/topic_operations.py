"""The operations that create, grow and remove topics, made in slices: a topic has up to thousands of partitions."""

from __future__ import annotations

from collections.abc import Mapping

from broker.network.slices import Slices, in_slices
from cluster.controller import topics as decisions
from cluster.controller.context import ControllerContext
from cluster.controller.topics import TopicPlan
from cluster.metadata_image import PartitionImage, TopicImage
from cluster.zookeeper.coordination import Operation
from protocol.uuids import Uuid


async def first_leaders(
    plan: TopicPlan, topic_id: Uuid, context: ControllerContext, slices: Slices
) -> tuple[list[Operation], TopicImage]:
    """Give the operations that give a new topic its leaders, to follow those of the topic itself, and its image."""
    operations, partitions = await new_partitions(plan.name, dict(enumerate(plan.assignment)), context, slices)
    return operations, TopicImage(plan.name, topic_id, partitions)


async def expansion(
    topic: TopicImage, added: Mapping[int, tuple[int, ...]], context: ControllerContext, slices: Slices
) -> tuple[list[Operation], TopicImage]:
    """Give the operations that add partitions to the topic, and its new image."""
    operations, partitions = await new_partitions(topic.name, added, context, slices)
    return [decisions.growth_operation(topic, added), *operations], topic.with_partitions(partitions)


async def removal(topic: TopicImage, slices: Slices, *, has_config: bool) -> list[Operation]:
    """Give the operations that remove every node of the topic, its deletion mark last."""
    removals = decisions.partition_removals(topic.name, topic.partitions)
    operations = [each async for each in in_slices(removals, slices)]
    operations.extend(decisions.topic_removals(topic.name, has_config=has_config))
    return operations


async def new_partitions(
    topic: str, assignment: Mapping[int, tuple[int, ...]], context: ControllerContext, slices: Slices
) -> tuple[list[Operation], tuple[PartitionImage, ...]]:
    """Give the operations that create these partitions with their first leaders, and the partitions."""
    operations: list[Operation] = []
    partitions: list[PartitionImage] = []
    async for nodes, partition in in_slices(decisions.new_partitions(topic, assignment, context), slices):
        operations.extend(nodes)
        partitions.append(partition)
    return operations, tuple(partitions)
