"""InitProducerId: ids of idempotent and transactional producers (KIP-98, KIP-360). DescribeProducers: the active
producers of a partition (KIP-664).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.handlers.transactions import fenced_error
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.replication.replica_manager import ReplicaManager
from broker.security.rights import DENIAL_MESSAGES, ClientRequest, Outcome
from broker.transactions.transaction_coordinator_service import ProducerIds, TransactionCoordinatorService
from cluster.metadata_image import MetadataImage
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.producer_ids import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from protocol.topic_partition import TopicPartition, validate_topic_name
from zookeeper.coordination import CoordinationError

logger = logging.getLogger("kafka.coordinator.transaction.ZkProducerIdManager")

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
FIRST_INIT_WITH_PRODUCER_FENCED: Final = 4

_Described = DescribeProducersResponse.PartitionResponse
_DescribedTopic = DescribeProducersResponse.TopicResponse


class ProducerIdHandlers:
    """Gives a new id to every producer without a transactional id; otherwise the coordinator decides."""

    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinatorService) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    def _guard_init(self, asked: ClientRequest[InitProducerIdRequest]) -> Outcome:
        """WRITE on the transactional id; without an id, IDEMPOTENT_WRITE on the cluster or WRITE on any topic
        (KIP-679).
        """
        client, transactional_id = asked.client, asked.request.transactional_id
        if transactional_id is not None:
            error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            allowed = client.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        else:
            error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            allowed = client.may_in_cluster(AclOperation.IDEMPOTENT_WRITE, logs_denial=False) or client.may_somewhere(
                AclOperation.WRITE, ResourceType.TOPIC
            )
        return asked.proceed() if allowed else _refused(error_code)

    @api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), right=_guard_init)
    async def init_producer_id(
        self,
        context: RequestContext,
        request: InitProducerIdRequest,
    ) -> InitProducerIdResponse:
        """Return a producer id, with epoch 0 unless the transactional id was used before."""
        if (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_PRODUCER_EPOCH):
            return _refused(ErrorCode.INVALID_REQUEST)
        transactional_id = request.transactional_id
        try:
            if transactional_id is None:
                error_code, producer_id, producer_epoch = ErrorCode.NONE, await self._producer_ids.next_id(), 0
            else:
                expected = None
                if request.producer_id != NO_PRODUCER_ID:
                    expected = request.producer_id, request.producer_epoch
                error_code, producer_id, producer_epoch = await self._transactions.init_producer_id(
                    transactional_id, request.transaction_timeout_ms, expected
                )
        except CoordinationError as error:
            logger.error("No block of producer ids could be allocated: %s", error)
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        except Exception as error:  # as Kafka's ZkProducerIdManager, which reports any failure to the client
            if transactional_id is None or not isinstance(error, ApiError):
                logger.exception("No block of producer ids could be allocated")
            error_code = error.error_code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
            # The result of the tree change is unknown, and clients do not expect this code here.
            is_unknown = error_code is ErrorCode.NOT_CONTROLLER
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_unknown else error_code)
        if error_code:
            return _refused(fenced_error(context, error_code, FIRST_INIT_WITH_PRODUCER_FENCED))
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=producer_epoch
        )


class ProducerHandlers:
    """Describes the producers of partitions."""

    def __init__(self, replica_manager: ReplicaManager, image: Callable[[], MetadataImage], clock: Clock) -> None:
        """`image` returns the metadata of all partitions."""
        self._clock = clock
        self._replica_manager = replica_manager
        self._image = image

    def _guard_describe(self, asked: ClientRequest[DescribeProducersRequest]) -> Outcome:
        """READ on each topic with a valid name."""
        topics, code = asked.request.topics, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        names = [topic.name for topic in topics if _is_valid(topic.name)]
        denied = asked.client.denied(AclOperation.READ, ResourceType.TOPIC, names)
        error = ApiError(code, DENIAL_MESSAGES[code])
        refusals = [
            _DescribedTopic(name=topic.name, partitions=[_failed(index, error) for index in topic.partition_indexes])
            for topic in topics
            if topic.name in denied
        ]
        return asked.without("topics", lambda topic: topic.name in denied, refusals, "topics")

    @api(
        ApiKey.DESCRIBE_PRODUCERS,
        versions=(0, 0),
        right=_guard_describe,
        reads_only=True,
        splits=[Split("topics.partition_indexes")],
    )
    async def describe_producers(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeProducersRequest,
    ) -> DescribeProducersResponse:
        """List the producers known to the local replica, leader or follower."""
        topics, slices = [], Slices(self._clock)
        for topic in request.topics:
            refusal = self._refusal_of(topic.name)
            described = []
            async for number in in_slices(topic.partition_indexes, slices):
                if refusal is None:
                    described.append(self._describe(TopicPartition(topic.name, number)))
                else:
                    described.append(_failed(number, refusal))
            topics.append(_DescribedTopic(name=topic.name, partitions=described))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    def _refusal_of(self, topic: str) -> ApiError | None:
        """The error of the whole topic, if any."""
        try:
            validate_topic_name(topic)
        except ApiError as error:
            return detached(error)
        if topic in self._image().topics:
            return None
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")

    def _describe(self, name: TopicPartition) -> _Described:
        described = _Described(partition_index=name.partition, error_code=ErrorCode.NONE, active_producers=[])
        try:
            entries = self._replica_manager.partition(name).log.producer_state.entries
        except ApiError as error:
            is_elsewhere = self._image().partition(name) is not None
            is_missing = error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            described.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_missing and is_elsewhere else error.error_code
            return described
        described.active_producers = [
            DescribeProducersResponse.ProducerState(
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for producer_id, entry in entries.items()
        ]
        return described


def _is_valid(topic: str) -> bool:
    try:
        validate_topic_name(topic)
    except ApiError:
        return False
    return True


def _failed(partition: int, error: ApiError) -> _Described:
    return _Described(
        partition_index=partition, error_code=error.error_code, error_message=error.message, active_producers=[]
    )


def _refused(error_code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
