"""The list of accepted differences: `scenario | path | reason`, one a line, in the file `known_differences`.

`*` in a scenario or path matches anything. An entry that no longer differs fails its scenario, so the list can only
shrink.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import NamedTuple

from tests.parity.transcript import Plain, differences

FILE = Path(__file__).with_name("known_differences")


class KnownDifference(NamedTuple):
    """One accepted difference."""

    scenario: str
    path: str
    reason: str

    def covers(self, path: str) -> bool:
        """Whether it covers the difference at `path` of its scenario."""
        return _matches(self.path, path)


@functools.cache
def known_differences() -> tuple[KnownDifference, ...]:
    """Every entry. Raises ValueError naming a line that is not an entry."""
    entries = []
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(" | ")]
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{FILE.name}:{number}: not `scenario | path | reason`: {line}")
        entries.append(KnownDifference(*parts))
    return tuple(entries)


def known_for(scenario: str) -> list[KnownDifference]:
    """The entries of one scenario."""
    return [entry for entry in known_differences() if _matches(entry.scenario, scenario)]


def report(scenario: str, kafka: Plain, ours: Plain) -> str:
    """The differences between two transcripts that are not listed, or else the obsolete entries; empty if everything
    matches.
    """
    known = known_for(scenario)
    found = list(differences(kafka, ours))
    unlisted = [each for each in found if not any(entry.covers(each[0]) for entry in known)]
    if unlisted:
        lines = [
            f"{path}\n    Kafka: {json.dumps(theirs)}\n    ours:  {json.dumps(mine)}" for path, theirs, mine in unlisted
        ]
        return "\n".join([f"{len(unlisted)} differences from Apache Kafka in {scenario}:", *lines])
    stale = [entry for entry in known if not any(entry.covers(path) for path, _, _ in found)]
    return f"no longer different, so no longer to be listed: {stale}" if stale else ""


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
