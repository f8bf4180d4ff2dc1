"""Runs many cases on all processors, and reports the results."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pytest

from tests.faults.flips import all_flips, flip
from tests.faults.history import Violation
from tests.faults.log_machine import run_machine
from tests.faults.matrix import Case, Group, all_groups, cases_of, forget, run_case
from tests.faults.mutant import Mutant
from tests.faults.mutants import MUTANTS
from tests.faults.tally import Tally, describe

Part = TypeVar("Part")
Result = TypeVar("Result")

_HUNT_CASES = 3000
_CASE_SECONDS = 30
_BROKEN = ("AttributeError", "NameError", "TypeError")
"""Errors of a mutant that no longer fits the code, as opposed to the bug that it plants."""
_MACHINES, _EXAMPLES = 8, 250


def try_case(case: Case) -> str | None:
    """Run a case; returns its violation, or None."""
    before, began = signal.signal(signal.SIGALRM, _hangs), time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, _CASE_SECONDS)
    try:
        run_case(case)
    except Exception as error:  # noqa: BLE001 whatever it is, storage should not have raised it
        return describe(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # the time limit of the test that runs the case continues
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001))
    return None


def _hangs(_number: int, _frame: object) -> None:
    raise Violation(f"not done after {_CASE_SECONDS} s")


def run_group(group: Group) -> Tally:
    """All cases of a group."""
    tally = Tally()
    try:
        for case in cases_of(group):
            wrong = try_case(case)
            tally.cases[case.category] += 1
            if wrong is not None:
                tally.violations[str(case)] = wrong
    except Exception as error:  # noqa: BLE001 a scenario that does not even run
        tally.violations[f"{group}"] = describe(error)
    return tally


def spread(
    work: Callable[[Part], Result], parts: Iterable[Part], seconds: float | None = None, *, apart: bool = False
) -> Iterator[Result]:
    """Do `work` for each part on all processors, and yield the results as they complete; stop after `seconds`.

    With `apart` every part runs in a separate process, so that changes of the code do not reach the others.
    """
    until = None if seconds is None else time.monotonic() + seconds
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1 if apart else None) as pool:
        for result in pool.imap_unordered(work, parts):
            yield result
            if until is not None and time.monotonic() > until:
                return


def run_matrix(sample: int = 1, seconds: float | None = None) -> Tally:
    """Run every `sample`th group of the matrix, for at most `seconds`."""
    total = Tally()
    for tally in spread(run_group, all_groups()[::sample], seconds):
        total.add(tally)
    return total


def run_flips(sample: int = 1) -> Tally:
    """Flip every byte of every `sample`th kind of file."""
    total = Tally()
    for tally in spread(flip, all_flips()[::sample]):
        total.add(tally)
    return total


def run_part_of_machine(examples: int) -> Tally:
    """Run some random trials."""
    tally = Tally()
    try:
        tally.cases["steps"] += run_machine(examples)
    except Exception as error:  # noqa: BLE001 whatever it is, storage should not have raised it
        tally.violations["".join(getattr(error, "__notes__", ["a random trial"]))] = describe(error)
    return tally


def run_machines(sample: int = 1) -> Tally:
    """Run random trials, one process per processor."""
    total = Tally()
    for tally in spread(run_part_of_machine, [max(_EXAMPLES // sample, 1)] * _MACHINES):
        total.add(tally)
    return total


class Caught(NamedTuple):
    """How a mutant was found: the part of the matrix, the number of cases, and the violation."""

    mutant: str
    part: str
    cases: int
    violation: str

    @property
    def is_caught(self) -> bool:
        return bool(self.violation)


def hunt(name: str) -> Caught:
    """Run the fault matrix on a mutant until it is caught."""
    with pytest.MonkeyPatch.context() as patch:
        hunted = MUTANTS[name]
        try:
            hunted.apply(patch)
        except AttributeError as error:
            return Caught(name, f"it does not fit the code: {error}", 0, "")
        forget()
        try:
            return _hunt(hunted)
        finally:
            forget()


def _hunt(hunted: Mutant) -> Caught:
    if hunted.scenario == "flips":
        tally = flip((".log", True))
        return Caught(hunted.name, "byte flips", tally.total, next(iter(tally.violations.values()), ""))
    cases = 0
    try:
        for group in sorted(all_groups(), key=lambda group: group.scenario != hunted.scenario):
            for case in cases_of(group):
                cases += 1
                wrong = try_case(case)
                if wrong is not None and wrong.startswith(_BROKEN):
                    return Caught(hunted.name, f"the mutant itself is broken: {wrong}", cases, "")
                if wrong is not None:
                    return Caught(hunted.name, f"matrix, {group.scenario}", cases, f"{case}: {wrong}")
                if cases == _HUNT_CASES:
                    return Caught(hunted.name, "-", cases, "")
    except Exception as error:  # noqa: BLE001 a scenario that does not even run
        wrong = describe(error)
        if wrong.startswith(_BROKEN):
            return Caught(hunted.name, f"the mutant itself is broken: {wrong}", cases + 1, "")
        return Caught(hunted.name, f"matrix, {hunted.scenario}", cases + 1, wrong)
    return Caught(hunted.name, "-", cases, "")


def run_mutants(names: Sequence[str]) -> Iterator[Caught]:
    """Look for these mutants, and yield each outcome once it is known."""
    return spread(hunt, names, apart=True)
