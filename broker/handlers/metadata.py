"""Metadata and DescribeCluster: which brokers there are, and which of them leads what."""

from __future__ import annotations

from broker.controller_service import ControllerService
from broker.registry import RequestContext, api
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.uuids import ZERO_UUID

AUTHORIZED_OPERATIONS_OMITTED = -0x80000000
ALL_TOPIC_OPERATIONS = 0b1101_1111_1000
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS (Kafka class `AclEntry`)."""
ALL_CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""

_Topic = MetadataResponse.MetadataResponseTopic
_Partition = MetadataResponse.MetadataResponsePartition

_FIRST_VERSION_WITH_NULL_FOR_ALL = 1
_FIRST_VERSION_WITH_LISTENER_NOT_FOUND = 6
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_FIRST_VERSION_TO_ASK_BY_ID = 12
_BROKERS = 1


class MetadataHandlers:
    """Answers from the image alone; creates a missing topic where the client and the broker allow it."""

    def __init__(self, controller: ControllerService) -> None:
        self._controller = controller

    @api(ApiKey.METADATA, versions=(0, 12))
    async def metadata(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        """Topics by name or id, or all. An unknown name is created if allowed, and answered LEADER_NOT_AVAILABLE."""
        version = context.api_version
        operations = (
            ALL_TOPIC_OPERATIONS if request.include_topic_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        )
        topics: list[_Topic] = []
        if request.topics is None or (not request.topics and version < _FIRST_VERSION_WITH_NULL_FOR_ALL):
            image = self._controller.image
            topics.extend(_describe(topic, image, context, operations) for topic in image.topics.values())
        else:
            _refuse_ids_too_early(request.topics, version)
            topics.extend([await self._topic(asked, request, context, operations) for asked in request.topics])
        image = self._controller.image
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
                for broker, endpoint in _reachable(image.brokers.values(), context.listener_name)
            ],
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics=topics,
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS
                if request.include_cluster_authorized_operations
                else AUTHORIZED_OPERATIONS_OMITTED
            ),
        )

    async def _topic(
        self,
        asked: MetadataRequest.MetadataRequestTopic,
        request: MetadataRequest,
        context: RequestContext,
        operations: int,
    ) -> _Topic:
        image = self._controller.image
        if asked.topic_id != ZERO_UUID:
            topic = image.topic_by_id(asked.topic_id)
            if topic is None:
                return _error(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)
            return _describe(topic, image, context, operations)
        name = asked.name or ""
        topic = image.topics.get(name)
        if topic is not None:
            return _describe(topic, image, context, operations)
        if request.allow_auto_topic_creation and self._controller.settings.auto_create_topics:
            return _error(await self._controller.auto_create_topic(name), name)
        return _error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)

    @api(ApiKey.DESCRIBE_CLUSTER, versions=(0, 1))
    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """The live brokers on the asked listener, and the controller."""
        image = self._controller.image
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                throttle_time_ms=0,
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="x",
                endpoint_type=request.endpoint_type,
                cluster_id="",
                brokers=[],
            )
        return DescribeClusterResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
                for broker, endpoint in _reachable(image.brokers.values(), context.listener_name)
            ],
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS
                if request.include_cluster_authorized_operations
                else AUTHORIZED_OPERATIONS_OMITTED
            ),
        )
