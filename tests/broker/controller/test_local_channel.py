"""The channel from a controller, or from the requests of another, to the replicas of this broker."""

from __future__ import annotations

import asyncio

import pytest

from broker.controller.broker_requests import LocalChannel
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.hosted_partitions import HostedPartitions
from cluster.controller.commands import Answer, CommandFence, LeaderAndIsr, TopicStates
from protocol.errors import ApiError
from tests.broker.inter_broker.commands import image
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import uuid_of
from tests.kit.waiting import turns

BEGIN = LeaderAndIsr(1, 7, 50, 1, (TopicStates("t", uuid_of(1), (image(0),), is_new=True),))
AGAIN = BEGIN.replace(number=2)
LEAD = LeaderAndIsr(1, 7, 50, 3, (TopicStates("known", uuid_of(2), (image(0),)),))


class Obedient(HostedPartitions):
    """Accepts every role of an admitted command; the command says which topics are new."""

    def __init__(self) -> None:
        self._fence = CommandFence()
        self.obeyed: list[int] = []

    def new_topics_of(self, command: LeaderAndIsr) -> list[TopicStates]:
        return [topic for topic in command.topics if topic.is_new]

    async def become_leader_or_follower(self, command: LeaderAndIsr) -> Answer:
        self._fence.admit(command)
        self.obeyed.append(command.number)
        return {}


@in_loop
async def test_what_begins_topics_waits_for_their_configurations_and_is_not_obeyed_after_newer_commands() -> None:
    """The sender of the first one has given up, and has since sent a copy of it and another command."""
    replicas, waits = Obedient(), [asyncio.Event(), asyncio.Event()]
    left = iter(waits)

    async def prepare(begun: list[TopicStates]) -> None:
        assert begun == list(BEGIN.topics)
        await next(left).wait()

    async def settle() -> None:
        raise AssertionError("nothing is deleted")

    channel = LocalChannel(replicas, MetadataCache(CommandFence()), settle, prepare)
    first, copy = (asyncio.create_task(channel.leader_and_isr(each)) for each in (BEGIN, AGAIN))
    await turns()
    assert not replicas.obeyed
    waits[1].set()
    await copy
    await channel.leader_and_isr(LEAD)
    waits[0].set()
    with pytest.raises(ApiError, match="command 1 of controller 1 comes after its command 3"):
        await first
    assert replicas.obeyed == [2, 3]
