"""Seeds of the simulation: no check is violated, a seed always gives the same events, and planted bugs are found."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from tests.kit.due import due, due_block
from tests.simulation.checker import Checker
from tests.simulation.loop import LivelockError, Process, SimLoop
from tests.simulation.mutants import MUTANTS, mutant_named
from tests.simulation.seeds import LogWatch, run_seed
from tests.simulation.world import FIRST_SEED_OF_SPLIT_REQUESTS, World

ROOT = Path(__file__).resolve().parents[2]
QUICK_SEEDS = 24
SLOW_SEEDS = range(1_000_000, 1_000_100)
MUTANT_SEEDS = 150
FOUND_BY = {
    "failed-fsync-taken-for-a-success": 471,
    "batches-of-the-disk-not-checked": 15,
    "requests-pass-a-large-one": FIRST_SEED_OF_SPLIT_REQUESTS + 22,
}
"""Seeds that find the hardest planted bugs: they are tried first."""
PAST_SEEDS = {
    24: "a topic deleted while the disk was full could not be created again, as a checkpoint was not written again",
    46: "batches appended since a start were taken for damage by the background check, and refused to readers",
    1_000_060: "an assignment on its way while a machine lost its power was counted to the generations after it",
    1_000_009: "a topic deleted during a group's join, and created again, was not read until the metadata was old",
    1_000_106: "a member that its group had forgotten committed what it had read, into the empty group",
    1_000_131: "an end on its way while a machine lost its power was taken for one of the log that came back",
    1_000_139: "a producer failed a record that followed one which a bit flip had taken from the log",
    1_000_246: "the high watermark of an earlier topic, on a disk that came back, was taken for that of the next one",
    1_000_247: "a raised base offset in front of another damaged batch was believed, and all behind it was cut off",
    1_000_284: "a consumer waited for an idle partition while it had a busy one to fetch on",
    2_000_889: "a producer's second batch was sent before its first, whose attempt to connect had failed",
    2_000_904: "a raised leader epoch of a log's first batch had the second taken for damaged, and refused",
    2_001_388: "an offsets partition whose disk had failed was reported as a mistake of the broker",
}
"""Seeds that once violated a check, with the cause."""
_HASHES = "from tests.simulation.seeds import run_seed; print(*(run_seed(seed).hash for seed in (2, 15, 24)))"


def _violations(seeds: Iterable[int]) -> list[str]:
    return [f"seed {seed}: {text}" for seed in seeds for text in run_seed(seed).violations]


@pytest.mark.timeout(300)
def test_seeds() -> None:
    assert _violations(range(1, 1 + QUICK_SEEDS)) == []


@pytest.mark.timeout(300)
def test_seeds_in_which_small_requests_are_split() -> None:
    assert _violations(range(FIRST_SEED_OF_SPLIT_REQUESTS, FIRST_SEED_OF_SPLIT_REQUESTS + 2)) == []


@pytest.mark.timeout(300)
def test_a_bug_between_two_slices_is_found() -> None:
    name = "requests-pass-a-large-one"
    assert run_seed(FOUND_BY[name], mutant=mutant_named(name)).violations


@pytest.mark.timeout(300)
def test_past_seeds() -> None:
    assert _violations(due(PAST_SEEDS)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_seeds() -> None:
    """Through the command, which uses two processes; it prints the seeds with violations."""
    seeds = due_block(SLOW_SEEDS)
    command = [sys.executable, "-m", "tests.simulation", "--start", str(seeds.start), "--seeds", str(len(seeds))]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(seeds)} seeds" in done.stdout


def test_seed_gives_the_same_events_whatever_the_hash_seed() -> None:
    told = []
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _HASHES], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        told.append(done.stdout.split())
    assert told[0] == told[1]
    assert len(set(told[0])) == 3
    assert told[0] == [run_seed(seed).hash for seed in (2, 15, 24)]


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_planted_bug_can_be_planted(name: str) -> None:
    with MUTANTS[name]():
        pass


def test_replay_gives_the_same_events() -> None:
    assert run_seed(7, keep_trace=True).hash == run_seed(7).hash


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", due(sorted(MUTANTS)))
def test_planted_bug_is_found(name: str) -> None:
    seeds = (FOUND_BY.get(name, 1), *range(1, 1 + MUTANT_SEEDS))
    assert any(run_seed(seed, mutant=mutant_named(name)).violations for seed in seeds)


def test_a_seed_leaves_no_world_behind():
    def worlds() -> set[int]:
        return {id(each) for each in gc.get_objects() if isinstance(each, World)}

    before = worlds()
    run_seed(1)
    assert worlds() <= before


def _mistakes(renewed: str, *lines: str) -> list[str]:
    """The violations for these lines, in a world where one topic was recreated."""
    checker = Checker()
    world = World(1)
    watch = LogWatch(world, checker, verbose=False)
    watch.was_renewed = lambda topic: topic == renewed
    for line in lines:
        watch.emit(logging.LogRecord("kafka", logging.ERROR, "", 0, line, (), None))
    world.loop.close()
    return [str(each) for each in checker.violations]


def test_a_sequence_number_may_be_refused_by_a_topic_that_was_made_again() -> None:
    """The new topic stored another of the producer's batches first than the one sent first."""
    line = "The broker has lost records of renewed-0 that it had acknowledged"
    assert _mistakes("renewed", line) == []
    assert len(_mistakes("another", line)) == 1


def test_a_topic_that_was_made_again_may_not_lose_what_was_committed() -> None:
    assert len(_mistakes("renewed", "renewed-0 ends at 7 here, below its high watermark 9")) == 1


def test_a_process_that_is_resumed_twice_has_one_turn() -> None:
    """The network heals, which resumes all processes, before the pause of one is over."""
    loop, process = SimLoop(Random(1)), Process("a")
    ran: list[int] = []

    async def work() -> None:
        for turn in range(3):
            ran.append(turn)
            await asyncio.sleep(0)

    loop.pause(process)
    loop.spawn(process, work())
    for _ in range(2):
        loop.resume(process)
    with pytest.raises(LivelockError, match="nobody has anything to do"):
        loop.run_forever()
    assert ran == [0, 1, 2]
    loop.end()
