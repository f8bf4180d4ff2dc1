"""Changes by other processes in the tree take effect: topics of older tools, and their requests to the controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cluster import znodes
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from tests.kit.controller.controller_cluster import SETTINGS, ControllerCluster
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import eventually_async, turns
from zookeeper.coordination import NoNodeError

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def topic_node(*partitions: list[int], **more: Any) -> bytes:
    """A topic's node as written by a tool of Kafka 2.3."""
    assignment = {str(number): replicas for number, replicas in enumerate(partitions)}
    return json.dumps({"version": 1, "partitions": assignment, **more}).encode()


async def write(cluster: ControllerCluster, path: str, data: bytes | None = None) -> None:
    """Create a node, or replace its data."""
    async with cluster.session() as session:
        if await session.exists(path) is None:
            await session.create(path, data)
        else:
            await session.set(path, data)


async def read(cluster: ControllerCluster, path: str) -> bytes | None:
    """The data of a node, or None if it does not exist."""
    async with cluster.session() as session:
        try:
            return (await session.get(path))[0] or b""
        except NoNodeError:
            return None


async def until_gone(cluster: ControllerCluster, path: str) -> None:
    await eventually_async(f"{path} is gone", lambda: read(cluster, path), lambda data: data is None)


async def ask_for_election(cluster: ControllerCluster, *partitions: tuple[str, int]) -> None:
    entries = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    await write(cluster, znodes.PREFERRED_ELECTION, json.dumps({"version": 1, "partitions": entries}).encode())


async def moved_away(cluster: ControllerCluster) -> None:
    """A partition whose preferred leader is broker 3; broker 2 leads it, and both are in sync."""
    await cluster.create("t", (3, 2))
    await cluster.members.pop(3).kill()
    await cluster.until("another leader", lambda: cluster.told("t", 2, (2,)))
    await cluster.start_broker(3)
    await cluster.until("it is back", lambda: cluster.all_know([1, 2, 3]))
    await cluster.join("t", 2, 3)


# -- topics ------------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_topic_that_another_tool_creates_gets_leaders_and_an_id_and_grows() -> None:
    cluster = await ControllerCluster().start()
    await write(cluster, znodes.config_path("topics", "t"), znodes.encode_config({"retention.ms": "77"}))
    await write(cluster, znodes.topic_path("t"), topic_node([2, 3]))
    await cluster.until("a leader", lambda: cluster.told("t", 2, (2, 3)))
    assert (await cluster.partition("t"))[:3] == (2, (2, 3), 0)
    created = await cluster.assignment("t")
    assert created.topic_id != ZERO_UUID
    assert cluster.controller.cache.image.topics["t"].topic_id == created.topic_id
    assert cluster.members[3].role("t") is not None

    grown = znodes.TopicAssignment(created.topic_id, {0: (2, 3), 1: (3, 1)})
    await write(cluster, znodes.topic_path("t"), grown.encode())
    await cluster.until("a second leader", lambda: cluster.told("t", 3, (3, 1), partition=1))
    assert await cluster.assignment("t") == grown


@in_loop
async def test_a_topic_that_was_created_here_is_grown_by_another_tool_twice() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2))
    partitions = {0: (1, 2)}
    topic_id = (await cluster.assignment("t")).topic_id
    for number in (1, 2):
        partitions[number] = (2, 3)
        await write(cluster, znodes.topic_path("t"), znodes.TopicAssignment(topic_id, partitions).encode())
        await cluster.until("a leader", lambda: cluster.told("t", 2, (2, 3), partition=number))  # noqa: B023
    assert cluster.told("t", 1, (1, 2))


@in_loop
async def test_a_topic_without_a_live_replica_gets_a_leader_when_there_is_one() -> None:
    cluster = await ControllerCluster().start(2)
    await write(cluster, znodes.topic_path("t"), topic_node([3]))
    await turns(200)
    await cluster.start_broker(3)
    await cluster.until("a leader", lambda: cluster.told("t", 3, (3,)))


