"""Deadlines in one heap. Moving a deadline later costs an assignment, so a heartbeat costs nothing here."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from cluster.coordinators.results import Append, Appends, Moment

logger = logging.getLogger("kafka.coordinator.CoordinatorRuntime")

Action = Callable[[Moment], Appends]

PAUSE_AFTER_BUG_MS: Final = 5000
"""The pause before work is tried again that ended with an unexpected error, which is logged each time."""
_FEW: Final = 64
"""Heaps with fewer entries are not tidied up."""


Entry = list[Any]
"""A due time, a number that orders entries of one time, and the deadline; None for one that was cleared or moved."""


class Deadline:
    """A moment after which `action` is due. At most one heap entry refers to it, never later than the moment."""

    __slots__ = ("_deadlines", "_entry", "action", "due_ms")

    def __init__(self, deadlines: Deadlines, action: Action | None = None) -> None:
        self._deadlines = deadlines
        self._entry: Entry | None = None
        self.due_ms: int | None = None
        self.action = action

    def set(self, due_ms: int) -> None:
        """Be due at `due_ms` (monotonic milliseconds) instead of whenever it was."""
        self.due_ms = due_ms
        entry = self._entry
        if entry is None or due_ms < entry[0]:
            self._drop_entry()
            self._entry = self._deadlines.push(due_ms, self)

    def clear(self) -> None:
        """Remove the deadline and its action. The heap keeps nothing that the action refers to, such as a member."""
        self._drop_entry()
        self.due_ms = self.action = None

    def _drop_entry(self) -> None:
        if self._entry is not None:
            self._entry[2] = None
            self._entry = None
            self._deadlines.count_dropped()

    def reached(self, monotonic_ms: int) -> Action | None:
        """The heap has no entry for it any more: be due again when that was too early, else give the action."""
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
        """When `expire` is to be called next, in monotonic milliseconds; maybe for nothing. Infinity: never."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due_ms: int, deadline: Deadline) -> Entry:
        """Called by `Deadline` alone."""
        entry = [due_ms, next(self._order), deadline]
        heapq.heappush(self._heap, entry)
        self.next_ms = min(self.next_ms, due_ms)
        return entry

    def count_dropped(self) -> None:
        """Called by `Deadline` alone, for an entry that was cleared or moved forward: when they are the most, they go.

        That is amortised, a few steps for each.
        """
        self._dropped += 1
        if self._dropped > max(_FEW, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)
            self._dropped = 0
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
            elif entry[2] is None:
                self._dropped -= 1
            elif (action := entry[2].reached(now.monotonic_ms)) is not None:
                try:
                    appends += action(now)
                except Exception:  # a bug; but its group would wait for ever, and so would the others
                    logger.exception("A deadline could not be processed; it is due again in %d ms", PAUSE_AFTER_BUG_MS)
                    entry[2].set(now.monotonic_ms + PAUSE_AFTER_BUG_MS)
        for entry in set_meanwhile:
            heapq.heappush(self._heap, entry)
        self._find_next()
        return appends
