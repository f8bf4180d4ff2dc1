"""The command behind scripts/simulate: many seeds, one seed with its trace, or the planted bugs."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tests.simulation.cluster import ledger
from tests.simulation.cluster.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.cluster.cluster_plan import LEAST_ACKNOWLEDGED, LEAST_FAULTS, LEAST_VIRTUAL_S
from tests.simulation.cluster.found import Found, add_found, read_found
from tests.simulation.mutants import MUTANTS, mutant_named
from tests.simulation.seeds import Outcome, run_cluster_seed, run_seed
from tests.simulation.transactions.transaction_mutants import TRANSACTION_MUTANTS
from tests.simulation.transactions.transactions_plan import FIRST_STRUCK_SEED, has_transactions
from tools.support.terminal import Progress

SEEDS_OF_A_WORKER = 1
"""After this many seeds a process is replaced by a fork of this one. Collecting the garbage of a seed takes longer."""
MUTANT_SEEDS = 500


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many seeds to run (100; {MUTANT_SEEDS} for each planted bug)")
    parser.add_argument("--start", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run them in")
    parser.add_argument("--seed", type=int, help="run this one alone, and print all that happens in it")
    parser.add_argument("--cluster", action="store_true", help="seeds of clusters of three to five brokers")
    parser.add_argument("--ledger", action="store_true", help="with --cluster, add the result to the ledger")
    parser.add_argument("--mutant", choices=sorted({*MUTANTS, *CLUSTER_MUTANTS}), help="plant this bug")
    parser.add_argument("--mutants", action="store_true", help="find every planted bug")
    parser.add_argument("--missing", action="store_true", help="with --cluster --mutants, only those not found yet")
    parser.add_argument("--record", action="store_true", help="with --cluster --mutants, keep what was found for docs/")
    return parser.parse_args()


class _Task(NamedTuple):
    """A seed to run, of a cluster or of one broker, optionally with a planted bug."""

    seed: int
    cluster: bool
    mutant: str | None

    def run(self, *, keep_trace: bool = False) -> Outcome:
        """Run the seed in this process."""
        run = run_cluster_seed if self.cluster else run_seed
        return run(self.seed, keep_trace=keep_trace, mutant=mutant_named(self.mutant, {**MUTANTS, **CLUSTER_MUTANTS}))


def _one(task: _Task) -> Outcome:
    return task.run()


@cache
def _warm_up(*, cluster: bool) -> None:
    """Run a seed in this process, so that each fork inherits what is built at the first use, such as the encoders of
    messages.
    """
    _one(_Task(1, cluster, None))


def _outcomes(tasks: Sequence[_Task], jobs: int) -> Iterator[Outcome]:
    """Yield the results as the seeds finish; shows progress at a terminal."""
    _warm_up(cluster=tasks[0].cluster)
    gc.collect()
    gc.freeze()
    with (
        multiprocessing.Pool(jobs, gc.disable, maxtasksperchild=SEEDS_OF_A_WORKER) as pool,
        Progress("Simulating", "seeds", len(tasks)) as progress,
    ):
        for outcome in pool.imap_unordered(_one, tasks):
            progress.advance()
            yield outcome


def _replay(task: _Task) -> int:
    outcome = task.run(keep_trace=True)
    seed = task.seed
    print("\n".join(outcome.trace))
    print(f"seed {seed}: hash {outcome.hash}, {outcome.virtual_s:.1f} virtual s, {outcome.acknowledged} acknowledged")
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    return 1 if outcome.violations else 0


def _run_seeds(tasks: list[_Task], jobs: int, *, keep: bool) -> int:
    began = time.monotonic()
    faults: Counter[str] = Counter()
    virtual_s = 0.0
    acknowledged = reads = committed = bad = counting = 0
    for outcome in _outcomes(tasks, jobs):
        faults += outcome.faults
        virtual_s += outcome.virtual_s
        acknowledged += outcome.acknowledged
        reads += outcome.reads
        committed += outcome.committed
        counting += outcome.counts
        if outcome.violations:
            bad += 1
            print(f"seed {outcome.seed}: {len(outcome.violations)} violations, the first: {outcome.violations[0]}")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    if tasks[0].cluster:
        print(f"{counting} seeds with {LEAST_VIRTUAL_S:.0f} s, {LEAST_FAULTS} faults and {LEAST_ACKNOWLEDGED} records")
    print(
        f"{len(tasks)} seeds, {virtual_s / 3600:.1f} virtual hours ({virtual_s / len(tasks):.0f} s a seed), "
        f"{acknowledged} records acknowledged, {reads} read, {committed} transactions committed\n"
        f"{sum(faults.values())} faults: {', '.join(f'{count} {kind}' for kind, count in faults.most_common())}\n"
        f"{bad} seeds with violations, {len(tasks) / seconds * 60:.0f} seeds a minute"
    )
    if keep:
        ledger.add(tasks[0].seed, len(tasks), counting, bad)
    return 1 if bad else 0


def _find_mutants(names: Iterable[str], seeds: range, jobs: int, *, cluster: bool, record: bool) -> int:
    missed = 0
    print(f"{'mutant':<36} {'seeds':>5}  found by")
    for name in names:
        tried = 0
        found = None
        tasks = [_Task(seed, cluster, name) for seed in seeds]
        if name in TRANSACTION_MUTANTS:
            of_transactions = range(FIRST_STRUCK_SEED + seeds.start, FIRST_STRUCK_SEED + seeds.stop)
            tasks = [_Task(seed, cluster, name) for seed in of_transactions if has_transactions(seed)]
        for outcome in _outcomes(tasks, jobs):
            tried += 1
            if outcome.violations and not _Task(outcome.seed, cluster, None).run().violations:
                found = outcome
                break
        missed += found is None
        if found is not None and record:
            add_found(Found.of(name, tried, found))
        what = "NOT FOUND" if found is None else f"seed {found.seed}: {found.violations[0]}"
        print(f"{name:<36} {tried:>5}  {what[:150]}", flush=True)
    return 1 if missed else 0


def main() -> int:
    """Return exit code 1 if a check was violated (or, with --mutants, a bug not found)."""
    given = _arguments()
    if given.mutants:
        names = [*(CLUSTER_MUTANTS if given.cluster else MUTANTS)]
        if given.mutant is not None:
            names = [given.mutant]
        if given.missing and given.cluster:
            names = [each for each in names if each not in read_found()]
        seeds = range(given.start, given.start + (given.seeds or MUTANT_SEEDS))
        return _find_mutants(names, seeds, given.jobs, cluster=given.cluster, record=given.record and given.cluster)
    if given.seed is not None:
        return _replay(_Task(given.seed, given.cluster, given.mutant))
    seeds = range(given.start, given.start + (given.seeds or 100))
    tasks = [_Task(seed, given.cluster, given.mutant) for seed in seeds]
    return _run_seeds(tasks, given.jobs, keep=given.ledger and given.cluster and given.mutant is None)


if __name__ == "__main__":
    sys.exit(main())
