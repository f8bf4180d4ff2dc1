"""The cluster seeds that were run, by commit: `scripts/simulate --cluster --ledger` adds a line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

LEDGER = Path(__file__).with_name("LEDGER")
_HEAD = f"{'date':<10} {'commit':<12} {'first':>9} {'seeds':>6} {'count':>6} violations\n"


class Entry(NamedTuple):
    """One run of `seeds` seeds from `first` on: `counting` tried hard enough, and `violations` found a violation.

    `commit` ends in + when the files were not those of the commit.
    """

    date: str
    commit: str
    first: int
    seeds: int
    counting: int
    violations: int

    def line(self) -> str:
        """The entry as a line of the ledger."""
        numbers = f"{self.first:>9} {self.seeds:>6} {self.counting:>6} {self.violations:>10}"
        return f"{self.date:<10} {self.commit:<12} {numbers}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def add(first: int, seeds: int, counting: int, violations: int) -> None:
    """Add a run of the current files. Raises CalledProcessError outside of a Git repository."""
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", ":/", ":(top,exclude)tests/simulation/cluster/LEDGER"
    )
    commit = _git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    entry = Entry(datetime.now(UTC).date().isoformat(), commit, first, seeds, counting, violations)
    if not LEDGER.exists():
        LEDGER.write_text(_HEAD)
    with LEDGER.open("a") as file:
        file.write(entry.line() + "\n")


def entries() -> Iterator[Entry]:
    """All runs, the oldest first."""
    for line in LEDGER.read_text().splitlines()[1:]:
        date, commit, *numbers = line.split()
        yield Entry(date, commit, *map(int, numbers))
