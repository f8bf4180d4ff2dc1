"""Metadata and DescribeCluster, version by version, with the answers of Apache Kafka 3.9.1 to the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.controller.controller_term import ControllerSettings
from broker.handlers.metadata import MetadataHandlers
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import CommandFence, TopicStates, UpdateMetadata
from cluster.controller.topics import NewTopic
from cluster.metadata_image import BrokerImage
from cluster.znodes import Endpoint
from protocol.errors import ErrorCode
from protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.topic_partition import CONSUMER_OFFSETS
from protocol.uuids import ZERO_UUID, Uuid
from tests.kit.controller.controller_fixtures import CLUSTER_ID, Cluster, context
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import uuid_of

OMITTED = -0x80000000

Asked = str | Uuid | tuple[str | None, Uuid]


class Broker(Cluster):
    """The handlers over a cluster with the topics `m1` (two partitions) and `m2`."""

    async def start(self, *_: Any, **__: Any) -> Broker:
        await super().start()
        await self.service.create_topics([NewTopic("m1", 2, 1), NewTopic("m2", 1, 1)])
        return self

    async def metadata(
        self, *topics: Asked, version: int = 12, everything: bool = False, listener: str = "PLAINTEXT", **options: bool
    ) -> MetadataResponse:
        asked = []
        for each in topics:
            name, topic_id = (
                (each, ZERO_UUID) if isinstance(each, str) else (None, each) if isinstance(each, Uuid) else each
            )
            asked.append(MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id))
        request = MetadataRequest(topics=None if everything else asked, **options)
        response = await MetadataHandlers(self.cache, self.auto_topics, self.machine.clock).metadata(
            context(version, listener), request
        )
        return MetadataResponse.decode(memoryview(response.to_bytes(version)), version)


def outline(response: MetadataResponse) -> list[tuple[str | None, ErrorCode, bool, int]]:
    """Per topic: name, error, whether it has an id, how many partitions."""
    return [
        (each.name, ErrorCode(each.error_code), each.topic_id != ZERO_UUID, len(each.partitions))
        for each in response.topics
    ]


def missing(name: str, error_code: ErrorCode) -> tuple[str, ErrorCode, bool, int]:
    return (name, error_code, False, 0)


M1 = ("m1", ErrorCode.NONE, True, 2)
M2 = ("m2", ErrorCode.NONE, True, 1)


@pytest.mark.parametrize("version", range(13))
@in_loop
async def test_a_topic_in_every_version(version: int) -> None:
    broker = await Broker().start()
    response = await broker.metadata("m1", version=version)
    assert outline(response) == [("m1", ErrorCode.NONE, version >= 10, 2)]
    (topic,) = response.topics
    assert (topic.topic_id == broker.image.topics["m1"].topic_id) == (version >= 10)
    assert topic.topic_authorized_operations == OMITTED
    partition = topic.partitions[1]
    assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, 1, 0)
    assert partition.leader_epoch == (0 if version >= 7 else -1)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([0], [0], [])
    assert response.controller_id == (0 if version >= 1 else -1)
    assert response.cluster_id == (CLUSTER_ID if version >= 2 else None)
    assert [(each.node_id, each.host, each.port, each.rack) for each in response.brokers] == [
        (0, "127.0.0.1", 9092, None)
    ]


@in_loop
async def test_all_topics_and_none() -> None:
    broker = await Broker().start()
    assert outline(await broker.metadata(everything=True)) == [M1, M2]
    assert [each.name for each in (await broker.metadata(version=0)).topics] == ["m1", "m2"]
    assert outline(await broker.metadata(version=1)) == []
    assert outline(await broker.metadata()) == []
    assert set(broker.image.topics) == {"m1", "m2"}


@in_loop
async def test_a_missing_topic_is_created_when_all_agree() -> None:
    broker = await Broker().start()
    refused = await broker.metadata("new", allow_auto_topic_creation=False)
    assert outline(refused) == [missing("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert outline(await broker.metadata("new")) == [missing("new", ErrorCode.LEADER_NOT_AVAILABLE)]
    assert outline(await broker.metadata("new")) == [("new", ErrorCode.NONE, True, 2)]
    assert outline(await broker.metadata("newer", version=3)) == [missing("newer", ErrorCode.LEADER_NOT_AVAILABLE)]


@in_loop
async def test_a_broker_that_creates_nothing_by_itself() -> None:
    broker = await Broker(settings=ControllerSettings(auto_create_topics=False)).start()
    assert outline(await broker.metadata("new")) == [missing("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


@in_loop
async def test_a_broker_that_no_controller_told_of_topics_does_not_deny_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache Kafka answers UNKNOWN_TOPIC_OR_PARTITION: librdkafka then fails its records for the topic."""
    monkeypatch.setattr("broker.handlers.metadata.PATIENCE_FOR_TOPICS_S", 0.001)
    broker = await Broker().start()
    broker.cache = MetadataCache(CommandFence())
    for allowed in (True, False):
        response = await broker.metadata("m1", "a/b", allow_auto_topic_creation=allowed)
        assert outline(response) == [
            missing("m1", ErrorCode.LEADER_NOT_AVAILABLE),
            missing("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("name", ["a/b", "", "..", "y" * 250])
@in_loop
async def test_impossible_names(name: str, allowed: bool) -> None:
    broker = await Broker().start()
    response = await broker.metadata(name, allow_auto_topic_creation=allowed)
    assert outline(response) == [missing(name, ErrorCode.INVALID_TOPIC_EXCEPTION)]


@in_loop
async def test_internal_topics_say_so_even_before_they_exist() -> None:
    broker = await Broker().start()
    for expected in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE):
        (topic,) = (await broker.metadata(CONSUMER_OFFSETS)).topics
        assert (topic.error_code, topic.is_internal) == (expected, True)
    assert len(topic.partitions) == 5


@in_loop
async def test_each_topic_is_answered_once_and_what_exists_comes_first() -> None:
    broker = await Broker().start()
    m1 = broker.image.topics["m1"].topic_id
    assert outline(await broker.metadata("m1", "m1")) == [M1]
    assert outline(await broker.metadata(m1, m1, "m1")) == [M1]
    response = await broker.metadata("none", "m2", uuid_of(7), "a/b", m1, allow_auto_topic_creation=False)
    assert outline(response) == [
        (None, ErrorCode.UNKNOWN_TOPIC_ID, True, 0),
        M2,
        M1,
        missing("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        missing("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


@in_loop
async def test_an_id_counts_and_the_name_beside_it_does_not() -> None:
    broker = await Broker().start()
    m1 = broker.image.topics["m1"].topic_id
    assert outline(await broker.metadata(("other", m1))) == [M1]
    assert outline(await broker.metadata(("m1", uuid_of(77)))) == [(None, ErrorCode.UNKNOWN_TOPIC_ID, True, 0)]


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("by_id", [True, False])
@in_loop
async def test_ids_before_version_12_are_refused(version: int, by_id: bool) -> None:
    broker = await Broker().start()
    asked: Sequence[Asked] = (("m1", broker.image.topics["m1"].topic_id),) if by_id else ((None, ZERO_UUID), "m2")
    response = await broker.metadata(*asked, version=version)
    assert {each.error_code for each in response.topics} == {ErrorCode.INVALID_REQUEST}
    assert [each.name for each in response.topics] == (["m1"] if by_id else ["", "m2"])
    assert (response.brokers, response.controller_id) == ([], -1)


@in_loop
async def test_authorized_operations_when_asked_for() -> None:
    broker = await Broker().start()
    response = await broker.metadata(
        "m1",
        "none",
        uuid_of(7),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    assert [(each.name, each.topic_authorized_operations) for each in response.topics] == [
        (None, OMITTED),
        ("m1", 3576),
        ("none", 3576),
    ]
    older = await broker.metadata("m1", version=10, include_cluster_authorized_operations=True)
    assert older.cluster_authorized_operations == 8096


async def with_a_dead_and_a_deaf_broker(broker: Broker) -> None:
    """Broker 1 lacks the listener PLAINTEXT; broker 2 is down. m1-0 is led by 1, m1-1 by 2, m2-0 by 0."""
    image = broker.image
    deaf = BrokerImage(1, 5, {"INSIDE": Endpoint("INSIDE", "h", 1, "PLAINTEXT")}, rack="r")
    m1, m2 = image.topics["m1"], image.topics["m2"]
    m1 = m1.with_partitions(
        [
            m1.partitions[0].replace(leader=1, replicas=(1, 0), isr=(1, 0)),
            m1.partitions[1].replace(leader=2, replicas=(2, 0), isr=(2,)),
        ]
    )
    m2 = m2.with_partitions([m2.partitions[0].replace(replicas=(0, 2), isr=(0,))])
    states = tuple(TopicStates(each.name, each.topic_id, each.partitions) for each in (m1, m2))
    command = UpdateMetadata(0, image.controller_epoch, -1, live_brokers={**image.brokers, 1: deaf}, topics=states)
    broker.cache.update_metadata(command)


@pytest.mark.parametrize(
    ("version", "errors"),
    [
        (0, [5, 5, 9]),
        (1, [5, 5, 0]),
        (5, [5, 5, 0]),
        (6, [72, 5, 0]),
        (12, [72, 5, 0]),
    ],
)
@in_loop
async def test_leaders_that_cannot_be_reached(version: int, errors: list[int]) -> None:
    broker = await Broker().start()
    await with_a_dead_and_a_deaf_broker(broker)
    response = await broker.metadata("m1", "m2", version=version)
    partitions = [partition for topic in response.topics for partition in topic.partitions]
    assert [partition.error_code for partition in partitions] == errors
    assert [partition.leader_id for partition in partitions] == [-1, -1, 0]
    assert [partition.leader_epoch for partition in partitions] == [0 if version >= 7 else -1] * 3
    expected_replicas = [[0], [0], [0]] if version == 0 else [[1, 0], [2, 0], [0, 2]]
    offline = [[], [2], [2]] if version >= 5 else [[], [], []]
    assert [partition.replica_nodes for partition in partitions] == expected_replicas
    assert [partition.offline_replicas for partition in partitions] == offline
    assert [each.node_id for each in response.brokers] == [0]


@in_loop
async def test_brokers_are_shown_on_the_listener_that_was_asked() -> None:
    broker = await Broker().start()
    await with_a_dead_and_a_deaf_broker(broker)
    response = await broker.metadata("m1", listener="INSIDE")
    assert [(each.node_id, each.host, each.port, each.rack) for each in response.brokers] == [(1, "h", 1, "r")]
    assert [each.leader_id for each in response.topics[0].partitions] == [1, -1]


async def describe(version: int, *, endpoint_type: int = 1, operations: bool = False) -> DescribeClusterResponse:
    broker = await Broker().start()
    request = DescribeClusterRequest(include_cluster_authorized_operations=operations, endpoint_type=endpoint_type)
    response = MetadataHandlers(broker.cache, broker.auto_topics, broker.machine.clock).describe_cluster(
        context(version), request
    )
    response.to_bytes(version)
    return response


@pytest.mark.parametrize("version", [0, 1])
@in_loop
async def test_describe_cluster(version: int) -> None:
    response = await describe(version)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert (response.cluster_id, response.controller_id, response.endpoint_type) == (CLUSTER_ID, 0, 1)
    assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(0, "127.0.0.1", 9092)]
    assert response.cluster_authorized_operations == OMITTED
    assert (await describe(version, operations=True)).cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "error_code", "message"),
    [
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
        (
            2,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        ),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 3"),
    ],
)
@in_loop
async def test_other_endpoints_are_refused(endpoint_type: int, error_code: ErrorCode, message: str) -> None:
    response = await describe(1, endpoint_type=endpoint_type)
    assert (response.error_code, response.error_message) == (error_code, message)
    assert (response.endpoint_type, response.cluster_id, response.controller_id, response.brokers) == (1, "", -1, [])
