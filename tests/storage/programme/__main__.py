"""The storage programme: `bin/storage-programme --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from tests.storage.programme.matrix import parse_case
from tests.storage.programme.runner import Tally, run_matrix, try_case


def table(rows: Iterable[tuple[object, ...]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
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
    """Run what was asked for, print the table; 1 when anything was violated."""
    parser = argparse.ArgumentParser(prog="bin/storage-programme", description=__doc__)
    parser.add_argument("--case", metavar="ID", help="run this case alone, and say what is wrong")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth call only (default: all)")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after about so long")
    options = parser.parse_args(arguments)
    if options.case:
        wrong = try_case(parse_case(options.case))
        print(wrong or "right")
        return int(wrong is not None)
    began = time.monotonic()
    tally = run_matrix(options.sample, options.seconds)
    print(report(tally, time.monotonic() - began))
    return int(bool(tally.violations))


def report(tally: Tally, seconds: float) -> str:
    """The programme's table."""
    rows: list[tuple[object, ...]] = [("fault", "cases")]
    rows += sorted(tally.cases.items())
    rows.append(("all", tally.total))
    lines = [table(rows), ""]
    lines += [f"  violation: {case}\n    {wrong}" for case, wrong in tally.violations.items()]
    lines.append(f"cases: {tally.total:,}, violations: {len(tally.violations)}, {seconds:.0f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
