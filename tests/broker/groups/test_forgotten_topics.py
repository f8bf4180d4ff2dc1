"""Offsets of deleted topics, if the log fails, or the topic is recreated at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.groups.membership_events import GroupMember
from cluster.groups.records import CommittedOffset
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.broker.groups.group_fixture import OFFSETS_PARTITIONS
from tests.broker.groups.local_place import Local
from tests.kit.group_requests import commit, fetch_groups


@pytest.fixture
def place() -> Iterator[Local]:
    local = Local()
    local.create_topic("t", 2)
    yield local
    local.close()


def commit_offsets(place: Local, offsets: dict[int, int]) -> None:
    for partition, offset in offsets.items():
        response = place.connect("x").ask(commit("g", [("t", partition, offset)]), 9)
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]


def offsets(place: Local) -> dict[int, int]:
    """The group's committed offsets, by partition."""
    response = place.connect("x").ask(fetch_groups({"g": None}), 8)
    topics = response.groups[0].topics  # type: ignore[attr-defined]
    return {each.partition_index: each.committed_offset for topic in topics for each in topic.partitions}


def make_again(place: Local) -> None:
    place.delete_topic("t")
    place.create_topic("t", 2)


def test_they_go_once_the_log_takes_it(place: Local) -> None:
    commit_offsets(place, {0: 5, 1: 5})
    place.log.failures.extend([ErrorCode.NOT_ENOUGH_REPLICAS] * 3)
    make_again(place)
    place.run(place.service.topics_forgotten)
    assert offsets(place) == {0: 5, 1: 5}
    place.sleep(10)
    assert offsets(place) == {}


def test_what_is_committed_right_after_the_deletion_stays(place: Local) -> None:
    commit_offsets(place, {0: 5, 1: 5})

    def commit_meanwhile() -> None:
        """Runs before the turn of the loop that writes the tombstones."""
        place.service.topics_deleted(["t"])
        runtime = place.service.runtime_of("g")
        committed = {TopicPartition("t", 1): CommittedOffset(0, -1, "", -1)}
        runtime.handle(runtime.shard.offsets.commit, "g", GroupMember("", -1), committed)

    place.run(commit_meanwhile)
    place.run(place.service.topics_forgotten)
    assert offsets(place) == {1: 0}


def test_topics_may_be_deleted_while_groups_are_loaded(place: Local) -> None:
    commit_offsets(place, {0: 5, 1: 5})

    def elect() -> None:
        for partition in range(OFFSETS_PARTITIONS):
            place.service.elected(partition)

    place.run(elect)
    assert place.service.is_loading
    make_again(place)
    place.sleep(1)
    assert not place.service.is_loading
    assert offsets(place) == {}
    commit_offsets(place, {1: 0})
    place.run(elect)
    place.sleep(1)
    assert offsets(place) == {1: 0}


def test_a_coordinator_that_has_resigned_leaves_them(place: Local) -> None:
    commit_offsets(place, {0: 5})
    timers = place.timers()
    place.log.failures.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    make_again(place)
    place.run(place.service.topics_forgotten)
    assert place.timers() == timers + 1
    written = len(place.log.records())

    def resign() -> None:
        for partition in range(OFFSETS_PARTITIONS):
            place.service.resigned(partition)

    place.run(resign)
    place.sleep(10)
    assert len(place.log.records()) == written
    assert place.timers() == timers
