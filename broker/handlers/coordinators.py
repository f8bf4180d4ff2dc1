"""FindCoordinator: which broker keeps a group."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.metadata.internal_topics import InternalTopicCreator
from broker.network.registry import RequestContext, api
from broker.network.slices import in_slices
from cluster.metadata_image import MetadataImage
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition

logger = logging.getLogger("kafka.coordinator.transaction.TransactionCoordinator")

GROUP, TRANSACTION, SHARE = 0, 1, 2

FIRST_VERSION_OF_MANY_KEYS: Final = 4
FIRST_VERSION_OF_SHARE_GROUPS: Final = 6

KEYS_AT_ONCE: Final = 100
"""Keys looked up in one turn of the event loop: about a millisecond."""

CREATION_PATIENCE_S: Final = 1.0
"""How long the first FindCoordinator of a cluster waits for the topic that it needs."""

_TEXTS: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "This type of key has no coordinator in this version.",
}

Coordinator = FindCoordinatorResponse.Coordinator


def log_refused_producer(context: RequestContext, transactional_id: str) -> None:
    """Say in the log why a transactional producer fails; the error that it gets cannot."""
    logger.warning(
        "Refused the transactional producer '%s' (client '%s' at %s): transactions are not supported yet. Remove "
        "transactional.id; an idempotent producer works.",
        transactional_id, context.client_id, context.client_address,
    )  # fmt: skip


class CoordinatorHandlers:
    """Groups have a coordinator. Transactions have none yet, and are told so in the one way that no client retries.

    TRANSACTIONAL_ID_AUTHORIZATION_FAILED is fatal at once in the Java producer, librdkafka, kafka-python and aiokafka;
    other errors that would describe the situation better make some of them ask again until they time out.
    """

    def __init__(
        self, service: GroupCoordinatorService, metadata: Callable[[], MetadataImage], topics: InternalTopicCreator
    ) -> None:
        self._service = service
        self._metadata = metadata
        self._topics = topics

    @api(ApiKey.FIND_COORDINATOR, versions=(0, 6))
    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        """COORDINATOR_NOT_AVAILABLE while __consumer_offsets has no leader, or cannot be created."""
        if request.key_type == GROUP and CONSUMER_OFFSETS not in self._metadata().topics:
            return self._answer_after_creation(context, request)
        if len(request.coordinator_keys) > KEYS_AT_ONCE:
            return self._answer_in_slices(context, request)
        return self._answer(context, request)

    async def _answer_after_creation(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Kafka answers at once and lets the client ask again; a client's back-off is longer than the creation."""
        await self._topics.created(CONSUMER_OFFSETS, CREATION_PATIENCE_S)
        return await self._answer_in_slices(context, request)

    async def _answer_in_slices(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        if context.api_version < FIRST_VERSION_OF_MANY_KEYS:
            return self._answer(context, request)
        response = FindCoordinatorResponse(coordinators=[])
        async for key in in_slices(request.coordinator_keys, self._service.clock):
            response.coordinators.append(self._find(context, request.key_type, key))
        return response

    def _answer(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if context.api_version >= FIRST_VERSION_OF_MANY_KEYS:
            return FindCoordinatorResponse(
                coordinators=[self._find(context, request.key_type, key) for key in request.coordinator_keys]
            )
        found = self._find(context, request.key_type, request.key)
        # These versions always carry a text, newer ones only where the code does not say it all.
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
            return Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=error.error_code, error_message=error.message
            )

    def _coordinator(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        if key_type == TRANSACTION:
            log_refused_producer(context, key)
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "This broker does not serve transactions.")
        if key_type == SHARE:
            known = context.api_version >= FIRST_VERSION_OF_SHARE_GROUPS
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE if known else ErrorCode.INVALID_REQUEST)
        if key_type != GROUP:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Key type {key_type} has no coordinator on this broker.")
        image = self._metadata()
        leader = image.leader_of(TopicPartition(CONSUMER_OFFSETS, self._service.partition_of(key)))
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
