"""Without its right a request changes nothing and shows nothing: every API, every version, against a client that may
do nothing; and each API with exactly the right that Kafka asks for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.security.guarded_apis import GUARDS, UNGUARDED
from broker.security.guards.cluster_wide import CLUSTER_RIGHTS
from protocol.acl_types import CLUSTER_NAME, AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.messages import (
    AddPartitionsToTxnRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
)
from protocol.uuids import ZERO_UUID
from protocol.wire.schema import Struct
from tests.broker.network.effect_requests import Trial, altered, commit, described, join, listed, metadata, produce
from tests.broker.network.effects import CASES, Case
from tests.broker.security.secured import ADMIN, SecuredBroker, acl, play
from tests.kit.in_process import Wire
from tests.kit.wire_requests import fetch, new_topic

REFUSALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
OPEN_TO_ALL = frozenset({ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER})
EMPTY_FOR_NOBODY = frozenset({ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS})
"""APIs that show what the client may see, and refuse nothing."""
NOBODY = "User:nobody"
Named = MetadataRequest.MetadataRequestTopic
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def codes_in(value: object) -> list[int]:
    """Every error code of an answer."""
    if isinstance(value, list):
        return [code for each in value for code in codes_in(each)]
    if not isinstance(value, Struct):
        return []
    found = [code for name in value.declared_fields for code in codes_in(getattr(value, name))]
    names = ("error_code", "partition_error_code")
    return found + [getattr(value, name) for name in names if name in value.declared_fields]


async def snapshot(wire: Wire, trial: Trial) -> list[str]:
    """Everything, as somebody sees it who may see everything."""
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
"""Requests of versions that say the same otherwise."""
SAID_OTHERWISE = {(ApiKey.DELETE_TOPICS, 6)}
"""Versions for which CASES have an empty request."""


@pytest.mark.parametrize("case", [*CASES, *OTHER_FORMS], ids=str)
def test_nobody_changes_or_sees_anything(case: Case) -> None:
    async def scenario(broker: SecuredBroker) -> None:
        trial, admin = Trial(1), broker.wire(ADMIN)
        await trial.build(admin, flush_messages=None)  # type: ignore[arg-type]  # it asks one request at a time
        before = await snapshot(admin, trial)
        route = broker.server.serving.registry.routes[case.api_key]
        asked = 0
        for version in range(route.min_version, route.max_version + 1):
            wire = broker.wire(NOBODY)
            try:
                answer: Any = await wire.ask(case.build(trial), version)
            except (EncodeError, ApiError):
                continue  # that version says it otherwise
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
                elif case.api_key is ApiKey.FETCH and version > 12:
                    assert told == {ErrorCode.UNKNOWN_TOPIC_ID}, "no topic has this id"
                else:
                    assert told, (version, answer)
                    assert told <= REFUSALS, (version, answer)
        assert asked
        assert await snapshot(admin, trial) == before

    play(scenario)


def test_each_api_has_a_rule_and_a_request_here() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        served = {route.api_key for route in broker.server.serving.registry}
        asked = {case.api_key for case in CASES}
        own = {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ADD_PARTITIONS_TO_TXN}
        assert served <= GUARDS.keys() | UNGUARDED | CLUSTER_RIGHTS.keys() | own
        between_brokers = {
            each for each, (rights, _) in CLUSTER_RIGHTS.items() if AclOperation.CLUSTER_ACTION in rights
        }
        assert served - asked <= between_brokers

    play(scenario)


@pytest.mark.parametrize(
    ("request_of", "version", "rights"),
    [
        (lambda: produce(("t",), (0,), b"v"), 9, [(TOPIC, "t", AclOperation.WRITE)]),
        (lambda: fetch("t", 0), 11, [(TOPIC, "t", AclOperation.READ)]),
        (lambda: listed(-1)(Trial(1)), 7, [(TOPIC, "t1", AclOperation.READ), (TOPIC, "n1", AclOperation.WRITE)]),
        (lambda: commit("g", ("t",), 1), 2, [(GROUP, "g", AclOperation.READ), (TOPIC, "t", AclOperation.READ)]),
        (lambda: join("g"), 3, [(GROUP, "g", AclOperation.READ)]),
        (lambda: new_topic("new"), 7, [(TOPIC, "new", AclOperation.CREATE)]),
        (lambda: new_topic("new"), 7, [(CLUSTER, CLUSTER_NAME, AclOperation.CREATE)]),
        (lambda: altered(Trial(1)), 1, [(TOPIC, "t1", AclOperation.ALTER_CONFIGS)]),
        (
            lambda: described(Trial(1)),
            1,
            [(TOPIC, "t1", AclOperation.ALTER_CONFIGS), (TOPIC, "n1", AclOperation.DESCRIBE_CONFIGS)],
        ),
        *(
            (lambda case=case: case.build(Trial(1)), case.version, [(CLUSTER, CLUSTER_NAME, right)])
            for case in CASES
            if case.api_key in CLUSTER_RIGHTS
            for right in CLUSTER_RIGHTS[case.api_key][0]
        ),
    ],
)  # fmt: skip
def test_the_right_is_enough(
    request_of: Any, version: int, rights: list[tuple[ResourceType, str, AclOperation]]
) -> None:
    """With all of the rights it is not refused, without one of them it is."""

    async def scenario(broker: SecuredBroker) -> None:
        for name in ("t", "t1", "n1"):
            await broker.wire(ADMIN).ask(new_topic(name, 2), 7)
        for number, right in enumerate(rights):
            codes = codes_in(await broker.wire().ask(request_of(), version))
            assert REFUSALS & set(map(ErrorCode, codes)), f"with {number} rights"
            await broker.allow(acl(right[0], right[1], right[2]))
        codes = codes_in(await broker.wire().ask(request_of(), version))
        assert not REFUSALS & set(map(ErrorCode, codes))

    play(scenario)


def test_an_unknown_topic_and_one_that_may_not_be_seen_look_alike() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("hidden"), 7)
        for version in range(1, 13):
            wanted = MetadataRequest.MetadataRequestTopic
            for name in ("hidden", "missing"):
                asked = MetadataRequest(topics=[wanted(name=name)], allow_auto_topic_creation=True)
                if version < 4:
                    asked = MetadataRequest(topics=[wanted(name=name)])
                answer: Any = await broker.wire().ask(asked, version)
                (topic,) = answer.topics
                assert (topic.error_code, topic.name, topic.partitions) == (29, name, [])
            everything: Any = await broker.wire().ask(MetadataRequest(topics=None), version)
            assert everything.topics == []
        everything = await broker.wire().ask(MetadataRequest(topics=[]), 0)
        assert everything.topics == []
        assert "missing" not in broker.server.serving.coordination.metadata.image.topics

    play(scenario)


def test_topics_are_shown_and_created_by_right() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        for name in ("a", "b"):
            await broker.wire(ADMIN).ask(new_topic(name), 7)
        await broker.allow(acl(TOPIC, "a", AclOperation.READ), acl(TOPIC, "c", AclOperation.WRITE))
        seen: Any = await broker.wire().ask(MetadataRequest(topics=None, include_topic_authorized_operations=True), 9)
        assert [topic.name for topic in seen.topics] == ["a"]
        assert seen.topics[0].topic_authorized_operations == 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
        names = [MetadataRequest.MetadataRequestTopic(name=name) for name in "abc"]
        asked = MetadataRequest(topics=names, allow_auto_topic_creation=True)
        seen = await broker.wire().ask(asked, 9)
        assert [(topic.name, topic.error_code) for topic in seen.topics] == [("a", 0), ("c", 29), ("b", 29)]
        await broker.allow(acl(TOPIC, "c", AclOperation.CREATE))
        seen = await broker.wire().ask(asked, 9)
        assert {topic.name: topic.error_code for topic in seen.topics} == {"a": 0, "c": 5, "b": 29}

    play(scenario)


def test_a_client_that_pretends_to_follow_gets_nothing_and_moves_nothing() -> None:
    """CVE-2018-1288."""

    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        await broker.wire(ADMIN).ask(produce(("t",), (0,), b"v"), 9)
        await broker.allow(acl(TOPIC, "t", AclOperation.READ))
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
        asked = FetchRequest(replica_id=5, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic], session_epoch=0)
        answer: Any = await broker.wire().ask(asked, 11)
        (data,) = answer.responses[0].partitions
        assert (data.error_code, len(data.records or b"")) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
        assert answer.session_id == 0
        await broker.allow(acl(CLUSTER, CLUSTER_NAME, AclOperation.CLUSTER_ACTION))
        answer = await broker.wire().ask(asked, 11)
        assert answer.responses[0].partitions[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED

    play(scenario)


def test_a_session_of_fetches_follows_the_rights() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        for name in ("a", "b"):
            await broker.wire(ADMIN).ask(new_topic(name), 7)
            await broker.wire(ADMIN).ask(produce((name,), (0,), b"v"), 9)
        await broker.allow(acl(TOPIC, "a", AclOperation.READ))
        wire = broker.wire()

        def asked(session_id: int, epoch: int, *topics: str) -> FetchRequest:
            partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
            return FetchRequest(
                max_wait_ms=0, min_bytes=0, max_bytes=1000, session_id=session_id, session_epoch=epoch,
                topics=[FetchRequest.FetchTopic(topic=name, partitions=[partition]) for name in topics],
            )  # fmt: skip

        first: Any = await wire.ask(asked(0, 0, "a", "b"), 11)
        told = {topic.topic: topic.partitions[0].error_code for topic in first.responses}
        assert told == {"a": 0, "b": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert len({topic.topic: topic.partitions[0].records for topic in first.responses}["b"] or b"") == 0
        await broker.allow(acl(TOPIC, "b", AclOperation.READ))
        second: Any = await wire.ask(asked(first.session_id, 1), 11)
        told = {topic.topic: topic.partitions[0].error_code for topic in second.responses}
        assert told["b"] == 0

    play(scenario)


def test_a_refused_producer_without_acks_is_hung_up_on() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        wire = broker.wire()
        wire.send(produce(("t",), (0,), b"v", acks=0), 9)
        await asyncio.sleep(0)
        assert wire.is_closed
        ends: Any = await broker.wire(ADMIN).ask(
            ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(
                        name="t",
                        partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                    )
                ],
            ),
            7,
        )
        assert ends.topics[0].partitions[0].offset == 0

    play(scenario)


def test_more_resources_than_are_described_at_once() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        names = [f"t{number}" for number in range(30)]
        for name in names:
            await broker.wire(ADMIN).ask(new_topic(name), 7)
            if name != "t7":
                await broker.allow(acl(TOPIC, name, AclOperation.DESCRIBE_CONFIGS))
        resource = DescribeConfigsRequest.DescribeConfigsResource
        asked = [resource(resource_type=2, resource_name=name, configuration_keys=["retention.ms"]) for name in names]
        answer: Any = await broker.wire().ask(DescribeConfigsRequest(resources=asked), 4)
        assert len(answer.results) == 30
        refused = answer.results[-1]
        assert (refused.resource_name, refused.error_message) == ("t7", "Topic authorization failed.")

    play(scenario)


def test_lists_of_hosts_are_about_the_address() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        await broker.allow(acl(TOPIC, "t", AclOperation.READ, host="10.0.0.1"))
        assert codes_in(await broker.wire().ask(metadata(creates=False)(Trial(1)), 9)).count(29) == 2
        here: Any = await broker.wire().ask(fetch("t", 0), 11)
        assert here.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await broker.allow(acl(TOPIC, "t", AclOperation.READ, host="127.0.0.1"))
        here = await broker.wire().ask(fetch("t", 0), 11)
        assert here.responses[0].partitions[0].error_code == 0

    play(scenario)


def test_refusals_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: SecuredBroker) -> None:
        caplog.set_level("INFO", "kafka.authorizer.logger")
        await broker.wire(ADMIN).ask(new_topic("t", 2), 7)
        await broker.wire().ask(produce(("t", "a\nb"), (0, 1), b"v"), 9)
        await broker.wire().ask(MetadataRequest(topics=None), 9)

    play(scenario)
    lines = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    line = (
        "Principal = User:alice is Denied Operation = Write from host = 127.0.0.1 on resource = Topic:LITERAL:{} for "
        "request = Produce with resourceRefCount = 2"
    )
    assert lines == [line.format("t"), line.format("a?b")]
