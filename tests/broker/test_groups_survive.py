"""A group on a real broker, which is killed: members and offsets are where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages import CreateTopicsRequest, FindCoordinatorRequest
from tests.broker.group_dialogues import COMMIT, DESCRIBE, FETCH, commit, describe, fetch_groups, form, heartbeat
from tests.broker.group_stage import Remote, Stage
from tests.broker_process import BrokerProcess
from tests.wire_client import WireClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, {"group.initial.rebalance.delay.ms": "100"})
    process.start()
    yield process
    process.kill()


def stage_at(broker: BrokerProcess) -> Stage:
    host, port = broker.address.split(":")
    return Stage(Remote(host, int(port)), "s")


def test_a_group_survives_kill_9(broker: BrokerProcess) -> None:
    host, port = broker.address.split(":")
    with WireClient(host, int(port)) as client:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[]
        )
        client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False), 7)
        found: Any = client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        assert found.coordinators[0].error_code == ErrorCode.NONE, "the first look-up waits for the topic"
    stage = stage_at(broker)
    ids, generation = form(stage, "g", "ab")
    for offset in range(50):
        stage.ask("a", commit("g", [("t", 0, offset), ("t", 1, 2 * offset)], ids["a"], generation), COMMIT)
    before = stage.ask("x", describe("g"), DESCRIBE).groups[0]
    stage.close()
    broker.kill()
    broker.start()
    stage = stage_at(broker)
    while stage.ask("x", describe("g"), DESCRIBE).groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        stage.sleep(0.01)
    offsets = stage.ask("x", fetch_groups({"g": None}), FETCH).groups[0].topics[0].partitions
    assert {each.partition_index: each.committed_offset for each in offsets} == {0: 49, 1: 98}
    assert stage.ask("x", describe("g"), DESCRIBE).groups[0] == before
    for who in "ab":
        assert stage.ask(who, heartbeat("g", ids[who], generation), 4).error_code == ErrorCode.NONE
    stage.close()
