"""Every API as a request that shares resources with the others, to be sent in pairs.

A trial has a topic "t" with records, no topic "n" yet, a group "g" without members that committed offsets, and a group
"m" with one member. `CASES` has at least one request for every API that has a handler; `essence` is the part of a reply
that shows the effects of earlier requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protocol.api_keys import ApiKey
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.groups import HeartbeatRequest
from protocol.messages.metadata import DescribeClusterRequest
from protocol.messages.producer_ids import InitProducerIdRequest
from protocol.messages.reassignments import ListPartitionReassignmentsRequest
from protocol.messages.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from protocol.messages.topics import DeleteTopicsRequest
from protocol.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from protocol.wire.schema import Request, Struct
from tests.broker.network.effect_requests import (
    PARTITIONS,
    Trial,
    altered,
    altered_incrementally,
    commit,
    committed,
    create,
    described,
    epochs,
    fetched,
    grown,
    join,
    leaders_elected,
    leave,
    listed,
    log_dirs,
    metadata,
    moved,
    moves_cancelled,
    offsets_deleted,
    produce,
    producers,
    quota_set,
    quotas,
    records_deleted,
    scram_altered,
    scram_described,
    sync,
)
from tests.kit.transactions.requests import add_offsets, add_partitions, commit_offsets, end, write_marker

NOBODY: Final = ("nobody", 1_000_000, 0)
"""A transactional id, producer id and epoch that no coordinator knows."""

# fmt: off
TOLD: Final = frozenset((
    "error_code", "base_offset", "high_watermark", "log_start_offset", "low_watermark", "committed_offset", "offset",
    "timestamp", "partition_index", "index", "partition", "name", "topic", "group_id", "value", "group_state",
    "generation_id", "end_offset", "records", "offset_lag",
))
# fmt: on
"""Fields that show effects."""


@dataclass(frozen=True)
class Case:
    """One request. `name` describes its special feature, if any."""

    api_key: ApiKey
    version: int
    build: Callable[[Trial], Request]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.api_key.name}{'-' if self.name else ''}{self.name}"


CASES: Final = (
    Case(ApiKey.API_VERSIONS, 3, lambda _: ApiVersionsRequest(client_software_name="a", client_software_version="1")),
    Case(ApiKey.FIND_COORDINATOR, 4, lambda trial: FindCoordinatorRequest(key_type=0, coordinator_keys=[trial.g])),
    Case(ApiKey.DESCRIBE_CONFIGS, 1, described),
    Case(ApiKey.ALTER_CONFIGS, 1, altered),
    Case(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered_incrementally),
    Case(ApiKey.JOIN_GROUP, 3, lambda trial: join(trial.g)),
    Case(ApiKey.SYNC_GROUP, 3, sync),
    Case(
        ApiKey.HEARTBEAT,
        3,
        lambda trial: HeartbeatRequest(group_id=trial.m, generation_id=trial.generation_id, member_id=trial.member_id),
    ),
    Case(ApiKey.LEAVE_GROUP, 3, leave),
    Case(ApiKey.DESCRIBE_GROUPS, 3, lambda trial: DescribeGroupsRequest(groups=[trial.g, trial.m])),
    Case(ApiKey.LIST_GROUPS, 4, lambda _: ListGroupsRequest()),
    Case(ApiKey.DELETE_GROUPS, 1, lambda trial: DeleteGroupsRequest(groups_names=[trial.g, trial.m])),
    Case(ApiKey.OFFSET_COMMIT, 2, lambda trial: commit(trial.g, trial.topics, 1)),
    Case(ApiKey.OFFSET_FETCH, 5, committed),
    Case(ApiKey.OFFSET_DELETE, 0, offsets_deleted),
    Case(ApiKey.CREATE_TOPICS, 4, lambda trial: create(trial.n)),
    Case(
        ApiKey.DELETE_TOPICS,
        5,
        lambda trial: DeleteTopicsRequest(topic_names=list(trial.topics), timeout_ms=10_000),
    ),
    Case(ApiKey.CREATE_PARTITIONS, 3, grown),
    Case(ApiKey.METADATA, 9, metadata(creates=False)),
    Case(ApiKey.DESCRIBE_CLUSTER, 0, lambda _: DescribeClusterRequest(include_cluster_authorized_operations=False)),
    Case(ApiKey.LIST_OFFSETS, 7, listed(-1), "latest"),
    Case(ApiKey.LIST_OFFSETS, 7, listed(-2), "earliest"),
    Case(ApiKey.LIST_OFFSETS, 7, listed(-3), "max-timestamp"),
    Case(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, epochs),
    Case(ApiKey.DELETE_RECORDS, 2, records_deleted),
    Case(ApiKey.PRODUCE, 9, lambda trial: produce(trial.topics, PARTITIONS, b"v")),
    Case(ApiKey.PRODUCE, 9, lambda trial: produce(trial.topics, PARTITIONS, b"v", acks=-1), "all"),
    Case(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, moved),
    Case(ApiKey.DESCRIBE_LOG_DIRS, 4, log_dirs),
    Case(ApiKey.DESCRIBE_PRODUCERS, 0, producers),
    Case(
        ApiKey.INIT_PRODUCER_ID, 4, lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    ),
    Case(ApiKey.FETCH, 11, fetched),
    Case(
        ApiKey.DESCRIBE_ACLS,
        1,
        lambda _: DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
    ),
    Case(
        ApiKey.CREATE_ACLS,
        1,
        lambda trial: CreateAclsRequest(
            creations=[
                CreateAclsRequest.AclCreation(
                    resource_type=2, resource_name=trial.t, principal="User:a", host="*", operation=3, permission_type=3
                )
            ]
        ),
    ),
    Case(
        ApiKey.DELETE_ACLS,
        1,
        lambda trial: DeleteAclsRequest(
            filters=[
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=2,
                    resource_name_filter=trial.t,
                    principal_filter=None,
                    host_filter=None,
                    operation=1,
                    permission_type=1,
                )
            ]
        ),
    ),
    Case(ApiKey.CREATE_DELEGATION_TOKEN, 1, lambda _: CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)),
    Case(ApiKey.RENEW_DELEGATION_TOKEN, 1, lambda _: RenewDelegationTokenRequest(hmac=b"", renew_period_ms=-1)),
    Case(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, lambda _: ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=-1)),
    Case(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, lambda _: DescribeDelegationTokenRequest(owners=None)),
    Case(ApiKey.ELECT_LEADERS, 2, lambda trial: leaders_elected(trial.topics)),
    Case(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, lambda trial: moves_cancelled(trial.topics)),
    Case(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, lambda _: ListPartitionReassignmentsRequest(topics=None)),
    Case(ApiKey.ADD_PARTITIONS_TO_TXN, 3, lambda trial: add_partitions(*NOBODY, *trial.partitions)),
    Case(ApiKey.ADD_OFFSETS_TO_TXN, 3, lambda trial: add_offsets(*NOBODY, trial.g)),
    Case(ApiKey.END_TXN, 3, lambda _: end(*NOBODY, commit=True)),
    Case(ApiKey.TXN_OFFSET_COMMIT, 3, lambda trial: commit_offsets(*NOBODY, trial.g, trial.partitions[0], 2)),
    Case(ApiKey.WRITE_TXN_MARKERS, 1, lambda trial: write_marker(*NOBODY[1:], *trial.partitions)),
    Case(ApiKey.DESCRIBE_TRANSACTIONS, 0, lambda _: DescribeTransactionsRequest(transactional_ids=["nobody"])),
    Case(ApiKey.LIST_TRANSACTIONS, 1, lambda _: ListTransactionsRequest(state_filters=[], producer_id_filters=[])),
    Case(ApiKey.ALTER_CLIENT_QUOTAS, 1, quota_set),
    Case(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, quotas),
    Case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, scram_described),
    Case(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, scram_altered),
    Case(ApiKey.SASL_HANDSHAKE, 1, lambda _: SaslHandshakeRequest(mechanism="PLAIN")),
    Case(ApiKey.SASL_AUTHENTICATE, 1, lambda _: SaslAuthenticateRequest(auth_bytes=b"")),
)


def essence(value: object, trial: Trial) -> Any:
    """The fields of a reply that show effects, with the trial's names replaced by neutral ones."""
    if isinstance(value, Struct):
        if getattr(value, "group_id", trial.g) not in (trial.g, trial.m):
            return None  # a group of another trial; a group with members cannot be deleted
        told = {
            name: essence(getattr(value, name), trial)
            for name, each in ((name, getattr(value, name)) for name in value.declared_fields)
            if name in TOLD or isinstance(each, list)
        }
        return {name: each for name, each in told.items() if each not in (None, [])}
    if isinstance(value, list):
        found = [essence(each, trial) for each in value]
        return sorted((each for each in found if each not in (None, {})), key=repr)
    if isinstance(value, str):
        for name in ("t", "n", "g", "m"):
            if value == f"{name}{trial.number}":
                return name
        # Other trials' groups and topics come and go.
        return value if value[1:].isdigit() is False else None
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    return value
