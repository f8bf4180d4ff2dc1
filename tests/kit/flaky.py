"""Tests that failed in a run of many are run once more, alone, when everything else has ended.

A pytest process writes the ids of its failed tests to the file that `ODRADEK_FAILED` names (`tests/conftest.py`).
`python -m tests.kit.flaky FILE...` runs the tests in such files again, one process each. A test that passes then failed
because the machine was busy. It is printed as FLAKY and does not fail the run, but it must be fixed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

MOST_FAILED = 5
"""More failures than this point to a bad change, not to a busy machine."""


def failed_tests(paths: Sequence[Path]) -> list[str]:
    """The ids recorded in `paths`, in order and without duplicates."""
    return list(dict.fromkeys(test for path in paths for test in path.read_text(encoding="utf-8").splitlines()))


def fails_again(tests: Sequence[str], passes: Callable[[str], bool]) -> bool:
    """Whether a test fails again, or there are too many failures to retry. Tests that pass are printed as FLAKY."""
    if len(tests) > MOST_FAILED:
        print(f"== {len(tests)} tests failed; at most {MOST_FAILED} are run once more")
        return True
    flaky = [test for test in tests if passes(test)]
    for test in flaky:
        print(f"FLAKY {test}: failed beside other tests and passed alone")
    return len(flaky) < len(tests)


def _passes(test: str) -> bool:
    print(f"== once more, alone: {test}", flush=True)
    # The test is named, so no marker may deselect it.
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "", test], check=False).returncode == 0


def main(paths: list[str]) -> int:
    """The exit code: 0 if every failed test passed alone."""
    return int(fails_again(failed_tests([Path(path) for path in paths]), _passes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
