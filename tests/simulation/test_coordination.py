"""A broker whose tree is on another machine: it loses its session, or contact during a change."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from client import admin
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from cluster import znodes
from tests.simulation.loop import Process
from tests.simulation.seeds import collect_garbage
from tests.simulation.world import Machine, World
from zookeeper.coordination import EventType, WatchEvent


def play(scenario: Any) -> None:
    """Run `scenario(world, machine)` in a world with a running broker."""
    world = World(1)
    machine = world.add_broker({}, remote_coordination=True)

    async def told() -> None:
        machine.start()
        assert await world.until(lambda: machine.is_serving, 10.0)
        await scenario(world, machine)

    world.run(told())


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """Collect worlds with their tests, not during later ones."""
    yield
    collect_garbage()


async def ask(world: World, machine: Machine, question: Any, timeout_s: float = 60.0) -> Any:
    """The result of `question(client)`, asked by a client process."""
    answers: list[Any] = []

    async def main() -> None:
        settings = ClientSettings.parse({"bootstrap.servers": machine.address, "request.timeout.ms": "2000"})
        async with KafkaClient(settings, Random(1), world.network.of("client")) as client:
            answers.append(await question(client))

    world.loop.spawn(Process("client"), main())
    assert await world.until(lambda: bool(answers), timeout_s)
    return answers[0]


def test_broker_starts_again_when_its_session_expires() -> None:
    async def scenario(world: World, machine: Machine) -> None:
        ensemble = machine.ensemble
        assert ensemble is not None
        epoch = ensemble.tree.get(znodes.broker_path(0))[1].czxid
        for session in list(ensemble.sessions.values()):
            session.end()
        assert ensemble.tree.exists(znodes.broker_path(0)) is None
        assert await world.until(lambda: not machine.is_up, 10.0)
        assert await world.until(lambda: machine.is_serving, 10.0)
        assert ensemble.tree.get(znodes.broker_path(0))[1].czxid > epoch

    play(scenario)


@pytest.mark.parametrize("took_effect", [True, False])
def test_change_of_unknown_outcome_is_made_once(took_effect: bool) -> None:
    """The client retries until the restarted broker has read the outcome from the tree."""

    async def scenario(world: World, machine: Machine) -> None:
        ensemble = machine.ensemble
        assert ensemble is not None

        def create(client: KafkaClient) -> Coroutine[Any, Any, None]:
            return admin.create_topic(client, "topic", partitions=1, replication_factor=1)

        async def both(client: KafkaClient) -> object:
            await admin.list_topics(client)
            ensemble.loss_chance = 1.0
            ensemble.lost_calls_take_effect = took_effect
            creating = asyncio.ensure_future(create(client))
            await asyncio.sleep(1.0)
            ensemble.loss_chance = 0.0
            return (await asyncio.gather(creating, return_exceptions=True))[0]

        outcome = await ask(world, machine, both)
        assert ("already exists" in str(outcome)) is took_effect
        assert machine.lives >= 2
        topics = await ask(world, machine, admin.list_topics)
        assert topics.partition("topic", 0).leader == 0

    play(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_connects_when_a_broker_registers_is_never_refused(seed: int) -> None:
    """A client may connect as soon as it sees the registration. The connection waits until the broker serves."""
    world = World(seed)
    machine = world.add_broker({}, remote_coordination=True)
    host, port = machine.address.split(":")
    outcomes: list[str] = []

    async def connect() -> None:
        try:
            await world.network.of("client").connect(asyncio.Protocol, host, int(port))
        except ConnectionRefusedError:
            outcomes.append("refused")
        else:
            outcomes.append("connected before" if not machine.is_serving else "connected")

    def changed(events: Sequence[WatchEvent]) -> None:
        if any(each.path == znodes.broker_path(0) and each.type is EventType.CREATED for each in events):
            world.loop.spawn(Process("client"), connect())

    async def scenario() -> None:
        machine.start()
        assert machine.ensemble is not None
        machine.ensemble.listeners.append(changed)
        assert await world.until(lambda: machine.is_serving and bool(outcomes), 10.0)

    world.run(scenario())
    assert outcomes == ["connected before"]
