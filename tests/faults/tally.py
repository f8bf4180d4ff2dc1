"""Counts of violations and of their cases."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])


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
    """The violation and its place, in one line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/storage/" in frame.filename]
    where = " < ".join(
        f"{frame.filename.removeprefix(_ROOT).lstrip('/')}:{frame.lineno}" for frame in reversed(frames[-3:])
    )
    return f"{type(error).__name__}: {error} ({where})"
