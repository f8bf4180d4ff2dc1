"""Without its right a request changes nothing and shows nothing: every API and version, against a client without
rights; and each API with exactly the right that Kafka requires.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.network.registry import api
from broker.security.rights import CHECKED_BY_HANDLER, EVERYBODY, OnCluster, Unasked
from protocol.acl_types import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, AclPermissionType, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.messages.cluster_commands import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from protocol.messages.cluster_requests import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
)
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_offsets import OffsetDeleteRequest, OffsetFetchRequest
from protocol.messages.groups import LeaveGroupRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.producer_ids import InitProducerIdRequest
from protocol.messages.topics import DeleteTopicsRequest
from protocol.messages.transactions import AddPartitionsToTxnRequest
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from tests.broker.network.effect_requests import (
    Trial,
    altered,
    commit,
    described,
    find_coordinators,
    join,
    listed,
    produce,
)
from tests.broker.network.effects import CASES, Case
from tests.broker.security.secured import ADMIN, Creation, SecuredBroker, acl, codes_in, play
from tests.docs.documents import served_apis
from tests.kit.in_process import Wire
from tests.kit.transactions.requests import add_offsets, add_partitions, commit_offsets, end
from tests.kit.wire_requests import fetch, new_topic

REFUSALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.ILLEGAL_SASL_STATE,
    }
)
OPEN_TO_ALL = frozenset({ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER})
TOKENS = (
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
)
EMPTY_FOR_NOBODY = frozenset({ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS})
"""APIs that show what the client may see, and refuse nothing."""
NOBODY = "User:nobody"
Right = tuple[ResourceType, str, AclOperation]
Named = MetadataRequest.MetadataRequestTopic
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
CLUSTER_RIGHTS = {mark.api_key: mark.right.operations for mark in served_apis() if isinstance(mark.right, OnCluster)}


async def snapshot(wire: Wire, trial: Trial) -> list[str]:
    """The whole state, as a client with all rights sees it."""
    offsets = OffsetFetchRequest(group_id=trial.g, topics=None)
    asked: list[tuple[Any, int]] = [
        (MetadataRequest(topics=None, allow_auto_topic_creation=False), 9),
        (listed(-1)(trial), 7),
        (listed(-2)(trial), 7),
        (offsets, 5),
        (described(trial), 1),
        *((case.build(trial), case.version) for case in CASES if case.api_key in SHOWING),
    ]
    return [repr(await wire.ask(request, version)) for request, version in asked]


SHOWING = frozenset({ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_LOG_DIRS})


OTHER_FORMS = (
    Case(ApiKey.FIND_COORDINATOR, 3, lambda trial: FindCoordinatorRequest(key=trial.g, key_type=0), "one"),
    Case(
        ApiKey.FIND_COORDINATOR, 4, lambda trial: FindCoordinatorRequest(key_type=1, coordinator_keys=[trial.g]), "id"
    ),
    Case(ApiKey.LEAVE_GROUP, 2, lambda trial: LeaveGroupRequest(group_id=trial.m, member_id=trial.member_id), "one"),
    Case(
        ApiKey.OFFSET_FETCH,
        8,
        lambda trial: OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=trial.g, topics=None)]
        ),
        "groups",
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        6,
        lambda trial: DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=trial.t, topic_id=ZERO_UUID)], timeout_ms=10_000
        ),
        "states",
    ),
    Case(ApiKey.METADATA, 3, lambda trial: MetadataRequest(topics=[Named(name=trial.t), Named(name=trial.n)]), "old"),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        lambda trial: AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id="nobody",
                    producer_id=1,
                    producer_epoch=0,
                    topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=trial.t, partitions=[0])],
                )
            ]
        ),
        "brokers",
    ),
)
"""Requests for versions with a different form of the same content."""
SAID_OTHERWISE = {(ApiKey.DELETE_TOPICS, 6)}
"""Versions whose request in CASES is empty."""


def of_others(permission: AclPermissionType | None) -> list[Creation]:
    """ACLs that do not help NOBODY."""
    if permission is None:
        return []
    names = {TOPIC: "t", GROUP: "m", TRANSACTION: "no"}
    if permission is AclPermissionType.ALLOW:
        # For shorter names and another user; WRITE on any topic would be enough for idempotence.
        operations = {each: set(SUPPORTED_OPERATIONS[each]) - {AclOperation.WRITE} for each in names}
        mine = [acl(each, names[each], what, principal=NOBODY) for each in names for what in operations[each]]
        return [*mine, *(acl(each, "*", AclOperation.ALL, principal="Group:nobody") for each in names)]
    everything = [*((each, "*") for each in names), (CLUSTER, CLUSTER_NAME)]
    allowed = [acl(*each, AclOperation.ALL, principal="User:*") for each in everything]
    denied = [
        acl(kind, name, what, principal=NOBODY, permission=permission)
        for kind, name in everything
        for what in SUPPORTED_OPERATIONS[kind]
    ]
    return allowed + denied


@pytest.mark.parametrize("lists", [None, AclPermissionType.ALLOW, AclPermissionType.DENY], ids=str)
@pytest.mark.parametrize("case", [*CASES, *OTHER_FORMS], ids=str)
def test_nobody_changes_or_sees_anything(case: Case, lists: AclPermissionType | None) -> None:
    """The ACLs are empty; or name only other users and resources; or a deny outweighs every allow.

    CVE-2023-50976 of Redpanda, whose transactions were not authorized.
    """

    async def scenario(broker: SecuredBroker) -> None:
        trial, admin = Trial(1), broker.wire(ADMIN)
        await broker.allow(*of_others(lists))
        await trial.build(admin, flush_messages=None)  # type: ignore[arg-type]  # it asks one request at a time
        before = await snapshot(admin, trial)
        route = broker.server.serving.registry.routes[case.api_key]
        asked = 0
        for version in range(route.min_version, route.max_version + 1):
            wire = broker.wire(NOBODY)
            try:
                answer: Any = await wire.ask(case.build(trial), version)
            except (EncodeError, ApiError):
                continue  # that version has a different form
            if (case.api_key, version) in SAID_OTHERWISE and case.name == "":
                continue
            asked += 1
            codes = codes_in(answer)
            if case.api_key in EMPTY_FOR_NOBODY:
                assert not any(codes)
            elif case.api_key not in OPEN_TO_ALL:
                told = {ErrorCode.of(code) for code in codes} - {ErrorCode.NONE}
                if case.api_key is ApiKey.DESCRIBE_LOG_DIRS and version < 3:
                    assert answer.results == []
                elif (case.api_key, version) == (ApiKey.OFFSET_FETCH, 1):
                    assert answer.topics == [], "as in Kafka"
                elif (case.api_key, version) == (ApiKey.SYNC_GROUP, 5):
                    assert told == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}, "refused before anything is looked at"
                elif case.api_key is ApiKey.FETCH and version > 12:
                    assert told == {ErrorCode.UNKNOWN_TOPIC_ID}, "no topic has this id"
                else:
                    assert told, (version, answer)
                    assert told <= REFUSALS, (version, answer)
        assert asked
        assert await snapshot(admin, trial) == before

    play(scenario)


def test_each_api_has_a_right_and_a_request_here() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        routes = list(broker.server.serving.registry)
        unasked = {route.api_key: route.right for route in routes if isinstance(route.right, Unasked)}
        assert unasked == {
            **dict.fromkeys((*OPEN_TO_ALL, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE), EVERYBODY),
            **dict.fromkeys((ApiKey.METADATA, ApiKey.FETCH, *TOKENS), CHECKED_BY_HANDLER),
        }
        between_brokers = {each for each, rights in CLUSTER_RIGHTS.items() if AclOperation.CLUSTER_ACTION in rights}
        assert {route.api_key for route in routes} - {case.api_key for case in CASES} <= between_brokers

    play(scenario)


def test_an_api_cannot_be_declared_without_a_right() -> None:
    with pytest.raises(TypeError, match="'right'"):
        api(ApiKey.HEARTBEAT, versions=(0, 4))  # type: ignore[call-arg]


def commands(version: int) -> list[Any]:
    """The requests that only brokers may send, for partition 0 of the topic t."""
    state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        topic_name="t", partition_index=0, controller_epoch=99, leader=7, leader_epoch=9, isr=[7], partition_epoch=1,
        replicas=[7],
    )  # fmt: skip
    roles = LeaderAndIsrRequest(controller_id=7, controller_epoch=99, live_leaders=[])
    stop = StopReplicaRequest(controller_id=7, controller_epoch=99)
    if version < 2:
        roles.ungrouped_partition_states = [state]
    else:
        roles.topic_states = [LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t", partition_states=[state])]
    if version == 0:
        stop.ungrouped_partitions = [StopReplicaRequest.StopReplicaPartitionV0(topic_name="t", partition_index=0)]
    elif version < 3:
        stop.topics = [StopReplicaRequest.StopReplicaTopicV1(name="t", partition_indexes=[0])]
    else:
        partition = StopReplicaRequest.StopReplicaPartitionState(partition_index=0, delete_partition=True)
        stop.topic_states = [StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[partition])]
    return [
        roles,
        stop,
        UpdateMetadataRequest(controller_id=7, controller_epoch=99, live_brokers=[]),
        ControlledShutdownRequest(broker_id=0),
        AlterPartitionRequest(broker_id=0, topics=[]),
        AllocateProducerIdsRequest(broker_id=0),
    ]


@pytest.mark.parametrize("number", range(6))
def test_nobody_commands_a_broker(number: int) -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        route = broker.server.serving.registry.routes[commands(0)[number].api_key]
        before = repr(broker.server.serving.coordination.metadata.image)
        for version in range(route.min_version, route.max_version + 1):
            answer: Any = await broker.wire(NOBODY).ask(commands(version)[number], version)
            assert set(codes_in(answer)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}, (version, answer)
        assert repr(broker.server.serving.coordination.metadata.image) == before
        assert broker.server.serving.logs.replicas.partition(TopicPartition("t", 0)).leader_epoch == 0

    play(scenario)


@pytest.mark.parametrize(
    ("request_of", "version", "rights"),
    [
        (lambda: produce(("t",), (0,), b"v"), 9, [(TOPIC, "t", AclOperation.WRITE)]),
        (lambda: fetch("t", 0), 11, [(TOPIC, "t", AclOperation.READ)]),
        (lambda: listed(-1)(Trial(1)), 7, [(TOPIC, "t1", AclOperation.DESCRIBE), (TOPIC, "n1", AclOperation.DESCRIBE)]),
        (lambda: commit("g", ("t",), 1), 2, [(GROUP, "g", AclOperation.READ), (TOPIC, "t", AclOperation.READ)]),
        (lambda: join("g"), 3, [(GROUP, "g", AclOperation.READ)]),
        (
            lambda: add_offsets("x", 1, 0, "g"),
            3,
            [(TRANSACTION, "x", AclOperation.WRITE), (GROUP, "g", AclOperation.READ)],
        ),
        (lambda: end("x", 1, 0, commit=True), 3, [(TRANSACTION, "x", AclOperation.WRITE)]),
        (
            lambda: commit_offsets("x", 1, 0, "g", TopicPartition("t", 0), 2),
            3,
            [
                (TRANSACTION, "x", AclOperation.WRITE),
                (GROUP, "g", AclOperation.READ),
                (TOPIC, "t", AclOperation.READ),
            ],
        ),
        (
            lambda: add_partitions("x", 1, 0, TopicPartition("t", 0)),
            3,
            [(TRANSACTION, "x", AclOperation.WRITE), (TOPIC, "t", AclOperation.WRITE)],
        ),
        (
            lambda: OffsetDeleteRequest(
                group_id="g1",
                topics=[
                    OffsetDeleteRequest.OffsetDeleteRequestTopic(
                        name="t", partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
                    )
                ],
            ),
            0,
            [(GROUP, "g1", AclOperation.DELETE), (TOPIC, "t", AclOperation.READ)],
        ),
        (lambda: DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5, [(TOPIC, "t", AclOperation.DELETE)]),
        (
            lambda: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
            4,
            [(CLUSTER, CLUSTER_NAME, AclOperation.IDEMPOTENT_WRITE)],
        ),
        (
            lambda: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
            4,
            [(TOPIC, "any", AclOperation.WRITE)],
        ),
        (lambda: new_topic("new"), 7, [(TOPIC, "new", AclOperation.CREATE)]),
        (lambda: new_topic("new"), 7, [(CLUSTER, CLUSTER_NAME, AclOperation.CREATE)]),
        (lambda: altered(Trial(1)), 1, [(TOPIC, "t1", AclOperation.ALTER_CONFIGS)]),
        (
            lambda: described(Trial(1)),
            1,
            [(TOPIC, "t1", AclOperation.DESCRIBE_CONFIGS), (TOPIC, "n1", AclOperation.DESCRIBE_CONFIGS)],
        ),
        *(
            (lambda case=case: case.build(Trial(1)), case.version, [(CLUSTER, CLUSTER_NAME, right)])
            for case in CASES
            if case.api_key in CLUSTER_RIGHTS
            for right in CLUSTER_RIGHTS[case.api_key]
        ),
    ],
)  # fmt: skip
def test_the_right_is_enough(request_of: Any, version: int, rights: list[Right]) -> None:
    """With all of the rights it is allowed; without one of them it is refused, whatever other rights the client has."""

    async def scenario(broker: SecuredBroker) -> None:
        for name in ("t", "t1", "n1"):
            await broker.wire(ADMIN).ask(new_topic(name, 2), 7)
        await find_coordinators(broker.wire(ADMIN), Trial(1))  # type: ignore[arg-type]  # it asks one request at a time
        await broker.wire(ADMIN).ask(commit("g1", ("t",), 1), 2)
        users = [f"User:{number}" for number in range(len(rights))]
        for user, missing in zip(users, rights, strict=True):
            given = {right for right in rights if right != missing} | set(others(missing, request_of().api_key))
            assert missing not in given
            await broker.allow(*(acl(*right, principal=user) for right in given))
        for user, missing in zip(users, rights, strict=True):
            codes = codes_in(await broker.wire(user).ask(request_of(), version))
            assert REFUSALS & set(map(ErrorCode, codes)), f"without {missing}"
        await broker.allow(*(acl(*right) for right in rights))
        codes = codes_in(await broker.wire().ask(request_of(), version))
        assert not REFUSALS & set(map(ErrorCode, codes))

    play(scenario)


def others(missing: Right, api_key: ApiKey) -> list[Right]:
    """All other rights to the resource, except those that imply the missing one."""
    resource_type, name, operation = missing
    enough = {operation}
    if operation is AclOperation.DESCRIBE:
        enough |= {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    if operation is AclOperation.DESCRIBE_CONFIGS:
        enough.add(AclOperation.ALTER_CONFIGS)
    if resource_type is CLUSTER and api_key in CLUSTER_RIGHTS:
        enough.update(CLUSTER_RIGHTS[api_key])
    return [(resource_type, name, each) for each in SUPPORTED_OPERATIONS[resource_type] if each not in enough]