@in_loop
async def test_what_is_written_while_there_is_no_controller_takes_effect_at_the_next_election() -> None:
    cluster = await ControllerCluster().start()
    await moved_away(cluster)
    for broker_id in (3, 2, 1):
        await cluster.members.pop(broker_id).kill()
    await write(cluster, znodes.topic_path("new"), topic_node([1], [2]))
    await ask_for_election(cluster, T0, ("nope", 0))
    moving = znodes.encode_reassignments({TopicPartition("new", 0): (2,), TopicPartition("new", 9): (2,)})
    await write(cluster, znodes.REASSIGN_PARTITIONS, moving)
    await cluster.start(3)
    await until_gone(cluster, znodes.PREFERRED_ELECTION)
    assert list(cluster.controller.service.reassignments()) == [TopicPartition("new", 0)]
    await cluster.join("new", 1, 2)
    await until_gone(cluster, znodes.REASSIGN_PARTITIONS)
    await cluster.until("it has moved", lambda: cluster.told("new", 2, (2,)))


@pytest.mark.parametrize(
    "data", [b"nothing", b"", b"[]", topic_node([1])[:-5], topic_node(partitions={"1": [1]}), topic_node(partitions=[])]
)
@in_loop
async def test_a_topic_that_makes_no_sense_is_left_alone(data: bytes) -> None:
    cluster = await ControllerCluster().start()
    await write(cluster, znodes.topic_path("bad"), data)
    await write(cluster, znodes.topic_path("good"), topic_node([1]))
    await cluster.until("the other one has a leader", lambda: cluster.told("good", 1, (1,)))
    assert "bad" not in cluster.controller.cache.image.topics
    assert await read(cluster, znodes.topic_path("bad")) == data


@in_loop
async def test_a_mark_deletes_the_topic_and_a_mark_of_nothing_goes() -> None:
    cluster = await ControllerCluster().start()
    for name in ("t", "u"):
        await cluster.create(name, (2, 3))
        await write(cluster, znodes.delete_topic_path(name))
        await until_gone(cluster, znodes.topic_path(name))
        await until_gone(cluster, znodes.delete_topic_path(name))
        assert cluster.members[2].role(name) is None
        assert name not in cluster.controller.cache.image.topics
    await write(cluster, znodes.delete_topic_path("nope"))
    await until_gone(cluster, znodes.delete_topic_path("nope"))


@in_loop
async def test_marks_are_removed_where_topics_may_not_be_deleted() -> None:
    cluster = ControllerCluster()
    for broker_id in (1, 2):
        member = await cluster.start_broker(broker_id)
        member.service.settings = SETTINGS.replace(delete_topics=False)
    await cluster.members.pop(1).kill()
    await cluster.until("the other one controls", lambda: cluster.members[2].service.is_active)
    await cluster.create("t", (2,))
    await write(cluster, znodes.delete_topic_path("t"))
    await until_gone(cluster, znodes.delete_topic_path("t"))
    assert cluster.told("t", 2, (2,))


@in_loop
async def test_no_partitions_are_added_to_a_topic_that_is_being_deleted() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3,))
    before = await cluster.assignment("t")
    cluster.members[3].reachable.clear()
    await write(cluster, znodes.delete_topic_path("t"))
    await cluster.until("it is being deleted", lambda: "t" not in cluster.controller.cache.image.topics)
    await write(cluster, znodes.topic_path("t"), znodes.TopicAssignment(before.topic_id, {0: (3,), 1: (1,)}).encode())
    await eventually_async(
        "the node is as it was", lambda: cluster.assignment("t"), lambda found: found.partitions == {0: (3,)}
    )
    cluster.members[3].reachable.set()
    await until_gone(cluster, znodes.topic_path("t"))


@in_loop
async def test_a_topic_whose_nodes_somebody_removes_is_forgotten() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (2,))
    first = (await cluster.assignment("t")).topic_id
    async with cluster.session() as session:
        partitions = znodes.partitions_path("t")
        for path in (f"{partitions}/0/state", f"{partitions}/0", partitions, znodes.topic_path("t")):
            await session.delete(path)
    await turns(200)
    await cluster.create("t", (3,))
    await cluster.until("a leader", lambda: cluster.told("t", 3, (3,)))
    assert (await cluster.assignment("t")).topic_id != first


