"""The fault matrix: `scripts/fault-matrix --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from tests.faults.matrix import parse_case
from tests.faults.mutants import MUTANTS
from tests.faults.runner import hunt, run_flips, run_machines, run_matrix, run_mutants, try_case
from tests.faults.tally import Tally


def table(rows: Sequence[tuple[object, ...]]) -> str:
    """Columns as wide as necessary; numbers right-aligned."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    numeric = [[isinstance(cell, int) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, is_number, width in zip(row, numbers, widths, strict=True)
        ).rstrip()
        for row, numbers in zip(cells, numeric, strict=True)
    )


def main(arguments: list[str]) -> int:
    """Run the requested parts and print the table; returns 1 if any check was violated."""
    parser = argparse.ArgumentParser(prog="scripts/fault-matrix", description=__doc__)
    parser.add_argument("--case", metavar="ID", help="run this case alone, and say what is wrong")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth call and so on (default: all)")
    parser.add_argument("--seconds", type=float, metavar="S", help="end the fault matrix after about so long")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; can be given more than once")
    parser.add_argument("--mutant", choices=MUTANTS, help="hunt this one alone, and say what it was seen as")
    options = parser.parse_args(arguments)
    if options.mutant:
        caught = hunt(options.mutant)
        print(f"{caught.part}, after {caught.cases:,} cases: {caught.violation or 'NOT CAUGHT'}")
        return int(not caught.is_caught)
    if options.case:
        wrong = try_case(parse_case(options.case))
        print(wrong or "right")
        return int(wrong is not None)
    summary: list[tuple[object, ...]] = [("fault matrix", "done", "wrong", "seconds")]
    for part, run in PARTS.items():
        if part in (options.only or PARTS):
            began = time.monotonic()
            outcome = run(options.sample, options.seconds)
            print(f"{outcome.text}\n", flush=True)
            summary.append((part, outcome.done, outcome.wrong, round(time.monotonic() - began)))
    print(table(summary))
    return int(any(wrong for _, _, wrong, _ in summary[1:]))


class Outcome(NamedTuple):
    """The outcome of one part: its table, and the numbers of cases and violations."""

    text: str
    done: str
    wrong: int


def _told(title: str, what: str, tally: Tally) -> Outcome:
    rows: list[tuple[object, ...]] = [(title, what), *sorted(tally.cases.items())]
    lines = [table(rows), *(f"  violation: {case}\n    {wrong}" for case, wrong in tally.violations.items())]
    return Outcome("\n".join(lines), f"{tally.total:,} {what}", len(tally.violations))


def _matrix(sample: int, seconds: float | None) -> Outcome:
    return _told("fault and end", "cases", run_matrix(sample, seconds))


def _flips(sample: int, _seconds: float | None) -> Outcome:
    return _told("file", "flips", run_flips(sample))


def _machine(sample: int, _seconds: float | None) -> Outcome:
    return _told("random trials", "steps", run_machines(sample))


def _mutants(sample: int, _seconds: float | None) -> Outcome:
    found = sorted(run_mutants(list(MUTANTS)[::sample]))
    rows: list[tuple[object, ...]] = [("mutant", "caught by", "after cases")]
    rows += [(each.mutant, each.part if each.is_caught else f"NOT CAUGHT ({each.part})", each.cases) for each in found]
    caught = sum(each.is_caught for each in found)
    return Outcome(table(rows), f"{caught} of {len(found)} caught", len(found) - caught)


PARTS = {"fault matrix": _matrix, "byte flips": _flips, "state machine": _machine, "mutants": _mutants}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
