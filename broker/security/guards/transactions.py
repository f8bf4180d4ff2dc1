"""Transactions, producer ids and coordinators: rights on transactional ids, groups and topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.network.registry import RequestContext
from broker.security.access import Client
from broker.security.replies import Outcome, Proceed, denied_topics, then, without_topics
from cluster.metadata_image import MetadataImage
from protocol.acl_types import AclOperation, ResourceType
from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.topic_partition import TopicPartition, by_topic, is_internal

DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
FIRST_ADD_OF_BROKERS: Final = 4
FIRST_FIND_OF_MANY_KEYS: Final = 4
TRANSACTION: Final = 1
SHARE: Final = 2
"""The coordinator key type of share groups."""

_TOLD: Final = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    DENIED: "Transactional Id authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


def _may(client: Client, operation: AclOperation, transactional_id: str) -> bool:
    return client.may(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)


def guard_find(client: Client, context: RequestContext, request: FindCoordinatorRequest, proceed: Proceed) -> Outcome:
    """DESCRIBE on each group or transactional id."""
    many = context.api_version >= FIRST_FIND_OF_MANY_KEYS
    keys = request.coordinator_keys if many else [request.key]
    resource_type, error_code = ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED
    if request.key_type == TRANSACTION:
        resource_type, error_code = ResourceType.TRANSACTIONAL_ID, DENIED
    if request.key_type == SHARE:
        error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        denied = frozenset[str]() if client.may_in_cluster(AclOperation.CLUSTER_ACTION) else frozenset(keys)
    else:
        denied = client.denied(AclOperation.DESCRIBE, resource_type, keys)
    if not denied:
        return proceed(request)
    if not many:
        return FindCoordinatorResponse(
            error_code=error_code, error_message=_TOLD[error_code], node_id=-1, host="", port=-1
        )
    refused = [
        FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error_code, error_message=""
        )
        for key in keys
        if key in denied
    ]
    if len(refused) == len(keys):
        # Without rights, a client must not trigger the creation of the coordinators' topic.
        return FindCoordinatorResponse(coordinators=refused)
    request.coordinator_keys = [key for key in keys if key not in denied]

    def add(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        found = {each.key: each for each in (*response.coordinators, *refused)}
        response.coordinators = [found[key] for key in keys]
        return response

    return then(proceed(request), add)


def guard_init(client: Client, context: RequestContext, request: InitProducerIdRequest, proceed: Proceed) -> Outcome:
    """WRITE on the transactional id; without one, IDEMPOTENT_WRITE on the cluster or WRITE on any topic (KIP-679)."""
    del context
    if request.transactional_id is not None:
        allowed, error_code = _may(client, AclOperation.WRITE, request.transactional_id), DENIED
    else:
        error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        allowed = client.may_in_cluster(AclOperation.IDEMPOTENT_WRITE, logs_denial=False) or client.may_somewhere(
            AclOperation.WRITE, ResourceType.TOPIC
        )
    if allowed:
        return proceed(request)
    return InitProducerIdResponse(throttle_time_ms=0, error_code=error_code, producer_id=-1, producer_epoch=-1)


class AddPartitionsGuard:
    """AddPartitionsToTxn: CLUSTER_ACTION for brokers; for clients, WRITE on the transactional id and on each topic."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        """`image` returns the metadata of all partitions."""
        self._image = image

    def guard(
        self, client: Client, context: RequestContext, request: AddPartitionsToTxnRequest, proceed: Proceed
    ) -> Outcome:
        """Add all partitions or none: if some are refused, the others get OPERATION_NOT_ATTEMPTED."""
        if context.api_version >= FIRST_ADD_OF_BROKERS:
            if client.may_in_cluster(AclOperation.CLUSTER_ACTION):
                return proceed(request)
            return AddPartitionsToTxnResponse(
                throttle_time_ms=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results_by_transaction=[]
            )
        topics = request.v3_and_below_topics
        partitions = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
        if not _may(client, AclOperation.WRITE, request.v3_and_below_transactional_id):
            return _not_added(dict.fromkeys(partitions, DENIED))
        names = [each.topic for each in partitions if not is_internal(each.topic)]
        denied = client.denied(AclOperation.WRITE, ResourceType.TOPIC, names)
        if not denied:
            return proceed(request)
        image = self._image()
        codes = {}
        for each in partitions:
            if each.topic in denied or is_internal(each.topic):
                codes[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(each) is None:
                codes[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                codes[each] = ErrorCode.OPERATION_NOT_ATTEMPTED
        return _not_added(codes)


def _not_added(codes: dict[TopicPartition, ErrorCode]) -> AddPartitionsToTxnResponse:
    partition = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=[
                    partition(partition_index=index, partition_error_code=codes[TopicPartition(topic, index)])
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(codes).items()
        ],
    )


def guard_add_offsets(
    client: Client, context: RequestContext, request: AddOffsetsToTxnRequest, proceed: Proceed
) -> Outcome:
    """WRITE on the transactional id, and READ on the group."""
    del context
    if not _may(client, AclOperation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=DENIED)
    if not client.may(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return proceed(request)


def guard_end(client: Client, context: RequestContext, request: EndTxnRequest, proceed: Proceed) -> Outcome:
    """WRITE on the transactional id."""
    del context
    if _may(client, AclOperation.WRITE, request.transactional_id):
        return proceed(request)
    return EndTxnResponse(throttle_time_ms=0, error_code=DENIED)


def guard_commit_offsets(
    client: Client, context: RequestContext, request: TxnOffsetCommitRequest, proceed: Proceed
) -> Outcome:
    """WRITE on the transactional id, READ on the group, and READ on each topic."""
    del context
    refusal = None
    if not _may(client, AclOperation.WRITE, request.transactional_id):
        refusal = DENIED
    elif not client.may(AclOperation.READ, ResourceType.GROUP, request.group_id):
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if refusal is not None:
        return TxnOffsetCommitResponse(
            throttle_time_ms=0, topics=[_not_committed(topic, refusal) for topic in request.topics]
        )
    denied = denied_topics(client, AclOperation.READ, request.topics)
    if not denied:
        return proceed(request)
    failed = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [_not_committed(topic, failed) for topic in request.topics if topic.name in denied]
    return without_topics(request, denied, refused, proceed)


def _not_committed(
    topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, error_code: ErrorCode
) -> TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic:
    partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    return TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            partition(partition_index=each.partition_index, error_code=error_code) for each in topic.partitions
        ],
    )


def guard_describe(
    client: Client, context: RequestContext, request: DescribeTransactionsRequest, proceed: Proceed
) -> Outcome:
    """DESCRIBE on each transactional id. Shows only those topics of a transaction that the client may describe."""
    del context
    asked = request.transactional_ids
    denied = client.denied(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, asked)
    request.transactional_ids = [each for each in asked if each not in denied]

    def show(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        described = iter(response.transaction_states)
        response.transaction_states = [
            _not_described(each) if each in denied else _shown(client, next(described)) for each in asked
        ]
        return response

    return then(proceed(request), show)


def _not_described(transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
    return DescribeTransactionsResponse.TransactionState(
        error_code=DENIED,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


def _shown(
    client: Client, state: DescribeTransactionsResponse.TransactionState
) -> DescribeTransactionsResponse.TransactionState:
    names = [topic.topic for topic in state.topics]
    hidden = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    state.topics = [topic for topic in state.topics if topic.topic not in hidden]
    return state


def guard_list(client: Client, context: RequestContext, request: ListTransactionsRequest, proceed: Proceed) -> Outcome:
    """Shows the transactional ids that the client may describe."""
    del context

    def visible(response: ListTransactionsResponse) -> ListTransactionsResponse:
        names = [each.transactional_id for each in response.transaction_states]
        hidden = client.denied(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, names)
        response.transaction_states = [
            each for each in response.transaction_states if each.transactional_id not in hidden
        ]
        return response

    return then(proceed(request), visible)
