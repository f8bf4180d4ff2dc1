"""Random changes of topics while controllers die, lose their sessions, their epoch or the answers of the tree.

Acknowledged changes survive, a change in flight happens entirely or not at all, and in the end all brokers know the
state of the tree.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from cluster import znodes
from cluster.controller.topics import NewTopic, TopicPlan
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tests.broker.controller.test_sessions import losing
from tests.kit.controller.controller_cluster import ControllerCluster, Member
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import turns
from zookeeper.coordination import NoNodeError

BROKERS = (1, 2, 3)
TURNS_OF_REST = 20
Topics = dict[str, int]
"""Partitions by topic."""


class Scenario:
    """The acknowledged topics, and those that the change in flight would produce."""

    def __init__(self, seed: int, cluster: ControllerCluster) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.known: Topics = {}
        self.hoped: Topics = {}
        self.next_topic = 0
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.controller_epoch = 0

    # -- changes -------------------------------------------------------------------------------------------------------

    async def change(self) -> None:
        """Ask some broker, the controller most of the time, for a change."""
        chance, self.hoped = self.chance, dict(self.known)
        members = list(self.cluster.members.values())
        active = [each for each in members if each.service.is_active]
        service = chance.choice(active or members).service
        name = chance.choice([*self.known, ""])
        kind = chance.randrange(3) if name else 0
        if kind == 0:
            name = f"t{self.next_topic}"
            self.next_topic += 1
            self.hoped[name] = chance.randrange(1, 4)
            outcome = (await service.create_topics([NewTopic(name, self.hoped[name], 3)]))[name]
            acknowledged = isinstance(outcome, TopicPlan)
        elif kind == 1:
            del self.hoped[name]
            acknowledged = await self.succeeds(service.delete_topics([name]))
        else:
            self.hoped[name] += 1
            acknowledged = await self.succeeds(service.create_partitions(name, self.hoped[name], None))
        if acknowledged:
            self.known = self.hoped

    async def succeeds(self, change: Awaitable[object]) -> bool:
        try:
            await change
        except ApiError:
            return False
        return True

    # -- faults --------------------------------------------------------------------------------------------------------

    async def fault(self) -> None:
        """Inject a fault at some broker."""
        member = self.cluster.members[self.chance.choice(BROKERS)]
        harm: Callable[[Member], Awaitable[None]] = self.chance.choice(
            [self.bounce, self.expire, self.depose, self.lose_an_answer, self.nothing]
        )
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)
        await harm(member)

    async def bounce(self, member: Member) -> None:
        await member.kill()
        await turns(self.chance.randrange(30))
        await self.cluster.start_broker(member.broker_id)

    async def expire(self, member: Member) -> None:
        await member.expire()

    async def depose(self, member: Member) -> None:
        try:
            await member.membership.coordination.delete(znodes.CONTROLLER)
        except NoNodeError:
            return

    async def lose_an_answer(self, member: Member) -> None:
        coordination = member.membership.coordination
        lossy = losing(coordination.multi, applied=self.chance.random() < 0.5)
        coordination.multi = lossy  # type: ignore[method-assign]

    async def nothing(self, _member: Member) -> None:
        """Do nothing: changes must also work without faults."""

    # -- checks --------------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Wait until the cluster is idle, and check its state."""
        cluster = self.cluster
        restful_turns = 0
        while restful_turns < TURNS_OF_REST:
            await cluster.until("rest", self.is_at_rest)
            restful_turns += 1
            await asyncio.sleep(0)
            if not self.is_at_rest():
                restful_turns = 0
        topics = await self.topics_of_the_tree()
        assert topics in (self.known, self.hoped)
        self.known = topics
        epoch = cluster.controller.cache.image.controller_epoch
        assert epoch >= self.controller_epoch
        self.controller_epoch = epoch
        for name, partitions in topics.items():
            for number in range(partitions):
                await self.check_partition(TopicPartition(name, number))

    def is_at_rest(self) -> bool:
        cluster = self.cluster
        if any(each.service._changes._running for each in cluster.members.values()):
            return False
        if sum(each.service.is_active for each in cluster.members.values()) != 1 or not cluster.all_know(BROKERS):
            return False
        tree = cluster.ensemble._queue.tree
        names = tree.children("/brokers/topics")[0]
        return not tree.children("/admin/delete_topics")[0] and cluster.everywhere(
            lambda each: sorted(each.cache.image.topics) == names
        )

    async def topics_of_the_tree(self) -> Topics:
        session = self.cluster.controller.membership.coordination
        names = (await session.children("/brokers/topics"))[0]
        return {name: len((await session.children(znodes.partitions_path(name)))[0]) for name in names}

    async def check_partition(self, topic_partition: TopicPartition) -> None:
        name, number = topic_partition
        leader, isr, leader_epoch, _ = await self.cluster.partition(name, number)
        assert leader in BROKERS
        assert leader in isr
        assert leader_epoch >= self.leader_epochs.get(topic_partition, 0)
        self.leader_epochs[topic_partition] = leader_epoch
        await self.cluster.until(
            f"all know who leads {topic_partition}", lambda: self.cluster.told(name, leader, isr, number)
        )

        def knows_its_role(member: Member) -> bool:
            role = member.role(name, number)
            return role is not None and (role.leader, role.leader_epoch) == (leader, leader_epoch)

        await self.cluster.until(f"roles of {topic_partition}", lambda: self.cluster.everywhere(knows_its_role))


@pytest.mark.parametrize("seed", range(40))
@in_loop
async def test_controllers_that_come_and_go(seed: int) -> None:
    scenario = Scenario(seed, await ControllerCluster().start())
    for _ in range(10):
        await asyncio.gather(scenario.change(), scenario.fault())
        await scenario.check()
