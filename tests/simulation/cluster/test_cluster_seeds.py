"""Seeds of clusters: no check is violated, a seed always gives the same events, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.kit.due import due, due_block
from tests.simulation.cluster.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.cluster.found import Found, read_found
from tests.simulation.seeds import collect_garbage, run_cluster_seed
from tests.simulation.transactions.transactions_plan import FIRST_SEED, FIRST_STRUCK_SEED

ROOT = Path(__file__).resolve().parents[3]
QUICK_SEEDS = 2
SLOW_SEEDS = range(1_000_000, 1_000_020)
MUTANT_SEEDS = 10
"""How many seeds a planted bug gets, with or without transactions, whichever found it before."""
LEAST_COMMITTED = 10
SOON = 7
"""A planted bug that was found within this many seeds must be found by `MUTANT_SEEDS`. The others need more seeds than
a test has time for: `scripts/simulate --cluster --mutants` looks for all of them.
"""
FOUND_SOON = due(each for each in read_found().values() if each.tried <= SOON)
PAST_SEEDS = {
    2_000_034: "a broker that was killed, started and lost its power showed records of an aborted transaction",
    2_000_474: "the checker took it for a commit of a fenced producer when its client dropped a transaction of nothing",
    2_011_005: "the checker trusted offsets that a deposed coordinator told, which answers a fetch alone, as in Kafka",
    2_011_088: "as seed 2011005",
    2_011_104: "a new coordinator told a generation that was not committed, and the next one did not have it",
    2_011_184: "a topic made again had a batch before the one that stood before it, and the checker took it for a loss",
    2_011_206: "a member that heard in a join that it was forgotten went on at its own offset, which others had passed",
    2_011_279: "as seed 2011206",
    2_011_441: "as seed 2011206",
    2_011_557: "what a truncation left of a transaction index was not fsynced, and an aborted transaction came back",
    2_012_035: "the checker took it for a mistake that an internal topic waits for as many brokers as it has replicas",
    2_012_897: "a follower that truncated, and stayed at its offset, did not hear of the high watermark again",
    2_013_249: "a record that was written twice because of a strike was taken for a mistake of the broker",
    2_013_322: "the audit saw the ends before an instance of the loop wrote, and aborted, what it had taken earlier",
    2_013_672: "as seed 2013249",
    2_014_027: "a new controller took a replica out of the ISR that had fetched again what its recovery had cut off",
    2_014_792: "a follower whose log began anew at its own end was killed between the old segments and the new",
    2_014_867: "the audit read a marker behind the end that it had asked for",
    2_015_795: "a producer claimed a loss where a late copy from the transaction before had its batch refused",
    2_016_004: "a member fetched its offsets from a deposed coordinator, and not where it had joined",
    2_016_022: "a broker obeyed a full LeaderAndIsr after its copy, and took a topic made in between for a stray",
    2_017_079: "recovery saw the first batch of a segment before a torn one, and did not see that it aborted",
    2_019_436: "a replaced coordinator took the end of a transaction for that of an earlier one, and said it was done",
}
"""Seeds that once violated a check, with the cause. Those before FIRST_SEED now plan more kinds of faults."""
_HASHES = (
    "from tests.simulation.seeds import run_cluster_seed; print(*(run_cluster_seed(seed).hash for seed in (1, 2)))"
)


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """Collect clusters with their tests, not during later ones."""
    yield
    collect_garbage()


def _violations(seeds: Iterable[int]) -> list[str]:
    return [f"seed {seed}: {text}" for seed in seeds for text in run_cluster_seed(seed).violations]


@pytest.mark.timeout(300)
def test_seeds() -> None:
    assert _violations(range(1, 1 + QUICK_SEEDS)) == []


@pytest.mark.timeout(900)
def test_past_seeds() -> None:
    assert _violations(due(PAST_SEEDS)) == []


@pytest.mark.timeout(300)
def test_seeds_count() -> None:
    """They last long enough, with enough faults and records."""
    for seed in (2, 14):
        assert run_cluster_seed(seed).counts


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [FIRST_SEED + 2, FIRST_STRUCK_SEED + 6])
def test_seed_with_transactions_counts(seed: int) -> None:
    """It commits some transactions, and violates no check."""
    outcome = run_cluster_seed(seed)
    assert outcome.violations == []
    assert outcome.counts
    assert outcome.committed >= LEAST_COMMITTED


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_seeds() -> None:
    """Through the command, which uses two processes; it prints the seeds with violations."""
    seeds = due_block(SLOW_SEEDS)
    arguments = ["--cluster", "--start", str(seeds.start), "--seeds", str(len(seeds))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(seeds)} seeds" in done.stdout


@pytest.mark.timeout(300)
def test_seed_gives_the_same_events_whatever_the_hash_seed() -> None:
    told = []
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _HASHES], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        told.append(done.stdout.split())
    assert told[0] == told[1]
    assert len(dict.fromkeys(told[0])) == 2


def test_replay_gives_the_same_events() -> None:
    assert run_cluster_seed(5, keep_trace=True).hash == run_cluster_seed(5).hash


@pytest.mark.parametrize("name", sorted(CLUSTER_MUTANTS))
def test_planted_bug_can_be_planted(name: str) -> None:
    with CLUSTER_MUTANTS[name]():
        pass


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("found", FOUND_SOON, ids=[each.mutant for each in FOUND_SOON])
def test_planted_bug_is_found(found: Found) -> None:
    mutant = CLUSTER_MUTANTS[found.mutant]
    first = next((each for each in (FIRST_STRUCK_SEED, FIRST_SEED) if found.seed >= each), 1)
    seeds = (found.seed, *range(first, first + MUTANT_SEEDS))
    assert any(run_cluster_seed(seed, mutant=mutant()).violations for seed in seeds)
