"""The implementations of Coordination, each as a place that runs scenarios with sessions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

from tests.kit.coordination_fixtures import Machine
from tests.kit.zookeeper import new_session
from tests.simulation.coordination import SimEnsemble
from tests.simulation.world import SimClock, World
from zookeeper.coordination import Coordination

NewSession = Callable[[], Awaitable[Coordination]]
"""Starts a session."""
Scenario = Callable[[NewSession], Awaitable[None]]

PATIENCE_S = 60


class Place(Protocol):
    """Runs scenarios, each on an empty tree."""

    def play(self, scenario: Scenario) -> None:
        """Run the scenario to its end."""
        ...


class EmbeddedPlace:
    """The tree in the process, on an in-memory disk."""

    def play(self, scenario: Scenario) -> None:
        ensemble = Machine().open()

        async def begin() -> Coordination:
            session = ensemble.session()
            await session.connect()
            return session

        async def run() -> None:
            await asyncio.wait_for(asyncio.ensure_future(scenario(begin)), PATIENCE_S)

        asyncio.run(run())


class SimulatedPlace:
    """The tree of a simulated ensemble, on virtual time."""

    def play(self, scenario: Scenario) -> None:
        world = World(1)
        ensemble = SimEnsemble(world.loop, Random(1), SimClock(world.loop).now_ms, 6.0)

        async def begin() -> Coordination:
            session = ensemble.session()
            await session.connect()
            return session

        async def run() -> None:
            await scenario(begin)

        world.run(run())


class RealPlace:
    """A real ZooKeeper, or a compatible server, below a new chroot for each scenario."""

    def __init__(self, address: str) -> None:
        self._address = address

    def play(self, scenario: Scenario) -> None:
        chroot = f"/{secrets.token_hex(8)}/tree"
        sessions: list[Coordination] = []

        async def begin() -> Coordination:
            session = new_session(f"{self._address}{chroot}")
            await session.connect()
            sessions.append(session)
            return session

        async def run() -> None:
            try:
                await asyncio.wait_for(asyncio.ensure_future(scenario(begin)), PATIENCE_S)
            finally:
                for session in sessions:
                    await end(session)

        asyncio.run(run())


async def end(session: Coordination) -> None:
    """Close a session, unless it has ended."""
    from zookeeper.coordination import SessionExpiredError

    try:
        await session.close()
    except SessionExpiredError:
        return
