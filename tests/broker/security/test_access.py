"""Requests of clients with few rights: what they see, what they must not learn, and what is logged."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker.network.registry import RequestContext
from broker.security.acl_access import MOST_REMEMBERED_CLIENTS, AclAccess
from cluster.security.acl_rules import AclRules
from cluster.security.principal import Principal
from protocol.acl_types import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from protocol.errors import ErrorCode
from protocol.messages.configs import DescribeConfigsRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest
from protocol.messages.topics import DeleteTopicsRequest
from tests.broker.network.effect_requests import Trial, metadata, produce
from tests.broker.security.secured import ADMIN, SecuredBroker, acl, codes_in, play
from tests.kit.waiting import eventually_on_loop
from tests.kit.wire_requests import fetch, new_topic

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


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


def test_who_may_not_describe_the_cluster_is_told_no_operations_on_it() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.allow(acl(CLUSTER, CLUSTER_NAME, AclOperation.CREATE))
        told = []
        for _ in range(2):
            answer: Any = await broker.wire().ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
            told.append(answer.cluster_authorized_operations)
            await broker.allow(acl(CLUSTER, CLUSTER_NAME, AclOperation.DESCRIBE))
        assert told == [0, 1 << AclOperation.CREATE | 1 << AclOperation.DESCRIBE]

    play(scenario)


def test_the_session_of_a_follower_is_of_no_use_to_others() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        await broker.wire(ADMIN).ask(produce(("t",), (0,), b"v"), 9)
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000}
        opened: Any = await broker.wire(ADMIN).ask(
            FetchRequest(replica_id=5, topics=[topic], session_epoch=0, **limits), 11
        )
        assert opened.session_id
        forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=[0])]
        for epoch, changes in ((1, {}), (1, {"forgotten_topics_data": forgotten}), (0, {}), (-1, {})):
            asked = FetchRequest(topics=[topic], session_id=opened.session_id, session_epoch=epoch, **limits, **changes)
            answer: Any = await broker.wire().ask(asked, 11)
            (data,) = answer.responses[0].partitions
            assert (data.error_code, len(data.records or b"")) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
        kept = FetchRequest(replica_id=5, topics=[], session_id=opened.session_id, session_epoch=1, **limits)
        answer = await broker.wire(ADMIN).ask(kept, 11)
        assert answer.error_code == ErrorCode.NONE, "the session is as the follower left it"

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


def test_a_large_produce_without_acks_that_is_refused_is_hung_up_on_too() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        wire = broker.wire()
        wire.send(produce(("t",), tuple(range(1001)), b"v", acks=0), 9)
        await eventually_on_loop("the end", lambda: wire.is_closed)

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
    """Only named topics are logged: a request for all topics does not ask for the hidden ones."""
    named = [MetadataRequest.MetadataRequestTopic(name=each) for each in ("t", "u", "t")]

    async def scenario(broker: SecuredBroker) -> None:
        caplog.set_level("INFO", "kafka.authorizer.logger")
        await broker.wire(ADMIN).ask(new_topic("t", 2), 7)
        await broker.wire().ask(produce(("t", "a\nb"), (0, 1), b"v"), 9)
        await broker.wire().ask(MetadataRequest(topics=None), 9)
        await broker.wire().ask(MetadataRequest(topics=named), 9)

    play(scenario)
    lines = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    line = (
        "Principal = User:alice is Denied Operation = {} from host = 127.0.0.1 on resource = Topic:LITERAL:{} for "
        "request = {} with resourceRefCount = 1"
    )
    assert lines == [
        line.format("Write", "t", "Produce"),
        line.format("Write", "a?b", "Produce"),
        line.format("Describe", "t", "Metadata"),
        line.format("Describe", "u", "Metadata"),
    ]


def test_a_topic_that_may_not_be_seen_is_not_named_when_it_is_deleted_by_id() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.wire(ADMIN).ask(new_topic("t"), 7)
        topic_id = broker.server.serving.coordination.metadata.image.topics["t"].topic_id
        state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
        asked = DeleteTopicsRequest(topics=[state], timeout_ms=1000)
        answer: Any = await broker.wire().ask(asked, 6)
        assert (answer.responses[0].name, answer.responses[0].error_code) == (None, 29)
        await broker.allow(acl(TOPIC, "t", AclOperation.DESCRIBE))
        answer = await broker.wire().ask(asked, 6)
        assert (answer.responses[0].name, answer.responses[0].error_code) == ("t", 29)

    play(scenario)


def test_a_client_that_is_remembered_heeds_changes() -> None:
    """The contexts alternate between two principals, with many more than the cache holds."""
    rules = AclRules()
    access = AclAccess(rules)
    entry = AccessControlEntry("User:alice", "*", AclOperation.WRITE, AclPermissionType.ALLOW)
    pattern = ResourcePattern(TOPIC, "t", PatternType.LITERAL)
    contexts = [
        RequestContext(9, None, "127.0.0.1", "L", Principal("User", name))
        for _ in range(MOST_REMEMBERED_CLIENTS)
        for name in ("alice", "bob")
    ]
    for entries in ([], [entry], []):
        rules.index.replace(pattern, entries)
        rules.changed()
        for context in contexts:
            denied = access.client(context, "Produce").denied(AclOperation.WRITE, TOPIC, ["t"])
            assert denied == (frozenset() if entries and context.principal.name == "alice" else {"t"})


def test_a_remembered_client_is_logged_with_the_api_that_it_calls(caplog: pytest.LogCaptureFixture) -> None:
    access, context = AclAccess(AclRules()), RequestContext(9, None, "127.0.0.1", "L")
    for name in ("Produce", "Produce", "Fetch"):
        with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
            access.client(context, name).denied(AclOperation.WRITE, TOPIC, ["t", "t"])
    assert [message.partition("request = ")[2] for message in caplog.messages] == [
        f"{name} with resourceRefCount = 2" for name in ("Produce", "Produce", "Fetch")
    ]
