"""Requests that every broker makes of the controller, wherever it is: here, or behind a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cluster.controller.topics import NewTopic, TopicPlan
from cluster.metadata_image import PartitionImage
from cluster.replication.isr_changes import IsrChange
from cluster.znodes import ProducerIdBlock
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition


class ControllerApi(Protocol):
    """The controller. Every method raises ApiError: NOT_CONTROLLER where there is none, or none is known; where a
    broker names itself, STALE_BROKER_EPOCH and BROKER_ID_NOT_REGISTERED.
    """

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """Change the ISR of partitions that `broker_id` leads (KIP-497); for each, its state now, or why not."""
        ...

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        """Create what can be created; by topic name, the plan carried out or why there is none."""
        ...

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        """Move leadership away from a broker that is about to stop; gives the partitions that it still leads."""
        ...

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """A block of producer ids that nobody else has or will get (KIP-730)."""
        ...
