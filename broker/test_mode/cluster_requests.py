"""The requests of the control API that only a broker of a cluster under test has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from broker.test_mode.api_description import Given, array, integer, operation, struct, text
from broker.test_mode.cut_network import LINK, Link, Links
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from protocol.wire.schema import Request, Response

R = TypeVar("R", bound=Response)

Send = Callable[[Request, type[Any]], Awaitable[Any]]
_TIMEOUT_MS: Final = 30_000
_PARTITION: Final = {
    "topic": text("The name of the topic."),
    "partition?": integer("The partition.", minimum=0, default=0),
}
NETWORK: Final = struct({"links": array(LINK, "All links with a fault; the others have none from now on.")})


class ClusterRequests:
    """Handles them; `send` passes a request to the broker's handlers."""

    def __init__(self, send: Send, links: Links) -> None:
        self._send = send
        self._links = links

    @operation(
        "POST",
        "reassignments",
        "Move the replicas of a partition. Only the controller of a cluster does it.",
        body={**_PARTITION, "replicas": array(integer("The id of a broker."), "The new replicas, the leader first.")},
        example={"topic": "orders", "partition": 0, "replicas": [1, 2]},
    )
    async def _reassign(self, given: Given) -> object:
        target = AlterPartitionReassignmentsRequest.ReassignablePartition(
            partition_index=given["partition"], replicas=given["replicas"]
        )
        moved = AlterPartitionReassignmentsRequest.ReassignableTopic(name=given["topic"], partitions=[target])
        asked = AlterPartitionReassignmentsRequest(topics=[moved], timeout_ms=_TIMEOUT_MS)
        response = await self._send(asked, AlterPartitionReassignmentsResponse)
        raise_error(response)
        raise_error(response.responses[0].partitions[0])
        return {}

    @operation(
        "POST",
        "elections",
        "Elect the preferred leader of a partition. Only the controller of a cluster does it.",
        body=_PARTITION,
        example={"topic": "orders", "partition": 0},
    )
    async def _elect(self, given: Given) -> object:
        named = ElectLeadersRequest.TopicPartitions(topic=given["topic"], partitions=[given["partition"]])
        asked = ElectLeadersRequest(
            election_type=ElectionType.PREFERRED, topic_partitions=[named], timeout_ms=_TIMEOUT_MS
        )
        response = await self._send(asked, ElectLeadersResponse)
        result = response.replica_election_results[0].partition_result[0]
        if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
            raise_error(result)
        return {}

    @operation(
        "POST",
        "network",
        "Replace the faults of the connections that this broker of a cluster opens.",
        body=NETWORK,
        example={"links": [{"port": 9092, "sends": False}]},
    )
    async def _change_network(self, given: Given) -> object:
        self._links.change([Link.of(each) for each in given["links"]])
        return {}


class _HasError(Protocol):
    error_code: int
    error_message: str | None


def raise_error(result: _HasError) -> None:
    """Raise the error of a response, or of one of its parts, if it has one."""
    if result.error_code:
        raise ApiError(ErrorCode.of(result.error_code), result.error_message or "")
