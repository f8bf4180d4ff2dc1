"""Requests that name a resource several times, and answers that leave resources out: which refusals the authorizer
logs, and the resourceRefCount of each line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.acl_types import CLUSTER_NAME, AclOperation, ResourceType
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.producer_ids import DescribeProducersRequest
from protocol.messages.topics import CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request
from tests.broker.network.effect_requests import commit
from tests.kit.transactions.requests import add_partitions, init
from tests.parity.secured.subject import SecuredSubject, acl, secured_scenario, secured_scenario_for_each
from tests.parity.subject import batch

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
Named = MetadataRequest.MetadataRequestTopic


def produced(topic: str) -> Request:
    data = [ProduceRequest.PartitionProduceData(index=each, records=batch(b"v")) for each in (0, 1)]
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )


def fetched(topic: str) -> Request:
    partitions = [
        FetchRequest.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1000) for each in (0, 1)
    ]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)],
        session_epoch=-1,
    )


def committed(topic: str) -> Request:
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=each, committed_offset=1, committed_metadata=""
        )
        for each in (0, 1)
    ]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return OffsetCommitRequest(group_id="mine", topics=topics)


def committed_in_transaction(topic: str) -> Request:
    partitions = [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=each, committed_offset=1, committed_metadata=""
        )
        for each in (0, 1)
    ]
    topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return TxnOffsetCommitRequest(
        transactional_id="mine", group_id="mine", producer_id=1, producer_epoch=0, topics=topics
    )


def offsets_fetched(topic: str) -> Request:
    topics = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])
    groups = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="mine", topics=[topics])
    return OffsetFetchRequest(groups=[groups])


def offsets_deleted(topic: str) -> Request:
    partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=each) for each in (0, 1)]
    topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    return OffsetDeleteRequest(group_id="mine", topics=topics)


def listed(topic: str) -> Request:
    partitions = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=each, timestamp=-1, current_leader_epoch=-1)
        for each in (0, 1)
    ]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)]
    return ListOffsetsRequest(replica_id=-1, topics=topics)


def epochs(topic: str) -> Request:
    partitions = [
        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=each, leader_epoch=0) for each in (0, 1)
    ]
    topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=partitions)]
    return OffsetForLeaderEpochRequest(replica_id=-2, topics=topics)


def records_deleted(topic: str) -> Request:
    partitions = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=each, offset=0) for each in (0, 1)]
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=partitions)]
    return DeleteRecordsRequest(topics=topics, timeout_ms=10_000)


def producers(topic: str) -> Request:
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0, 1])
    return DescribeProducersRequest(topics=[asked])


def added(topic: str) -> Request:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="mine",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
    )


def created(topic: str) -> Request:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=2, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=True)


OF_TWO_PARTITIONS: dict[str, tuple[Callable[[str], Request], int]] = {
    "produced": (produced, 9),
    "fetched": (fetched, 11),
    "committed": (committed, 8),
    "committed_in_transaction": (committed_in_transaction, 3),
    "offsets_fetched": (offsets_fetched, 8),
    "offsets_deleted": (offsets_deleted, 0),
    "listed": (listed, 7),
    "epochs": (epochs, 3),
    "records_deleted": (records_deleted, 2),
    "producers": (producers, 0),
    "added": (added, 3),
    "created": (created, 7),
}


@secured_scenario_for_each(OF_TWO_PARTITIONS)
def of_two_partitions(b: SecuredSubject, asked: tuple[Callable[[str], Request], int]) -> None:
    build, version = asked
    b.topic("t", partitions=2)
    b.grant(
        acl(GROUP, "mine", READ), acl(GROUP, "mine", AclOperation.DELETE), acl(TRANSACTION, "mine", WRITE),
    )  # fmt: skip
    b.as_user("alice", build(b.name("t")), version)


@secured_scenario
def named_twice(b: SecuredSubject) -> None:
    names = [b.topic("t"), b.name("missing"), b.name("t")]
    for version in (4, 9, 12):
        b.as_user("alice", MetadataRequest(topics=[Named(name=each) for each in names]), version)
    b.grant(acl(TOPIC, b.name("missing"), DESCRIBE))
    b.as_user("alice", MetadataRequest(topics=[Named(name=each) for each in names]), 9)
    groups = [b.name("g"), b.name("h"), b.name("g")]
    b.as_user("alice", DescribeGroupsRequest(groups=groups), 5)
    b.as_user("alice", DeleteGroupsRequest(groups_names=groups), 2)
    b.as_user("alice", FindCoordinatorRequest(key_type=0, coordinator_keys=groups[:2]), 4)
    b.as_user("alice", FindCoordinatorRequest(key_type=0, key=groups[0]), 3)
    b.as_user("alice", DescribeTransactionsRequest(transactional_ids=groups[:2]), 0)
    b.as_user("alice", DeleteTopicsRequest(topic_names=names[:2], timeout_ms=10_000), 5)


@secured_scenario
def everything_asked_for(b: SecuredSubject) -> None:
    for each in ("ta", "tb"):
        b.topic(each)
    b.grant(acl(TOPIC, b.name("ta"), READ))
    for version in (1, 9, 12):
        b.as_user("alice", MetadataRequest(topics=None), version)
    b.as_user("alice", MetadataRequest(topics=[]), 0)
    b.as_user("alice", MetadataRequest(topics=[]), 9)


@secured_scenario
def groups_and_their_topics(b: SecuredSubject) -> None:
    names = [b.topic(each, partitions=2) for each in ("ta", "tb")]
    b.coordinator(b.name("g"))
    b.quietly(commit(b.name("g"), tuple(names), 1), 2)
    b.grant(acl(GROUP, b.name("g"), DESCRIBE), acl(TOPIC, names[0], DESCRIBE))
    b.as_user("alice", ListGroupsRequest(), 4)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=b.name("g"), topics=None)
    b.as_user("alice", OffsetFetchRequest(groups=[asked]), 8)
    b.as_user("alice", OffsetFetchRequest(group_id=b.name("g"), topics=None), 5)


@secured_scenario
def transactions_and_their_topics(b: SecuredSubject) -> None:
    ids = [b.name(each) for each in ("x", "y")]
    names = [b.topic(each, partitions=2) for each in ("ta", "tb")]
    b.quietly(FindCoordinatorRequest(key_type=1, coordinator_keys=ids), 4)
    for each in ids:

        def is_given(name: str = each) -> Any:
            answer: Any = b.quietly(init(name), 4)
            return answer if answer.error_code == 0 else None

        given = b.until(is_given)

        def is_added(name: str = each, producer: Any = given) -> bool:
            answer: Any = b.quietly(
                add_partitions(
                    name, producer.producer_id, producer.producer_epoch, *(TopicPartition(each, 0) for each in names)
                ),
                3,
            )
            return not any(
                one.partition_error_code for result in answer.results_by_topic_v3_and_below
                for one in result.results_by_partition
            )  # fmt: skip

        b.until(is_added)
    b.grant(acl(TRANSACTION, ids[0], DESCRIBE), acl(TOPIC, names[0], DESCRIBE))
    b.as_user("alice", DescribeTransactionsRequest(transactional_ids=ids), 0)
    b.as_user("alice", ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)


@secured_scenario
def topics_made(b: SecuredSubject) -> None:
    wanted = CreateTopicsRequest.CreatableTopic
    names = ("t", "twice", "twice", "u")
    topics = [
        wanted(name=b.name(each), num_partitions=1, replication_factor=1, assignments=[], configs=[]) for each in names
    ]
    asked = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)
    b.as_user("alice", asked, 7)
    b.grant(acl(CLUSTER, CLUSTER_NAME, AclOperation.CREATE))
    b.as_user("alice", asked, 7)
    missing = [Named(name=b.name("missing"))]
    b.as_user("alice", MetadataRequest(topics=missing, allow_auto_topic_creation=False), 9)
