"""The heap of deadlines against a naive model."""

from __future__ import annotations

import math
import weakref

from hypothesis import given
from hypothesis import strategies as st

from cluster.coordinators.deadlines import PAUSE_AFTER_BUG_MS, Deadline, Deadlines
from cluster.coordinators.results import Appends, ClockReading

STEPS = st.lists(
    st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 50))
    | st.tuples(st.just("clear"), st.integers(0, 4), st.just(0))
    | st.tuples(st.just("pass"), st.just(0), st.integers(0, 30)),
    max_size=60,
)


@given(STEPS)
def test_each_is_run_once_when_it_is_due(steps: list[tuple[str, int, int]]) -> None:
    deadlines = Deadlines()
    ran: list[int] = []
    actions = [lambda _, number=number: ran.append(number) or () for number in range(5)]
    each = [Deadline(deadlines) for _ in actions]
    due: dict[int, int] = {}
    now_ms = 0
    for step, number, amount in steps:
        if step == "set":
            each[number].action = actions[number]
            each[number].set(now_ms + amount)
            due[number] = now_ms + amount
        elif step == "clear":
            each[number].clear()
            due.pop(number, None)
        else:
            now_ms += amount
            ran.clear()
            deadlines.expire(ClockReading(0, now_ms))
            expected = {number for number, due_ms in due.items() if due_ms <= now_ms}
            assert sorted(ran) == sorted(expected)
            due = {number: due_ms for number, due_ms in due.items() if number not in expected}
        assert deadlines.next_ms <= min(due.values(), default=math.inf)


def test_an_action_that_fails_is_due_again_and_holds_up_no_other() -> None:
    deadlines, ran = Deadlines(), []
    broken = Deadline(deadlines, {}.__getitem__)
    broken.set(5)
    Deadline(deadlines, lambda _: ran.append(6) or ()).set(6)
    deadlines.expire(ClockReading(0, 7))
    assert ran == [6]
    assert deadlines.next_ms == 7 + PAUSE_AFTER_BUG_MS
    broken.action = lambda _: ran.append(5) or ()
    deadlines.expire(ClockReading(0, 7 + PAUSE_AFTER_BUG_MS))
    assert ran == [6, 5]


def test_what_is_set_again_and_again_does_not_pile_up() -> None:
    deadlines = Deadlines()
    deadline = Deadline(deadlines, lambda _: ())
    for due_ms in range(100_000, 0, -1):
        deadline.set(due_ms)
        deadline.clear()
    for _ in range(10_000):
        Deadline(deadlines, lambda _: ()).set(1)
        Deadline(deadlines, lambda _: ()).clear()
    assert len(deadlines) <= 2 * 10_000
    forgotten = [Deadline(deadlines, lambda _: ()) for _ in range(10_000)]
    for each in forgotten:
        each.set(500_000)
        each.clear()
    assert len(deadlines) <= 4 * 10_000


def test_deadlines_that_were_cleared_leave_the_heap_without_another_one() -> None:
    """Ten thousand former members used to stay in it, as lists, until their deadline or until new members came."""
    deadlines = Deadlines()
    members = [Deadline(deadlines, lambda _: []) for _ in range(10_000)]
    for number, member in enumerate(members):
        member.set(300_000 + number)
    for member in members[1:]:
        member.clear()
    assert len(deadlines) < 200
    assert deadlines.next_ms == 300_000


def test_an_action_that_is_due_at_once_again_waits_for_the_next_call() -> None:
    deadlines = Deadlines()
    calls: list[int] = []

    def again(now: ClockReading) -> Appends:
        calls.append(now.monotonic_ms)
        deadline.set(now.monotonic_ms)
        return ()

    deadline = Deadline(deadlines, again)
    deadline.set(1)
    deadlines.expire(ClockReading(0, 5))
    assert calls == [5]
    assert deadlines.next_ms == 5
    deadlines.expire(ClockReading(0, 5))
    assert calls == [5, 5]


def test_a_cleared_deadline_keeps_nothing() -> None:
    """The entry stays in the heap for a while, as after moving a deadline to an earlier time."""

    class Held:
        def action(self, _: ClockReading) -> Appends:
            return ()

    deadlines, held = Deadlines(), Held()
    deadline = Deadline(deadlines, held.action)
    for due_ms in (300_000, 6_000):
        deadline.set(due_ms)
    deadline.clear()
    gone = weakref.ref(held)
    del held
    assert gone() is None
    assert len(deadlines) == 2
