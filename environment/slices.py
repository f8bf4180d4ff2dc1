"""Work in slices: an expensive request lets the event loop serve others in between.

The dispatcher decodes, splits and encodes large requests in slices (`broker.network.shares`). A handler must work in
slices itself if its API cannot be split, or if a small request can ask for a lot.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Iterable
from typing import Any, ClassVar, Final, TypeVar

from environment.contract import Clock
from protocol.wire.schema import Message, Struct

T = TypeVar("T")

SLICE_S: Final = 0.005
"""How long one request, or the requests of one packet, may hold the event loop."""

SMALL_LIST: Final = 1000
"""Shorter lists are freed in one go."""


class Slices:
    """The slices of one piece of work. The first one starts at once."""

    _paused: ClassVar[int] = 0
    """Pieces of work that wait for their next slices."""

    def __init__(self, clock: Clock, slice_s: float = SLICE_S) -> None:
        self._clock = clock
        self._slice_s = slice_s
        self._should_yield = clock.begin_slice(slice_s)

    def should_yield(self) -> bool:
        """Whether the slice is over: the work should `pause`."""
        return self._should_yield()

    async def pause(self) -> None:
        """Let the event loop serve others, then start the next slice.

        In each event-loop turn, all paused work shares the time of one slice: many large requests do not make others
        wait longer.
        """
        Slices._paused += 1
        try:
            await asyncio.sleep(0)
        finally:
            Slices._paused -= 1
        self._should_yield = self._clock.begin_slice(self._slice_s / (1 + Slices._paused))

    async def finish(self, work: Generator[None, None, T]) -> T:
        """Run a generator that yields when `should_yield` says so, and return its result."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.pause()

    async def free(self, message: list[Any]) -> None:
        """Free the only item of this list, a message, in slices, unless something else refers to it.

        CPython frees the lists of a message in one go with its last reference: a million elements take 0.2 s.
        """
        owner = message.pop()
        # The variable and the argument hold one reference each.
        if sys.getrefcount(owner) == 2 and isinstance(owner, Message):
            await self.finish(_freed(owner, self.should_yield))


def _freed(owner: Struct, should_yield: Callable[[], bool]) -> Generator[None, None, None]:
    """Remove large lists from `owner`, which must have no other reference, and empty them."""
    for name in owner.declared_fields:
        items = getattr(owner, name)
        if items.__class__ is not list or not items:
            continue
        if len(items) < SMALL_LIST and not isinstance(items[0], Struct):
            continue
        setattr(owner, name, None)
        if sys.getrefcount(items) != 2:
            continue
        while items:
            item = items.pop()
            if isinstance(item, Struct) and sys.getrefcount(item) == 2:
                yield from _freed(item, should_yield)
            if should_yield():
                yield


HASH_SHARDS: Final = 251
"""The number of parts into which the hashes of keys are divided, by their remainders."""

HASHES_AT_ONCE: Final = 10_000
"""Comparing as many with each other takes some 0.5 ms."""


class RepeatedKeys:
    """Finds the keys that occur several times among a million, in slices and with eight bytes for each.

    One set of a million hashes would hold the event loop for 0.1 s when it grows, and again when it is freed. Its
    numbers would take 45 MB of small objects; any object created among them that lives on keeps a megabyte of it.
    """

    def __init__(self, most: int | None = None) -> None:
        """`most` is the number of keys that will be added, if known."""
        self.any = False
        """Whether `find` has found any."""
        self._shards = 1 if most is not None and most < SMALL_LIST else HASH_SHARDS
        self._hashes = [array("q") for _ in range(self._shards)]
        self._repeated: list[set[int]] = []

    def add(self, key: Hashable) -> None:
        """Count one occurrence of `key`."""
        number = hash(key)
        self._hashes[number % self._shards].append(number)

    def find(self, should_yield: Callable[[], bool]) -> Generator[None, None, None]:
        """Find the keys that were added more than once. Yields when `should_yield` reports the end of the slice."""
        is_large = sum(map(len, self._hashes)) >= SMALL_LIST
        for numbers in self._hashes:
            seen: set[int] = set()
            repeated: set[int] = set()
            for start in range(0, len(numbers), HASHES_AT_ONCE):
                some = numbers[start : start + HASHES_AT_ONCE]
                distinct = set(some)
                if len(distinct) < len(some):
                    repeated.update(number for number, count in Counter(some).items() if count > 1)
                repeated |= distinct & seen
                seen |= distinct
                if is_large and should_yield():
                    yield
            self._repeated.append(repeated)
        self._hashes.clear()
        self.any = any(self._repeated)

    def __contains__(self, key: Hashable) -> bool:
        """Whether `key` was added more than once, or has the hash of such a key. Call after `find`."""
        return self.any and (number := hash(key)) in self._repeated[number % self._shards]


async def in_slices(items: Iterable[T], clock: Clock | Slices, slice_s: float = SLICE_S) -> AsyncIterator[T]:
    """Iterate over `items`, and yield to the event loop whenever `slice_s` have been spent on them. Several iterations
    of one request may share the same `Slices`.

    The connection waits for the handler's coroutine, so the order of effects stays. Other connections are served in
    between: a fact looked up before one item may be outdated at the next.
    """
    slices = clock if isinstance(clock, Slices) else Slices(clock, slice_s)
    for item in items:
        yield item
        if slices.should_yield():
            await slices.pause()
