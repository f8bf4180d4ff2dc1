"""Each case runs once within as many days as the share has parts."""

from __future__ import annotations

import pytest

from tests.kit.due import due, due_block, turn


@pytest.mark.parametrize("size", [0, 1, 3, 4, 9])
def test_every_case_has_its_turn(size: int) -> None:
    days = [due(range(size), one_in=4, day=day) for day in range(20_000, 20_004)]
    assert {case for day in days for case in day} == set(range(size))
    assert all(days) or not size


def test_every_block_has_its_turn() -> None:
    days = [due_block(range(100, 120), one_in=4, day=day) for day in range(20_000, 20_004)]
    assert days == [range(100, 105), range(105, 110), range(110, 115), range(115, 120)]
    assert due_block(range(100, 120), one_in=1) == range(100, 120)


def test_all_are_due_by_hand() -> None:
    assert due("abc", one_in=1, day=20_001) == ["a", "b", "c"]


@pytest.mark.parametrize("number", [0, 1])
def test_tests_that_take_turns_all_run_by_hand(number: int) -> None:
    (runs_not,) = turn(number, of=2, one_in=1).args
    assert not runs_not
    days = [turn(number, of=2, one_in=4, day=day).args[0] for day in (20_000, 20_001)]
    assert sorted(days) == [False, True]
