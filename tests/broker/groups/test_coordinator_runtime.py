"""The runtime of the group coordinators: loading, resigning, a slow or failing log, timers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from broker.coordinators.coordinator_runtime import RESPONSES_AT_ONCE, Responses
from cluster.coordinators.results import PendingResponse
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_admin import DeleteGroupsRequest, ListGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.broker.groups.dialogue_steps import form, new_id
from tests.broker.groups.group_fixture import OFFSETS_PARTITIONS, GroupFixture
from tests.broker.groups.local_place import Local, LocalConnection
from tests.kit.group_requests import commit, delete_offsets, describe, fetch, fetch_groups, heartbeat, join, leave, sync


@pytest.fixture
def place() -> Iterator[Local]:
    local = Local()
    local.create_topic("t", 2)
    yield local
    local.close()


@pytest.fixture
def fixture(place: Local) -> GroupFixture:
    return GroupFixture(place, "s")


def ask(place: Local, request: Any, version: int) -> Any:
    return place.connect("x").ask(request, version)


def elect(place: Local) -> None:
    """Load everything again, as after a failover; returns while it loads."""

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


def test_who_waits_when_the_coordinator_moves_is_sent_there(place: Local, fixture: GroupFixture) -> None:
    ids, _ = form(fixture, "g", "ab")
    fixture.send("a", join("g", ids["a"]), 9)
    resign(place)
    assert fixture.receive("a", JoinGroupRequest, 9).error_code == ErrorCode.NOT_COORDINATOR


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
    working = place.log.load

    async def fails(*_: Any) -> None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")

    monkeypatch.setattr(place.log, "load", fails)
    elect(place)
    place.sleep(1)
    assert not place.service.is_loading
    assert ask(place, fetch("g", None), 7).error_code == ErrorCode.NOT_COORDINATOR
    monkeypatch.setattr(place.log, "load", working)
    elect(place)
    place.sleep(1)
    assert ask(place, fetch("g", None), 7).topics[0].partitions[0].committed_offset == 5


def test_a_coordinator_that_is_closed_says_so(place: Local, fixture: GroupFixture) -> None:
    ids, _ = form(fixture, "g", "ab")
    fixture.send("a", join("g", ids["a"]), 9)
    place.run(place.service.close)
    assert fixture.receive("a", JoinGroupRequest, 9).error_code == ErrorCode.NOT_COORDINATOR
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


def test_a_record_that_cannot_be_written(place: Local, fixture: GroupFixture) -> None:
    """A client id may have the maximum length of a string; with the member id appended, it is longer."""
    connection = LocalConnection(place, "x" * 32_700)
    response: Any = connection.ask(join("g"), 3)
    synced: Any = connection.ask(
        sync("g", response.member_id, 1, {response.member_id: b""}, protocol_type=None, protocol_name=None), 3
    )
    assert synced.error_code == ErrorCode.NONE
    assert fixture.ask("a", heartbeat("g", response.member_id, 1), 4).error_code == ErrorCode.NONE


def test_a_client_that_goes_while_it_waits(place: Local, fixture: GroupFixture) -> None:
    ids, _ = form(fixture, "g", "ab")
    connection = place.connect("a")
    connection.send(join("g", ids["a"]), 9)
    connection.hang_up()
    answer = fixture.ask("b", join("g", ids["b"]), 9)
    assert answer.error_code == ErrorCode.NONE


# -- timers ------------------------------------------------------------------------------------------------------------


def test_idle_shards_have_no_timers(place: Local, fixture: GroupFixture) -> None:
    place.sleep(0.1)
    quiet = place.timers()
    for number in range(20):
        ask(place, commit(f"g{number}", [("t", 0, 1)]), 9)
    assert place.timers() == quiet
    ids, generation = form(fixture, "g", "abc")
    assert place.timers() <= quiet + 1
    for _ in range(50):
        for who in "abc":
            fixture.ask(who, heartbeat("g", ids[who], generation), 4)
    assert place.timers() <= quiet + 1
    place.sleep(400)
    assert ask(place, describe("g"), 5).groups[0].group_state == "Dead"
    assert place.timers() == quiet


def test_a_shard_that_is_gone_runs_no_timer(place: Local, fixture: GroupFixture) -> None:
    place.sleep(0.1)
    quiet = place.timers()
    form(fixture, "g", "a")
    resign(place)
    assert place.timers() == quiet


# -- administration ----------------------------------------------------------------------------------------------------


def test_numbers_for_metrics(place: Local, fixture: GroupFixture) -> None:
    form(fixture, "g", "a")
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


def test_a_commit_of_many_partitions(place: Local) -> None:
    place.create_topic("many", 700)
    offsets = [("many", index, index) for index in range(701)] + [("nowhere", 0, 1), ("t", 1, 5)]
    asked = ask(place, commit("g", offsets), 9)
    assert [topic.name for topic in asked.topics] == ["many", "nowhere", "t"]
    assert [each.error_code for each in asked.topics[0].partitions] == [0] * 700 + [3]
    assert asked.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fetched = ask(place, fetch("g", None), 7).topics
    assert [each.committed_offset for each in fetched[0].partitions] == list(range(700))
    place.log.held = []
    connection = place.connect("a")
    connection.send(commit("g", [("many", index, 9) for index in range(700)]), 9)
    place.sleep(0.1)
    assert not connection.has_answer()
    place.run(place.log.release)
    response: Any = connection.receive(OffsetCommitRequest, 9)
    assert {each.error_code for each in response.topics[0].partitions} == {0}


def test_many_who_wait_are_answered_a_few_at_a_time(place: Local) -> None:
    responses = Responses()
    replies: list[PendingResponse[int]] = [PendingResponse() for _ in range(100)]

    async def scenario() -> list[int]:
        futures = [responses.respond(reply, str) for reply in replies]
        assert all(isinstance(future, asyncio.Future) for future in futures)
        futures[3].cancel()  # type: ignore[union-attr]  # its client hung up
        for number, reply in enumerate(replies):
            reply.set(number)
        answered = []
        while len(answered) < 2 or answered[-1] < 100:
            answered.append(sum(future.done() for future in futures))  # type: ignore[union-attr]
            await asyncio.sleep(0)
        assert [future.result() for number, future in enumerate(futures) if number != 3] == [  # type: ignore[union-attr]
            str(number) for number in range(100) if number != 3
        ]
        return answered

    answered = place.run(scenario)
    assert max(after - before for before, after in pairwise(answered)) <= RESPONSES_AT_ONCE
    assert responses.respond(5, str) == "5"


def test_unknown_members_are_answered_for_every_api(place: Local) -> None:
    requests: list[tuple[Any, int]] = [
        (HeartbeatRequest(group_id="", generation_id=1, member_id=""), 0),
        (SyncGroupRequest(group_id="", generation_id=1, member_id="", assignments=[]), 0),
        (OffsetFetchRequest(group_id="", topics=[]), 1),
    ]
    answers = [ask(place, request, version) for request, version in requests]
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_GROUP_ID, 0]


# -- what clients are called -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.7", "/10.0.0.7"), ("::1", "/0:0:0:0:0:0:0:1"), ("fe80::1%eth0", "/fe80:0:0:0:0:0:0:1")],
)
def test_hosts_are_written_as_java_writes_them(place: Local, address: str, host: str) -> None:
    connection = LocalConnection(place, "a", address)
    connection.ask(join("g", instance="i"), 9)
    assert ask(place, describe("g"), 5).groups[0].members[0].client_host == host


def test_member_ids_begin_with_the_client_or_the_instance(fixture: GroupFixture) -> None:
    assert new_id(fixture, "a", "g").startswith("a-")
    assert fixture.ask("a", join("h", instance="i"), 9).member_id.startswith("i-")


# -- errors that nobody expected ---------------------------------------------------------------------------------------


def test_a_response_that_cannot_be_translated_holds_up_no_other(place: Local) -> None:
    responses = Responses()
    replies: list[PendingResponse[int]] = [PendingResponse() for _ in range(2)]

    async def scenario() -> None:
        bad: Any = responses.respond(replies[0], {}.__getitem__)
        good: Any = responses.respond(replies[1], str)
        for number, reply in enumerate(replies):
            reply.set(number)
        assert await good == "1"
        with pytest.raises(KeyError):
            await bad

    place.run(scenario)


def test_a_record_that_cannot_be_encoded_fails_its_own_request(place: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(place.log, "append", {}.__getitem__)
        refused = ask(place, commit("g", [("t", 0, 5)]), 9)
    assert refused.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert ask(place, commit("g", [("t", 0, 6)]), 9).topics[0].partitions[0].error_code == 0
    assert ask(place, fetch("g", None), 7).topics[0].partitions[0].committed_offset == 6
