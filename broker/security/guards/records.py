"""Produce, ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers: rights on topics."""

from __future__ import annotations

from typing import Final

from broker.network.registry import CloseConnection, RequestContext
from broker.security.access import Client
from broker.security.replies import Outcome, Proceed, denied_topics, then, without_topics
from protocol.acl_types import AclOperation, ResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.producer_ids import DescribeProducersRequest, DescribeProducersResponse
from protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse
from protocol.records.record_format import is_transactional
from protocol.topic_partition import validate_topic_name
from protocol.wire.encoded_items import with_items

DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
TOLD: Final = "Topic authorization failed."
NOTHING: Final = -1

_Produced = ProduceResponse.TopicProduceResponse


def guard_produce(client: Client, context: RequestContext, request: ProduceRequest, proceed: Proceed) -> Outcome:
    """WRITE on each topic, and on the transactional id if any batch is transactional, regardless of the request's own
    claim (CVE-2018-17196).
    """
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None or not client.may(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return _refused_with_acks(request, failed, "Transactional Id authorization failed.")
    denied = denied_topics(client, AclOperation.WRITE, request.topic_data)
    if not denied:
        return proceed(request)
    refused = [_not_produced(topic, DENIED) for topic in request.topic_data if topic.name in denied]
    request.topic_data = [topic for topic in request.topic_data if topic.name not in denied]

    def add(response: ProduceResponse | None) -> ProduceResponse | None:
        if response is None:
            raise CloseConnection(f"a produce request with acks=0 failed with {DENIED.name}")
        response.responses = with_items(response.responses, _Produced, ProduceResponse, context.api_version, refused)
        return response

    return then(proceed(request), add)


def _is_transactional(request: ProduceRequest) -> bool:
    return any(is_transactional(data.records) for topic in request.topic_data for data in topic.partition_data)


def _refused_with_acks(request: ProduceRequest, error_code: ErrorCode, told: str) -> Outcome:
    if not request.acks:
        raise CloseConnection(f"a produce request with acks=0 failed with {error_code.name}")
    return ProduceResponse(responses=[_not_produced(topic, error_code, told) for topic in request.topic_data])


def _not_produced(topic: ProduceRequest.TopicProduceData, error_code: ErrorCode, told: str | None = None) -> _Produced:
    return _Produced(
        name=topic.name,
        partition_responses=[
            ProduceResponse.PartitionProduceResponse(
                index=data.index,
                error_code=error_code,
                base_offset=NOTHING,
                log_append_time_ms=NOTHING,
                log_start_offset=NOTHING,
                error_message=told,
            )
            for data in topic.partition_data
        ],
    )


def guard_list_offsets(
    client: Client, context: RequestContext, request: ListOffsetsRequest, proceed: Proceed
) -> Outcome:
    """DESCRIBE on each topic."""
    del context
    denied = denied_topics(client, AclOperation.DESCRIBE, request.topics)
    refused = [
        ListOffsetsResponse.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index, error_code=DENIED, timestamp=NOTHING, offset=NOTHING
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
        if topic.name in denied
    ]
    return without_topics(request, denied, refused, proceed)


def guard_epochs(
    client: Client, context: RequestContext, request: OffsetForLeaderEpochRequest, proceed: Proceed
) -> Outcome:
    """CLUSTER_ACTION, which followers have, or DESCRIBE on each topic."""
    del context
    if client.may_in_cluster(AclOperation.CLUSTER_ACTION, logs_denial=False):
        return proceed(request)
    denied = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, [topic.topic for topic in request.topics])
    refused = [
        OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                OffsetForLeaderEpochResponse.EpochEndOffset(
                    error_code=DENIED, partition=each.partition, leader_epoch=NOTHING, end_offset=NOTHING
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
        if topic.topic in denied
    ]
    request.topics = [topic for topic in request.topics if topic.topic not in denied]

    def add(response: OffsetForLeaderEpochResponse) -> OffsetForLeaderEpochResponse:
        response.topics = [*response.topics, *refused]
        return response

    return then(proceed(request), add) if refused else proceed(request)


def guard_delete_records(
    client: Client, context: RequestContext, request: DeleteRecordsRequest, proceed: Proceed
) -> Outcome:
    """DELETE on each topic."""
    del context
    denied = denied_topics(client, AclOperation.DELETE, request.topics)
    refused = [
        DeleteRecordsResponse.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                DeleteRecordsResponse.DeleteRecordsPartitionResult(
                    partition_index=each.partition_index, low_watermark=NOTHING, error_code=DENIED
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
        if topic.name in denied
    ]
    return without_topics(request, denied, refused, proceed)


def guard_describe_producers(
    client: Client, context: RequestContext, request: DescribeProducersRequest, proceed: Proceed
) -> Outcome:
    """READ on each topic with a valid name."""
    del context
    denied = client.denied(
        AclOperation.READ, ResourceType.TOPIC, [topic.name for topic in request.topics if _is_possible(topic.name)]
    )
    refused = [
        DescribeProducersResponse.TopicResponse(
            name=topic.name,
            partitions=[
                DescribeProducersResponse.PartitionResponse(
                    partition_index=index, error_code=DENIED, error_message=TOLD, active_producers=[]
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics
        if topic.name in denied
    ]
    return without_topics(request, denied, refused, proceed)


def _is_possible(topic: str) -> bool:
    try:
        validate_topic_name(topic)
    except ApiError:
        return False
    return True
