"""Assignors: range and roundrobin as in Kafka, and the guarantees of cooperative-sticky."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from client.assignors import (
    Assignment,
    Subscription,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from protocol.topic_partition import TopicPartition


def brief(assignment: Assignment) -> dict[str, str]:
    return {member: " ".join(f"{topic}{number}" for topic, number in each) for member, each in assignment.items()}


def subscribed(**members: str) -> dict[str, Subscription]:
    return {member: Subscription(tuple(topics)) for member, topics in members.items()}


def test_range_gives_the_first_members_one_more_of_each_topic() -> None:
    assignment = assign_range({"a": 3, "b": 4}, subscribed(y="ab", x="ab", z="b"))
    assert brief(assignment) == {"x": "a0 a1 b0 b1", "y": "a2 b2", "z": "b3"}


def test_static_members_are_ordered_by_instance_before_the_others() -> None:
    members = {
        "1": Subscription(("a",), instance_id="z"),
        "2": Subscription(("a",), instance_id="b"),
        "0": Subscription(("a",)),
    }
    assert brief(assign_range({"a": 3}, members)) == {"2": "a0", "1": "a1", "0": "a2"}


def test_round_robin_deals_all_partitions_out() -> None:
    assert brief(assign_round_robin({"a": 3, "b": 3}, subscribed(x="ab", y="ab"))) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}
    assert brief(assign_round_robin({"a": 1, "b": 2, "c": 3}, subscribed(x="a", y="ab", z="abc"))) == {
        "x": "a0",
        "y": "b0",
        "z": "b1 c0 c1 c2",
    }


def test_a_topic_without_partitions_or_readers_is_left_out() -> None:
    for assign in (assign_range, assign_round_robin, assign_cooperative_sticky):
        assert assign({"b": 2}, subscribed(x="a", y="a")) == {"x": [], "y": []}


def rebalance(counts: dict[str, int], members: dict[str, Subscription]) -> tuple[Assignment, int]:
    """Rejoin until no member must revoke anything; returns the assignment and the number of rounds."""
    for rounds in range(1, 5):
        assignment = assign_cooperative_sticky(counts, members)
        gone = any(set(each.owned) - set(assignment[member]) for member, each in members.items())
        members = {
            member: each._replace(owned=tuple(assignment[member]), generation=each.generation + 1)
            for member, each in members.items()
        }
        if not gone:
            return assignment, rounds
    raise AssertionError("it does not settle")


topics = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1)
groups = st.dictionaries(
    st.text("mnopq", min_size=1, max_size=3), st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=6
)


@given(counts=topics, wanted=groups, newcomers=groups)
def test_cooperative_sticky(
    counts: dict[str, int], wanted: dict[str, set[str]], newcomers: dict[str, set[str]]
) -> None:
    members = {member: Subscription(tuple(sorted(each))) for member, each in wanted.items()}
    before, rounds = rebalance(counts, members)
    assert rounds == 1
    everyone = {topic for each in wanted.values() for topic in each}
    assert Counter(each for own in before.values() for each in own) == Counter(
        TopicPartition(topic, number) for topic in everyone & set(counts) for number in range(counts[topic])
    )
    members = {member: each._replace(owned=tuple(before[member]), generation=1) for member, each in members.items()}
    assert assign_cooperative_sticky(counts, members) == before, "the same members keep what they have"
    members |= {
        member: Subscription(tuple(sorted(each))) for member, each in newcomers.items() if member not in members
    }
    first_round = assign_cooperative_sticky(counts, members)
    owners = {each: member for member, own in before.items() for each in own}
    for member, own in first_round.items():
        assert all(owners.get(each, member) == member for each in own), "nothing is given before it is let go"
    settled, rounds = rebalance(counts, members)
    if len({tuple(each.topics) for each in members.values()}) == 1:
        assert rounds <= 2
        sizes = sorted(len(own) for own in settled.values())
        assert sizes[-1] - sizes[0] <= 1


def test_of_two_who_claim_the_same_the_later_generation_is_right() -> None:
    claimed = (TopicPartition("a", 0), TopicPartition("a", 1))
    members = {
        "late": Subscription(("a",), claimed, generation=5),
        "zombie": Subscription(("a",), claimed, generation=4),
    }
    assert brief(assign_cooperative_sticky({"a": 2}, members)) == {"late": "a0", "zombie": ""}
    settled, _ = rebalance({"a": 2}, members)
    assert brief(settled) == {"late": "a0", "zombie": "a1"}


def test_subscriptions_and_assignments_survive_the_wire() -> None:
    owned = (TopicPartition("a", 1), TopicPartition("b", 0))
    assert decode_subscription(encode_subscription(["b", "a"], owned, 7, "rack"), "me") == Subscription(
        ("a", "b"), owned, 7, "me"
    )
    assert decode_assignment(encode_assignment(owned)) == list(owned)
    assert decode_assignment(b"") == []


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    newer = bytearray(encode_assignment([TopicPartition("a", 1)]))
    newer[:2] = (99).to_bytes(2, "big")
    assert decode_assignment(bytes(newer) + b"something new") == [TopicPartition("a", 1)]
