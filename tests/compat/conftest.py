"""One broker and one process of every client for all these tests; topics and groups are named after the test."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.driver_process import Driver
from tests.kit.broker_process import BrokerProcess

BROKER_SETTINGS = {"num.partitions": "1", "group.min.session.timeout.ms": "1000"}
"""Sessions may be shorter than Kafka's 6 s, so that a test can wait for one to expire."""

NewDriver = Callable[..., Driver]


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker shared by all tests. If it logs a bug, the run fails at the end."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), BROKER_SETTINGS)
    process.start()
    yield process
    assert process.stop() == 0
    said = process.output.read_text()
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]


@pytest.fixture(scope="package")
def shared_drivers(tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess) -> Iterator[dict[str, Driver]]:
    """The processes of `driver`."""
    drivers: dict[str, Driver] = {}
    yield drivers
    for driver in drivers.values():
        driver.kill()


@pytest.fixture
def driver(
    client: str, broker: BrokerProcess, shared_drivers: dict[str, Driver], tmp_path_factory: pytest.TempPathFactory
) -> Driver:
    """The process of the test's `client`, shared with the other tests."""
    if client not in shared_drivers:
        log = tmp_path_factory.mktemp("drivers") / f"{client}.log"
        shared_drivers[client] = Driver(client, broker.address, log)
    return shared_drivers[client]


@pytest.fixture
def new_driver(tmp_path: Path, broker: BrokerProcess) -> Iterator[NewDriver]:
    """Start a separate process of a client for this test, which may kill it or connect it to another broker."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def start(client: str, address: str = broker.address) -> Driver:
            started = Driver(client, address, tmp_path / f"driver-{next(numbers)}.log")
            stack.callback(started.kill)
            return started

        yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A unique name, for topics and groups."""
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")
