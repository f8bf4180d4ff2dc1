"""Pure work in slices: a generator that yields where others may have their turn, and returns its result in the end.

Such work takes an argument `is_over`, which says whether it should pause. `broker.network.slices` gives it by the time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Sliced = Generator[None, None, T]


def to_the_end(work: Sliced[T]) -> T:
    """Do all of `work` at once; gives its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def never() -> bool:
    """Whether to pause: not before the end."""
    return False
