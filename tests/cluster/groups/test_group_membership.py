"""Membership where the log is slow or fails, requests are repeated, or the coordinator changes.

tests/broker/groups/test_group_dialogues compares a healthy coordinator with Kafka.
"""

from __future__ import annotations

import gc
import math

import pytest

from cluster.groups.group import GroupState
from cluster.groups.group_config import GroupConfig
from cluster.groups.membership_events import PROTOCOL_BYTES
from cluster.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.cluster.groups.group_harness import MOST_RECORD_BYTES, REBALANCE_MS, SESSION_MS, Harness
from tests.cluster.shard_harness import START_MS

T0 = TopicPartition("t", 0)


@pytest.fixture
def harness() -> Harness:
    return Harness()


# -- the assignment is being written -----------------------------------------------------------------------------------


def test_nobody_has_an_assignment_before_it_is_committed(harness: Harness) -> None:
    member = harness.member()
    generation = harness.join(member).value.generation_id
    harness.hold = True
    sync = harness.sync(member, generation, {member: b"all"})
    assert sync.waits
    assert harness.state() == "CompletingRebalance"
    assert harness.restarted().shard.groups == {}
    harness.commit_one()
    assert sync.value.assignment == b"all"
    assert harness.state() == "Stable"
    assert harness.restarted().sync(member, generation).value.assignment == b"all"


