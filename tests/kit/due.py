"""Long lists of cases: a run by hand covers all of them, a short run a different part each day."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")

ONE_IN = int(os.environ.get("ODRADEK_ONE_IN", "1"))
_DAY = int(time.time()) // 86_400


def due(cases: Iterable[Case], one_in: int = ONE_IN, day: int = _DAY) -> list[Case]:
    """Today's cases: one in `ODRADEK_ONE_IN`, so that all have run after that many days."""
    listed = list(cases)
    return listed[day % min(one_in, len(listed)) :: one_in] if listed else []


def turn(number: int, of: int, one_in: int = ONE_IN, day: int = _DAY) -> pytest.MarkDecorator:
    """Mark test `number` of `of` tests that take turns: some of them run each day, and all of them by hand."""
    return pytest.mark.skipif(number not in due(range(of), one_in, day), reason="not its turn today")


def due_block(cases: range, one_in: int = ONE_IN, day: int = _DAY) -> range:
    """Like `due`, with today's cases as one block of `cases`, whose number `one_in` divides."""
    size = len(cases) // one_in
    first = cases.start + day % one_in * size
    return range(first, first + size)
