"""The seeds that found the planted bugs of clusters, for the table in docs/; written by
`scripts/simulate --cluster --mutants --record`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.simulation.seeds import Outcome

FOUND = Path(__file__).with_name("FOUND")
_INVARIANT = re.compile(r"C12 at [\d.]+: (\w+):")


class Found(NamedTuple):
    """Seed `seed` found the planted bug `mutant` after `tried` seeds, by a violation of `check`."""

    mutant: str
    tried: int
    seed: int
    check: str

    @classmethod
    def of(cls, mutant: str, tried: int, outcome: Outcome) -> Found:
        """The first violation of a seed that has any."""
        first = outcome.violations[0]
        invariant = _INVARIANT.match(first)
        return cls(mutant, tried, outcome.seed, invariant[1] if invariant else first.partition(" ")[0])


def add_found(found: Found) -> None:
    """Record a result, replacing that of an earlier search for the same bug."""
    known = (read_found() if FOUND.exists() else {}) | {found.mutant: found}
    FOUND.write_text("".join(f"{each.mutant} {each.tried} {each.seed} {each.check}\n" for each in known.values()))


def read_found() -> dict[str, Found]:
    """The results of the last search for each mutant."""
    rows = [line.split() for line in FOUND.read_text().splitlines()]
    return {mutant: Found(mutant, int(tried), int(seed), check) for mutant, tried, seed, check in rows}
