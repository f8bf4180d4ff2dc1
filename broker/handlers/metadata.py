"""Metadata and DescribeCluster: the live brokers, and the partitions that each leads.

Responses are built for every request: 2 us per partition, plus 0.8 us to encode it (measured with 10,000). A cache
would cost more in memory and invalidation rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from broker.metadata.auto_topic_creation import AutoTopicCreation
from broker.metadata.metadata_cache import MetadataCache
from broker.network.registry import RequestContext, api
from broker.security.access import OPEN, Access, Client
from broker.security.rights import CHECKED_BY_HANDLER, EVERYBODY
from cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from cluster.znodes import NO_LEADER, Endpoint
from environment.contract import Clock
from environment.slices import SMALL_LIST, RepeatedKeys, Slices, in_slices
from protocol.acl_types import CLUSTER_NAME, AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.topic_partition import is_internal, validate_topic_name
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.encoded_items import ItemEncoder

AUTHORIZED_OPERATIONS_OMITTED = -0x80000000

_Topic = MetadataResponse.MetadataResponseTopic
_Partition = MetadataResponse.MetadataResponsePartition
_Asked = Sequence[MetadataRequest.MetadataRequestTopic]

PATIENCE_FOR_TOPICS_S = 5.0
"""Maximum time a client waits for a new broker to receive the topics of its cluster."""

_FIRST_VERSION_WITH_NULL_FOR_ALL = 1
_FIRST_VERSION_THAT_NAMES_DEAD_REPLICAS = 1
_FIRST_VERSION_WITH_LISTENER_NOT_FOUND = 6
_FIRST_VERSION_TO_ASK_BY_ID = 12
_BROKERS, _CONTROLLERS = 1, 2
_UNKNOWN_ID, _EXISTING, _MISSING, _NOT_CREATABLE, _NOT_DESCRIBABLE = range(5)
"""Kinds of topics, in the order of Kafka's answer: unknown ids, existing topics, missing topics, topics that the client
may not create, topics that it may not describe.
"""


class MetadataHandlers:
    """Answers from the cache. Creates missing topics if the client and the broker's settings allow it."""

    def __init__(
        self, metadata: MetadataCache, auto_topics: AutoTopicCreation, clock: Clock, access: Access = OPEN
    ) -> None:
        self._metadata = metadata
        self._access = access
        self._clock = clock
        self._auto_topics = auto_topics

    @api(
        ApiKey.METADATA,
        versions=(0, 12),
        right=CHECKED_BY_HANDLER,
        reads_only=True,
        lazy="topics",
        whole="brokers and cluster are answered once",
    )
    async def metadata(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        """Describe topics by name or id, or all. A missing topic is created if allowed, and gets LEADER_NOT_AVAILABLE;
        so does any unknown topic until this broker has received all topics. An invalid name always gets
        INVALID_TOPIC_EXCEPTION. A topic that the client may not describe is left out of the full list; if requested, it
        gets TOPIC_AUTHORIZATION_FAILED, whether it exists or not.
        """
        if not self._metadata.has_all_topics:
            # Some clients ask no other broker if the response lacks a controller.
            await self._metadata.wait_for_topics(PATIENCE_FOR_TOPICS_S)
        image = self._metadata.image
        client = self._access.client(context, "Metadata")
        answer = _TopicEncoder(context, request, image, client, self._clock)
        asked = request.topics
        if asked is None or (not asked and context.api_version < _FIRST_VERSION_WITH_NULL_FOR_ALL):
            await self._answer_all(answer, image)
        elif not await self._answer(answer, asked, image, may_create=request.allow_auto_topic_creation):
            return await self._refuse_all(asked, context.api_version)
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
                for broker, endpoint in _reachable(image, context.listener_name)
            ],
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics=answer.array(),
            cluster_authorized_operations=_cluster_operations(
                client, wanted=request.include_cluster_authorized_operations
            ),
        )

    async def _refuse_all(self, asked: _Asked, version: int) -> MetadataResponse:
        topics = ItemEncoder(_Topic, MetadataResponse, version)
        async for each in in_slices(asked, self._clock):
            topics.add(_failed(ErrorCode.INVALID_REQUEST, each.name or "", each.topic_id))
        return MetadataResponse(brokers=[], topics=topics.array())

    async def _answer_all(self, answer: _TopicEncoder, image: MetadataImage) -> None:
        """Add every topic that the client may describe."""
        async for topic in in_slices(image.topics.values(), answer.slices):
            if self._access.is_open or answer.client.may(
                AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name, logs_denial=False
            ):
                await answer.add(topic)

    async def _answer(self, answer: _TopicEncoder, asked: _Asked, image: MetadataImage, *, may_create: bool) -> bool:
        """Add each topic once. Half a million names would take 60 MB, so `asked` is decoded twice instead.

        Returns False for a topic id or null name that comes too early: versions 10 and 11 can carry both, but brokers
        reject them (KAFKA-12701).
        """
        names = RepeatedKeys(len(asked))
        has_ids, has_nulls = await answer.slices.finish(_survey(asked, image, names, answer.slices.should_yield))
        if has_nulls or (has_ids and answer.version < _FIRST_VERSION_TO_ASK_BY_ID):
            return False
        may_create = may_create and self._auto_topics.is_enabled
        needs_right = (
            may_create
            and not self._access.is_open
            and not answer.client.may_in_cluster(AclOperation.CREATE, logs_denial=False)
        )
        seen: set[str] = set()  # only those that occur again
        async for each in in_slices(asked, answer.slices):
            name = _name_of(each, image)
            if name is None:
                answer.put(_UNKNOWN_ID, _failed(ErrorCode.UNKNOWN_TOPIC_ID, None, each.topic_id))
                continue
            if name in seen:
                continue
            if name in names:
                seen.add(name)
            if not self._access.is_open:
                creates = needs_right and name not in image.topics
                if self._is_refused(name, answer, image, by_id=has_ids, creates=creates):
                    continue
            if name in image.topics:
                await answer.add(image.topics[name])
            else:
                answer.add_missing(name, await self._error_of_missing(name, may_create=may_create))
        return True

    @staticmethod
    def _is_refused(name: str, answer: _TopicEncoder, image: MetadataImage, *, by_id: bool, creates: bool) -> bool:
        """Refuse a topic that the client may not describe, or may not create if it `creates` it and needs a right to
        this topic. `by_id`: the client sent ids.
        """
        client = answer.client
        failed = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not client.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            known = image.topics.get(name)
            shown = (None, ZERO_UUID if known is None else known.topic_id) if by_id else (name,)
            answer.put(_NOT_DESCRIBABLE, _failed(failed, *shown))
            return True
        if not creates or client.may(AclOperation.CREATE, ResourceType.TOPIC, name):
            return False
        refusal = _failed(failed, name)
        refusal.is_internal = is_internal(name)
        answer.put(_NOT_CREATABLE, refusal)
        return True

    async def _error_of_missing(self, name: str, *, may_create: bool) -> ErrorCode:
        try:
            validate_topic_name(name)
        except ApiError as error:
            return error.error_code
        if not self._metadata.has_all_topics:
            # UNKNOWN_TOPIC_OR_PARTITION makes librdkafka drop its records for the topic.
            return ErrorCode.LEADER_NOT_AVAILABLE
        if may_create:
            return await self._auto_topics.create(name)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @api(ApiKey.DESCRIBE_CLUSTER, versions=(0, 1), right=EVERYBODY, reads_only=True)
    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """Return the live brokers on the client's listener, and the controller."""
        image = self._metadata.image
        refusal = _refusal_of_endpoint_type(request.endpoint_type)
        if refusal is not None:
            return DescribeClusterResponse(
                throttle_time_ms=0,
                error_code=refusal.error_code,
                error_message=refusal.message,
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
                for broker, endpoint in _reachable(image, context.listener_name)
            ],
            cluster_authorized_operations=_cluster_operations(
                self._access.client(context, "DescribeCluster"), wanted=request.include_cluster_authorized_operations
            ),
        )