@pytest.mark.parametrize(
    ("log_error", "answer"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_starts_over(
    harness: Harness, log_error: ErrorCode, answer: ErrorCode
) -> None:
    member = harness.member()
    generation = harness.join(member).value.generation_id
    harness.hold = True
    sync = harness.sync(member, generation, {member: b"all"})
    harness.fail_one(log_error)
    assert sync.value.error_code == answer
    assert sync.value.assignment == b""
    assert harness.state() == "PreparingRebalance"
    assert harness.log == []
    assert harness.shard.durable.groups == {}
    harness.hold = False
    generation = harness.join(member).value.generation_id
    assert harness.sync(member, generation, {member: b"again"}).value.assignment == b"again"


def test_a_member_that_joins_meanwhile_keeps_the_assignment_from_being_given_out(harness: Harness) -> None:
    member = harness.member()
    generation = harness.join(member).value.generation_id
    harness.hold = True
    sync = harness.sync(member, generation, {member: b"all"})
    other = harness.member()
    join = harness.join(other)
    assert sync.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    harness.commit_one()
    assert harness.state() == "PreparingRebalance"
    assert join.waits
    assert harness.join(member).value.generation_id == generation + 1
    assert join.value.generation_id == generation + 1


def test_a_second_assignment_waits_for_the_first(harness: Harness) -> None:
    member = harness.member()
    generation = harness.join(member).value.generation_id
    harness.hold = True
    first = harness.sync(member, generation, {member: b"first"})
    second = harness.sync(member, generation, {member: b"second"})
    assert first.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(harness.waiting) == 1
    harness.commit_one()
    assert second.value.assignment == b"first"
    assert harness.restarted().sync(member, generation).value.assignment == b"first"


def test_a_repeated_join_answers_the_first(harness: Harness) -> None:
    (one, two), _ = harness.stable(2)
    first = harness.join(two, protocols=[("range", b"new")])
    second = harness.join(two, protocols=[("range", b"newer")])
    assert first.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leader = harness.join(one).value
    assert {each.member_id: each.metadata for each in leader.members}[two] == b"newer"
    assert second.value.error_code == ErrorCode.NONE


def test_one_that_leaves_while_it_waits_is_answered(harness: Harness) -> None:
    (one, two), generation = harness.stable(2)
    join = harness.join(two, protocols=[("range", b"new")])
    harness.join(one)
    sync = harness.sync(two, generation + 1)
    assert join.value.error_code == ErrorCode.NONE
    assert harness.leave((two, None)) == [ErrorCode.NONE]
    assert sync.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -- static members ----------------------------------------------------------------------------------------------------


def static(harness: Harness) -> tuple[str, int]:
    joined = harness.join(instance="i").value
    harness.sync(joined.member_id, joined.generation_id, {joined.member_id: b"all"}, instance="i")
    assert harness.state() == "Stable"
    return joined.member_id, joined.generation_id


def test_a_static_members_new_id_is_told_when_it_is_committed(harness: Harness) -> None:
    old, generation = static(harness)
    harness.hold = True
    join = harness.join(instance="i")
    assert join.waits
    harness.commit_one()
    new = join.value.member_id
    assert join.value.generation_id == generation
    assert join.value.skip_assignment
    assert new != old
    assert harness.restarted().heartbeat(new, generation, instance="i") is ErrorCode.NONE
    assert harness.restarted().heartbeat(old, generation, instance="i") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_members_new_id_that_cannot_be_written_is_taken_back(harness: Harness) -> None:
    old, generation = static(harness)
    harness.hold = True
    join = harness.join(instance="i", session_ms=SESSION_MS + 1)
    harness.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert join.value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert join.value.member_id == ""
    assert harness.heartbeat(old, generation, instance="i") is ErrorCode.NONE
    member = harness.group().members[old]
    assert member.session_timeout_ms == SESSION_MS
    assert member.assignment == b"all"


def test_a_rebalance_answers_a_static_member_whose_new_id_is_being_written(harness: Harness) -> None:
    _, generation = static(harness)
    harness.hold = True
    join = harness.join(instance="i")
    other = harness.join(instance="j")
    assert harness.group().state is GroupState.COMPLETING_REBALANCE
    assert join.value.generation_id == generation + 1
    assert other.value.generation_id == generation + 1
    harness.commit_one()
    assert harness.group().state is GroupState.COMPLETING_REBALANCE


def test_one_that_waits_under_an_id_that_was_taken_over_is_fenced(harness: Harness) -> None:
    static(harness)
    first = harness.join(instance="j", settle=False)
    second = harness.join(instance="j", settle=False)
    assert first.value.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert second.waits
    assert len(harness.group().members) == 2


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_heartbeats_cost_no_heap(harness: Harness) -> None:
    ids, generation = harness.stable(3)
    for _ in range(1000):
        harness.advance(SESSION_MS - 1)
        assert {harness.heartbeat(each, generation) for each in ids} == {ErrorCode.NONE}
    assert harness.pending_deadlines() <= 10


def test_a_quiet_group_has_nothing_due(harness: Harness) -> None:
    ids, _ = harness.stable(2)
    harness.leave(*((each, None) for each in ids))
    harness.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert harness.shard.deadlines.next_ms == math.inf


def test_a_session_ends_at_its_timeout_and_not_before(harness: Harness) -> None:
    (member,), generation = harness.stable(1)
    harness.advance(SESSION_MS - 1)
    assert harness.heartbeat(member, generation) is ErrorCode.NONE
    harness.advance(SESSION_MS - 1)
    assert harness.state() == "Stable"
    harness.advance(1)
    assert harness.state() == "Empty"


def test_a_wall_clock_that_jumps_expires_nobody(harness: Harness) -> None:
    harness.stable(1)
    harness.wall_clock_skew_ms = 10 * SESSION_MS
    harness.advance(1)
    assert harness.state() == "Stable"


def test_one_that_waits_needs_no_heartbeat(harness: Harness) -> None:
    (one, two), generation = harness.stable(2, rebalance_ms=5 * SESSION_MS)
    join = harness.join(one, rebalance_ms=5 * SESSION_MS)
    for _ in range(4):
        harness.advance(SESSION_MS - 1)
        assert harness.heartbeat(two, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert join.waits
    harness.join(two, rebalance_ms=5 * SESSION_MS)
    assert join.value.error_code == ErrorCode.NONE


def test_one_that_waited_for_its_assignment_has_to_be_heard_of_again(harness: Harness) -> None:
    (one, two), generation = harness.stable(2)
    harness.join(one)
    harness.join(two)
    sync = harness.sync(two, generation + 1)
    for _ in range(2):
        harness.advance(SESSION_MS - 1)
        assert harness.heartbeat(one, generation + 1) is ErrorCode.NONE
    harness.sync(one, generation + 1, {two: b"all"})
    assert sync.value.assignment == b"all"
    harness.advance(SESSION_MS - 1)
    assert harness.state() == "Stable"
    harness.advance(1)
    assert harness.state() == "Empty"


def test_a_new_member_waits_no_longer_than_five_minutes(harness: Harness) -> None:
    ids, generation = harness.stable(1, rebalance_ms=1_000_000)
    newcomer = harness.join(harness.member())
    for _ in range(31):
        assert newcomer.waits
        harness.advance(SESSION_MS - 1)
        harness.heartbeat(ids[0], generation)
    assert newcomer.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalances_without_anybody_do_not_spin() -> None:
    harness = Harness()
    joined = harness.join(instance="i", rebalance_ms=0).value
    harness.sync(joined.member_id, joined.generation_id, {}, instance="i")
    other = harness.join(instance="j", rebalance_ms=0)
    harness.advance(0)
    harness.advance(SESSION_MS)
    assert other.value.error_code == ErrorCode.NONE


# -- another coordinator -----------------------------------------------------------------------------------------------


def test_resigning_sends_away_who_waits(harness: Harness) -> None:
    (one, _), generation = harness.stable(2, group_id="joining")
    join = harness.join(one, "joining")
    (three, four), _ = harness.stable(2, group_id="syncing")
    harness.join(three, "syncing")
    harness.join(four, "syncing")
    sync = harness.sync(four, generation + 1, group_id="syncing")
    assert join.waits
    assert sync.waits
    harness.shard.resign(harness.now())
    assert join.value.error_code == ErrorCode.NOT_COORDINATOR
    assert sync.value.error_code == ErrorCode.NOT_COORDINATOR
    harness.advance(REBALANCE_MS)


def test_members_of_a_loaded_group_have_a_session_to_be_heard_of(harness: Harness) -> None:
    (one, two), generation = harness.stable(2)
    harness.advance(SESSION_MS - 1)
    after = harness.restarted()
    after.advance(SESSION_MS - 1)
    assert after.heartbeat(one, generation) is ErrorCode.NONE
    after.advance(1)
    assert after.heartbeat(one, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert two not in after.group().members


def test_a_loaded_group_that_is_too_large_rebalances(harness: Harness) -> None:
    ids, generation = harness.stable(3)
    after = Harness(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2), list(harness.log))
    assert after.state() == "PreparingRebalance"
    joins = [after.join(each) for each in ids]
    assert joins[2].value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {joins[0].value.generation_id, joins[1].value.generation_id} == {generation + 1}


def test_an_empty_group_is_remembered_as_such(harness: Harness) -> None:
    (member,), generation = harness.stable(1)
    harness.leave((member, None))
    after = harness.restarted()
    assert after.state() == "Empty"
    assert after.group().generation_id == generation + 1
    assert after.group().state_timestamp_ms == START_MS
    _, next_generation = after.stable(1)
    assert next_generation == generation + 2


def test_an_empty_generation_that_cannot_be_written_is_empty_all_the_same(harness: Harness) -> None:
    (member,), generation = harness.stable(1)
    harness.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.leave((member, None))
    assert harness.state() == "Empty"
    assert harness.restarted().heartbeat(member, generation) is ErrorCode.NONE


def test_duplicate_protocols_of_a_member_count_once(harness: Harness) -> None:
    (member,), _ = harness.stable(1, protocols=[("a", b"1"), ("a", b"2"), ("b", b"3")])
    assert harness.describe().protocol_name == "a"
    assert harness.describe().members[0].metadata == b"1"
    assert harness.heartbeat(member, 1) is ErrorCode.NONE


def test_a_group_has_as_many_bytes_as_its_record_can_have(harness: Harness) -> None:
    """Four protocols with as much metadata as fits in one record: Kafka would fail to write the group."""
    large = [("range", bytes(4 * MOST_RECORD_BYTES - 100))]
    too_large = [("range", bytes(4 * MOST_RECORD_BYTES))]
    member = harness.member()
    assert harness.join(protocols=too_large).value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.join(member, protocols=too_large).value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.join(member, protocols=large).value.error_code == 0
    assert harness.join(member, protocols=large).value.error_code == 0
    assert harness.join(version=3, protocols=large).value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.leave((member, None))
    assert harness.join(instance="i", protocols=large).value.error_code == 0
    assert harness.join(instance="i", protocols=large).value.error_code == 0


def test_many_protocols_count_for_more_than_their_bytes(harness: Harness) -> None:
    many = [(str(number), b"") for number in range(4 * MOST_RECORD_BYTES // PROTOCOL_BYTES + 5)]
    assert harness.join(version=3, protocols=many).value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_protocols_that_nobody_supports_are_forgotten(harness: Harness) -> None:
    (member,), _ = harness.stable(1, protocols=[("a", b""), ("b", b"")])
    harness.join(member, protocols=[("a", b""), ("c", b"")])
    assert set(harness.group()._supported) == {"a", "c"}
    harness.leave((member, None))
    assert not harness.group()._supported


def test_ids_that_were_given_out_count(harness: Harness) -> None:
    while harness.join(client_id="c" * 10_000).value.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert len(harness.group().pending_members) <= 4
    assert harness.join(client_id="c" * 10_000).value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.advance(SESSION_MS + 1)
    assert harness.join(client_id="c" * 10_000).value.error_code == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("end", ["leave", "expire", "resign"])
def test_members_that_are_gone_are_no_cyclic_garbage(end: str) -> None:
    """A collection may have frozen them: the next one that frees cyclic garbage among them comes an hour later."""
    harness = Harness()
    member = harness.member()
    generation = harness.join(member).value.generation_id
    harness.sync(member, generation, {member: b"all"})
    harness.join("", version=3)
    pending = harness.member("others")
    gc.collect()
    gc.disable()
    try:
        if end == "leave":
            harness.leave((member, None))
        elif end == "expire":
            harness.advance(REBALANCE_MS)
        else:
            harness.shard.resign(harness.now())
            harness.shard = Harness().shard
        assert pending
        assert gc.collect() == 0
    finally:
        gc.enable()
