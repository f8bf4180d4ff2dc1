"""A sample of the fault matrix; `scripts/fault-matrix` runs the whole matrix."""

from __future__ import annotations

import itertools
import re

import pytest

from storage.log.leader_epoch import EpochEntry
from tests.faults import matrix, runner
from tests.faults.flips import all_flips, flip
from tests.faults.history import History, Observation, Violation
from tests.faults.log_machine import run_machine
from tests.faults.mutants import MUTANTS
from tests.faults.rows import Producer, Row
from tests.faults.scenarios import SCENARIOS
from tests.kit.due import due


def violations_in(groups: list[matrix.Group]) -> dict[str, str]:
    found = {}
    for group in groups:
        found |= runner.run_group(group).violations
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_life_without_faults_is_right(scenario: str) -> None:
    trial = matrix.run_trial(scenario, matrix.Disk())
    assert len(trial.history.now.rows) > 10
    matrix.end(trial, matrix.Ending(matrix.DEATH), 0)
    matrix.judge(trial, 1)


@pytest.mark.timeout(600)
def test_sample_of_the_fault_matrix() -> None:
    assert violations_in(matrix.all_groups()[::75]) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_larger_sample_of_the_fault_matrix() -> None:
    tally = runner.run_matrix(sample=5, seconds=20)
    assert tally.violations == {}
    assert tally.total > 250


def test_there_are_enough_cases() -> None:
    groups = matrix.all_groups()
    sample = groups[::75]
    assert sum(1 for group in sample for _ in matrix.cases_of(group)) * len(groups) / len(sample) > 25_000


def test_id_of_a_case_says_all_of_it() -> None:
    cases = itertools.chain.from_iterable(matrix.cases_of(group) for group in matrix.all_groups()[:3])
    for case in cases:
        assert matrix.parse_case(str(case)) == case
    with pytest.raises(ValueError, match=re.escape("'nonsense/eio/1/death.0' is not the id of a case")):
        matrix.parse_case("nonsense/eio/1/death.0")


def test_truncation_done_by_half_is_not_durable() -> None:
    rows = [Row(at, at, at + 1, 0, Producer(-1, -1, -1), 0, 0, None, b"") for at in range(6)]

    def found(end: int) -> Observation:
        return Observation(0, end, 0, tuple(rows[:end]), (EpochEntry(0, 0),), {}, 0)

    def half_cut() -> History:
        history = History()
        history.sending(rows)
        history.acknowledged()
        history.flushed(history.begin_flush())
        history.shortening(2)
        history.reconcile(found(4), lost_power=False)
        return history

    half_cut().reconcile(found(6), lost_power=True)
    with pytest.raises(Violation, match="the log ends at 6"):
        half_cut().reconcile(found(6), lost_power=False)
    with pytest.raises(Violation, match="the log ends at 1"):
        half_cut().reconcile(found(1), lost_power=True)
    history = half_cut()
    history.flushed(history.begin_flush())
    with pytest.raises(Violation, match="the log ends at 6, not from 4 to 4"):
        history.reconcile(found(6), lost_power=True)


def test_log_may_end_below_what_compaction_removed_and_no_lower() -> None:
    rows = [Row(at, at, at + 1, 0, Producer(-1, -1, -1), 0, 0, b"k", b"v") for at in range(4)]

    def cut_to(asked: int, end: int) -> History:
        history = History(is_compacted=True)
        history.sending(rows)
        history.acknowledged()
        history.optional = {1}
        history.shortening(asked)
        history.shortened(end, asked)
        return history

    assert cut_to(2, 2).end == 2
    assert [row.offset for row in cut_to(2, 1).now.rows] == [0]
    for asked, end in ((2, 0), (2, 3), (3, 2), (1, 0)):
        with pytest.raises(Violation, match=f"truncated to {asked}, the log ends at {end}"):
            cut_to(asked, end)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["log start is not checkpointed", "tombstones are cleaned early"])
def test_mutant_is_caught(name: str) -> None:
    assert runner.hunt(name).is_caught
    assert matrix.calls_of("leader"), "the code is what it was"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_caught() -> None:
    assert len(MUTANTS) >= 15
    found = list(runner.run_mutants(due(MUTANTS)))
    assert [each.mutant for each in found if not each.is_caught] == []


def test_flips_are_counted() -> None:
    tally = flip(("leader-epoch-checkpoint", True))
    assert tally.total > 10
    assert tally.violations == {}
    assert len(all_flips()) > 20


@pytest.mark.timeout(600)  # shrinking a finding takes up to five minutes
def test_log_equals_its_model() -> None:
    assert run_machine(30) > 300


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_log_equals_its_model_for_long() -> None:
    assert run_machine(200) > 2_000
