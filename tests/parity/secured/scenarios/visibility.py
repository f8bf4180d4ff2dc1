"""Clients with some rights: the topics, groups and transactions they see, and the authorized operations they get."""

from __future__ import annotations

from typing import Any

from protocol.acl_types import CLUSTER_NAME, AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.group_admin import DescribeGroupsRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from protocol.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from protocol.uuids import ZERO_UUID
from tests.broker.network.effect_requests import commit
from tests.broker.security.test_guards import commands
from tests.kit.environment import uuid_of
from tests.kit.transactions.requests import init
from tests.parity.secured.subject import (
    Creation,
    SecuredSubject,
    acl,
    secured_scenario,
    secured_scenario_for_each,
)
from tests.parity.subject import batch, produce_request

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
DENY = AclPermissionType.DENY
PREFIXED = PatternType.PREFIXED
Named = MetadataRequest.MetadataRequestTopic
UNKNOWN_ID = uuid_of(77)


def lists(b: SecuredSubject) -> dict[str, list[Creation]]:
    """ACLs for the topic "ta"."""
    name = b.name("ta")
    return {
        "literal": [acl(TOPIC, name, READ)],
        "prefixed": [acl(TOPIC, name[:-1], WRITE, resource_pattern_type=PREFIXED)],
        "longer_prefix": [acl(TOPIC, f"{name}b", ALL, resource_pattern_type=PREFIXED)],
        "wildcard": [acl(TOPIC, "*", DESCRIBE)],
        "literal_denied": [acl(TOPIC, "*", ALL), acl(TOPIC, name, DESCRIBE, permission_type=DENY)],
        "prefix_denied": [acl(TOPIC, name, ALL), acl(TOPIC, name[:3], ALL, resource_pattern_type=PREFIXED,
                                                    permission_type=DENY)],
        "all_denied": [acl(TOPIC, name, ALL), acl(TOPIC, "*", READ, permission_type=DENY, principal="User:*")],
        "denial_of_another": [acl(TOPIC, name, ALL), acl(TOPIC, name, ALL, permission_type=DENY, principal="User:x")],
        "denied_read": [acl(TOPIC, name, READ, permission_type=DENY), acl(TOPIC, name, DESCRIBE)],
        "host": [acl(TOPIC, name, READ, host="127.0.0.1")],
        "another_host": [acl(TOPIC, name, READ, host="127.0.0.2")],
        "denied_host": [acl(TOPIC, name, ALL), acl(TOPIC, name, ALL, host="127.0.0.1", permission_type=DENY)],
        "everybody": [acl(TOPIC, name, READ, principal="User:*")],
        "a_group_of_users": [acl(TOPIC, name, READ, principal="Group:alice")],
        "another_type": [acl(GROUP, name, ALL)],
        "configs": [acl(TOPIC, name, AclOperation.ALTER_CONFIGS)],
        "nothing_known_of_topics": [acl(TOPIC, name, AclOperation.CLUSTER_ACTION)],
    }  # fmt: skip


NAMES = (
    "literal", "prefixed", "longer_prefix", "wildcard", "literal_denied", "prefix_denied", "all_denied",
    "denial_of_another", "denied_read", "host", "another_host", "denied_host", "everybody", "a_group_of_users",
    "another_type", "configs", "nothing_known_of_topics",
)  # fmt: skip


@secured_scenario_for_each({name: name for name in NAMES})
def topics(b: SecuredSubject, name: str) -> None:
    for each in ("ta", "tb"):
        b.topic(each)
    b.grant(*lists(b)[name])
    for version in (4, 8, 10, 12):
        named = [Named(name=b.name(each)) for each in ("ta", "tb", "missing")]
        asked = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        asked.include_topic_authorized_operations = version >= 8
        b.as_user("alice", asked, version)
    by_id = [Named(topic_id=b.topic_id(b.name("ta")), name=None), Named(topic_id=UNKNOWN_ID, name=None)]
    b.as_user(
        "alice",
        MetadataRequest(topics=by_id, allow_auto_topic_creation=False, include_topic_authorized_operations=True),
        12,
    )
    b.as_user("alice", produce_request(b.name("ta"), batch(b"v")), 9)
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    for version in (11, 15):
        topic = FetchRequest.FetchTopic(partitions=[partition])
        if version < 13:
            topic.topic = b.name("ta")
        else:
            topic.topic_id = b.topic_id(b.name("ta"))
        fetched = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic], session_epoch=-1)
        b.as_user("alice", fetched, version)


