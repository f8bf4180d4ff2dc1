"""FindCoordinator: which broker coordinates a group or a transactional id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from broker.metadata.auto_topic_creation import InternalTopicCreator
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import DENIAL_MESSAGES, DENIED, ClientRequest, Outcome, then
from cluster.metadata_image import MetadataImage
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition

GROUP, TRANSACTION, SHARE = 0, 1, 2

FIRST_VERSION_OF_MANY_KEYS: Final = 4
FIRST_VERSION_OF_SHARE_GROUPS: Final = 6

CREATION_PATIENCE_S: Final = 1.0
"""Maximum time the first FindCoordinator of a cluster waits for the creation of its topic."""

_TEXTS: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "This type of key has no coordinator in this version.",
}

Coordinator = FindCoordinatorResponse.Coordinator


_TOPICS: Final = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
"""The topic with the state of each kind of coordinator."""


class Coordinators(Protocol):
    """All coordinators of one kind, on all brokers."""

    def partition_of(self, key: str) -> int:
        """The partition of the topic that keeps `key`; its leader is the coordinator."""
        ...


class CoordinatorHandlers:
    """Finds the leader of the responsible partition, creating the topic if necessary."""

    def __init__(
        self,
        groups: Coordinators,
        transactions: Coordinators,
        metadata: Callable[[], MetadataImage],
        topics: InternalTopicCreator,
    ) -> None:
        self._coordinators = {GROUP: groups, TRANSACTION: transactions}
        self._metadata = metadata
        self._topics = topics

    def _guard_find(self, asked: ClientRequest[FindCoordinatorRequest]) -> Outcome:
        """DESCRIBE on each group or transactional id; for share groups, CLUSTER_ACTION."""
        client, request = asked.client, asked.request
        many = asked.context.api_version >= FIRST_VERSION_OF_MANY_KEYS
        keys = request.coordinator_keys if many else [request.key]
        if request.key_type == SHARE:
            error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            denied = frozenset[str]() if client.may_in_cluster(AclOperation.CLUSTER_ACTION) else frozenset(keys)
        else:
            is_group = request.key_type != TRANSACTION
            resource_type = ResourceType.GROUP if is_group else ResourceType.TRANSACTIONAL_ID
            error_code = DENIED[resource_type]
            denied = client.denied(AclOperation.DESCRIBE, resource_type, keys)
        if not denied:
            return asked.proceed()
        if not many:
            return FindCoordinatorResponse(
                error_code=error_code, error_message=DENIAL_MESSAGES[error_code], node_id=-1, host="", port=-1
            )
        refused = [_not_found(key, error_code) for key in keys if key in denied]
        if len(refused) == len(keys):
            # Without rights, a client must not trigger the creation of the coordinators' topic.
            return FindCoordinatorResponse(coordinators=refused)
        request.coordinator_keys = [key for key in keys if key not in denied]

        def add(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
            found = {each.key: each for each in (*response.coordinators, *refused)}
            response.coordinators = [found[key] for key in keys]
            return response

        return then(asked.proceed(), add)

    @api(ApiKey.FIND_COORDINATOR, versions=(0, 6), right=_guard_find, splits=[Split("coordinator_keys")])
    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        """Reply COORDINATOR_NOT_AVAILABLE while the partition is leaderless or its topic cannot be created."""
        topic = _TOPICS.get(request.key_type)
        if topic is not None and topic not in self._metadata().topics:
            return self._answer_after_creation(context, request, topic)
        return self._answer(context, request)

    async def _answer_after_creation(
        self, context: RequestContext, request: FindCoordinatorRequest, topic: str
    ) -> FindCoordinatorResponse:
        """Wait for the new topic. Kafka replies at once and lets the client retry, but a client's backoff is longer
        than the creation takes.
        """
        await self._topics.created(topic, CREATION_PATIENCE_S)
        return self._answer(context, request)

    def _answer(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if context.api_version >= FIRST_VERSION_OF_MANY_KEYS:
            return FindCoordinatorResponse(
                coordinators=[self._find(context, request.key_type, key) for key in request.coordinator_keys]
            )
        found = self._find(context, request.key_type, request.key)
        # These versions always have a message; newer ones only where the code alone is unclear.
        message = found.error_message or _TEXTS[ErrorCode.of(found.error_code)]
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    def _find(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        try:
            return self._coordinator(context, key_type, key)
        except ApiError as error:
            return _not_found(key, error.error_code, error.message)

    def _coordinator(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        if key_type == SHARE:
            known = context.api_version >= FIRST_VERSION_OF_SHARE_GROUPS
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE if known else ErrorCode.INVALID_REQUEST)
        topic = _TOPICS.get(key_type)
        if topic is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Key type {key_type} has no coordinator on this broker.")
        image = self._metadata()
        leader = image.leader_of(TopicPartition(topic, self._coordinators[key_type].partition_of(key)))
        broker = image.brokers.get(leader)
        endpoint = None if broker is None else broker.endpoints.get(context.listener_name)
        if endpoint is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Coordinator(
            key=key,
            node_id=leader,
            host=endpoint.host,
            port=endpoint.port,
            error_code=ErrorCode.NONE,
            error_message="",
        )


def _not_found(key: str, error_code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error_code, error_message=message)
