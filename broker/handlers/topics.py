"""CreateTopics, DeleteTopics and CreatePartitions: passed to the controller, with a result for each topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.controller.controller_service import ControllerService
from broker.metadata.config_service import DescribedConfig
from broker.metadata.metadata_cache import MetadataCache
from broker.network.client_quotas import ClientQuotas, MutationPermits
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import ClientRequest, Outcome, then
from cluster.controller.topics import NewTopic, TopicPlan
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.encoded_items import ItemEncoder

logger = logging.getLogger("kafka.server.ZkAdminManager")

CLUSTER_METADATA = "__cluster_metadata"
"""KRaft's metadata log. A topic with that name could never migrate to KRaft."""

TOPICS_AT_ONCE = 20
"""Up to this many new topics, the response's configurations are not encoded in advance."""

_FIRST_CREATE_VERSION_WITH_CONFIGS = 5
_FIRST_CREATE_VERSION_WITH_STRICT_QUOTA = 6
_FIRST_DELETE_VERSION_WITH_STRICT_QUOTA = 5
_FIRST_DELETE_VERSION_WITH_STATES = 6
_FIRST_GROW_VERSION_WITH_STRICT_QUOTA = 3
_FIRST_DELETE_VERSION_WITH_DELETION_DISABLED = 3

DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED

_CreateResult = CreateTopicsResponse.CreatableTopicResult
_DeleteResult = DeleteTopicsResponse.DeletableTopicResult
_PartitionsResult = CreatePartitionsResponse.CreatePartitionsTopicResult


_CreatedConfig = CreateTopicsResponse.CreatableTopicConfigs

DescribeTopicConfig = Callable[[Mapping[str, str]], Sequence[DescribedConfig]]
"""Describes all configuration values of a topic with these overrides. Topics with equal overrides share the result."""


