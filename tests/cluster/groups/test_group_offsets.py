"""Committed offsets with a slow or failing log, and their expiry."""

from __future__ import annotations

import math
import struct

import pytest

from cluster.coordinators.results import PendingResponse, TransactionalProducer
from cluster.groups.group_config import GroupConfig
from cluster.groups.offset_events import OffsetDeletion
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.cluster.groups.group_harness import Harness

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RETENTION_MS = 60_000


@pytest.fixture
def harness() -> Harness:
    return Harness(GroupConfig(group_initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS))


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def test_a_commit_counts_when_it_is_committed(harness: Harness) -> None:
    harness.hold = True
    commit = harness.commit({T0: 5})
    assert commit.waits
    assert harness.fetch(T0) == {T0: -1}
    assert harness.fetch(T0, require_stable=True) == {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    harness.commit_one()
    assert commit.value == {T0: ErrorCode.NONE}
    assert harness.fetch(T0, require_stable=True) == {T0: 5}
    assert harness.restarted().fetch() == {T0: 5}


def test_offsets_know_where_they_stand_in_the_log(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.commit({T0: 6, T1: 7})
    group = harness.shard.durable.groups["g"]
    assert {key: offset.log_offset for key, offset in group.offsets.items()} == {T0: 1, T1: 2}
    loaded = harness.replayed().groups["g"]
    assert {key: offset.log_offset for key, offset in loaded.offsets.items()} == {T0: 1, T1: 2}


def test_two_commits_under_way_end_with_the_second(harness: Harness) -> None:
    harness.hold = True
    commits = [harness.commit({T0: 5}), harness.commit({T0: 6})]
    harness.commit_one()
    assert harness.fetch(T0, require_stable=True) == {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    harness.commit_one()
    assert [commit.value for commit in commits] == [{T0: ErrorCode.NONE}] * 2
    assert harness.fetch(T0, require_stable=True) == {T0: 6}


@pytest.mark.parametrize(
    ("log_error", "answer"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_fails_leaves_no_trace(harness: Harness, log_error: ErrorCode, answer: ErrorCode) -> None:
    harness.commit({T0: 5})
    harness.fails_with = log_error
    assert harness.commit({T0: 6, T1: 7}).value == {T0: answer, T1: answer}
    assert harness.fetch(T0, T1, require_stable=True) == {T0: 5, T1: -1}


def test_metadata_that_is_too_large_fails_alone(harness: Harness) -> None:
    assert harness.commit({T0: 1}, metadata="x" * 4097).value == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert harness.log == []


def test_a_group_is_dead_while_its_deletion_is_written(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.hold = True
    deletion = harness.delete_group()
    assert deletion.waits
    assert harness.state() == "Dead"
    assert harness.join().value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.commit({T0: 6}).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert harness.delete_group().value is ErrorCode.GROUP_ID_NOT_FOUND
    harness.commit_one()
    assert deletion.value is ErrorCode.NONE
    assert harness.shard.groups == {}
    assert harness.restarted().shard.groups == {}


def test_a_deletion_that_fails_brings_the_group_back(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.delete_group().value is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state() == "Empty"
    assert harness.fetch() == {T0: 5}
    assert harness.delete_offsets(T0).value == OffsetDeletion(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert harness.fetch() == {T0: 5}


def test_a_deletion_takes_commits_under_way_with_it(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.hold = True
    commit, deletion = harness.commit({T1: 6}), harness.delete_group()
    harness.commit_one()
    harness.commit_one()
    assert commit.value == {T1: ErrorCode.NONE}
    assert deletion.value is ErrorCode.NONE
    assert harness.shard.durable.groups == {}
    assert harness.shard.groups == {}


def test_a_group_that_is_being_removed_is_not_available(harness: Harness) -> None:
    (member,), generation = harness.stable()
    waiting = harness.member()
    harness.leave((member, None), (waiting, None))
    harness.commit({T0: 5})
    harness.hold = True
    deletion = harness.delete_group()
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.join().value.error_code is unavailable
    assert harness.sync(member, generation).value.error_code is unavailable
    assert harness.heartbeat(member, generation) is unavailable
    assert harness.handle(harness.shard.membership.leave, "g", []).value.error_code is unavailable
    assert harness.commit({T0: 6}).value == {T0: unavailable}
    assert harness.delete_group().value is ErrorCode.GROUP_ID_NOT_FOUND
    assert harness.delete_offsets(T0).value == OffsetDeletion(ErrorCode.GROUP_ID_NOT_FOUND)
    assert harness.fetch(T0) == {T0: -1}
    harness.expire_offsets()
    harness.forget_topics("t")
    assert len(harness.waiting) == 1
    harness.commit_one()
    assert deletion.value is ErrorCode.NONE


@pytest.mark.parametrize("remove", ["expire", "forget"])
def test_offsets_whose_removal_fails_stay_for_the_next_time(
    harness: Harness, remove: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.commit({T0: 5})
    harness.advance(RETENTION_MS)

    def try_to_remove() -> None:
        if remove == "expire":
            harness.expire_offsets()
        else:
            harness.forget_topics("t")

    harness.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
    try_to_remove()
    assert "in g: NOT_ENOUGH_REPLICAS" in caplog.text
    assert harness.fetch() == {T0: 5}
    assert harness.state() == "Empty"
    harness.fails_with = None
    try_to_remove()
    assert harness.shard.groups == {}


def test_a_reply_is_given_once() -> None:
    reply: PendingResponse[int] = PendingResponse()
    reply.set(1)
    with pytest.raises(RuntimeError, match="answered twice: 1 and 2"):
        reply.set(2)


def test_a_group_with_generations_has_its_record_deleted(harness: Harness) -> None:
    (member,), _ = harness.stable()
    harness.leave((member, None))
    assert harness.delete_group().value is ErrorCode.NONE
    assert harness.log[-1][1] is None
    assert harness.restarted().shard.groups == {}


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_offsets_of_a_simple_group_expire_after_their_commit(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.advance(RETENTION_MS - 1)
    harness.commit({T1: 6})
    harness.expire_offsets()
    assert harness.fetch() == {T0: 5, T1: 6}
    harness.advance(1)
    harness.expire_offsets()
    assert harness.fetch() == {T1: 6}
    assert harness.restarted().fetch() == {T1: 6}
    harness.advance(RETENTION_MS)
    harness.expire_offsets()
    assert harness.state() == "Dead"
    assert harness.restarted().shard.groups == {}


def test_offsets_of_a_group_expire_after_it_became_empty(harness: Harness) -> None:
    (member,), generation = harness.stable(session_ms=10 * RETENTION_MS)
    harness.commit({T0: 5}, member, generation)
    harness.advance(2 * RETENTION_MS)
    harness.expire_offsets()
    assert harness.fetch() == {T0: 5}
    harness.leave((member, None))
    harness.advance(RETENTION_MS - 1)
    after = harness.restarted()
    after.expire_offsets()
    assert after.fetch() == {T0: 5}
    after.advance(1)
    after.expire_offsets()
    assert after.state() == "Dead"


def test_a_stable_group_loses_offsets_of_topics_it_has_left(harness: Harness) -> None:
    (member,), generation = harness.stable(session_ms=10 * RETENTION_MS, protocols=[("range", subscription("t"))])
    harness.commit({T0: 5, U0: 6}, member, generation)
    harness.advance(RETENTION_MS)
    harness.expire_offsets()
    assert harness.fetch() == {T0: 5}


def test_a_stable_group_of_another_kind_loses_nothing(harness: Harness) -> None:
    (member,), generation = harness.stable(session_ms=10 * RETENTION_MS, protocol_type="connect")
    harness.commit({U0: 6}, member, generation)
    harness.advance(10 * RETENTION_MS - 1)
    harness.expire_offsets()
    assert harness.fetch() == {U0: 6}


def test_a_retention_of_its_own_counts_alone(harness: Harness) -> None:
    harness.commit({T0: 5}, retention_ms=10 * RETENTION_MS)
    harness.commit({T1: 5}, retention_ms=0)
    harness.commit({U0: 5}, retention_ms=2**63 - 1)
    harness.advance(RETENTION_MS)
    after = harness.restarted()
    after.expire_offsets()
    assert after.fetch() == {T0: 5, U0: 5}


def test_an_offset_with_a_commit_under_way_does_not_expire(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.advance(RETENTION_MS)
    harness.hold = True
    harness.commit({T0: 6})
    harness.expire_offsets()
    harness.hold = False
    harness.commit_one()
    assert harness.fetch() == {T0: 6}


def test_an_expiry_that_fails_is_tried_again(harness: Harness) -> None:
    harness.commit({T0: 5})
    harness.advance(RETENTION_MS)
    harness.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.expire_offsets()
    assert harness.fetch() == {T0: 5}
    assert harness.state() == "Empty"
    harness.fails_with = None
    harness.expire_offsets()
    assert harness.state() == "Dead"


def test_a_group_that_nobody_ever_joined_goes(harness: Harness) -> None:
    harness.member()
    harness.expire_offsets()
    assert harness.shard.groups == {}
    assert harness.log == []


def test_many_offsets_go_in_bounded_batches(harness: Harness) -> None:
    harness.commit({TopicPartition("t", partition): 1 for partition in range(12_000)})
    harness.hold = True
    deletion = harness.delete_group()
    assert max(len(append.records) for append in harness.waiting) <= 5000
    while harness.waiting:
        assert deletion.waits
        harness.commit_one()
    assert deletion.value is ErrorCode.NONE
    assert harness.shard.durable.groups == {}


def test_deleted_topics_take_their_offsets_and_bare_groups(harness: Harness) -> None:
    harness.commit({T0: 5, U0: 6})
    harness.commit({T0: 5}, group_id="only")
    harness.forget_topics("t")
    assert harness.fetch() == {U0: 6}
    assert list(harness.shard.groups) == ["g"]
    assert list(harness.restarted().shard.groups) == ["g"]


# -- deleted topics whose offsets cannot go at once --------------------------------------------------------------------


def test_offsets_of_deleted_topics_go_once_the_log_takes_it(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.commit({T0: 5, U0: 6})
    harness.commit({T1: 5}, group_id="only")
    harness.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.forget_topics("t")
    harness.advance(10_000)
    assert harness.fetch() == {T0: 5, U0: 6}
    assert caplog.text.count("in g: NOT_ENOUGH_REPLICAS; it is tried again") == 1
    harness.fails_with = None
    harness.advance(1000)
    assert harness.fetch() == {U0: 6}
    assert list(harness.restarted().shard.groups) == ["g"]
    written = len(harness.log)
    harness.advance(10_000)
    assert len(harness.log) == written
    assert harness.shard.deadlines.next_ms == math.inf


def test_what_is_committed_after_the_deletion_stays(harness: Harness) -> None:
    harness.commit({T0: 5, T1: 5, U0: 6})
    harness.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.forget_topics("t")
    harness.fails_with = None
    harness.commit({T0: 7})
    harness.advance(1000)
    assert harness.fetch() == harness.restarted().fetch() == {T0: 7, U0: 6}
    # A second deletion, completed after the group has committed again.
    deleted_at = harness.shard.offsets.next_number
    harness.commit({T0: 1})
    harness.forget_topics("t", first_kept=deleted_at)
    assert harness.fetch() == harness.restarted().fetch() == {T0: 1, U0: 6}
    harness.forget_topics("t")
    assert harness.fetch() == {U0: 6}


@pytest.mark.parametrize("is_new", [False, True], ids=["of_the_deleted", "of_the_new"])
def test_a_commit_that_is_being_written(harness: Harness, *, is_new: bool) -> None:
    harness.commit({T0: 5, U0: 6})
    deleted_at = harness.shard.offsets.next_number
    harness.hold = True
    harness.commit({T0: 7})
    harness.forget_topics("t", first_kept=deleted_at if is_new else None)
    assert len(harness.waiting) == 1, "the end of the older offset would end this one, too"
    harness.hold = False
    harness.commit_one()
    assert harness.fetch() == harness.restarted().fetch() == ({T0: 7, U0: 6} if is_new else {U0: 6})


def test_a_commit_after_the_deletion_that_fails_leaves_nothing_older(harness: Harness) -> None:
    harness.commit({T0: 5, U0: 6})
    deleted_at = harness.shard.offsets.next_number
    harness.hold = True
    harness.commit({T0: 7})
    harness.forget_topics("t", first_kept=deleted_at)
    harness.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.hold = False
    harness.commit_one()
    assert harness.fetch() == {U0: 6}


def test_an_offset_in_a_transaction_goes_when_that_ends(harness: Harness) -> None:
    harness.commit({T0: 5, U0: 6})
    harness.commit({T0: 7, T1: 7}, producer=TransactionalProducer(9, 0))
    harness.forget_topics("t")
    harness.end_transaction(9, commit=True)
    harness.advance(1000)
    assert harness.fetch() == harness.restarted().fetch() == {U0: 6}


def test_a_group_whose_removal_fails_loses_the_offsets_of_deleted_topics(harness: Harness) -> None:
    harness.commit({T0: 5, U0: 6})
    harness.hold = True
    harness.delete_group()
    harness.forget_topics("t")
    harness.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.hold = False
    harness.advance(1000)
    assert harness.fetch() == {U0: 6}
