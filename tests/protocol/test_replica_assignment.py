"""Replica assignment: the round robin of Kafka's AdminUtils, worked out by hand for small clusters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ApiError, ErrorCode
from protocol.replica_assignment import alternate_racks, assign_replicas


def test_followers_shift_after_each_round() -> None:
    assignment = assign_replicas(dict.fromkeys(range(5)), 10, 3, start_index=0, replica_shift=0)
    assert assignment == (
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    )  # fmt: skip


def test_start_and_shift_move_leaders_and_followers() -> None:
    assert assign_replicas({7: None, 5: None, 9: None}, 3, 2, start_index=1, replica_shift=1) == (
        (7, 5),
        (9, 7),
        (5, 9),
    )


def test_partitions_added_later_continue_the_round() -> None:
    racks = dict.fromkeys(range(4))
    whole = assign_replicas(racks, 9, 2, start_index=2, replica_shift=2)
    tail = assign_replicas(racks, 5, 2, start_index=2, replica_shift=2, first_partition=4)
    # The shift grows at multiples of four: at 4 and 8 in both, so the tail equals the whole's.
    assert tail == whole[4:]


def test_one_broker_holds_everything() -> None:
    assert assign_replicas({0: None}, 3, 1, start_index=0, replica_shift=0) == ((0,), (0,), (0,))


def test_racks_alternate() -> None:
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks(racks) == [0, 3, 1, 5, 4, 2]
    assert alternate_racks({**racks, 6: "rack1"}) == [0, 3, 1, 5, 4, 2, 6]


def test_followers_stand_in_other_racks() -> None:
    racks = {0: "rack1", 1: "rack2", 2: "rack2", 3: "rack3", 4: "rack3", 5: "rack1"}
    assignment = assign_replicas(racks, 12, 3, start_index=2, replica_shift=0)
    for replicas in assignment:
        assert {racks[broker] for broker in replicas} == {"rack1", "rack2", "rack3"}
    assert set(Counter(replicas[0] for replicas in assignment).values()) == {2}


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=9),
    st.integers(1, 30),
    st.data(),
)
def test_replicas_differ_and_use_every_rack_they_can(
    racks: dict[int, str], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    start = data.draw(st.integers(0, len(racks) - 1))
    for replicas in assign_replicas(racks, partitions, factor, start_index=start, replica_shift=start):
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks.values())))


@pytest.mark.parametrize(
    ("partitions", "factor", "error_code", "message"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
        (-2, 1, ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."),
        (
            1,
            3,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor: 3 larger than available brokers: 2.",
        ),
    ],
)
def test_impossible_counts(partitions: int, factor: int, error_code: ErrorCode, message: str) -> None:
    with pytest.raises(ApiError) as raised:
        assign_replicas({0: None, 1: None}, partitions, factor, start_index=0, replica_shift=0)
    assert (raised.value.error_code, raised.value.message) == (error_code, message)


def test_racks_for_some_brokers_only_are_refused() -> None:
    with pytest.raises(ApiError, match="Not all brokers have rack information"):
        assign_replicas({0: "a", 1: None}, 1, 1, start_index=0, replica_shift=0)
