"""Full garbage collections stay short, however much the broker keeps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from broker.garbage import (
    BUSY_CHECKS,
    FEW_OBJECTS,
    MOST_UNFROZEN,
    OBJECTS_PER_COLLECTION,
    PAUSE_S,
    QUIET_S,
    GarbageCollector,
    HeapTrimmer,
    Phase,
)
from tests.kit.environment import InlineExecutor, ManualClock


class Interpreter:
    """Counts objects instead of keeping them."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Phase, dict[str, int]], object]] = []
        self.objects = 1000
        self.frozen = 0
        self.walked: list[int] = []

    def collect(self) -> int:
        for callback in list(self.callbacks):
            callback("start", {"generation": 2})
        self.walked.append(self.objects - self.frozen)
        for callback in list(self.callbacks):
            callback("stop", {"generation": 2})
        return 0

    def freeze(self) -> None:
        self.frozen = self.objects

    def unfreeze(self) -> None:
        self.frozen = 0

    def get_freeze_count(self) -> int:
        return self.frozen

    def get_objects(self, generation: int | None = None) -> list[object]:
        assert generation == 2, "all of them would be millions"
        return [None] * (self.objects - self.frozen)

    def get_threshold(self) -> tuple[int, int, int]:
        return gc.get_threshold()

    def set_threshold(self, threshold0: int, threshold1: int, threshold2: int, /) -> None:
        assert threshold0 * threshold1 == OBJECTS_PER_COLLECTION
        assert not threshold2

    def grow(self, collections: int) -> None:
        for _ in range(collections):
            self.objects += OBJECTS_PER_COLLECTION
            self.collect()


ENOUGH = FEW_OBJECTS // OBJECTS_PER_COLLECTION + 2


def test_a_full_collection_walks_only_what_was_made_since_many_were_frozen() -> None:
    interpreter = Interpreter()
    GarbageCollector(ManualClock(), interpreter).start()
    interpreter.grow(10 * ENOUGH)
    assert max(interpreter.walked) <= MOST_UNFROZEN + OBJECTS_PER_COLLECTION
    assert interpreter.frozen >= interpreter.objects - MOST_UNFROZEN


def test_few_survivors_are_looked_at_again() -> None:
    """They may be cycles of currently open objects, and garbage soon."""
    interpreter = Interpreter()
    GarbageCollector(ManualClock(), interpreter).start()
    for _ in range(100):
        interpreter.objects += MOST_UNFROZEN
        interpreter.collect()
        assert interpreter.frozen == 1000
        interpreter.objects -= MOST_UNFROZEN


def test_everything_is_walked_once_an_hour_if_the_broker_has_grown_by_much() -> None:
    clock, interpreter = ManualClock(), Interpreter()
    GarbageCollector(clock, interpreter).start()
    interpreter.grow(ENOUGH)
    assert max(interpreter.walked) < interpreter.objects, "an hour has not passed"
    clock.ms += int(PAUSE_S * 1000)
    interpreter.grow(1)
    assert interpreter.walked[-1] == interpreter.objects
    clock.ms += int(PAUSE_S * 1000)
    interpreter.grow(ENOUGH - 3)
    assert max(interpreter.walked[3 - ENOUGH :]) <= MOST_UNFROZEN + OBJECTS_PER_COLLECTION, "it has not doubled"


def test_younger_generations_are_none_of_its_business() -> None:
    interpreter = Interpreter()
    GarbageCollector(ManualClock(), interpreter).start()
    interpreter.objects += 5
    for callback in interpreter.callbacks:
        callback("stop", {"generation": 1})
    assert interpreter.frozen == 1000


def test_with_the_real_collector() -> None:
    collector, thresholds = GarbageCollector(ManualClock()), gc.get_threshold()
    collector.start()
    try:
        assert gc.get_threshold()[0] > thresholds[0]
        before = gc.get_freeze_count()
        few: list[list[int]] = [[] for _ in range(1000)]
        gc.collect()
        assert gc.get_freeze_count() <= before
        many: list[list[int]] = [[] for _ in range(MOST_UNFROZEN)]
        gc.collect()
        assert gc.get_freeze_count() >= len(few) + len(many)
    finally:
        collector.stop()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds


class SomeMemory:
    """The memory of a process whose CPU time the test sets."""

    def __init__(self) -> None:
        self.worked_s = 5.0
        self.trims = 0

    def processor_s(self) -> float:
        return self.worked_s

    def trim(self) -> None:
        self.trims += 1


def test_memory_is_trimmed_once_when_work_has_ended() -> None:
    memory = SomeMemory()

    async def scenario() -> None:
        trimmer = HeapTrimmer(memory, InlineExecutor())
        trimmer.start()

        def trims_after(worked_s: float) -> int:
            memory.worked_s += worked_s
            trimmer._check()
            return memory.trims

        assert [trims_after(worked_s) for worked_s in (0, 0, QUIET_S, 2 * QUIET_S, 0, 0)] == [1, 1, 1, 1, 2, 2]
        assert [trims_after(1) for _ in range(2 * BUSY_CHECKS)] == [*[2] * (BUSY_CHECKS - 1), *[3] * BUSY_CHECKS, 4]
        trimmer.stop()

    asyncio.run(scenario())