@secured_scenario
def topics_deleted_by_id(b: SecuredSubject) -> None:
    for each in ("seen", "hidden", "deletable"):
        b.topic(each)
    b.grant(acl(TOPIC, b.name("seen"), DESCRIBE), acl(TOPIC, b.name("deletable"), AclOperation.DELETE))
    wanted = DeleteTopicsRequest.DeleteTopicState
    ids = [b.topic_id(b.name(each)) for each in ("seen", "hidden", "deletable")]
    states = [wanted(name=None, topic_id=each) for each in (*ids, UNKNOWN_ID)]
    states.append(wanted(name=b.name("missing"), topic_id=ZERO_UUID))
    b.as_user("alice", DeleteTopicsRequest(topics=states, timeout_ms=10_000), 6)


@secured_scenario
def topics_created(b: SecuredSubject) -> None:
    names = ("plain", "configs", "twice", "twice", "refused")
    b.grant(
        *(acl(TOPIC, b.name(each), AclOperation.CREATE) for each in ("plain", "configs", "twice")),
        acl(TOPIC, b.name("configs"), AclOperation.DESCRIBE_CONFIGS),
    )
    wanted = CreateTopicsRequest.CreatableTopic
    topics = [
        wanted(name=b.name(each), num_partitions=1, replication_factor=1, assignments=[], configs=[]) for each in names
    ]
    for version in (4, 5, 7):
        asked = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)
        answer: Any = b.as_user("alice", asked, version)
        b.note("number of results", len(answer.topics))


@secured_scenario
def operations_on_groups(b: SecuredSubject) -> None:
    b.topic("t")
    for each in ("a", "b", "c"):
        b.coordinator(b.name(each))
        b.quietly(commit(b.name(each), (b.name("t"),), 1), 2)
    b.grant(acl(GROUP, b.name("a"), READ), acl(GROUP, b.name("b"), AclOperation.DELETE), acl(GROUP, b.name("c"), WRITE))
    groups = [b.name(each) for each in ("a", "b", "c", "missing")]
    for version in (3, 5):
        asked = DescribeGroupsRequest(groups=groups, include_authorized_operations=True)
        b.as_user("alice", asked, version)
        b.ask(asked, version)


@secured_scenario_for_each({each.name: each for each in AclOperation if each >= ALL})
def operations_on_the_cluster(b: SecuredSubject, operation: AclOperation) -> None:
    b.grant(acl(CLUSTER, CLUSTER_NAME, operation))
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    for version in (0, 1):
        b.as_user("alice", asked, version)
    told = MetadataRequest(topics=[], allow_auto_topic_creation=False, include_cluster_authorized_operations=True)
    b.as_user("alice", told, 9)


@secured_scenario
def transactions(b: SecuredSubject) -> None:
    ids = [b.name(each) for each in ("a", "b", "c")]
    asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[*ids, b.name("missing")])
    b.as_user("alice", asked, 4)
    b.quietly(asked, 4)
    for each in ids:

        def is_given(name: str = each) -> bool:
            answer: Any = b.quietly(init(name), 4)
            return bool(answer.error_code == 0)

        b.until(is_given)
    b.grant(acl(TRANSACTION, ids[0], DESCRIBE), acl(TRANSACTION, ids[1], WRITE))
    b.as_user("alice", asked, 4)
    b.as_user("alice", DescribeTransactionsRequest(transactional_ids=[*ids, b.name("missing")]), 0)
    b.as_user("alice", ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)
    for each in ids:
        b.as_user("alice", init(each), 4)


@secured_scenario
def producers(b: SecuredSubject) -> None:
    for each in ("ta", "tb"):
        b.topic(each)
    b.grant(acl(TOPIC, b.name("ta"), WRITE))
    b.as_user("alice", produce_request(b.name("tb"), batch(b"v")), 3)
    b.as_user("alice", produce_request(b.name("missing"), batch(b"v")), 9)
    transactional = produce_request(b.name("ta"), batch(b"v"), transactional_id=b.name("x"))
    b.as_user("alice", transactional, 9)
    b.as_user("alice", produce_request(b.name("tb"), batch(b"v"), acks=1), 11)


COMMANDS = (
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "ControlledShutdown",
    "AlterPartition",
    "AllocateProducerIds",
)


@secured_scenario_for_each({name: number for number, name in enumerate(COMMANDS)})
def commanding(b: SecuredSubject, number: int) -> None:
    for version in b.range_of(commands(0)[number].api_key):
        b.as_user("alice", commands(version)[number], version)
