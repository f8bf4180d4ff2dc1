"""Deadlines in one heap. Moving a deadline later costs an assignment, so a heartbeat costs nothing here."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from cluster.coordinators.results import Append, Appends, ClockReading

logger = logging.getLogger("kafka.coordinator.CoordinatorRuntime")

Action = Callable[[ClockReading], Appends]

PAUSE_AFTER_BUG_MS: Final = 5000
"""The pause before retrying an action that raised an unexpected error. Each error is logged."""
_FEW: Final = 64
"""Smaller heaps are not compacted."""


Entry = list[Any]
"""Due time, a sequence number for equal times, and the deadline, or None if it was cleared or moved."""


class Deadline:
    """A time after which `action` is due. At most one heap entry refers to it, never with a later time."""

    __slots__ = ("_deadlines", "_entry", "action", "due_ms")

    def __init__(self, deadlines: Deadlines, action: Action | None = None) -> None:
        self._deadlines = deadlines
        self._entry: Entry | None = None
        self.due_ms: int | None = None
        self.action = action

    def set(self, due_ms: int) -> None:
        """Make it due at `due_ms` (monotonic milliseconds), whatever was set before."""
        self.due_ms = due_ms
        entry = self._entry
        if entry is None or due_ms < entry[0]:
            self._drop_entry()
            self._entry = self._deadlines.push(due_ms, self)

    def clear(self) -> None:
        """Remove the deadline and its action. The heap then keeps no reference to anything the action uses, such as a
        member.
        """
        self._drop_entry()
        self.due_ms = self.action = None

    def _drop_entry(self) -> None:
        if self._entry is not None:
            self._entry[2] = None
            self._entry = None
            self._deadlines.count_dropped()

    def reached(self, monotonic_ms: int) -> Action | None:
        """Its heap entry was popped: reschedule if that was too early, else return the action."""
        self._entry = None
        if self.due_ms is not None and self.due_ms > monotonic_ms:
            self.set(self.due_ms)
            return None
        self.due_ms = None
        return self.action


class Deadlines:
    """All deadlines of a shard."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._order = count()
        self._dropped = 0
        self.next_ms = math.inf
        """The monotonic time in milliseconds for the next `expire`, which may find nothing due. Infinity: never."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due_ms: int, deadline: Deadline) -> Entry:
        """For `Deadline` only."""
        entry = [due_ms, next(self._order), deadline]
        heapq.heappush(self._heap, entry)
        self.next_ms = min(self.next_ms, due_ms)
        return entry

    def count_dropped(self) -> None:
        """For `Deadline` only: an entry was cleared or moved earlier. Compacts the heap once most entries are such.

        The amortised cost is a few steps per entry.
        """
        self._dropped += 1
        if self._dropped > max(_FEW, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)
            self._dropped = 0
            self._find_next()

    def _find_next(self) -> None:
        self.next_ms = self._heap[0][0] if self._heap else math.inf

    def expire(self, now: ClockReading) -> Appends:
        """Run due actions, earliest first.

        A deadline that an action sets to a past time waits for the next call, so that no action can block this one
        forever.
        """
        started = next(self._order)
        set_meanwhile = []
        appends: list[Append] = []
        while self._heap and self._heap[0][0] <= now.monotonic_ms:
            entry = heapq.heappop(self._heap)
            if entry[1] > started:
                set_meanwhile.append(entry)
            elif entry[2] is None:
                self._dropped -= 1
            elif (action := entry[2].reached(now.monotonic_ms)) is not None:
                try:
                    appends += action(now)
                except Exception:  # a bug, but without this its group and all others would wait forever
                    logger.exception("A deadline could not be processed; it is due again in %d ms", PAUSE_AFTER_BUG_MS)
                    entry[2].set(now.monotonic_ms + PAUSE_AFTER_BUG_MS)
        for entry in set_meanwhile:
            heapq.heappush(self._heap, entry)
        self._find_next()
        return appends
