"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455): requests to the controller."""

from __future__ import annotations

from collections.abc import Iterable

from broker.controller.controller_service import ControllerService
from broker.network.registry import RequestContext, api
from cluster.metadata_image import PartitionImage
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from protocol.topic_partition import TopicPartition

_Altered = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
_AlteredTopic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Ongoing = ListPartitionReassignmentsResponse.OngoingPartitionReassignment
_OngoingTopic = ListPartitionReassignmentsResponse.OngoingTopicReassignment


class ReassignmentHandlers:
    """Moves partitions between brokers, and tells which are on the move."""

    def __init__(self, controller: ControllerService) -> None:
        self._controller = controller

    @api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 0))
    async def alter_partition_reassignments(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterPartitionReassignmentsRequest,
    ) -> AlterPartitionReassignmentsResponse:
        """Begins or cancels reassignments. The answer does not wait for the new replicas to catch up. A partition that
        is named twice goes where it is named last.
        """
        targets = {
            TopicPartition(topic.name, each.partition_index): None if each.replicas is None else tuple(each.replicas)
            for topic in request.topics
            for each in topic.partitions
        }
        try:
            outcome = await self._controller.alter_reassignments(targets)
        except ApiError as error:
            return AlterPartitionReassignmentsResponse(
                throttle_time_ms=0, error_code=error.error_code, error_message=error.message, responses=[]
            )
        by_topic: dict[str, list[_Altered]] = {}
        for (topic, partition), refusal in outcome.items():
            altered = _Altered(partition_index=partition, error_code=ErrorCode.NONE)
            if refusal is not None:
                altered.error_code, altered.error_message = refusal.error_code, refusal.message
            by_topic.setdefault(topic, []).append(altered)
        return AlterPartitionReassignmentsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            error_message="",
            responses=[_AlteredTopic(name=topic, partitions=partitions) for topic, partitions in by_topic.items()],
        )

    @api(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), reads_only=True)
    def list_partition_reassignments(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ListPartitionReassignmentsRequest,
    ) -> ListPartitionReassignmentsResponse:
        """Those of the partitions asked about that are on the move. Others, and such as do not exist, are left out."""
        try:
            moving = self._controller.reassignments()
        except ApiError as error:
            return ListPartitionReassignmentsResponse(
                throttle_time_ms=0, error_code=error.error_code, error_message=error.message, topics=[]
            )
        named: Iterable[TopicPartition] = moving
        if request.topics is not None:
            named = dict.fromkeys(
                TopicPartition(topic.name, partition)
                for topic in request.topics
                for partition in topic.partition_indexes
            )
        by_topic: dict[str, list[_Ongoing]] = {}
        for name in named:
            if name in moving:
                by_topic.setdefault(name.topic, []).append(_ongoing(moving[name]))
        return ListPartitionReassignmentsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            error_message="",
            topics=[_OngoingTopic(name=topic, partitions=partitions) for topic, partitions in by_topic.items()],
        )


def _ongoing(partition: PartitionImage) -> _Ongoing:
    return _Ongoing(
        partition_index=partition.partition,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding_replicas),
        removing_replicas=list(partition.removing_replicas),
    )
