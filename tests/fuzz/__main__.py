"""The command behind scripts/fuzz: many inputs from a seed, or one batch of one target again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from tests.fuzz.runner import FuzzFailure, Tally, Trial, limited, run, run_batch
from tests.fuzz.targets.all_targets import TARGETS, shares

BETWEEN_REPORTS_S = 300


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many inputs, of all targets together")
    parser.add_argument("--seed", type=int, default=1, help="from which they are drawn")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="this one alone; may be repeated")
    parser.add_argument("--batch", type=int, help="with one --target, run this batch again, as a failure names it")
    return parser.parse_args()


def _table(tallies: Mapping[str, Tally], seed: int, took_s: float) -> str:
    lines = [f"{'target':16} {'inputs':>11} {'accepted':>11} {'us each':>8} {'slowest ms':>10}"]
    for name, tally in tallies.items():
        mean_us = tally.seconds / max(tally.inputs, 1) * 1e6
        slowest_ms = tally.slowest_s * 1000
        lines.append(f"{name:16} {tally.inputs:11,} {tally.accepted:11,} {mean_us:8.1f} {slowest_ms:10.1f}")
    total = sum(tally.inputs for tally in tallies.values())
    lines.append(f"{total:,} inputs of seed {seed} in {took_s:.0f} s")
    return "\n".join(lines)


def _opened(stack: ExitStack, names: list[str]) -> dict[str, Trial]:
    found = {}
    for name in names:
        try:
            found[name] = stack.enter_context(TARGETS[name].opened())
        except pytest.skip.Exception as error:
            print(f"{name}: skipped, it {error}")
    return found


def main() -> int:
    """Run the command; returns its exit code."""
    arguments = _arguments()
    names = arguments.target or list(TARGETS)
    began_s = time.monotonic()
    next_report_s = began_s + BETWEEN_REPORTS_S

    def report(tallies: Mapping[str, Tally]) -> None:
        nonlocal next_report_s
        now_s = time.monotonic()
        if now_s >= next_report_s:
            next_report_s = now_s + BETWEEN_REPORTS_S
            print(_table(tallies, arguments.seed, now_s - began_s), flush=True)

    with ExitStack() as stack:
        trials = _opened(stack, names)
        try:
            if arguments.batch is not None:
                (name, trial), *_ = trials.items()
                with limited():
                    tallies = {name: run_batch(name, trial, arguments.seed, arguments.batch)}
            else:
                counts = shares(arguments.inputs, list(trials))
                wanted = {name: (trial, counts[name]) for name, trial in trials.items()}
                tallies = run(wanted, arguments.seed, report)
        except FuzzFailure as error:
            print(f"FAILED: {error}")
            return 1
    print(_table(tallies, arguments.seed, time.monotonic() - began_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
