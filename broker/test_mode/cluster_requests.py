"""The requests of the control API that only a broker of a cluster under test has.

| request | answer |
|---|---|
| `POST /v1/reassignments` | moves the replicas of `topic`, `partition` to the brokers `replicas`; the controller only |
| `POST /v1/elections` | elects the preferred leader of `topic`, `partition`; the controller only |
| `POST /v1/network` | replaces the faults of the connections that this broker opens: `links`, see `cut_network` |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

from broker.test_mode.cut_network import Link, LinkError, Links
from broker.test_mode.http_connection import HttpError, HttpRequest
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


class ClusterRequests:
    """Handles them; `send` passes a request to the broker's handlers."""

    def __init__(self, send: Send, links: Links) -> None:
        self._send = send
        self._links = links
        self.handlers: Mapping[tuple[str, str], Callable[[HttpRequest], Awaitable[object]]] = {
            ("POST", "reassignments"): self._reassign,
            ("POST", "elections"): self._elect,
            ("POST", "network"): self._change_network,
        }

    async def _reassign(self, request: HttpRequest) -> object:
        topic, partition = _partition(request.body)
        replicas = request.body.get("replicas")
        if not isinstance(replicas, list) or not all(isinstance(each, int) for each in replicas):
            raise HttpError(HTTPStatus.BAD_REQUEST, "replicas is not a list of broker ids")
        target = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=partition, replicas=replicas)
        moved = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[target])
        asked = AlterPartitionReassignmentsRequest(topics=[moved], timeout_ms=_TIMEOUT_MS)
        response = await self._send(asked, AlterPartitionReassignmentsResponse)
        raise_error(response)
        raise_error(response.responses[0].partitions[0])
        return {}

    async def _elect(self, request: HttpRequest) -> object:
        topic, partition = _partition(request.body)
        named = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
        asked = ElectLeadersRequest(
            election_type=ElectionType.PREFERRED, topic_partitions=[named], timeout_ms=_TIMEOUT_MS
        )
        response = await self._send(asked, ElectLeadersResponse)
        result = response.replica_election_results[0].partition_result[0]
        if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
            raise_error(result)
        return {}

    async def _change_network(self, request: HttpRequest) -> object:
        self._links.change(links_of(request.body))
        return {}


def links_of(body: Mapping[str, Any]) -> list[Link]:
    """The `links` of a request."""
    given = body.get("links")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise HttpError(HTTPStatus.BAD_REQUEST, "links is not a list of objects")
    try:
        return [Link.of(each) for each in given]
    except LinkError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error


def _partition(body: Mapping[str, Any]) -> tuple[str, int]:
    topic, partition = body.get("topic"), body.get("partition", 0)
    if not isinstance(topic, str) or not isinstance(partition, int):
        raise HttpError(HTTPStatus.BAD_REQUEST, "topic is a string, and partition an integer")
    return topic, partition


class _HasError(Protocol):
    error_code: int
    error_message: str | None


def raise_error(result: _HasError) -> None:
    """Raise the error of a response, or of one of its parts, if it has one."""
    if result.error_code:
        raise ApiError(ErrorCode.of(result.error_code), result.error_message or "")
