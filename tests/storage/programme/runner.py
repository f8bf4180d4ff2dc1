"""Runs many cases on all processors, and tells what they showed."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.storage.programme.matrix import Case, Group, all_groups, cases_of, run_case

_HERE = str(Path(__file__).resolve().parents[3])


@dataclass
class Tally:
    """Cases by category; and the violations, each with the id of its case."""

    cases: Counter[str] = field(default_factory=Counter)
    violations: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.violations |= other.violations

    @property
    def total(self) -> int:
        return self.cases.total()


def describe(error: BaseException) -> str:
    """What broke, and where, in one line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/storage/" in frame.filename]
    where = " < ".join(
        f"{frame.filename.removeprefix(_HERE).lstrip('/')}:{frame.lineno}" for frame in reversed(frames[-3:])
    )
    return f"{type(error).__name__}: {error} ({where})"


def try_case(case: Case) -> str | None:
    """What is wrong with a case, None when nothing is."""
    try:
        run_case(case)
    except Exception as error:  # noqa: BLE001 whatever it is, storage should not have raised it
        return describe(error)
    return None


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


def run_groups(groups: Iterable[Group], seconds: float | None = None) -> Iterator[Tally]:
    """The tally of each group as it is done; none is begun once `seconds` are over."""
    until = None if seconds is None else time.monotonic() + seconds
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for tally in pool.imap_unordered(run_group, groups):
            yield tally
            if until is not None and time.monotonic() > until:
                pool.terminate()
                return


def run_matrix(sample: int = 1, seconds: float | None = None) -> Tally:
    """Every `sample`th group of the matrix, for at most `seconds`."""
    total = Tally()
    for tally in run_groups(all_groups()[::sample], seconds):
        total.add(tally)
    return total