class TopicHandlers:
    """Creates, deletes and grows topics. A reply is sent when the change is durable and applied on this broker."""

    def __init__(
        self,
        metadata: MetadataCache,
        controller: ControllerService,
        describe_topic_config: DescribeTopicConfig,
        quotas: ClientQuotas,
    ) -> None:
        self._quotas = quotas
        self._metadata = metadata
        self._controller = controller
        self._describe_topic_config = describe_topic_config

    # -- CreateTopics --------------------------------------------------------------------------------------------------

    def _guard_create(self, asked: ClientRequest[CreateTopicsRequest]) -> Outcome:
        """CREATE on the cluster or on each topic. Without DESCRIBE_CONFIGS, the response omits the new topic's
        properties. If this broker is not the controller, the handler rejects the request.
        """
        if not self._controller.is_active:
            return asked.proceed()
        client, request = asked.client, asked.request
        counts = Counter(topic.name for topic in request.topics)
        denied = frozenset[str]()
        if not client.may_in_cluster(AclOperation.CREATE, logs_denial=False):
            # Repeated names are refused anyway, but this check logs them.
            uncreatable = client.denied(AclOperation.CREATE, ResourceType.TOPIC, counts)
            denied = frozenset(name for name in uncreatable if counts[name] == 1)
        hidden = client.denied(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, counts, logs_denial=False)
        if not denied and not hidden:
            return asked.proceed()
        refused = [
            _CreateResult(name=name, error_code=DENIED, error_message="Authorization failed.")
            for name in counts
            if name in denied
        ]
        for each in refused:
            each.topic_config_error_code = DENIED if each.name in hidden else ErrorCode.NONE
        request.topics = [topic for topic in request.topics if topic.name not in denied]
        order = {name: number for number, name in enumerate(counts)}

        def complete(response: CreateTopicsResponse) -> CreateTopicsResponse:
            for each in response.topics:
                if each.name in hidden:
                    each.topic_config_error_code = DENIED
                    each.num_partitions = each.replication_factor = -1
                    each.configs = []
            response.topics = sorted([*response.topics, *refused], key=lambda each: order[each.name])
            return response

        return then(asked.proceed(), complete)

    @api(
        ApiKey.CREATE_TOPICS,
        versions=(0, 7),
        right=_guard_create,
        splits=[Split("topics", unique=("name",))],
        at_once=100,
    )
    async def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Create the topics that can be created. If timeout <= 0, a created topic is reported as REQUEST_TIMED_OUT, as
        in Kafka.
        """
        counts = Counter(topic.name for topic in request.topics)
        accepted = [
            _new_topic(topic) for topic in request.topics if counts[topic.name] == 1 and topic.name != CLUSTER_METADATA
        ]
        permits = self._quotas.permits(context, _FIRST_CREATE_VERSION_WITH_STRICT_QUOTA)
        outcome = await self._controller.create_topics(accepted, validate_only=request.validate_only, requester=permits)
        results: list[_CreateResult] = []
        many = len(counts) > TOPICS_AT_ONCE
        shown = _CreatedConfigs(self._describe_topic_config, context.api_version if many else None)
        for name, count in counts.items():
            decided = outcome.get(name)
            if count > 1:
                decided = ApiError(ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic.")
            elif name == CLUSTER_METADATA:
                decided = ApiError(
                    ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA} is prohibited."
                )
            if decided is None:
                raise RuntimeError(f"no outcome for topic {name}")
            results.extend([self._created(name, decided, request, context.api_version, shown)] * count)
        return CreateTopicsResponse(throttle_time_ms=permits.throttle_time_ms(), topics=results)

    def _created(
        self,
        name: str,
        decided: TopicPlan | ApiError,
        request: CreateTopicsRequest,
        version: int,
        shown: _CreatedConfigs,
    ) -> _CreateResult:
        if isinstance(decided, ApiError):
            return _CreateResult(name=name, error_code=decided.error_code, error_message=_error_message(name, decided))
        topic = None if request.validate_only else self._metadata.image.topics.get(name)
        topic_id = topic.topic_id if topic is not None else ZERO_UUID
        leaderless = topic is not None and any(partition.leader < 0 for partition in topic.partitions)
        if not request.validate_only and (request.timeout_ms <= 0 or leaderless):
            return _CreateResult(name=name, topic_id=topic_id, error_code=ErrorCode.REQUEST_TIMED_OUT)
        result = _CreateResult(
            name=name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            num_partitions=len(decided.assignment),
            replication_factor=len(decided.assignment[0]),
        )
        if version >= _FIRST_CREATE_VERSION_WITH_CONFIGS:
            result.configs = shown.of(decided.config)
        return result

    # -- DeleteTopics --------------------------------------------------------------------------------------------------

    def _guard_delete(self, asked: ClientRequest[DeleteTopicsRequest]) -> Outcome:
        """DELETE on each topic. A topic requested by id stays nameless if the client may not describe it."""
        if not self._controller.is_active or not self._controller.settings.delete_topics:
            return asked.proceed()
        client, version = asked.client, asked.context.api_version
        topics = _asked_for_deletion(asked.request, version)
        known = self._metadata.image.topic_names
        names = [known.get(topic_id) if name is None else name for name, topic_id in topics]
        named = [name for name in dict.fromkeys(names) if name is not None]
        hidden = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, named)
        denied = client.denied(AclOperation.DELETE, ResourceType.TOPIC, named)
        refused: dict[int, _DeleteResult] = {}
        for at, (name, (asked_name, topic_id)) in enumerate(zip(names, topics, strict=True)):
            by_both = asked_name is not None and topic_id != ZERO_UUID
            if name in denied and not by_both:
                shown_name = None if asked_name is None and name in hidden else name
                refused[at] = _DeleteResult(name=shown_name, topic_id=topic_id, error_code=DENIED)
        array = "topics" if version >= _FIRST_DELETE_VERSION_WITH_STATES else "topic_names"
        return asked.without_places(array, refused, "responses")

    @api(
        ApiKey.DELETE_TOPICS,
        versions=(0, 6),
        right=_guard_delete,
        splits=[Split("topics", unique=("name", "topic_id")), Split("topic_names", unique=("topic_names",))],
        at_once=100,
    )
    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        """Delete topics by name or id. A deletion is finished when it is acknowledged."""
        asked = _asked_for_deletion(request, context.api_version)
        if not self._controller.settings.delete_topics:
            refusal = (
                ErrorCode.TOPIC_DELETION_DISABLED
                if context.api_version >= _FIRST_DELETE_VERSION_WITH_DELETION_DISABLED
                else ErrorCode.INVALID_REQUEST
            )
            return DeleteTopicsResponse(
                responses=[_DeleteResult(name=name, topic_id=topic_id, error_code=refusal) for name, topic_id in asked]
            )
        if not self._controller.is_active:
            refusal = ErrorCode.NOT_CONTROLLER
            return DeleteTopicsResponse(
                responses=[_DeleteResult(name=name, topic_id=topic_id, error_code=refusal) for name, topic_id in asked]
            )
        permits = self._quotas.permits(context, _FIRST_DELETE_VERSION_WITH_STRICT_QUOTA)
        results = [self._judge_deletion(name, topic_id, permits) for name, topic_id in asked]
        doomed = {result.name: None for result in results if result.error_code == ErrorCode.NONE and result.name}
        try:
            await self._controller.delete_topics(doomed)
        except ApiError as error:  # a full disk
            for result in results:
                if result.error_code == ErrorCode.NONE:
                    result.error_code, result.error_message = error.error_code, error.message
        if request.timeout_ms <= 0:
            for result in results:
                if result.error_code == ErrorCode.NONE:
                    result.error_code = ErrorCode.REQUEST_TIMED_OUT
        return DeleteTopicsResponse(throttle_time_ms=permits.throttle_time_ms(), responses=results)

    def _judge_deletion(self, name: str | None, topic_id: Uuid, permits: MutationPermits) -> _DeleteResult:
        image = self._metadata.image
        error_code = ErrorCode.NONE
        if topic_id == ZERO_UUID:
            if name is None:  # Kafka's message; it withholds the name, as the client may not see the topic
                error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif name not in image.topics:
                error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif name is not None:
            error_code = ErrorCode.INVALID_REQUEST
        elif topic_id in image.topic_names:
            name = image.topic_names[topic_id]
        else:
            error_code = ErrorCode.UNKNOWN_TOPIC_ID
        if error_code is ErrorCode.NONE and name is not None:
            try:
                permits.take(len(image.topics[name].partitions))
            except ApiError as error:
                error_code = error.error_code
        return _DeleteResult(name=name, topic_id=topic_id, error_code=error_code)

    # -- CreatePartitions ----------------------------------------------------------------------------------------------

    def _guard_grow(self, asked: ClientRequest[CreatePartitionsRequest]) -> Outcome:
        """ALTER on each topic."""
        if not self._controller.is_active:
            return asked.proceed()
        counts = Counter(topic.name for topic in asked.request.topics)
        once = [name for name, count in counts.items() if count == 1]
        denied = asked.client.denied(AclOperation.ALTER, ResourceType.TOPIC, once)
        refusals = [
            _PartitionsResult(name=name, error_code=DENIED, error_message="The topic authorization is failed.")
            for name in once
            if name in denied
        ]
        return asked.without("topics", lambda topic: topic.name in denied, refusals, "results")

    @api(
        ApiKey.CREATE_PARTITIONS,
        versions=(0, 3),
        right=_guard_grow,
        splits=[Split("topics", unique=("name",))],
        at_once=100,
    )
    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        """Grow each topic to its new partition count. Topics requested twice are rejected, and listed last."""
        permits = self._quotas.permits(context, _FIRST_GROW_VERSION_WITH_STRICT_QUOTA)
        counts = Counter(topic.name for topic in request.topics)
        results = [await self._grow(topic, request, permits) for topic in request.topics if counts[topic.name] == 1]
        results.extend(
            _PartitionsResult(
                name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic in request."
            )
            for name, count in counts.items()
            if count > 1
        )
        return CreatePartitionsResponse(throttle_time_ms=permits.throttle_time_ms(), results=results)

    async def _grow(
        self,
        topic: CreatePartitionsRequest.CreatePartitionsTopic,
        request: CreatePartitionsRequest,
        permits: MutationPermits,
    ) -> _PartitionsResult:
        assignments = [tuple(each.broker_ids) for each in topic.assignments] if topic.assignments is not None else None
        try:
            await self._controller.create_partitions(
                topic.name, topic.count, assignments, validate_only=request.validate_only, requester=permits
            )
        except ApiError as error:
            return _PartitionsResult(
                name=topic.name, error_code=error.error_code, error_message=_error_message(topic.name, error)
            )
        timed_out = request.timeout_ms <= 0 and not request.validate_only
        return _PartitionsResult(
            name=topic.name, error_code=ErrorCode.REQUEST_TIMED_OUT if timed_out else ErrorCode.NONE
        )


def _asked_for_deletion(request: DeleteTopicsRequest, version: int) -> list[tuple[str | None, Uuid]]:
    """The name and the id of each topic."""
    if version >= _FIRST_DELETE_VERSION_WITH_STATES:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, ZERO_UUID) for name in request.topic_names]


def _error_message(topic: str, error: ApiError) -> str | None:
    """The error message for the client. Omitted where the code is enough, and for unexpected errors, which are logged
    here.
    """
    if error.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return None
    if error.error_code != ErrorCode.UNKNOWN_SERVER_ERROR:
        return error.message
    logger.error("A request to change topic %s failed: %s", topic, error.message)
    return None


class _CreatedConfigs:
    """Configurations of new topics in response format, each built once for all topics that share it."""

    def __init__(self, describe: DescribeTopicConfig, version: int | None) -> None:
        """If `version` is given, encode them immediately."""
        self._describe = describe
        self._version = version
        self._made: dict[int, tuple[Sequence[DescribedConfig], list[_CreatedConfig]]] = {}

    def of(self, overrides: Mapping[str, str]) -> list[_CreatedConfig]:
        """All configuration values of a topic with these overrides."""
        described = self._describe(overrides)
        known = self._made.get(id(described))
        if known is None:
            shown = [
                _CreatedConfig(
                    name=each.name,
                    value=each.value,
                    read_only=each.read_only,
                    config_source=each.source,
                    is_sensitive=each.sensitive,
                )
                for each in described
            ]
            if self._version is not None:
                shown = ItemEncoder(_CreatedConfig, CreateTopicsResponse, self._version, shown).array()
            known = self._made[id(described)] = (described, shown)
        return known[1]


def _new_topic(topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    # If a partition or key is repeated, the last one wins, as in Kafka's maps.
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {each.partition_index: tuple(each.broker_ids) for each in topic.assignments},
        {each.name: each.value for each in topic.configs},
    )