class _TopicEncoder:
    """The topics of a response, encoded one by one: as objects, half a million would take ten times the memory.

    The request determines their form: version, listener, and whether to include authorized operations.
    """

    def __init__(
        self, context: RequestContext, request: MetadataRequest, image: MetadataImage, client: Client, clock: Clock
    ) -> None:
        self.version = context.api_version
        self.client = client
        self.slices = Slices(clock)
        self._topics: dict[int, ItemEncoder[_Topic]] = {}
        """By kind, `_UNKNOWN_ID` to `_NOT_DESCRIBABLE`."""
        self._at_once = clock.elements_at_once(SMALL_LIST)
        self._alive = frozenset(image.brokers)
        self._reachable = frozenset(broker.broker_id for broker, _ in _reachable(image, context.listener_name))
        self._only_live_replicas = context.api_version < _FIRST_VERSION_THAT_NAMES_DEAD_REPLICAS
        self._without_listener = (
            ErrorCode.LISTENER_NOT_FOUND
            if context.api_version >= _FIRST_VERSION_WITH_LISTENER_NOT_FOUND
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
        self._shows_operations = request.include_topic_authorized_operations

    async def add(self, topic: TopicImage) -> None:
        """Add a topic with all its partitions."""
        if len(topic.partitions) <= self._at_once:
            partitions = [self._partition(each) for each in topic.partitions]
        else:
            encoded = ItemEncoder(_Partition, MetadataResponse, self.version)
            async for partition in in_slices(topic.partitions, self.slices):
                encoded.add(self._partition(partition))
            partitions = encoded.array()
        described = _Topic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal(topic.name),
            partitions=partitions,
            topic_authorized_operations=self._operations(topic.name),
        )
        self.put(_EXISTING, described)

    def add_missing(self, name: str, error_code: ErrorCode) -> None:
        """Add a topic that does not exist, or not yet."""
        topic = _failed(error_code, name)
        topic.is_internal = is_internal(name)
        topic.topic_authorized_operations = self._operations(name)
        self.put(_MISSING, topic)

    def put(self, kind: int, topic: _Topic) -> None:
        """Add an entry to the topics of its kind."""
        topics = self._topics.get(kind)
        if topics is None:
            topics = self._topics[kind] = ItemEncoder(_Topic, MetadataResponse, self.version)
        topics.add(topic)

    def array(self) -> list[_Topic]:
        """All topics in the order of their kinds, as the value of the response's field."""
        if not self._topics:
            return []
        first, *others = (self._topics[kind] for kind in sorted(self._topics))
        for each in others:
            first.extend(each)
        return first.array()

    def _operations(self, name: str) -> int:
        if not self._shows_operations:
            return AUTHORIZED_OPERATIONS_OMITTED
        return self.client.operations(ResourceType.TOPIC, name)

    def _partition(self, partition: PartitionImage) -> _Partition:
        error_code = ErrorCode.NONE
        replicas, isr = list(partition.replicas), list(partition.isr)
        if self._only_live_replicas:
            replicas = [each for each in replicas if each in self._reachable]
            isr = [each for each in isr if each in self._reachable]
            if len(replicas) != len(partition.replicas) or len(isr) != len(partition.isr):
                error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        leader = partition.leader
        if leader not in self._reachable:
            error_code = self._without_listener if leader in self._alive else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        return _Partition(
            error_code=error_code,
            partition_index=partition.partition,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=[
                each for each in partition.replicas if each not in self._alive or each in partition.offline_replicas
            ],
        )


