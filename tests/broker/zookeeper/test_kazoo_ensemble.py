"""One of three ZooKeeper servers dies, and a session survives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import eventually_on_loop
from tests.kit.zookeeper import new_session, real_ensemble
from zookeeper.coordination import (
    BadVersionError,
    ConnectionLossError,
    Coordination,
    EventType,
    SessionState,
    WatchEvent,
)

pytestmark = [pytest.mark.java, pytest.mark.slow]


class Counter:
    """Counts in a node, by compare-and-set: after an unknown outcome it reads the node."""

    def __init__(self, session: Coordination) -> None:
        self._session = session
        self.count = 0
        self.lost = 0
        self.is_stopped = False

    async def run(self) -> None:
        while not self.is_stopped:
            data = str(self.count + 1).encode()
            try:
                await self._session.set("/count", data, self.count)
            except ConnectionLossError:
                self.lost += 1
                found, stat = await self._session.get("/count")
                assert (found, stat.version) in {(data, self.count + 1), (str(self.count).encode(), self.count)}
                self.count = stat.version
            else:
                self.count += 1

    async def count_on(self) -> None:
        """Wait until it has counted some more."""
        goal = self.count + 50
        await eventually_on_loop("it counts", lambda: self.count > goal, pause_s=0.01)


@in_loop
async def test_a_session_goes_on_while_each_server_dies_in_turn(tmp_path: Path) -> None:
    with real_ensemble(tmp_path) as servers:
        session = new_session(",".join(each.address for each in servers), session_timeout_ms=10_000)
        states: list[SessionState] = []
        session.add_session_listener(states.append)
        await session.connect()
        _, registered = await session.create("/broker", ephemeral=True)
        await session.create("/count", b"0")
        events: list[WatchEvent] = []
        await session.exists("/later", events.append)
        counter = Counter(session)
        counting = asyncio.ensure_future(counter.run())
        for server in servers:
            before = counter.count
            await eventually_on_loop("it counts", lambda before=before: counter.count > before + 50, pause_s=0.01)
            await asyncio.to_thread(server.kill)
            before = counter.count
            await eventually_on_loop(
                "it goes on counting", lambda before=before: counter.count > before + 50, pause_s=0.01
            )
            await asyncio.to_thread(server.start)
        counter.is_stopped = True
        await counting
        assert SessionState.EXPIRED not in states
        assert SessionState.SUSPENDED in states
        assert counter.lost >= 1
        stat = await session.exists("/broker")
        assert stat is not None
        assert (stat.czxid, stat.ephemeral_owner) == (registered.czxid, session.session_id)
        await session.create("/later")
        assert events == [WatchEvent(EventType.CREATED, "/later")]
        with pytest.raises(BadVersionError):
            await session.set("/count", b"", counter.count - 1)
        await session.close()
