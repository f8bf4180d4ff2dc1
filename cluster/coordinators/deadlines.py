"""Deadlines in one heap. Moving a deadline later costs an assignment, so a heartbeat costs nothing here."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Final

from cluster.coordinators.results import Append, Appends, Moment

Action = Callable[[Moment], Appends]

_FEW: Final = 64
"""Heaps with fewer entries are not tidied up."""


class Deadline:
    """A moment after which `action` is due. At most one heap entry stands for it, never later than the moment."""

    __slots__ = ("_deadlines", "_entry_ms", "action", "due_ms")

    def __init__(self, deadlines: Deadlines, action: Action) -> None:
        self._deadlines = deadlines
        self._entry_ms: int | None = None
        self.due_ms: int | None = None
        self.action = action

    def set(self, due_ms: int) -> None:
        """Be due at `due_ms` (monotonic milliseconds) instead of whenever it was."""
        self.due_ms = due_ms
        if self._entry_ms is None or due_ms < self._entry_ms:
            self._entry_ms = due_ms
            self._deadlines.push(due_ms, self)

    def clear(self) -> None:
        """Remove the deadline."""
        self.due_ms = None

    def stands_for(self, entry_ms: int) -> bool:
        """Whether the heap entry of `entry_ms` is the one that counts."""
        return self._entry_ms == entry_ms and self.due_ms is not None

    def forget_entry(self, entry_ms: int) -> None:
        """Note that the heap has no entry for `entry_ms` any more."""
        if self._entry_ms == entry_ms:
            self._entry_ms = None

    def reached(self, entry_ms: int, monotonic_ms: int) -> bool:
        """Take the heap entry of `entry_ms` back; whether the deadline itself is reached."""
        counts = self.stands_for(entry_ms)
        self.forget_entry(entry_ms)
        if not counts or self.due_ms is None:
            return False
        if self.due_ms > monotonic_ms:
            self.set(self.due_ms)
            return False
        self.due_ms = None
        return True


class Deadlines:
    """All deadlines of a shard."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._order = count()
        self._tidy_at = _FEW
        self.next_ms = math.inf
        """When `expire` is to be called next, in monotonic milliseconds; maybe for nothing. Infinity: never."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due_ms: int, deadline: Deadline) -> None:
        """Called by `Deadline` alone."""
        heapq.heappush(self._heap, (due_ms, next(self._order), deadline))
        if len(self._heap) > self._tidy_at:
            self._tidy()
        self.next_ms = min(self.next_ms, due_ms)

    def _tidy(self) -> None:
        """Drop the entries of deadlines that were cleared or moved forward; amortised, a few steps per push."""
        kept = []
        for entry in self._heap:
            if entry[2].stands_for(entry[0]):
                kept.append(entry)
            else:
                entry[2].forget_entry(entry[0])
        heapq.heapify(kept)
        self._heap = kept
        self._tidy_at = max(_FEW, 2 * len(kept))
        self._find_next()

    def _find_next(self) -> None:
        self.next_ms = self._heap[0][0] if self._heap else math.inf

    def expire(self, now: Moment) -> Appends:
        """Run what is due, earliest first.

        What an action makes due at once waits for the next call, so that no action can keep this one busy for ever.
        """
        started = next(self._order)
        set_meanwhile = []
        appends: list[Append] = []
        while self._heap and self._heap[0][0] <= now.monotonic_ms:
            entry = heapq.heappop(self._heap)
            if entry[1] > started:
                set_meanwhile.append(entry)
            elif entry[2].reached(entry[0], now.monotonic_ms):
                appends += entry[2].action(now)
        for entry in set_meanwhile:
            heapq.heappush(self._heap, entry)
        self._find_next()
        return appends
