"""The loop of the simulation: whose turn it is."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.simulation.loop import LivelockError, Process, SimLoop


def test_a_process_that_is_resumed_twice_has_one_turn() -> None:
    """The network heals, which resumes all processes, before the pause of one is over."""
    loop, process = SimLoop(Random(1)), Process("a")
    ran: list[int] = []

    async def work() -> None:
        for turn in range(3):
            ran.append(turn)
            await asyncio.sleep(0)

    loop.pause(process)
    loop.spawn(process, work())
    for _ in range(2):
        loop.resume(process)
    with pytest.raises(LivelockError, match="nobody has anything to do"):
        loop.run_forever()
    assert ran == [0, 1, 2]
    loop.end()
