"""The driver of the group coordinators: loading, resigning, a log that is slow or fails, timers; producer ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from broker.internal_topics import InternalTopicCreator
from broker.producer_ids import ProducerIds
from cluster.coordination.contract import ConnectionLossError
from cluster.znodes import ProducerIdBlock
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from protocol.topic_partition import CONSUMER_OFFSETS
from tests.broker.group_dialogues import (
    commit,
    delete_offsets,
    describe,
    fetch,
    fetch_groups,
    form,
    heartbeat,
    join,
    leave,
    new_id,
    sync,
)
from tests.broker.group_stage import OFFSETS_PARTITIONS, Local, LocalConnection, Stage


@pytest.fixture
def place() -> Iterator[Local]:
    local = Local()
    local.create_topic("t", 2)
    yield local
    local.close()


@pytest.fixture
def stage(place: Local) -> Stage:
    return Stage(place, "s")


def ask(place: Local, request: Any, version: int) -> Any:
    return place.connect("x").ask(request, version)


def elect(place: Local) -> None:
    """Load everything anew, as another broker's successor does; returns while it loads."""

    def again() -> None:
        for partition in range(OFFSETS_PARTITIONS):
            place.service.elected(partition)

    place.run(again)


def resign(place: Local) -> None:
    def all_of_them() -> None:
        for partition in range(OFFSETS_PARTITIONS):
            place.service.resigned(partition)

    place.run(all_of_them)


# -- loading and resigning ---------------------------------------------------------------------------------------------


def in_each_partition(place: Local) -> list[str]:
    """One group id for every partition."""
    by_partition: dict[int, str] = {}
    for number in range(100):
        by_partition.setdefault(place.service.partition_of(f"g{number}"), f"g{number}")
    return list(by_partition.values())


def test_while_groups_are_loaded(place: Local) -> None:
    groups = in_each_partition(place)
    for group in groups:
        ask(place, commit(group, [("t", 0, 5)]), 9)
    elect(place)
    group = groups[0]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert ask(place, join(group), 9).error_code == loading
    assert ask(place, sync(group, "m", 1), 5).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert ask(place, heartbeat(group, "m", 1), 4).error_code == ErrorCode.NONE
    assert ask(place, leave(group, ("m", None)), 5).error_code == loading
    assert ask(place, LeaveGroupRequest(group_id=group, member_id="m"), 0).error_code == loading
    assert ask(place, commit(group, [("t", 0, 6)]), 9).topics[0].partitions[0].error_code == loading
    assert ask(place, fetch(group, {"t": [0]}), 1).topics[0].partitions[0].error_code == loading
    assert ask(place, fetch(group, {"t": [0]}), 7).error_code == loading
    assert ask(place, fetch_groups({group: None}), 9).groups[0].error_code == loading
    assert ask(place, describe(group), 5).groups[0].error_code == loading
    assert ask(place, describe(group), 5).groups[0].group_state == ""
    assert ask(place, ListGroupsRequest(), 5).error_code == loading
    assert ask(place, DeleteGroupsRequest(groups_names=[group]), 2).results[0].error_code == loading
    assert ask(place, delete_offsets(group, {"t": [0]}), 0).error_code == loading
    place.sleep(1)
    for group in groups:
        assert ask(place, fetch(group, {"t": [0]}), 7).topics[0].partitions[0].committed_offset == 5
    listed = ask(place, ListGroupsRequest(), 5)
    assert listed.error_code == ErrorCode.NONE
    assert {each.group_id for each in listed.groups} == set(groups)


def test_after_resigning(place: Local) -> None:
    ask(place, commit("g", [("t", 0, 5)]), 9)
    resign(place)
    elsewhere = ErrorCode.NOT_COORDINATOR
    assert ask(place, join("g"), 9).error_code == elsewhere
    assert ask(place, sync("g", "m", 1), 5).error_code == elsewhere
    assert ask(place, heartbeat("g", "m", 1), 4).error_code == elsewhere
    assert ask(place, fetch("g", None), 7).error_code == elsewhere
    assert ask(place, ListGroupsRequest(), 5).groups == []
    elect(place)
    place.sleep(1)
    assert ask(place, fetch("g", None), 7).topics[0].partitions[0].committed_offset == 5


