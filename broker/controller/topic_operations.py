"""The operations that create, grow and remove topics, made in slices: a topic has up to thousands of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from cluster.controller import topics as decisions
from cluster.controller.context import ControllerContext
from cluster.controller.topics import TopicPlan
from cluster.metadata_image import PartitionImage, TopicImage
from cluster.zookeeper.coordination import Operation
from protocol.uuids import Uuid

PARTITIONS_PER_SLICE: Final = 500
"""Partitions whose nodes are described before the event loop gets its turn: some 3 ms of work."""


async def first_leaders(
    plan: TopicPlan, topic_id: Uuid, context: ControllerContext
) -> tuple[list[Operation], TopicImage]:
    """Give the operations that give a new topic its leaders, to follow those of the topic itself, and its image."""
    operations, partitions = await _new_partitions(plan.name, dict(enumerate(plan.assignment)), context)
    return operations, TopicImage(plan.name, topic_id, partitions)


async def expansion(
    topic: TopicImage, added: Mapping[int, tuple[int, ...]], context: ControllerContext
) -> tuple[list[Operation], TopicImage]:
    """Give the operations that add partitions to the topic, and its new image."""
    operations, partitions = await _new_partitions(topic.name, added, context)
    return [decisions.growth_operation(topic, added), *operations], topic.with_partitions(partitions)


async def removal(topic: TopicImage, *, has_config: bool) -> list[Operation]:
    """Give the operations that remove every node of the topic, its deletion mark last."""
    operations: list[Operation] = []
    for start in range(0, len(topic.partitions), PARTITIONS_PER_SLICE):
        operations.extend(
            decisions.partition_removals(topic.name, topic.partitions[start : start + PARTITIONS_PER_SLICE])
        )
        if len(topic.partitions) > PARTITIONS_PER_SLICE:
            await asyncio.sleep(0)
    operations.extend(decisions.topic_removals(topic.name, has_config=has_config))
    return operations


async def _new_partitions(
    topic: str, assignment: Mapping[int, tuple[int, ...]], context: ControllerContext
) -> tuple[list[Operation], tuple[PartitionImage, ...]]:
    operations: list[Operation] = []
    partitions: list[PartitionImage] = []
    numbered = list(assignment.items())
    for start in range(0, len(numbered), PARTITIONS_PER_SLICE):
        part = dict(numbered[start : start + PARTITIONS_PER_SLICE])
        changes, images = decisions.new_partitions(topic, part, context)
        operations.extend(changes)
        partitions.extend(images)
        if len(numbered) > PARTITIONS_PER_SLICE:
            await asyncio.sleep(0)
    return operations, tuple(partitions)
