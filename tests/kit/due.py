"""Long lists of cases: all of them by hand, and some of them each day where time is short."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")

ONE_IN = int(os.environ.get("ODRADEK_ONE_IN", "1"))
_DAY = int(time.time()) // 86_400


def due(cases: Iterable[Case], one_in: int = ONE_IN, day: int = _DAY) -> list[Case]:
    """The cases of today: one in `ODRADEK_ONE_IN`, so that all have had their turn after as many days."""
    listed = list(cases)
    return listed[day % min(one_in, len(listed)) :: one_in] if listed else []


def due_block(cases: range, one_in: int = ONE_IN, day: int = _DAY) -> range:
    """As `due`, the cases of today as one block of `cases`, whose number `one_in` divides."""
    size = len(cases) // one_in
    first = cases.start + day % one_in * size
    return range(first, first + size)