def test_who_waits_when_the_coordinator_moves_is_sent_there(place: Local, stage: Stage) -> None:
    ids, _ = form(stage, "g", "ab")
    stage.send("a", join("g", ids["a"]), 9)
    resign(place)
    assert stage.receive("a", JoinGroupRequest, 9).error_code == ErrorCode.NOT_COORDINATOR


def test_an_election_that_is_over_before_the_log_is_read(place: Local) -> None:
    for group in in_each_partition(place):
        ask(place, commit(group, [("t", 0, 5)]), 9)
    elect(place)
    resign(place)
    place.sleep(1)
    assert ask(place, fetch("g", None), 7).error_code == ErrorCode.NOT_COORDINATOR
    elect(place)
    elect(place)
    place.sleep(1)
    assert not place.service.is_loading
    assert ask(place, fetch("g", None), 7).error_code == ErrorCode.NONE


def test_a_log_that_cannot_be_read_leaves_its_groups_unserved(place: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(place, commit("g", [("t", 0, 5)]), 9)
    working = place.log.read

    async def fails(_: int) -> Any:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
        yield b""

    monkeypatch.setattr(place.log, "read", fails)
    elect(place)
    place.sleep(1)
    assert not place.service.is_loading
    assert ask(place, fetch("g", None), 7).error_code == ErrorCode.NOT_COORDINATOR
    monkeypatch.setattr(place.log, "read", working)
    elect(place)
    place.sleep(1)
    assert ask(place, fetch("g", None), 7).topics[0].partitions[0].committed_offset == 5


def test_a_coordinator_that_is_closed_says_so(place: Local, stage: Stage) -> None:
    ids, _ = form(stage, "g", "ab")
    stage.send("a", join("g", ids["a"]), 9)
    place.run(place.service.close)
    assert stage.receive("a", JoinGroupRequest, 9).error_code == ErrorCode.NOT_COORDINATOR
    assert ask(place, join("g"), 9).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    elect(place)
    assert ask(place, join("g"), 9).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# -- the log -----------------------------------------------------------------------------------------------------------


def test_replies_wait_for_the_log_and_come_in_its_order(place: Local) -> None:
    place.log.held = []
    first, second = place.connect("a"), place.connect("b")
    first.send(commit("g", [("t", 0, 1)]), 9)
    second.send(commit("g", [("t", 0, 2)]), 9)
    assert ask(place, fetch("g", {"t": [0]}, stable=True), 7).topics[0].partitions[0].error_code == (
        ErrorCode.UNSTABLE_OFFSET_COMMIT
    )
    assert not first.has_answer()
    place.run(place.log.release)
    assert second.receive(OffsetCommitRequest, 9) == first.receive(OffsetCommitRequest, 9)
    assert ask(place, fetch("g", None), 7).topics[0].partitions[0].committed_offset == 2


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_log_that_refuses(place: Local, failure: ErrorCode, answer: ErrorCode) -> None:
    place.log.failures.append(failure)
    assert ask(place, commit("g", [("t", 0, 1)]), 9).topics[0].partitions[0].error_code == answer
    assert ask(place, commit("g", [("t", 0, 1)]), 9).topics[0].partitions[0].error_code == ErrorCode.NONE


def test_a_log_that_breaks(place: Local, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(*_: Any) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("a bug"))
        return future

    monkeypatch.setattr(place.log, "append", breaks)
    answer = ask(place, commit("g", [("t", 0, 1)]), 9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a bug" in caplog.text


def test_an_append_that_is_given_up(place: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    futures: list[asyncio.Future[int]] = []

    def never(*_: Any) -> asyncio.Future[int]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    monkeypatch.setattr(place.log, "append", never)
    connection = place.connect("a")
    connection.send(commit("g", [("t", 0, 1)]), 9)
    place.run(lambda: futures[0].cancel() or None)
    answer: Any = connection.receive(OffsetCommitRequest, 9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_record_that_cannot_be_written(place: Local, stage: Stage) -> None:
    """A client id may be as long as a string can be; with the member id behind it, it is longer."""
    connection = LocalConnection(place, "x" * 32_700)
    response: Any = connection.ask(join("g"), 3)
    synced: Any = connection.ask(
        sync("g", response.member_id, 1, {response.member_id: b""}, protocol_type=None, protocol_name=None), 3
    )
    assert synced.error_code == ErrorCode.NONE
    assert stage.ask("a", heartbeat("g", response.member_id, 1), 4).error_code == ErrorCode.NONE


def test_a_client_that_goes_while_it_waits(place: Local, stage: Stage) -> None:
    ids, _ = form(stage, "g", "ab")
    connection = place.connect("a")
    connection.send(join("g", ids["a"]), 9)
    connection.hang_up()
    answer = stage.ask("b", join("g", ids["b"]), 9)
    assert answer.error_code == ErrorCode.NONE


# -- timers ------------------------------------------------------------------------------------------------------------


def test_idle_shards_have_no_timers(place: Local, stage: Stage) -> None:
    place.sleep(0.1)
    quiet = place.timers()
    for number in range(20):
        ask(place, commit(f"g{number}", [("t", 0, 1)]), 9)
    assert place.timers() == quiet
    ids, generation = form(stage, "g", "abc")
    assert place.timers() <= quiet + 1
    for _ in range(50):
        for who in "abc":
            stage.ask(who, heartbeat("g", ids[who], generation), 4)
    assert place.timers() <= quiet + 1
    place.sleep(400)
    assert ask(place, describe("g"), 5).groups[0].group_state == "Dead"
    assert place.timers() == quiet


def test_a_shard_that_is_gone_runs_no_timer(place: Local, stage: Stage) -> None:
    place.sleep(0.1)
    quiet = place.timers()
    form(stage, "g", "a")
    resign(place)
    assert place.timers() == quiet


# -- administration ----------------------------------------------------------------------------------------------------


def test_numbers_for_metrics(place: Local, stage: Stage) -> None:
    form(stage, "g", "a")
    ask(place, commit("simple", [("t", 0, 1), ("t", 1, 1)]), 9)
    assert {state.value: number for state, number in place.service.group_counts().items()} == {"Stable": 1, "Empty": 1}
    assert place.service.offset_count() == 2


def test_deleting_many_groups_at_once(place: Local) -> None:
    groups = [f"g{number}" for number in range(10)]
    for group in groups:
        ask(place, commit(group, [("t", 0, 1)]), 9)
    place.log.held = []
    connection = place.connect("a")
    connection.send(DeleteGroupsRequest(groups_names=groups), 2)
    place.run(place.log.release)
    response: Any = connection.receive(DeleteGroupsRequest, 2)
    assert [(each.group_id, each.error_code) for each in response.results] == [(group, 0) for group in groups]
    assert ask(place, ListGroupsRequest(), 5).groups == []


def test_unknown_members_are_answered_for_every_api(place: Local) -> None:
    requests: list[tuple[Any, int]] = [
        (HeartbeatRequest(group_id="", generation_id=1, member_id=""), 0),
        (SyncGroupRequest(group_id="", generation_id=1, member_id="", assignments=[]), 0),
        (OffsetFetchRequest(group_id="", topics=[]), 1),
    ]
    answers = [ask(place, request, version) for request, version in requests]
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_GROUP_ID, 0]


def test_the_oldest_offsets_are_znodes_as_kafkas(place: Local) -> None:
    for offset in (5, 6):
        answer = ask(place, commit("g", [("t", 0, offset)]), 0)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    data, _ = place.run(lambda: place.coordination.get("/consumers/g/offsets/t/0"))
    assert data == b"6"
    place.run(lambda: place.coordination.set("/consumers/g/offsets/t/0", b"no number"))
    answer = ask(place, fetch("g", {"t": [0]}), 0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("group", ["", "..", "a/../../brokers", "/", "\0"])
def test_a_group_that_is_no_path_reaches_no_other_znode(place: Local, group: str) -> None:
    answer = ask(place, commit(group, [("t", 0, 5)]), 0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    answer = ask(place, fetch(group, {"t": [0]}), 0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert place.run(lambda: place.coordination.children("/"))[0] in ([], ["consumers"])


# -- coordinators and producer ids -------------------------------------------------------------------------------------


def test_the_first_lookup_creates_the_topic(place: Local) -> None:
    place.image = place.image.with_topics(removed=[CONSUMER_OFFSETS])
    place.on_create = partial(place.create_topic, CONSUMER_OFFSETS, OFFSETS_PARTITIONS)
    response = ask(place, FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    assert place.created == [CONSUMER_OFFSETS]
    assert (response.coordinators[0].error_code, response.coordinators[0].node_id) == (ErrorCode.NONE, 0)


def test_a_topic_that_cannot_be_created_is_not_available(place: Local) -> None:
    place.image = place.image.with_topics(removed=[CONSUMER_OFFSETS])

    def refuse() -> None:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")

    place.on_create = refuse
    for version in (3, 4):
        request = FindCoordinatorRequest(key="g") if version == 3 else FindCoordinatorRequest(coordinator_keys=["g"])
        response = ask(place, request, version)
        found = response if version == 3 else response.coordinators[0]
        assert (found.error_code, found.node_id, found.host, found.port) == (
            ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1,
        )  # fmt: skip


def test_a_creation_that_takes_long_is_not_waited_for(place: Local) -> None:
    async def slowly(_: str) -> None:
        await asyncio.sleep(100)

    creator = InternalTopicCreator(slowly)
    started_s = place.loop.time()

    async def twice() -> None:
        await asyncio.gather(creator.created("t", 1.0), creator.created("t", 1.0))
        await creator.close()

    place.run(twice)
    assert place.loop.time() - started_s < 2


@pytest.mark.parametrize(("key_type", "version"), [(1, 1), (1, 3), (1, 4), (1, 6)])
def test_transactions_fail_at_once_and_for_good(place: Local, key_type: int, version: int) -> None:
    request = FindCoordinatorRequest(key="t", coordinator_keys=["t"], key_type=key_type)
    if version < 4:
        request.coordinator_keys = []
    else:
        request.key = ""
    response = ask(place, request, version)
    found = response if version < 4 else response.coordinators[0]
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert found.node_id == -1


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_producer_gets_no_id(place: Local, version: int) -> None:
    response = ask(place, InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1), version)
    assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


def blocks(size: int, *, broken: Callable[[], bool] = lambda: False) -> ProducerIds:
    state = {"next": 0}

    async def allocate() -> ProducerIdBlock:
        await asyncio.sleep(0.01)
        if broken():
            raise ConnectionLossError("/latest_producer_id_block")
        first = state["next"]
        state["next"] += size
        return ProducerIdBlock(0, first, first + size - 1)

    return ProducerIds(allocate)


def test_no_producer_id_is_given_twice(place: Local) -> None:
    producer_ids = blocks(10)

    async def many() -> list[int]:
        return await asyncio.gather(*(producer_ids.next_id() for _ in range(35)))

    assert place.run(many) == list(range(35))


def test_a_block_that_cannot_be_had_is_asked_for_again(place: Local) -> None:
    outcomes = iter([True, False])
    producer_ids = blocks(10, broken=lambda: next(outcomes))
    with pytest.raises(ConnectionLossError):
        place.run(producer_ids.next_id)
    assert place.run(producer_ids.next_id) == 0


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.7", "/10.0.0.7"), ("::1", "/0:0:0:0:0:0:0:1"), ("fe80::1%eth0", "/fe80:0:0:0:0:0:0:1")],
)
def test_hosts_are_written_as_java_writes_them(place: Local, address: str, host: str) -> None:
    connection = LocalConnection(place, "a", address)
    connection.ask(join("g", instance="i"), 9)
    assert ask(place, describe("g"), 5).groups[0].members[0].client_host == host


def test_member_ids_begin_with_the_client_or_the_instance(stage: Stage) -> None:
    assert new_id(stage, "a", "g").startswith("a-")
    assert stage.ask("a", join("h", instance="i"), 9).member_id.startswith("i-")
