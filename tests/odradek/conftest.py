"""The broker of the tests of `odradek.Broker`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import odradek


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[odradek.Broker]:
    """One broker for a module, with the keys in the module's CONFIG, if it has one."""
    with odradek.Broker(config=getattr(request.module, "CONFIG", None)) as broker:
        yield broker


@pytest.fixture
def broker(running: odradek.Broker) -> odradek.Broker:
    """The module's broker, new for each test."""
    running.reset()
    return running
