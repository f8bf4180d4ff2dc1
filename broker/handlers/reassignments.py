"""Requests to the controller that move replicas and leaders: reassignments (KIP-455) and elections (KIP-460)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.controller.controller_service import ControllerService
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import DENIAL_MESSAGES, ClientRequest, OnCluster
from cluster.metadata_image import MetadataImage, PartitionImage
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from protocol.topic_partition import TopicPartition

_Altered = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
_AlteredTopic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Ongoing = ListPartitionReassignmentsResponse.OngoingPartitionReassignment
_OngoingTopic = ListPartitionReassignmentsResponse.OngoingTopicReassignment

_Election = ElectLeadersResponse.PartitionResult
_ElectionsOfTopic = ElectLeadersResponse.ReplicaElectionResult

_KNOWN_TYPES = [int(each) for each in ElectionType]
_FIRST_ELECTION_WITH_ERROR_CODE: Final = 1


def _refuse_reassignments(
    asked: ClientRequest[AlterPartitionReassignmentsRequest], code: ErrorCode
) -> AlterPartitionReassignmentsResponse:
    """Every partition gets the error too."""
    message = DENIAL_MESSAGES[code]
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=message,
        responses=[
            _AlteredTopic(
                name=topic.name,
                partitions=[
                    _Altered(partition_index=each.partition_index, error_code=code, error_message=message)
                    for each in topic.partitions
                ],
            )
            for topic in asked.request.topics
        ],
    )


def _refuse_to_list(
    asked: ClientRequest[ListPartitionReassignmentsRequest], code: ErrorCode
) -> ListPartitionReassignmentsResponse:
    """Repeats the requested partitions, without details."""
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=DENIAL_MESSAGES[code],
        topics=[
            _OngoingTopic(
                name=topic.name,
                partitions=[
                    _Ongoing(partition_index=index, replicas=[], adding_replicas=[], removing_replicas=[])
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.request.topics or ()
        ],
    )


def _refuse_elections(asked: ClientRequest[ElectLeadersRequest], code: ErrorCode) -> ElectLeadersResponse:
    """Every partition gets the error too."""
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=code if asked.context.api_version >= _FIRST_ELECTION_WITH_ERROR_CODE else ErrorCode.NONE,
        replica_election_results=[
            _ElectionsOfTopic(
                topic=topic.topic,
                partition_result=[
                    _Election(partition_id=index, error_code=code, error_message=None) for index in topic.partitions
                ],
            )
            for topic in asked.request.topic_partitions or ()
        ],
    )


class ReassignmentHandlers:
    """Starts, cancels and lists reassignments."""

    def __init__(self, controller: ControllerService) -> None:
        self._controller = controller

    @api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        versions=(0, 0),
        right=OnCluster(AclOperation.ALTER, refusal=_refuse_reassignments),
        splits=[Split("topics.partitions")],
    )
    async def alter_partition_reassignments(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterPartitionReassignmentsRequest,
    ) -> AlterPartitionReassignmentsResponse:
        """Start or cancel reassignments. The response does not wait for new replicas to catch up. If a partition
        appears twice, the last target wins.
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

    @api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        versions=(0, 0),
        right=OnCluster(AclOperation.DESCRIBE, refusal=_refuse_to_list),
        reads_only=True,
        splits=[Split("topics.partition_indexes")],
    )
    def list_partition_reassignments(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ListPartitionReassignmentsRequest,
    ) -> ListPartitionReassignmentsResponse:
        """List those of the requested partitions that are being reassigned; others are left out, even if they do not
        exist.
        """
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


class ElectionHandlers:
    """Elects leaders. The reply is sent when this broker's metadata has the new leaders."""

    def __init__(self, controller: ControllerService, image: Callable[[], MetadataImage]) -> None:
        """`image` returns the metadata of all partitions."""
        self._controller = controller
        self._image = image

    @api(
        ApiKey.ELECT_LEADERS,
        versions=(0, 2),
        right=OnCluster(AclOperation.ALTER, refusal=_refuse_elections),
        splits=[Split("topic_partitions.partitions")],
    )
    async def elect_leaders(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ElectLeadersRequest,
    ) -> ElectLeadersResponse:
        """Elect leaders. If timeout <= 0, an elected leader is reported as REQUEST_TIMED_OUT, as in Kafka. A request
        for all partitions gets only those that needed an election.
        """
        asked = request.topic_partitions
        if request.election_type not in _KNOWN_TYPES:
            error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            refused = {TopicPartition(each.topic, number): error for each in asked or () for number in each.partitions}
            return _elections(refused, error.error_code)
        if asked is None:
            partitions = [
                TopicPartition(topic.name, each.partition)
                for topic in self._image().topics.values()
                for each in topic.partitions
            ]
        else:
            partitions = [TopicPartition(each.topic, number) for each in asked for number in each.partitions]
        try:
            elected = await self._controller.elect_leaders(partitions, ElectionType(request.election_type))
        except ApiError as error:
            return _elections(dict.fromkeys(partitions, ApiError(error.error_code)))
        results: dict[TopicPartition, ApiError | None] = {}
        for each, outcome in elected.items():
            if isinstance(outcome, ApiError):
                if asked is not None or outcome.error_code is not ErrorCode.ELECTION_NOT_NEEDED:
                    results[each] = outcome
            else:
                results[each] = ApiError(ErrorCode.REQUEST_TIMED_OUT) if request.timeout_ms <= 0 else None
        return _elections(results)


def _elections(
    results: dict[TopicPartition, ApiError | None] | dict[TopicPartition, ApiError],
    error_code: ErrorCode = ErrorCode.NONE,
) -> ElectLeadersResponse:
    by_topic: dict[str, list[_Election]] = {}
    for (topic, partition), error in results.items():
        by_topic.setdefault(topic, []).append(
            _Election(
                partition_id=partition,
                error_code=ErrorCode.NONE if error is None else error.error_code,
                error_message=None if error is None else error.message or None,
            )
        )
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=error_code,
        replica_election_results=[
            _ElectionsOfTopic(topic=topic, partition_result=partitions) for topic, partitions in by_topic.items()
        ],
    )
