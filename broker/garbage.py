"""Garbage collection for millions of objects, and the return of pages that malloc keeps.

A full collection walks every tracked object and blocks everything else: with 1.6 million committed offsets it holds the
event loop for 300 ms, several times while they are loaded. Nearly all of these objects live as long as the process. So
whenever many objects have survived a full collection, they are frozen; the next one walks only the objects created
since, which takes some 20 ms at most.

A frozen object is freed by its reference count as before, but a cycle of frozen objects stays. Hence two rules. Objects
made for a connection or a request must not end in a cycle (see `Connection.connection_lost`). And a few survivors are
not frozen: the next full collection checks them again, so that a burst of connections freezes nothing.

Should cycles be frozen all the same, a collection of all objects, frozen ones included, finds them. It runs once the
number of frozen objects has doubled, but at most once an hour.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final, Literal, Protocol

from environment.contract import Clock, Executor

YOUNG_OBJECTS: Final = 7_000
"""Net allocations that trigger a collection of the young generation. A hundred waiting requests exceed CPython's
default of 700, and none of their objects can be freed.
"""

COLLECTIONS_OF_YOUNG: Final = 10
"""Young collections per full collection."""

OBJECTS_PER_COLLECTION: Final = YOUNG_OBJECTS * COLLECTIONS_OF_YOUNG
"""Net allocations that trigger a full collection: the product of CPython's three defaults."""

MOST_UNFROZEN: Final = 100_000
"""More survivors of a full collection than this are frozen. Walking as many takes some 10 ms; ten thousand connections
reach the number.
"""

FEW_OBJECTS: Final = 500_000
"""Fewer newly frozen objects do not justify a collection of all objects."""

PAUSE_S: Final = 3600.0
"""Least time between two collections of all objects."""


Phase = Literal["start", "stop"]


class Interpreter(Protocol):
    """The functions of the module `gc` that this module uses."""

    callbacks: list[Callable[[Phase, dict[str, int]], object]]

    def collect(self) -> int: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def get_freeze_count(self) -> int: ...

    def get_objects(self, generation: int | None = None) -> list[object]: ...

    def get_threshold(self) -> tuple[int, int, int]: ...

    def set_threshold(self, threshold0: int, threshold1: int, threshold2: int, /) -> None: ...


class GarbageCollector:
    """Keeps full collections short. Call `start` and `stop` on the same thread."""

    def __init__(self, clock: Clock, interpreter: Interpreter = gc) -> None:
        self._clock = clock
        self._interpreter = interpreter
        self._collects_everything = False
        self._size = 0
        """Objects that the last collection of all objects froze."""
        self._frozen_since = 0
        self._last_s = 0.0
        self._thresholds = (0, 0, 0)

    def start(self) -> None:
        """Freeze all existing objects: those created during startup live as long as the broker."""
        self._interpreter.collect()
        self._freeze_everything()
        self._interpreter.callbacks.append(self._on_collection)
        self._thresholds = self._interpreter.get_threshold()
        # A full collection follows every collection of the middle generation.
        self._interpreter.set_threshold(YOUNG_OBJECTS, COLLECTIONS_OF_YOUNG, 0)

    def stop(self) -> None:
        """Restore the interpreter's thresholds."""
        self._interpreter.callbacks.remove(self._on_collection)
        self._interpreter.set_threshold(*self._thresholds)
        self._interpreter.unfreeze()

    def _freeze_everything(self) -> None:
        self._interpreter.freeze()
        self._frozen_since = 0
        self._size = self._interpreter.get_freeze_count()
        self._last_s = self._clock.monotonic_s()

    def _is_due(self) -> bool:
        has_doubled = self._frozen_since > max(self._size, FEW_OBJECTS)
        return has_doubled and self._clock.monotonic_s() - self._last_s >= PAUSE_S

    def _on_collection(self, phase: Phase, info: dict[str, int]) -> None:
        """Called by the interpreter before and after each collection, on the thread that triggered it."""
        if info["generation"] != 2:
            return
        if phase == "start":
            self._collects_everything = self._is_due()
            if self._collects_everything:
                self._interpreter.unfreeze()
        elif self._collects_everything:
            self._freeze_everything()
        else:
            survivors = len(self._interpreter.get_objects(2))
            if survivors > MOST_UNFROZEN:
                self._interpreter.freeze()
                self._frozen_since += survivors


TRIM_CHECK_S: Final = 0.5
"""Interval between two checks of the processor time."""

WORK_S: Final = 0.02
"""Processor time after which a trim may pay."""

QUIET_S: Final = 0.0625
"""The process is quiet if it used less processor time than this since the last check."""


BUSY_CHECKS: Final = 4
"""Checks after which a process that is never quiet returns its memory all the same: small requests in quick succession
would otherwise keep what one large request has left. It costs some 0.1 ms per MiB of free memory.
"""


class Memory(Protocol):
    """The memory of the process; see `environment.system.ProcessMemory`."""

    def processor_s(self) -> float: ...

    def trim(self) -> None: ...


class HeapTrimmer:
    """Returns freed memory to the system in the first quiet half second after some work, or after two busy seconds.

    malloc keeps free memory between pieces that are in use. After five hundred connections, each with 100 kB of a
    frame, the process would keep 35 MB.
    """

    def __init__(self, memory: Memory, executor: Executor) -> None:
        self._memory = memory
        self._executor = executor
        self._looked_s = self._trimmed_s = 0.0
        self._busy_checks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the checks; call on the event loop. Startup itself leaves memory to trim."""
        self._looked_s = self._memory.processor_s()
        self._timer = asyncio.get_running_loop().call_later(TRIM_CHECK_S, self._check)

    def stop(self) -> None:
        """Stop trimming."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Called every TRIM_CHECK_S."""
        now_s = self._memory.processor_s()
        is_quiet = now_s - self._looked_s < QUIET_S
        self._busy_checks = 0 if is_quiet else self._busy_checks + 1
        if (is_quiet or self._busy_checks >= BUSY_CHECKS) and now_s - self._trimmed_s >= WORK_S:
            self._trimmed_s, self._busy_checks = now_s, 0
            self._trimming = asyncio.ensure_future(self._executor.run(self._memory.trim))
        self.start()
