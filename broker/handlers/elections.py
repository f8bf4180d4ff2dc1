"""ElectLeaders: a request to the controller, and its answers partition by partition."""

from __future__ import annotations

from collections.abc import Callable

from broker.controller.controller_service import ControllerService
from broker.network.registry import RequestContext, api
from cluster.metadata_image import MetadataImage
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import ElectLeadersRequest, ElectLeadersResponse
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition

_KNOWN_TYPES = [int(each) for each in ElectionType]


class ElectionHandlers:
    """Elects leaders. The answer comes when this broker knows the new ones."""

    def __init__(self, controller: ControllerService, image: Callable[[], MetadataImage]) -> None:
        """`image` gives the metadata, of all partitions."""
        self._controller = controller
        self._image = image

    @api(ApiKey.ELECT_LEADERS, versions=(0, 2))
    async def elect_leaders(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ElectLeadersRequest,
    ) -> ElectLeadersResponse:
        """With no time to wait (timeout <= 0) the answer for an elected leader is REQUEST_TIMED_OUT, as Kafka gives it.
        Asked about all partitions, it names those that an election was needed for.
        """
        asked = request.topic_partitions
        if request.election_type not in _KNOWN_TYPES:
            error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            refused = {TopicPartition(each.topic, number): error for each in asked or () for number in each.partitions}
            return _response(refused, error.error_code)
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
            return _response(dict.fromkeys(partitions, ApiError(error.error_code)))
        results: dict[TopicPartition, ApiError | None] = {}
        for each, outcome in elected.items():
            if isinstance(outcome, ApiError):
                if asked is not None or outcome.error_code is not ErrorCode.ELECTION_NOT_NEEDED:
                    results[each] = outcome
            else:
                results[each] = ApiError(ErrorCode.REQUEST_TIMED_OUT) if request.timeout_ms <= 0 else None
        return _response(results)


def _response(
    results: dict[TopicPartition, ApiError | None] | dict[TopicPartition, ApiError],
    error_code: ErrorCode = ErrorCode.NONE,
) -> ElectLeadersResponse:
    by_topic: dict[str, list[ElectLeadersResponse.PartitionResult]] = {}
    for (topic, partition), error in results.items():
        by_topic.setdefault(topic, []).append(
            ElectLeadersResponse.PartitionResult(
                partition_id=partition,
                error_code=ErrorCode.NONE if error is None else error.error_code,
                error_message=None if error is None else error.message or None,
            )
        )
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=error_code,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=partitions)
            for topic, partitions in by_topic.items()
        ],
    )
