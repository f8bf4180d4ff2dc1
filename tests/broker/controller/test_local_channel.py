"""The channel from a controller, or from the requests of another, to the replicas of this broker."""

from __future__ import annotations

import asyncio

from broker.controller.channels import LocalChannel
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.hosted_partitions import HostedPartitions
from cluster.controller.commands import Answer, CommandFence, LeaderAndIsr, TopicStates
from tests.broker.inter_broker.commands import image
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import uuid_of
from tests.kit.waiting import turns

BEGIN, AGAIN, LATER = (
    LeaderAndIsr(1, 7, 50, (TopicStates(name, uuid_of(1), (image(0),), is_new=True),)) for name in ("t", "t", "u")
)
LEAD = LeaderAndIsr(1, 7, 50, (TopicStates("known", uuid_of(2), (image(0),)),))


class Obedient(HostedPartitions):
    """Takes every role; the topics that are new are those that a command says so of."""

    def __init__(self) -> None:
        self.obeyed: list[LeaderAndIsr] = []

    def topics_begun_by(self, command: LeaderAndIsr) -> list[TopicStates]:
        return [topic for topic in command.topics if topic.is_new]

    async def become_leader_or_follower(self, command: LeaderAndIsr) -> Answer:
        self.obeyed.append(command)
        return {}


@in_loop
async def test_what_begins_topics_is_obeyed_in_the_order_in_which_it_came() -> None:
    """The first waits for the configurations, and its sender has given up: it would come after what was sent since."""
    replicas, waits = Obedient(), [asyncio.Event(), asyncio.Event()]
    left = iter(waits)

    async def prepare(_begun: list[TopicStates]) -> None:
        if (wait := next(left, None)) is not None:
            await wait.wait()

    async def settle() -> None:
        raise AssertionError("nothing is deleted")

    channel = LocalChannel(replicas, MetadataCache(CommandFence()), settle, prepare)
    sent = [asyncio.create_task(channel.leader_and_isr(each)) for each in (BEGIN, AGAIN, LATER)]
    await turns()
    waits[1].set()
    await channel.leader_and_isr(LEAD)
    assert replicas.obeyed == [LEAD], "what begins nothing waits for nothing"
    waits[0].set()
    await asyncio.gather(*sent)
    assert all(is_same is each for is_same, each in zip(replicas.obeyed, (LEAD, BEGIN, AGAIN, LATER), strict=True))
