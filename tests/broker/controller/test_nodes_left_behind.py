"""Leftover nodes of other tools, or of a crashed controller: they must not make the controller resign."""

from __future__ import annotations

from cluster.controller.topics import NewTopic, TopicPlan
from cluster.znodes import (
    CONTROLLER_EPOCH,
    TopicAssignment,
    config_path,
    decode_config,
    delete_topic_path,
    encode_config,
    partition_path,
    partitions_path,
    topic_path,
)
from protocol.config_resources import ConfigResourceType
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import uuid_of
from zookeeper.coordination import Coordination


async def session_of(cluster: ControllerCluster) -> Coordination:
    session: Coordination = cluster.ensemble.session()
    await session.connect()
    return session


async def terms(session: Coordination) -> int:
    """The number of controller elections so far."""
    return (await session.get(CONTROLLER_EPOCH))[1].version


@in_loop
async def test_a_new_topic_overwrites_a_configuration_of_its_name() -> None:
    cluster = await ControllerCluster().start()
    session = await session_of(cluster)
    await session.create(config_path("topics", "t"), encode_config({"retention.ms": "1"}))
    before = await terms(session)
    topics = [NewTopic(name, 1, 3, config={"retention.ms": "5000"}) for name in ("s", "t")]
    outcome = await cluster.controller.service.create_topics(topics)
    assert all(isinstance(each, TopicPlan) for each in outcome.values()), outcome
    for name in ("s", "t"):
        data, _ = await session.get(config_path("topics", name))
        assert decode_config("", data) == {"retention.ms": "5000"}
    configs = cluster.controller.cache.image.configs
    assert configs[ConfigResourceType.TOPIC, "t"] == {"retention.ms": "5000"}
    assert await terms(session) == before


@in_loop
async def test_a_topic_that_is_marked_already_is_deleted() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    session = await session_of(cluster)
    await session.create(delete_topic_path("t"))
    before = await terms(session)
    await cluster.controller.service.delete_topics(["t"])
    assert await session.exists(topic_path("t")) is None
    assert await session.exists(delete_topic_path("t")) is None
    assert await terms(session) == before


@in_loop
async def test_partitions_without_a_state_are_completed() -> None:
    """Kafka creates a partition's node first, and its state in another request."""
    cluster = await ControllerCluster().start()
    session = await session_of(cluster)
    for broker_id in (3, 2, 1):
        await cluster.members.pop(broker_id).kill()
    assignment = TopicAssignment(uuid_of(7), {0: (2, 1), 1: (9,)})
    await session.create(topic_path("t"), assignment.encode())
    await session.create(partitions_path("t"))
    for number in (0, 1):
        await session.create(partition_path("t", number))
    for broker_id in (2, 3):
        await cluster.start_broker(broker_id)
    await cluster.until("leaders", lambda: cluster.told("t", 2, (2,)) and cluster.told("t", -1, (), partition=1))
    before = await terms(session)
    await cluster.controller.service.delete_topics(["t"])
    await cluster.until("no topic", lambda: cluster.everywhere(lambda each: "t" not in each.cache.image.topics))
    assert await terms(session) == before
