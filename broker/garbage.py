"""How the interpreter looks for cyclic garbage in a process that keeps millions of objects.

A full collection walks every object that it may free, and nothing else runs meanwhile: with 1.6 million committed
offsets it holds the event loop for 300 ms, several times while they are loaded. Nearly all of these objects are no
garbage and never will be in a cycle. So what survives a full collection is frozen: the next one walks only what was
made since, some ten milliseconds at most. Freed by its reference count it is as before.

Cycles among what is frozen are not found. For their sake a collection of everything follows when the process has
doubled, but not before an hour has passed: a load doubles it at once, and leaves no garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final, Literal, Protocol

from broker.environment.contract import Clock

YOUNG_OBJECTS: Final = 7_000
"""Growth in objects after which the youngest are collected. A hundred waiting requests make CPython's default of 700,
and nothing of them can be freed.
"""

COLLECTIONS_OF_YOUNG: Final = 10
"""Collections of the youngest after which there is a full one."""

OBJECTS_PER_COLLECTION: Final = YOUNG_OBJECTS * COLLECTIONS_OF_YOUNG
"""Growth in objects after which there is a full collection: the product of CPython's three defaults."""

FEW_OBJECTS: Final = 500_000
"""Growth below which a full collection is not worth its time."""

PAUSE_S: Final = 3600.0
"""Between two collections of everything."""


Phase = Literal["start", "stop"]


class Interpreter(Protocol):
    """The functions of the module `gc` that are used."""

    callbacks: list[Callable[[Phase, dict[str, int]], object]]

    def collect(self) -> int: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def get_freeze_count(self) -> int: ...

    def get_threshold(self) -> tuple[int, int, int]: ...

    def set_threshold(self, threshold0: int, threshold1: int, threshold2: int, /) -> None: ...


class GarbageCollector:
    """Keeps full collections short. `start` begins it, `stop` ends it; both belong to one thread."""

    def __init__(self, clock: Clock, interpreter: Interpreter = gc) -> None:
        self._clock = clock
        self._interpreter = interpreter
        self._collections = 0
        self._collects_everything = False
        self._size = 0
        self._last_s = 0.0
        self._thresholds = (0, 0, 0)

    def start(self) -> None:
        """Freeze all that there is: what a start makes lives as long as the broker."""
        self._interpreter.collect()
        self._freeze_everything()
        self._interpreter.callbacks.append(self._on_collection)
        self._thresholds = self._interpreter.get_threshold()
        # A full collection follows each collection of the middle generation.
        self._interpreter.set_threshold(YOUNG_OBJECTS, COLLECTIONS_OF_YOUNG, 0)

    def stop(self) -> None:
        """Leave collecting to the interpreter again."""
        self._interpreter.callbacks.remove(self._on_collection)
        self._interpreter.set_threshold(*self._thresholds)
        self._interpreter.unfreeze()

    def _freeze_everything(self) -> None:
        self._interpreter.freeze()
        self._collections = 0
        self._size = self._interpreter.get_freeze_count()
        self._last_s = self._clock.monotonic_s()

    def _is_due(self) -> bool:
        grown = self._collections * OBJECTS_PER_COLLECTION > max(self._size, FEW_OBJECTS)
        return grown and self._clock.monotonic_s() - self._last_s >= PAUSE_S

    def _on_collection(self, phase: Phase, info: dict[str, int]) -> None:
        """Called by the interpreter before and after each collection, on the thread that happened to cause it."""
        if info["generation"] != 2:
            return
        if phase == "start":
            self._collects_everything = self._is_due()
            if self._collects_everything:
                self._interpreter.unfreeze()
        elif self._collects_everything:
            self._freeze_everything()
        else:
            self._interpreter.freeze()
            self._collections += 1
