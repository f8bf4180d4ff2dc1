"""Runs targets on inputs drawn from a seed, with a time limit for each input and a memory limit for all.

An input is refused by a declared exception or is accepted. It is a failure if anything else is raised, if the target
decides that it should not have been accepted, if it takes longer than MOST_S of processor time or if it needs
MOST_BYTES more memory than before.
"""

from __future__ import annotations

import gc
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

MOST_S = 2.0
MOST_BYTES = 512 << 20
MOST_GROWTH_BYTES = 128 << 20
"""The maximum growth of the process from the first inputs of each target to the end."""
BATCH = 1000
"""Inputs drawn from one seed."""
LONGEST_SHOWN = 4000


class Trial(Protocol):
    """One target, ready to run."""

    def make(self, draw: random.Random) -> Any:
        """An input; its repr describes it completely."""
        ...

    def check(self, case: Any) -> bool:
        """Whether the input was accepted. Any exception is a failure."""
        ...


Opened = Callable[[], AbstractContextManager[Trial]]


class Target(NamedTuple):
    """`share` is the target's part of every thousand inputs of a run."""

    name: str
    share: float
    opened: Opened


class FuzzFailure(Exception):
    """An input broke a rule."""


class TooSlow(BaseException):
    """An input took longer than MOST_S. No handler of exceptions may swallow it."""


class Tally:
    """The figures of one target."""

    def __init__(self) -> None:
        self.inputs = self.accepted = 0
        self.seconds = self.slowest_s = 0.0

    def add(self, other: Tally) -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.seconds += other.seconds
        self.slowest_s = max(self.slowest_s, other.slowest_s)


def run_batch(name: str, trial: Trial, seed: int, batch: int, count: int = BATCH) -> Tally:
    """Run the first `count` inputs of a batch. Raises FuzzFailure."""
    draw = random.Random(f"{seed} {name} {batch}")
    tally = Tally()
    for number in range(count):
        case = trial.make(draw)
        began_s = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
        try:
            accepted = trial.check(case)
        except (Exception, TooSlow) as error:
            shown = repr(case)[:LONGEST_SHOWN]
            where = f"--target {name} --seed {seed} --batch {batch}"
            raise FuzzFailure(f"{where}, input {number}: {type(error).__name__}: {error}\n{shown}") from error
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        took_s = time.process_time() - began_s
        tally.inputs += 1
        tally.accepted += accepted
        tally.seconds += took_s
        tally.slowest_s = max(tally.slowest_s, took_s)
    return tally


@contextmanager
def limited() -> Iterator[None]:
    """Limits on time and memory, for the duration of a block.

    Existing objects are excluded from garbage collection meanwhile: in a process of many tests that takes seconds,
    which would be charged to an input.
    """

    def on_time(_signal: int, _frame: object) -> None:
        raise TooSlow(f"it took longer than {MOST_S} s")

    before = signal.signal(signal.SIGVTALRM, on_time)
    gc.collect()
    gc.freeze()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = _address_space()
    if size:
        resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        gc.unfreeze()
        signal.signal(signal.SIGVTALRM, before)


def _address_space() -> int:
    """The size of this process's address space in bytes, 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def peak_bytes() -> int:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(
    targets: Mapping[str, tuple[Trial, int]], seed: int, report: Callable[[Mapping[str, Tally]], None]
) -> dict[str, Tally]:
    """Run each target on the given number of inputs, in turns. `report` is called from time to time. Raises
    FuzzFailure.
    """
    tallies = {name: Tally() for name in targets}
    before = 0
    with limited():
        while unfinished := [name for name, (_, wanted) in targets.items() if tallies[name].inputs < wanted]:
            # The one furthest behind, so that an interrupted run has covered all of them.
            name = min(unfinished, key=lambda name: tallies[name].inputs / targets[name][1])
            trial, wanted = targets[name]
            batch, size = tallies[name].inputs // BATCH, min(BATCH, wanted - tallies[name].inputs)
            tallies[name].add(run_batch(name, trial, seed, batch, size))
            report(tallies)
            if not before and all(tally.inputs for tally in tallies.values()):
                before = peak_bytes()
    growth = peak_bytes() - before
    if growth > MOST_GROWTH_BYTES:
        raise FuzzFailure(f"the process grew by {growth >> 20} MiB in a run of seed {seed}")
    return tallies
