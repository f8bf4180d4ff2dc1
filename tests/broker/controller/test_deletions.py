"""Topics are deleted while some of the brokers are down or slow."""

from __future__ import annotations

import asyncio

from cluster import znodes
from cluster.controller.commands import LeaderAndIsr, StopReplica, UpdateMetadata
from cluster.znodes import NO_LEADER
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import turns


@in_loop
async def test_a_broker_that_comes_back_gets_no_role_in_what_it_has_deleted() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (2, 3))
    await cluster.until("roles", lambda: cluster.members[2].role("t") and cluster.members[3].role("t"))
    await cluster.members.pop(3).kill()
    await cluster.until("a leader", lambda: cluster.told("t", 2, (2,)))
    await cluster.controller.service.delete_topics(["t"])
    await cluster.until("one has let go", lambda: cluster.members[2].role("t") is None)
    await turns()
    await cluster.members.pop(2).kill()
    await cluster.until("it is gone", lambda: cluster.all_know([1]))
    back = await cluster.start_broker(2)
    await cluster.start_broker(3)
    coordination = cluster.members[1].membership.coordination
    while await coordination.exists("/brokers/topics/t") is not None:
        await turns()
    assert not [each for each in back.inbox.commands if isinstance(each, LeaderAndIsr)]


@in_loop
async def test_a_deletion_waits_for_every_replica_and_goes_on_when_a_dead_broker_returns() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    await cluster.members.pop(3).kill()
    await cluster.until("it left the ISR", lambda: cluster.told("t", 1, (1, 2)))
    await cluster.controller.service.delete_topics(["t"])
    session = cluster.members[1].membership.coordination
    assert await session.exists("/brokers/topics/t") is not None
    assert cluster.everywhere(lambda member: "t" not in member.cache.image.topics)
    assert cluster.members[2].role("t") is None
    again = await cluster.start_broker(3)
    await cluster.until("the deletion is over", lambda: not cluster.ensemble._queue.tree.exists("/brokers/topics/t"))
    stopped = [each for each in again.inbox.commands if isinstance(each, StopReplica)]
    assert [each.delete_partition for command in stopped for each in command.partitions] == [True]
    assert "t" not in again.cache.image.topics
    assert await session.exists("/admin/delete_topics/t") is None


@in_loop
async def test_a_deletion_is_finished_by_the_next_controller() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    cluster.members[3].reachable.clear()
    deletion = asyncio.ensure_future(cluster.controller.service.delete_topics(["t"]))
    await cluster.until("it is under way", lambda: cluster.members[2].role("t") is None)
    await cluster.members.pop(1).kill()
    told = [cluster.members[each].inbox.commands for each in (2, 3)]
    before = [len(commands) for commands in told]
    cluster.members[3].reachable.set()
    await cluster.start_broker(1)
    await cluster.until("the deletion is over", lambda: not cluster.ensemble._queue.tree.exists("/brokers/topics/t"))
    deletion.cancel()
    given = [each for commands, count in zip(told, before, strict=True) for each in commands[count:]]
    roles = [topic for each in given if isinstance(each, LeaderAndIsr) for topic in each.topics if topic.topic == "t"]
    assert [each.leader for topic in roles for each in topic.partitions if each.leader_epoch > 0] == [NO_LEADER] * 2


@in_loop
async def test_clients_are_not_told_of_a_topic_whose_deletion_waits() -> None:
    """They would commit offsets for it, which disappear with the topic."""
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    await cluster.members.pop(3).kill()
    await cluster.controller.service.delete_topics(["t"])
    commands = cluster.members[2].inbox.commands
    before = len(commands)
    await cluster.members.pop(1).kill()
    await cluster.until("the other one rules", lambda: cluster.members[2].service.is_active)
    await cluster.start_broker(1)
    await cluster.until("both know both", lambda: cluster.all_know([1, 2]))
    told = [topic.topic for each in commands[before:] if isinstance(each, UpdateMetadata) for topic in each.topics]
    assert told == []
    assert cluster.ensemble._queue.tree.exists("/brokers/topics/t")


@in_loop
async def test_a_broker_that_was_told_to_delete_gets_no_role_meanwhile() -> None:
    """It would start an empty log after dropping the old one, and the controller would not notice."""
    cluster = await ControllerCluster().start()
    await cluster.create("t", (2, 3))
    cluster.members[3].reachable.clear()
    deletion = asyncio.ensure_future(cluster.controller.service.delete_topics(["t"]))
    await cluster.until("it is under way", lambda: cluster.members[2].role("t") is None)
    cluster.members[3].inbox.commands.clear()
    await cluster.members[3].service.log_directory_failed()
    await cluster.until(
        "the event is done with", lambda: not cluster.ensemble._queue.tree.children(znodes.LOG_DIR_EVENTS)[0]
    )
    cluster.members[3].reachable.set()
    await cluster.until("the deletion is over", lambda: not cluster.ensemble._queue.tree.exists("/brokers/topics/t"))
    await deletion
    given = [type(each) for each in cluster.members[3].inbox.commands if not isinstance(each, UpdateMetadata)]
    assert given == [StopReplica]
