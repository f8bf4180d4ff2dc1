"""The topics and groups of one trial, and the requests that touch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from protocol.messages.configs import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from protocol.messages.groups import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.producer_ids import DescribeProducersRequest
from protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from protocol.messages.reassignments import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from protocol.messages.security import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request, Response
from tests.kit.waiting import eventually_async

TOPIC_RESOURCE: Final = 2
TIMESTAMP_MS: Final = 1_700_000_000_000
RECORDS: Final = 5
PARTITIONS: Final = (0, 1)


class Client(Protocol):
    """One connection."""

    async def ask(self, request: Request, version: int) -> Any:
        """Ask and wait for the reply."""

    async def ask_together(self, asked: Sequence[tuple[Request, int]]) -> list[Response]:
        """Send all requests in one packet."""


@dataclass
class Trial:
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
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topics that a trial writes to."""
        return [TopicPartition(name, number) for name in self.topics for number in PARTITIONS]

    @property
    def topics(self) -> tuple[str, str]:
        return self.t, self.n

    async def build(self, client: Client, *, flush_messages: int | None) -> None:
        """Create everything that the trial needs."""
        await find_coordinators(client, self)
        await client.ask(create(self.t, {} if flush_messages is None else {"flush.messages": str(flush_messages)}), 7)
        for value in range(RECORDS):
            await client.ask(produce((self.t,), (0,), b"%d" % value), 9)
        await client.ask(commit(self.g, (self.t,), 3), 2)
        joined = await client.ask(join(self.m), 3)
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        await client.ask(sync(self), 3)

    async def clear(self, client: Client) -> None:
        """Remove the rest."""
        await client.ask(DeleteTopicsRequest(topic_names=list(self.topics), timeout_ms=10_000), 5)
        await client.ask(leave(self), 3)
        await client.ask(DeleteGroupsRequest(groups_names=[self.g, self.m]), 1)


async def find_coordinators(client: Client, trial: Trial) -> None:
    """Make the broker create the topic of the groups, and wait until it serves them."""
    for group in (trial.g, trial.m):
        await eventually_async(
            f"a coordinator of {group}", partial(_errors_of_coordinator, client, group), lambda codes: not any(codes)
        )


async def _errors_of_coordinator(client: Client, group: str) -> tuple[int, int]:
    found = await client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
    described = await client.ask(DescribeGroupsRequest(groups=[group]), 3)
    return found.coordinators[0].error_code, described.groups[0].error_code


def create(topic: str, configs: dict[str, str] | None = None) -> CreateTopicsRequest:
    entries = [CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()]
    created = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=entries
    )
    return CreateTopicsRequest(topics=[created], timeout_ms=10_000)


def produce(topics: Sequence[str], partitions: Sequence[int], value: bytes, acks: int = 1) -> ProduceRequest:
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


def commit(group: str, topics: Sequence[str], offset: int) -> OffsetCommitRequest:
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


def committed(trial: Trial) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        group_id=trial.g,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=list(PARTITIONS))
            for topic in trial.topics
        ],
    )


def join(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


def sync(trial: Trial) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=trial.m,
        generation_id=trial.generation_id,
        member_id=trial.member_id,
        assignments=[SyncGroupRequest.SyncGroupRequestAssignment(member_id=trial.member_id, assignment=b"a")],
    )


def leave(trial: Trial) -> LeaveGroupRequest:
    member = LeaveGroupRequest.MemberIdentity(member_id=trial.member_id)
    return LeaveGroupRequest(group_id=trial.m, members=[member])


def described(trial: Trial) -> DescribeConfigsRequest:
    keys = ["max.message.bytes", "retention.ms"]
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=keys
            )
            for topic in trial.topics
        ]
    )


def altered(trial: Trial) -> AlterConfigsRequest:
    config = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="86400000")
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=trial.t, configs=[config]
    )
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def altered_incrementally(trial: Trial) -> IncrementalAlterConfigsRequest:
    """A limit that refuses every further record."""
    config = IncrementalAlterConfigsRequest.AlterableConfig(name="max.message.bytes", config_operation=0, value="10")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=trial.t, configs=[config]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def quota_set(trial: Trial) -> AlterClientQuotasRequest:
    """A quota of a user that does not exist."""
    entry = AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=trial.g)],
        ops=[AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1000.0, remove=False)],
    )
    return AlterClientQuotasRequest(entries=[entry], validate_only=False)


def quotas(trial: Trial) -> DescribeClientQuotasRequest:
    component = DescribeClientQuotasRequest.ComponentData(entity_type="user", match_type=0, match=trial.g)
    return DescribeClientQuotasRequest(components=[component], strict=False)


def listed(timestamp: int) -> Callable[[Trial], ListOffsetsRequest]:
    def build(trial: Trial) -> ListOffsetsRequest:
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
                for topic in trial.topics
            ],
        )

    return build


def fetched(trial: Trial) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1 << 20)
                    for each in PARTITIONS[:1]  # Kafka lists a topic twice if one of its partitions is missing
                ],
            )
            for topic in trial.topics
        ],
    )


def records_deleted(trial: Trial) -> DeleteRecordsRequest:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=3)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=trial.t, partitions=[partition])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)


def epochs(trial: Trial) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=-2,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic=topic,
                partitions=[OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=each, leader_epoch=0)],
            )
            for topic in trial.topics
            for each in PARTITIONS
        ],
    )


def metadata(*, creates: bool) -> Callable[[Trial], MetadataRequest]:
    return lambda trial: MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in trial.topics],
        allow_auto_topic_creation=creates,
    )


def grown(trial: Trial) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=trial.t, count=2, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)


def offsets_deleted(trial: Trial) -> OffsetDeleteRequest:
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=trial.t, partitions=[partition])
    return OffsetDeleteRequest(group_id=trial.g, topics=[topic])


def log_dirs(trial: Trial) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=list(PARTITIONS))
            for topic in trial.topics
        ]
    )


def producers(trial: Trial) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=list(PARTITIONS))
            for topic in trial.topics
        ]
    )


def moved(trial: Trial) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=trial.t, partitions=[0])
    return AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/nowhere", topics=[topic])]
    )


def moves_cancelled(topics: Sequence[str]) -> AlterPartitionReassignmentsRequest:
    """AlterPartitionReassignments that cancel moves which were never started."""
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=None)
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    return AlterPartitionReassignmentsRequest(topics=[topic(name=name, partitions=[partition]) for name in topics])


def leaders_elected(topics: Sequence[str]) -> ElectLeadersRequest:
    """ElectLeaders of preferred leaders, which already lead."""
    topic = ElectLeadersRequest.TopicPartitions
    return ElectLeadersRequest(topic_partitions=[topic(topic=name, partitions=[0]) for name in topics])


def scram_altered(trial: Trial) -> AlterUserScramCredentialsRequest:
    """A password for a user with the name of a group."""
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=trial.g, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"salted"
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])


def scram_described(trial: Trial) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest(users=[DescribeUserScramCredentialsRequest.UserName(name=trial.g)])
