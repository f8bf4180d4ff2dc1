"""The broker is killed while idempotent producers write: their records exist once and in order; groups survive too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from tests.compat.conftest import NewDriver
from tests.compat.driver_process import CLIENTS, ClientError, Driver, Record
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually

KILLS = 2
BETWEEN_KILLS = 3000
"""Acknowledged records between one death and the next."""


def wait_for_more(stream: Driver) -> None:
    """Wait until `BETWEEN_KILLS` more records of the stream are acknowledged."""

    def acknowledged() -> Any:
        return stream.ask("stream_state", stop=False)["acknowledged"]

    goal = acknowledged() + BETWEEN_KILLS
    eventually("acknowledgements", acknowledged, lambda count: count >= goal)


def committed(driver: Driver) -> dict[str, int]:
    """The group's committed offsets; none while the broker loads them, for which not every admin client waits."""
    try:
        offsets: dict[str, int] = driver.admin("committed", group="group")
    except ClientError as error:
        if error.error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return {}
    return offsets


def check_that_a_group_survives(driver: Driver, broker: BrokerProcess) -> None:
    """A member's committed offset survives one more death, and it reads on from there."""
    end = 1000
    driver.admin("create_topic", topic="grouped", partitions=1, configs={})
    driver.produce("grouped", [Record(b"%d" % number) for number in range(end)])
    member = driver.join("member", "group", "grouped")
    eventually("all records", lambda: len(member.state().records), lambda count: count == end)
    member.commit()
    broker.kill()
    broker.start()
    eventually("the committed offset", lambda: committed(driver), lambda offsets: offsets == {"grouped-0": end})
    driver.produce("grouped", [Record(b"after the death")])
    records = eventually("one record more", lambda: member.state().records, lambda records: len(records) > end)
    assert [(record.offset, record.value) for record in records[end:]] == [(end, b"after the death")]


@pytest.mark.parametrize("client", CLIENTS)
def test_nothing_is_lost_or_doubled(client: str, tmp_path: Path, new_driver: NewDriver) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    broker.start()
    try:
        driver = new_driver(client, broker.address)
        driver.admin("create_topic", topic="stream", partitions=1, configs={})
        driver.ask("stream", topic="stream")
        for _ in range(KILLS):
            wait_for_more(driver)
            broker.kill()
            broker.start()
        wait_for_more(driver)
        end = driver.ask("stream_state", stop=True)
        assert (end["running"], end["failures"]) == (False, [])
        assert sorted(end["acknowledged"]) == list(range(end["sent"]))
        records = driver.read("stream", end["sent"])
        assert [int(record.value or b"") for record in records] == list(range(end["sent"]))
        assert driver.consume("stream", 0, "latest")[0] == end["sent"]
        check_that_a_group_survives(driver, broker)
    finally:
        assert broker.stop() == 0
