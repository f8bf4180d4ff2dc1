"""Offsets of open transactions: when they become visible, who may commit them, and how they are loaded."""

from __future__ import annotations

import pytest

from cluster.coordinators.results import TransactionalProducer
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.cluster.groups.group_harness import Harness

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ONE, TWO = TransactionalProducer(101, 0), TransactionalProducer(102, 0)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.fixture
def harness() -> Harness:
    return Harness()


def agrees_with_its_log(harness: Harness) -> bool:
    return harness.shard.durable == harness.replayed()


@pytest.mark.parametrize("commit", [True, False])
def test_they_count_with_the_marker(harness: Harness, commit: bool) -> None:
    harness.commit({T0: 1})
    assert harness.commit({T0: 5, T1: 6}, producer=ONE).value == {T0: ErrorCode.NONE, T1: ErrorCode.NONE}
    assert harness.fetch(T0, T1) == {T0: 1, T1: -1}
    assert harness.fetch(T0, T1, require_stable=True) == {T0: UNSTABLE, T1: UNSTABLE}
    assert agrees_with_its_log(harness)
    assert harness.end_transaction(102, commit=commit).value is ErrorCode.NONE
    assert harness.fetch(T0, require_stable=True) == {T0: UNSTABLE}, "it was another producer's"
    assert harness.end_transaction(101, commit=commit).value is ErrorCode.NONE
    expected = {T0: 5, T1: 6} if commit else {T0: 1, T1: -1}
    assert harness.fetch(T0, T1, require_stable=True) == expected
    assert harness.restarted().fetch(T0, T1, require_stable=True) == expected
    assert agrees_with_its_log(harness)


def test_what_is_being_written_is_unstable(harness: Harness) -> None:
    harness.hold = True
    commit = harness.commit({T0: 5}, producer=ONE)
    assert harness.fetch(T0, require_stable=True) == {T0: UNSTABLE}
    harness.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert commit.value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert harness.fetch(T0, require_stable=True) == {T0: -1}


@pytest.mark.parametrize("error_code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_what_the_log_says_of_the_transaction_is_told(harness: Harness, error_code: ErrorCode) -> None:
    harness.hold = True
    commit = harness.commit({T0: 5}, producer=ONE)
    harness.fail_one(error_code)
    assert commit.value == {T0: error_code}


def test_a_plain_commit_that_is_newer_stands(harness: Harness) -> None:
    harness.commit({T0: 5}, producer=ONE)
    harness.commit({T0: 9})
    harness.end_transaction(101, commit=True)
    assert harness.fetch(T0) == {T0: 9}
    assert agrees_with_its_log(harness)


def test_transactions_of_two_producers(harness: Harness) -> None:
    harness.commit({T0: 5}, producer=ONE)
    harness.commit({T0: 7}, producer=TWO)
    harness.end_transaction(102, commit=True)
    assert harness.fetch(T0) == {T0: 7}
    harness.end_transaction(101, commit=True)
    assert harness.fetch(T0) == {T0: 7}
    assert agrees_with_its_log(harness)


def test_a_transaction_over_two_groups(harness: Harness) -> None:
    for group_id in ("g", "h"):
        harness.commit({T0: 5}, group_id=group_id, producer=ONE)
    harness.end_transaction(101, commit=True)
    assert [harness.fetch(T0, group_id=group_id) for group_id in ("g", "h")] == [{T0: 5}] * 2


def test_a_marker_that_was_not_written_changes_nothing(harness: Harness) -> None:
    harness.commit({T0: 5}, producer=ONE)
    harness.hold = True
    ended = harness.end_transaction(101, commit=True)
    harness.fail_one(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert ended.value is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert harness.fetch(T0, require_stable=True) == {T0: UNSTABLE}


def test_members_are_checked(harness: Harness) -> None:
    (member,), generation = harness.stable()
    assert harness.commit({T0: 5}, member, generation, producer=ONE).value == {T0: ErrorCode.NONE}
    assert harness.commit({T0: 5}, member, generation - 1, producer=ONE).value == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert harness.commit({T0: 5}, "?", generation, producer=ONE).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    instance = harness.commit({T0: 5}, member, generation, instance="?", producer=ONE)
    assert instance.value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert harness.commit({T0: 5}, producer=ONE).value == {T0: ErrorCode.NONE}, "from before KIP-447"


def test_a_group_with_nothing_but_an_open_transaction_stays(harness: Harness) -> None:
    harness.commit({T0: 5}, producer=ONE)
    harness.expire_offsets()
    harness.end_transaction(101, commit=True)
    assert harness.fetch(T0) == {T0: 5}


def test_a_group_that_is_deleted_amid_a_transaction_comes_back_with_it(harness: Harness) -> None:
    harness.commit({T0: 5}, producer=ONE)
    harness.delete_group()
    harness.end_transaction(101, commit=True)
    assert harness.fetch(T0) == {T0: 5}
    assert agrees_with_its_log(harness)
