"""Pure work in slices: a generator that yields whenever other tasks may run, and finally returns its result.

The work takes a callable `should_yield` that says whether to pause. `environment.slices` provides one based on time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Sliced = Generator[None, None, T]


def run_to_end(work: Sliced[T]) -> T:
    """Run `work` to its end without pauses and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def never() -> bool:
    """A `should_yield` that never pauses."""
    return False
