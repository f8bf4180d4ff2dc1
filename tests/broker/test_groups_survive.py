"""A group on a real broker, which is killed: members and offsets are where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages import CreateTopicsRequest, FindCoordinatorRequest, JoinGroupRequest
from tests.broker.group_dialogues import (
    COMMIT,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    JOIN,
    SYNC,
    commit,
    describe,
    fetch_groups,
    heartbeat,
    join,
    new_id,
    sync,
)
from tests.broker.group_stage import Remote, Stage
from tests.broker_process import BrokerProcess
from tests.wire_client import WireClient

PATIENT = {"session_ms": 300_000, "rebalance_ms": 300_000}
"""Nobody is left out for having been slow."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    process.start()
    yield process
    process.kill()


def stage_at(broker: BrokerProcess) -> Stage:
    host, port = broker.address.split(":")
    return Stage(Remote(host, int(port)), "s")


def form(stage: Stage, group: str) -> tuple[dict[str, str], int]:
    """A stable group that `a` founds and `b` joins: their ids and the generation. Nothing in it has to be quick."""
    ids = {who: new_id(stage, who, group, **PATIENT) for who in "ab"}
    founded = stage.ask("a", join(group, ids["a"], **PATIENT), JOIN).generation_id
    stage.ask("a", sync(group, ids["a"], founded, {ids["a"]: b"all"}), SYNC)
    stage.send("b", join(group, ids["b"], **PATIENT), JOIN)
    while not (error := stage.ask("a", heartbeat(group, ids["a"], founded), HEARTBEAT).error_code):
        stage.sleep(0.01)
    assert error == ErrorCode.REBALANCE_IN_PROGRESS
    generation: int = stage.ask("a", join(group, ids["a"], **PATIENT), JOIN).generation_id
    assert stage.receive("b", JoinGroupRequest, JOIN).generation_id == generation
    assignments = {ids[who]: who.encode() for who in "ab"}
    for who in "ab":
        answer = stage.ask(who, sync(group, ids[who], generation, assignments if who == "a" else None), SYNC)
        assert answer.assignment == who.encode()
    return ids, generation


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
    ids, generation = form(stage, "g")
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
        assert stage.ask(who, heartbeat("g", ids[who], generation), HEARTBEAT).error_code == ErrorCode.NONE
    stage.close()
