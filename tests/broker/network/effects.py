"""Every API as a request that touches what the others touch, to be asked in pairs.

A stage has a topic "t" with records, no topic "n" yet, a group "g" without members that committed offsets, and a group
"m" with one member. `CASES` has at least one request for every API that has a handler; `essence` is what a reply tells
of the effects of those before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from protocol.api_keys import ApiKey
from protocol.messages import (
    AlterConfigsRequest,
    AlterReplicaLogDirsRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeDelegationTokenRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeUserScramCredentialsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SyncGroupRequest,
)
from protocol.records.batch import Record, build_batch
from protocol.wire.schema import Request, Response, Struct

TOPIC_RESOURCE: Final = 2
TIMESTAMP_MS: Final = 1_700_000_000_000
RECORDS: Final = 5
PATIENCE: Final = 600
PARTITIONS: Final = (0, 1)
# fmt: off
TOLD: Final = frozenset((
    "error_code", "base_offset", "high_watermark", "log_start_offset", "low_watermark", "committed_offset", "offset",
    "timestamp", "partition_index", "index", "partition", "name", "topic", "group_id", "value", "group_state",
    "generation_id", "end_offset", "records", "offset_lag",
))
# fmt: on
"""Fields that tell of effects."""


class Client(Protocol):
    """One connection."""

    async def ask(self, request: Request, version: int) -> Any:
        """Ask and wait for the reply."""

    async def ask_together(self, asked: Sequence[tuple[Request, int]]) -> list[Response]:
        """Ask all in one packet."""


@dataclass
class Stage:
    """The names of one trial, and the member of its group."""

    number: int
    member_id: str = ""
    generation_id: int = -1

    @property
    def t(self) -> str:
        return f"t{self.number}"

    @property
    def n(self) -> str:
        return f"n{self.number}"

    @property
    def g(self) -> str:
        return f"g{self.number}"

    @property
    def m(self) -> str:
        return f"m{self.number}"

    @property
    def topics(self) -> tuple[str, str]:
        return self.t, self.n

    async def build(self, client: Client, *, flush_messages: int | None) -> None:
        """Make what the trial needs."""
        await _find_coordinators(client, self)
        await client.ask(_create(self.t, {} if flush_messages is None else {"flush.messages": str(flush_messages)}), 7)
        for value in range(RECORDS):
            await client.ask(_produce((self.t,), (0,), b"%d" % value), 9)
        await client.ask(_commit(self.g, (self.t,), 3), 2)
        await client.ask(_commit(self.g, (self.t,), 4), 0)
        joined = await client.ask(_join(self.m), 3)
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        await client.ask(_sync(self), 3)

    async def clear(self, client: Client) -> None:
        """Remove what is left."""
        await client.ask(DeleteTopicsRequest(topic_names=list(self.topics), timeout_ms=10_000), 5)
        await client.ask(_leave(self), 3)
        await client.ask(DeleteGroupsRequest(groups_names=[self.g, self.m]), 1)


@dataclass(frozen=True)
class Case:
    """One request. `name` says what is special about it, if anything."""

    api_key: ApiKey
    version: int
    build: Callable[[Stage], Request]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.api_key.name}{'-' if self.name else ''}{self.name}"


async def _find_coordinators(client: Client, stage: Stage) -> None:
    """Have the topic of the groups created, and wait until it serves them."""
    for group in (stage.g, stage.m):
        for _ in range(PATIENCE):
            found = await client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
            described = await client.ask(DescribeGroupsRequest(groups=[group]), 3)
            if not found.coordinators[0].error_code and not described.groups[0].error_code:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"{group} has no coordinator")


def _create(topic: str, configs: dict[str, str] | None = None) -> CreateTopicsRequest:
    entries = [CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()]
    created = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=entries
    )
    return CreateTopicsRequest(topics=[created], timeout_ms=10_000)


def _produce(topics: Sequence[str], partitions: Sequence[int], value: bytes, acks: int = 1) -> ProduceRequest:
    batch = build_batch([Record(0, TIMESTAMP_MS, None, value, [])])
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[ProduceRequest.PartitionProduceData(index=each, records=batch) for each in partitions],
            )
            for topic in topics
        ],
    )


def _commit(group: str, topics: Sequence[str], offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=each, committed_offset=offset, committed_metadata=""
                    )
                    for each in PARTITIONS
                ],
            )
            for topic in topics
        ],
    )


def _committed(stage: Stage) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        group_id=stage.g,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=list(PARTITIONS))
            for topic in stage.topics
        ],
    )


def _join(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


def _sync(stage: Stage) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=stage.m,
        generation_id=stage.generation_id,
        member_id=stage.member_id,
        assignments=[SyncGroupRequest.SyncGroupRequestAssignment(member_id=stage.member_id, assignment=b"a")],
    )


def _leave(stage: Stage) -> LeaveGroupRequest:
    member = LeaveGroupRequest.MemberIdentity(member_id=stage.member_id)
    return LeaveGroupRequest(group_id=stage.m, members=[member])


def _described(stage: Stage) -> DescribeConfigsRequest:
    keys = ["max.message.bytes", "retention.ms"]
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=keys
            )
            for topic in stage.topics
        ]
    )


def _altered(stage: Stage) -> AlterConfigsRequest:
    config = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="86400000")
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=stage.t, configs=[config]
    )
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def _altered_incrementally(stage: Stage) -> IncrementalAlterConfigsRequest:
    """No record fits any more."""
    config = IncrementalAlterConfigsRequest.AlterableConfig(name="max.message.bytes", config_operation=0, value="10")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=stage.t, configs=[config]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def _listed(timestamp: int) -> Callable[[Stage], ListOffsetsRequest]:
    def build(stage: Stage) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=each, timestamp=timestamp)
                        for each in PARTITIONS
                    ],
                )
                for topic in stage.topics
            ],
        )

    return build


def _fetched(stage: Stage) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1 << 20)
                    for each in PARTITIONS[:1]  # Kafka lists a topic twice if a partition of it is missing
                ],
            )
            for topic in stage.topics
        ],
    )


def _records_deleted(stage: Stage) -> DeleteRecordsRequest:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=stage.t, partitions=[partition])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)


def _epochs(stage: Stage) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=-2,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic=topic,
                partitions=[OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=each, leader_epoch=0)],
            )
            for topic in stage.topics
            for each in PARTITIONS
        ],
    )


def _metadata(*, creates: bool) -> Callable[[Stage], MetadataRequest]:
    return lambda stage: MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in stage.topics],
        allow_auto_topic_creation=creates,
    )


def _grown(stage: Stage) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=stage.t, count=2, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)


def _offsets_deleted(stage: Stage) -> OffsetDeleteRequest:
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=stage.t, partitions=[partition])
    return OffsetDeleteRequest(group_id=stage.g, topics=[topic])


def _log_dirs(stage: Stage) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=list(PARTITIONS))
            for topic in stage.topics
        ]
    )


def _moved(stage: Stage) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=stage.t, partitions=[0])
    return AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/nowhere", topics=[topic])]
    )


CASES: Final = (
    Case(ApiKey.API_VERSIONS, 3, lambda _: ApiVersionsRequest(client_software_name="a", client_software_version="1")),
    Case(ApiKey.FIND_COORDINATOR, 4, lambda stage: FindCoordinatorRequest(key_type=0, coordinator_keys=[stage.g])),
    Case(ApiKey.DESCRIBE_CONFIGS, 1, _described),
    Case(ApiKey.ALTER_CONFIGS, 1, _altered),
    Case(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, _altered_incrementally),
    Case(ApiKey.JOIN_GROUP, 3, lambda stage: _join(stage.g)),
    Case(ApiKey.SYNC_GROUP, 3, _sync),
    Case(
        ApiKey.HEARTBEAT,
        3,
        lambda stage: HeartbeatRequest(group_id=stage.m, generation_id=stage.generation_id, member_id=stage.member_id),
    ),
    Case(ApiKey.LEAVE_GROUP, 3, _leave),
    Case(ApiKey.DESCRIBE_GROUPS, 3, lambda stage: DescribeGroupsRequest(groups=[stage.g, stage.m])),
    Case(ApiKey.LIST_GROUPS, 4, lambda _: ListGroupsRequest()),
    Case(ApiKey.DELETE_GROUPS, 1, lambda stage: DeleteGroupsRequest(groups_names=[stage.g, stage.m])),
    Case(ApiKey.OFFSET_COMMIT, 2, lambda stage: _commit(stage.g, stage.topics, 1)),
    Case(ApiKey.OFFSET_COMMIT, 0, lambda stage: _commit(stage.g, stage.topics, 2), "v0"),
    Case(ApiKey.OFFSET_FETCH, 5, _committed),
    Case(ApiKey.OFFSET_FETCH, 0, _committed, "v0"),
    Case(ApiKey.OFFSET_DELETE, 0, _offsets_deleted),
    Case(ApiKey.CREATE_TOPICS, 4, lambda stage: _create(stage.n)),
    Case(
        ApiKey.DELETE_TOPICS,
        5,
        lambda stage: DeleteTopicsRequest(topic_names=list(stage.topics), timeout_ms=10_000),
    ),
    Case(ApiKey.CREATE_PARTITIONS, 3, _grown),
    Case(ApiKey.METADATA, 9, _metadata(creates=False)),
    Case(ApiKey.DESCRIBE_CLUSTER, 0, lambda _: DescribeClusterRequest(include_cluster_authorized_operations=False)),
    Case(ApiKey.LIST_OFFSETS, 7, _listed(-1), "latest"),
    Case(ApiKey.LIST_OFFSETS, 7, _listed(-2), "earliest"),
    Case(ApiKey.LIST_OFFSETS, 7, _listed(-3), "max-timestamp"),
    Case(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, _epochs),
    Case(ApiKey.DELETE_RECORDS, 2, _records_deleted),
    Case(ApiKey.PRODUCE, 9, lambda stage: _produce(stage.topics, PARTITIONS, b"v")),
    Case(ApiKey.PRODUCE, 9, lambda stage: _produce(stage.topics, PARTITIONS, b"v", acks=-1), "all"),
    Case(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, _moved),
    Case(ApiKey.DESCRIBE_LOG_DIRS, 4, _log_dirs),
    Case(
        ApiKey.INIT_PRODUCER_ID, 4, lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    ),
    Case(ApiKey.FETCH, 11, _fetched),
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
    Case(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, lambda _: DescribeDelegationTokenRequest(owners=None)),
    Case(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, lambda _: ListPartitionReassignmentsRequest(topics=None)),
    Case(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, lambda _: DescribeClientQuotasRequest(components=[], strict=False)),
    Case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, lambda _: DescribeUserScramCredentialsRequest(users=None)),
)


def essence(value: object, stage: Stage) -> Any:
    """What a reply tells of effects, with the trial's names made those of every trial."""
    if isinstance(value, Struct):
        if getattr(value, "group_id", stage.g) not in (stage.g, stage.m):
            return None  # a group of another trial, which cannot be deleted while a member is in it
        told = {
            name: essence(getattr(value, name), stage)
            for name, each in ((name, getattr(value, name)) for name in value.declared_fields)
            if name in TOLD or isinstance(each, list)
        }
        return {name: each for name, each in told.items() if each not in (None, [])}
    if isinstance(value, list):
        found = [essence(each, stage) for each in value]
        return sorted((each for each in found if each not in (None, {})), key=repr)
    if isinstance(value, str):
        for name in ("t", "n", "g", "m"):
            if value == f"{name}{stage.number}":
                return name
        # Other trials' groups and topics come and go.
        return value if value[1:].isdigit() is False else None
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    return value
