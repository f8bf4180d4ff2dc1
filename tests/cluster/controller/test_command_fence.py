"""Commands that are obeyed, and those that arrive too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.commands import NO_EPOCH, NO_NUMBER, Command, CommandFence
from protocol.errors import ApiError, ErrorCode

MOST = 2**31 - 1


def is_admitted(fence: CommandFence, number: int, *, controller_epoch: int = 7, broker_epoch: int = 50) -> bool:
    try:
        fence.admit(Command(1, controller_epoch, broker_epoch, number))
    except ApiError as error:
        assert error.error_code in {ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH}
        return False
    return True


@given(st.integers(0, MOST), st.lists(st.integers(0, 20), max_size=30))
def test_of_one_sender_what_comes_after_something_newer_is_refused(first: int, arrivals: list[int]) -> None:
    """In whatever order commands arrive, even if their numbers restart at 0."""
    fence, newest = CommandFence(), -1
    for age in arrivals:
        assert is_admitted(fence, (first + age) % 2**31) == (age >= newest)
        newest = max(newest, age)


@pytest.mark.parametrize("newer", [{"controller_epoch": 8}, {"broker_epoch": 51}])
def test_another_sender_counts_anew(newer: dict[str, int]) -> None:
    fence = CommandFence()
    assert is_admitted(fence, 90)
    assert is_admitted(fence, 1, **newer)
    assert not is_admitted(fence, 0, **newer)


def test_without_a_number_or_a_broker_epoch_the_order_is_not_checked() -> None:
    fence = CommandFence()
    for number in (9, 1):
        assert is_admitted(fence, number, broker_epoch=NO_EPOCH)
    assert is_admitted(fence, 90)
    assert is_admitted(fence, NO_NUMBER)
    assert not is_admitted(fence, 89)


def test_a_command_that_is_refused_leaves_no_trace() -> None:
    fence = CommandFence()
    fence.broker_epoch = 50
    assert is_admitted(fence, 5)
    assert not is_admitted(fence, 9, controller_epoch=6)
    assert not is_admitted(fence, 9, broker_epoch=49)
    assert is_admitted(fence, 6)


def test_a_newer_broker_epoch_is_obeyed_only_while_the_answer_to_the_registration_is_awaited() -> None:
    fence = CommandFence()
    assert is_admitted(fence, NO_NUMBER, broker_epoch=50), "the first registration"
    fence.registered(50)
    assert not is_admitted(fence, NO_NUMBER, controller_epoch=9, broker_epoch=60)
    fence.registration_ended()
    assert not is_admitted(fence, NO_NUMBER, controller_epoch=9)
    assert is_admitted(fence, NO_NUMBER, broker_epoch=60)
    fence.registered(60)
    assert is_admitted(fence, NO_NUMBER, broker_epoch=60)
    assert not is_admitted(fence, NO_NUMBER)


def test_a_controller_of_a_tree_that_was_set_back_since_is_refused() -> None:
    """Otherwise this broker would refuse every controller of the restored tree, whose epochs are lower."""
    lost, new = {"controller_epoch": 7, "broker_epoch": 50}, {"controller_epoch": 4, "broker_epoch": 30}
    fence = CommandFence()
    fence.registered(50)
    assert is_admitted(fence, NO_NUMBER, **lost)
    fence.registration_ended()
    fence.follow_older_tree(3)
    assert not is_admitted(fence, NO_NUMBER, **lost)
    assert is_admitted(fence, NO_NUMBER, **new), "it may hear of the registration before this broker"
    fence.registered(30)
    assert not is_admitted(fence, NO_NUMBER, **lost)
    assert is_admitted(fence, NO_NUMBER, **new)
