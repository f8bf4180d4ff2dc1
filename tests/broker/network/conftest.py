"""The event loops that the tests of connections run on."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.broker.network.scripted_server import LOOP_FACTORIES


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def every_loop(request: pytest.FixtureRequest) -> None:
    """Run the test once on each loop."""
    LOOP_FACTORIES[0] = request.param