def _reachable(image: MetadataImage, listener_name: str) -> Iterator[tuple[BrokerImage, Endpoint]]:
    """The brokers with the client's listener, and their endpoints on it."""
    for broker in image.brokers.values():
        endpoint = broker.endpoints.get(listener_name)
        if endpoint is not None:
            yield broker, endpoint


def _cluster_operations(client: Client, *, wanted: bool) -> int:
    if not wanted:
        return AUTHORIZED_OPERATIONS_OMITTED
    return client.operations(ResourceType.CLUSTER, CLUSTER_NAME) if client.may_in_cluster(AclOperation.DESCRIBE) else 0


def _survey(
    asked: _Asked, image: MetadataImage, names: RepeatedKeys, should_yield: Callable[[], bool]
) -> Generator[None, None, tuple[bool, bool]]:
    """Add all names to `names`; return whether there are ids and null names. Yields when a slice is over."""
    has_ids = has_nulls = False
    for each in asked:
        if each.topic_id != ZERO_UUID:
            has_ids = True
        elif each.name is None:
            has_nulls = True
        names.add(_name_of(each, image))
        if should_yield():
            yield
    yield from names.find(should_yield)
    return has_ids, has_nulls


def _name_of(asked: MetadataRequest.MetadataRequestTopic, image: MetadataImage) -> str | None:
    """The requested name, or the name of the topic with the requested id; None if no topic has that id."""
    return (asked.name or "") if asked.topic_id == ZERO_UUID else image.topic_names.get(asked.topic_id)


def _failed(error_code: ErrorCode, name: str | None, topic_id: Uuid = ZERO_UUID) -> _Topic:
    return _Topic(error_code=error_code, name=name, topic_id=topic_id, partitions=[])


def _refusal_of_endpoint_type(endpoint_type: int) -> ApiError | None:
    if endpoint_type == _BROKERS:
        return None
    if endpoint_type == _CONTROLLERS:
        return ApiError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    return ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}")
