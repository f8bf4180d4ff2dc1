"""The command behind scripts/simulate: many seeds, one seed with its trace, or the planted bugs."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.mutants import MUTANTS, mutant_named
from tests.simulation.seeds import Outcome, collect_garbage, run_seed

SEEDS_OF_A_WORKER = 200
"""After that many a process is replaced by a new one: whatever a seed leaves behind goes with it."""
SEEDS_BETWEEN_COLLECTIONS = 10
MUTANT_SEEDS = 500


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run them in")
    parser.add_argument("--seed", type=int, help="run this one alone, and print all that happens in it")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant this bug")
    parser.add_argument(
        "--mutants", action="store_true", help=f"find every planted bug, within {MUTANT_SEEDS} seeds each"
    )
    return parser.parse_args()


def _one(task: tuple[int, str | None]) -> Outcome:
    seed, mutant = task
    outcome = run_seed(seed, mutant=mutant_named(mutant))
    if seed % SEEDS_BETWEEN_COLLECTIONS == 0:
        collect_garbage()
    return outcome


def _outcomes(seeds: range, jobs: int, mutant: str | None = None) -> Iterator[Outcome]:
    """The results of the seeds, in the order in which they end."""
    gc.collect()
    gc.freeze()
    with multiprocessing.Pool(jobs, gc.disable, maxtasksperchild=SEEDS_OF_A_WORKER) as pool:
        yield from pool.imap_unordered(_one, [(seed, mutant) for seed in seeds])


def _replay(seed: int, mutant: str | None) -> int:
    outcome = run_seed(seed, keep_trace=True, mutant=mutant_named(mutant))
    print("\n".join(outcome.trace))
    print(f"seed {seed}: hash {outcome.hash}, {outcome.virtual_s:.1f} virtual s, {outcome.acknowledged} acknowledged")
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    return 1 if outcome.violations else 0


def _run_seeds(seeds: range, jobs: int, mutant: str | None) -> int:
    began = time.monotonic()
    faults: Counter[str] = Counter()
    virtual_s = 0.0
    acknowledged = reads = bad = 0
    for outcome in _outcomes(seeds, jobs, mutant):
        faults += outcome.faults
        virtual_s += outcome.virtual_s
        acknowledged += outcome.acknowledged
        reads += outcome.reads
        if outcome.violations:
            bad += 1
            print(f"seed {outcome.seed}: {len(outcome.violations)} violations, the first: {outcome.violations[0]}")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    print(
        f"{len(seeds)} seeds, {virtual_s / 3600:.1f} virtual hours ({virtual_s / len(seeds):.0f} s a seed), "
        f"{acknowledged} records acknowledged, {reads} read\n"
        f"{sum(faults.values())} faults: {', '.join(f'{count} {kind}' for kind, count in faults.most_common())}\n"
        f"{bad} seeds with violations, {len(seeds) / seconds * 60:.0f} seeds a minute"
    )
    return 1 if bad else 0


def _find_mutants(start: int, jobs: int) -> int:
    missed = 0
    print(f"{'mutant':<36} {'seeds':>5}  found by")
    for name in MUTANTS:
        tried = 0
        found = None
        for outcome in _outcomes(range(start, start + MUTANT_SEEDS), jobs, name):
            tried += 1
            if outcome.violations:
                found = outcome
                break
        missed += found is None
        what = "NOT FOUND" if found is None else f"seed {found.seed}: {found.violations[0]}"
        print(f"{name:<36} {tried:>5}  {what[:150]}", flush=True)
    return 1 if missed else 0


def main() -> int:
    """Exit code 1 when something was violated (or, with --mutants, a bug not found)."""
    given = _arguments()
    if given.mutants:
        return _find_mutants(given.start, given.jobs)
    if given.seed is not None:
        return _replay(given.seed, given.mutant)
    return _run_seeds(range(given.start, given.start + given.seeds), given.jobs, given.mutant)


if __name__ == "__main__":
    sys.exit(main())