# -- requests ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_the_preferred_replica_is_elected_as_often_as_the_node_asks_for_it() -> None:
    cluster = await ControllerCluster().start()
    await moved_away(cluster)
    await ask_for_election(cluster, T0, ("nope", 0))
    await cluster.until("the preferred leader", lambda: cluster.told("t", 3, (2, 3)))
    await until_gone(cluster, znodes.PREFERRED_ELECTION)
    for data in (b"nothing", b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'):
        await write(cluster, znodes.PREFERRED_ELECTION, data)
        await until_gone(cluster, znodes.PREFERRED_ELECTION)


async def two_partitions(cluster: ControllerCluster) -> None:
    """Move both from broker 1 to broker 2, as the node requests."""
    await cluster.create("t", (1,), (1,))
    await write(cluster, znodes.REASSIGN_PARTITIONS, znodes.encode_reassignments({T0: (2,), T1: (2,)}))
    await cluster.until("they move", lambda: list(cluster.controller.service.reassignments()) == [T0, T1])


async def until_asked(
    cluster: ControllerCluster, is_so: Callable[[dict[TopicPartition, tuple[int, ...]]], bool]
) -> None:
    async def asked() -> dict[TopicPartition, tuple[int, ...]]:
        return znodes.decode_reassignments(await read(cluster, znodes.REASSIGN_PARTITIONS))

    await eventually_async("the node asks for less", asked, is_so)


@in_loop
async def test_a_reassignment_that_is_done_leaves_the_node_and_the_last_one_deletes_it() -> None:
    cluster = await ControllerCluster().start()
    await two_partitions(cluster)
    await cluster.join("t", 1, 2)
    await until_asked(cluster, lambda asked: asked == {T1: (2,)})
    assert await cluster.controller.service.alter_reassignments({T1: (3,)}) == {T1: None}
    await until_gone(cluster, znodes.REASSIGN_PARTITIONS)
    assert (await cluster.assignment("t")).partitions == {0: (2,), 1: (3, 1)}


@in_loop
async def test_a_new_controller_goes_on_with_the_node() -> None:
    cluster = await ControllerCluster().start()
    await two_partitions(cluster)
    epoch = (await cluster.partition("t"))[2]
    await cluster.members.pop(1).kill()
    await cluster.start_broker(1)
    await cluster.until("all are there", lambda: cluster.all_know([1, 2, 3]))
    assert list(cluster.controller.service.reassignments()) == [T0, T1]
    assert (await cluster.partition("t"))[2] > epoch
    await cluster.join("t", 1, 2)
    await until_asked(cluster, lambda asked: asked == {T1: (2,)})


@in_loop
async def test_a_reassignment_in_the_node_waits_for_a_broker_that_is_not_there() -> None:
    cluster = await ControllerCluster().start(2)
    await cluster.create("t", (1,))
    asked = {T0: (3,), T1: (2,), TopicPartition("nope", 0): (2,)}
    await write(cluster, znodes.REASSIGN_PARTITIONS, znodes.encode_reassignments(asked))
    await until_asked(cluster, lambda asked: asked == {T0: (3,)})
    await cluster.start_broker(3)
    await cluster.until("all are there", lambda: cluster.all_know([1, 2, 3]))
    await cluster.join("t", 1, 3)
    await until_gone(cluster, znodes.REASSIGN_PARTITIONS)
    await cluster.until("it has moved", lambda: cluster.told("t", 3, (3,)))


@in_loop
async def test_a_deleted_topic_is_asked_for_no_longer() -> None:
    cluster = await ControllerCluster().start()
    await two_partitions(cluster)
    await cluster.controller.service.delete_topics(["t"])
    await until_gone(cluster, znodes.REASSIGN_PARTITIONS)
