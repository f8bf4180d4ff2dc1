"""APIs that need a single right on the cluster (`KafkaApis`: `authorizeClusterOperation`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.network.registry import RequestContext
from broker.security.access import Client
from broker.security.replies import Outcome, Proceed
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.cluster_commands import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from protocol.messages.cluster_requests import (
    AllocateProducerIdsResponse,
    AlterPartitionResponse,
    ControlledShutdownResponse,
)
from protocol.messages.log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, DescribeLogDirsResponse
from protocol.messages.quotas import AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasResponse
from protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from protocol.uuids import Uuid
from protocol.wire.schema import Response

DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TOLD: Final = "Cluster authorization failed."

Refuse = Callable[[Any, int], Response]
"""Builds the response of a version that refuses a whole request."""

FIRST_LEADER_AND_ISR_ANSWERED_BY_TOPIC_ID: Final = 5
FIRST_ELECTION_WITH_ERROR_CODE: Final = 1


def leader_and_isr(request: LeaderAndIsrRequest, version: int) -> Response:
    """Every partition gets the error too."""
    failed = LeaderAndIsrResponse.LeaderAndIsrPartitionError
    refusal = LeaderAndIsrResponse(error_code=DENIED)
    by_topic: list[tuple[Uuid, list[LeaderAndIsrResponse.LeaderAndIsrPartitionError]]] = [
        (
            topic.topic_id,
            [
                failed(topic_name=topic.topic_name, partition_index=each.partition_index, error_code=DENIED)
                for each in topic.partition_states
            ],
        )
        for topic in request.topic_states
    ]
    if version >= FIRST_LEADER_AND_ISR_ANSWERED_BY_TOPIC_ID:
        by_id = LeaderAndIsrResponse.LeaderAndIsrTopicError
        refusal.topics = [by_id(topic_id=topic_id, partition_errors=errors) for topic_id, errors in by_topic]
    else:
        ungrouped = [
            failed(topic_name=each.topic_name, partition_index=each.partition_index, error_code=DENIED)
            for each in request.ungrouped_partition_states
        ]
        refusal.partition_errors = [*ungrouped, *(error for _, errors in by_topic for error in errors)]
    return refusal


def stop_replica(request: StopReplicaRequest, version: int) -> Response:  # noqa: ARG001
    """Every partition gets the error too."""
    partitions = [
        *((each.topic_name, each.partition_index) for each in request.ungrouped_partitions),
        *((topic.name, index) for topic in request.topics for index in topic.partition_indexes),
        *(
            (topic.topic_name, each.partition_index)
            for topic in request.topic_states
            for each in topic.partition_states
        ),
    ]
    failed = StopReplicaResponse.StopReplicaPartitionError
    return StopReplicaResponse(
        error_code=DENIED,
        partition_errors=[
            failed(topic_name=topic, partition_index=index, error_code=DENIED) for topic, index in partitions
        ],
    )


def write_txn_markers(request: WriteTxnMarkersRequest, version: int) -> Response:  # noqa: ARG001
    """Every partition of every producer gets the error."""
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=DENIED
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def alter_reassignments(request: AlterPartitionReassignmentsRequest, version: int) -> Response:  # noqa: ARG001
    """Every partition gets the error too."""
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=DENIED,
        error_message=TOLD,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_code=DENIED, error_message=TOLD
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def list_reassignments(request: ListPartitionReassignmentsRequest, version: int) -> Response:  # noqa: ARG001
    """Repeats the requested partitions, without details."""
    ongoing = ListPartitionReassignmentsResponse.OngoingPartitionReassignment
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=DENIED,
        error_message=TOLD,
        topics=[
            ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    ongoing(partition_index=index, replicas=[], adding_replicas=[], removing_replicas=[])
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def elect_leaders(request: ElectLeadersRequest, version: int) -> Response:
    """Every partition gets the error too."""
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=DENIED if version >= FIRST_ELECTION_WITH_ERROR_CODE else ErrorCode.NONE,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    ElectLeadersResponse.PartitionResult(partition_id=index, error_code=DENIED, error_message=None)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_log_dirs(request: AlterReplicaLogDirsRequest, version: int) -> Response:  # noqa: ARG001
    """Every partition gets the error."""
    return AlterReplicaLogDirsResponse(
        throttle_time_ms=0,
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=DENIED
                    )
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ],
    )


def create_acls(request: CreateAclsRequest, version: int) -> Response:  # noqa: ARG001
    """Every creation gets the error."""
    refusal = CreateAclsResponse.AclCreationResult(error_code=DENIED, error_message=TOLD)
    return CreateAclsResponse(throttle_time_ms=0, results=[refusal for _ in request.creations])


def delete_acls(request: DeleteAclsRequest, version: int) -> Response:  # noqa: ARG001
    """Every filter gets the error."""
    refusal = DeleteAclsResponse.DeleteAclsFilterResult(error_code=DENIED, error_message=TOLD, matching_acls=[])
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[refusal for _ in request.filters])


def describe_scram_users(request: DescribeUserScramCredentialsRequest, version: int) -> Response:  # noqa: ARG001
    """One result per requested user; as in Kafka, without the names."""
    refusal = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
        user="", error_code=DENIED, error_message=None, credential_infos=[]
    )
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0,
        error_code=DENIED,
        error_message=None,
        results=[refusal for _ in request.users or ()],
    )


def alter_scram_users(request: AlterUserScramCredentialsRequest, version: int) -> Response:  # noqa: ARG001
    """Every user gets the error, existing or not."""
    refusal = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    users = {each.name for changes in (request.deletions, request.upsertions) for each in changes}
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[refusal(user=user, error_code=DENIED, error_message=None) for user in sorted(users)],
    )


def alter_client_quotas(request: AlterClientQuotasRequest, version: int) -> Response:  # noqa: ARG001
    """Every entity gets the error, in the order of the request."""
    return AlterClientQuotasResponse(
        throttle_time_ms=0,
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=DENIED,
                error_message=TOLD,
                entity=[
                    AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ],
    )


CLUSTER_RIGHTS: Final[dict[ApiKey, tuple[tuple[AclOperation, ...], Refuse]]] = {
    ApiKey.LEADER_AND_ISR: ((AclOperation.CLUSTER_ACTION,), leader_and_isr),
    ApiKey.STOP_REPLICA: ((AclOperation.CLUSTER_ACTION,), stop_replica),
    ApiKey.UPDATE_METADATA: ((AclOperation.CLUSTER_ACTION,), lambda *_: UpdateMetadataResponse(error_code=DENIED)),
    ApiKey.CONTROLLED_SHUTDOWN: (
        (AclOperation.CLUSTER_ACTION,),
        lambda *_: ControlledShutdownResponse(error_code=DENIED, remaining_partitions=[]),
    ),
    ApiKey.ALTER_PARTITION: (
        (AclOperation.CLUSTER_ACTION,),
        lambda *_: AlterPartitionResponse(throttle_time_ms=0, error_code=DENIED, topics=[]),
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: (
        (AclOperation.CLUSTER_ACTION,),
        lambda *_: AllocateProducerIdsResponse(
            throttle_time_ms=0, error_code=DENIED, producer_id_start=0, producer_id_len=0
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: ((AclOperation.ALTER, AclOperation.CLUSTER_ACTION), write_txn_markers),
    ApiKey.DESCRIBE_ACLS: (
        (AclOperation.DESCRIBE,),
        lambda *_: DescribeAclsResponse(throttle_time_ms=0, error_code=DENIED, error_message=TOLD, resources=[]),
    ),
    ApiKey.CREATE_ACLS: ((AclOperation.ALTER,), create_acls),
    ApiKey.DELETE_ACLS: ((AclOperation.ALTER,), delete_acls),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ((AclOperation.ALTER,), alter_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ((AclOperation.DESCRIBE,), list_reassignments),
    ApiKey.ELECT_LEADERS: ((AclOperation.ALTER,), elect_leaders),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ((AclOperation.ALTER,), alter_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: (
        (AclOperation.DESCRIBE,),
        lambda *_: DescribeLogDirsResponse(throttle_time_ms=0, error_code=DENIED, results=[]),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        (AclOperation.DESCRIBE_CONFIGS,),
        lambda *_: DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=DENIED, error_message=None, entries=None
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ((AclOperation.ALTER_CONFIGS,), alter_client_quotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ((AclOperation.DESCRIBE,), describe_scram_users),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ((AclOperation.ALTER,), alter_scram_users),
}
"""By API: the rights, one of them sufficient (KIP-1037), and the refusal."""


def guard_cluster(client: Client, context: RequestContext, request: Any, proceed: Proceed, key: ApiKey) -> Outcome:
    """Pass the request on if the client has a right that the table lists."""
    operations, refuse = CLUSTER_RIGHTS[key]
    last = operations[-1]
    if any(client.may_in_cluster(each, logs_denial=each is last) for each in operations):
        return proceed(request)
    return refuse(request, context.api_version)
