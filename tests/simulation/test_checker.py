"""Tests of the checker: every planted anomaly is flagged by the right check, and clean histories pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.simulation import history
from tests.simulation.checker import Checker
from tests.simulation.history import FAILED, OK, UNKNOWN, Event

LOG = "broker-0/t-0"


class Scenario:
    """A clean history of one log, drawn from a seed; an anomaly changes a few of its events."""

    def __init__(self, seed: int, *, lossless: bool = True) -> None:
        self.rng = Random(seed)
        self.lossless = lossless
        self.now = 0.0
        self.events: list[Event] = [history.LogCreated(0.0, LOG, lossless)]
        self.log: list[bytes] = []
        self._commits = 0

    def later(self) -> float:
        """Some time passes."""
        self.now += self.rng.uniform(0.001, 0.1)
        return self.now

    def send(self, producer: str = "p", *, idempotent: bool = True, outcome: str = OK) -> bytes:
        """Send a record; acknowledged ones are in the log, unknown ones may be."""
        value = b"%s %d" % (producer.encode(), len(self.events))
        self.events.append(history.SendInvoked(self.later(), producer, LOG, value, idempotent))
        offset = -1
        if outcome == OK or (outcome == UNKNOWN and self.rng.random() < 0.5):
            offset = len(self.log)
            self.log.append(value)
        self.events.append(history.SendDone(self.later(), LOG, value, outcome, offset if outcome == OK else -1))
        return value

    def read(self, reader: str = "r", start: int = 0) -> None:
        """Read everything from `start` on."""
        self.events.append(history.Positioned(self.later(), reader, LOG, start))
        for offset in range(start, len(self.log)):
            self.events.append(history.Read(self.later(), reader, LOG, offset, self.log[offset]))

    def look(self) -> None:
        """The broker reports the end."""
        invoked = self.later()
        self.events.append(history.EndOffset(invoked, self.later(), LOG, len(self.log)))
        self.events.append(history.LeaderEpoch(invoked, self.now, LOG, 3))

    def commit(self, offset: int, generation: int = 1, outcome: str = OK) -> None:
        """A member commits."""
        self._commits += 1
        self.events.append(history.CommitInvoked(self.later(), "g", LOG, self._commits, offset, generation))
        self.events.append(history.CommitDone(self.later(), self._commits, outcome))

    def committed(self, offset: int | None) -> None:
        """The broker reports the committed offset."""
        invoked = self.later()
        self.events.append(history.CommittedOffset(invoked, self.later(), "g", LOG, offset))

    def crash(self) -> None:
        """Power fails; without `lossless` the log loses its end."""
        self.events.append(history.MachineCrashed(self.later(), "broker-0", groups_lossless=False))
        if not self.lossless:
            del self.log[self.rng.randrange(len(self.log)) :]

    def final(self) -> None:
        """Everything is read."""
        records = tuple(enumerate(self.log))
        self.events.append(history.FinalRead(self.later(), LOG, 0, len(self.log), records))

    def violated(self) -> set[str]:
        """The checks that the history violates."""
        checker = Checker()
        for event in self.events:
            checker.feed(event)
        return {each.check for each in checker.violations}


def _some_events(scenario: Scenario) -> None:
    for _ in range(scenario.rng.randint(5, 20)):
        scenario.send(scenario.rng.choice(["p", "q"]), outcome=scenario.rng.choice([OK, OK, OK, UNKNOWN]))
        if scenario.rng.random() < 0.2:
            scenario.look()
    scenario.send()
    scenario.read()
    scenario.events.append(history.Assigned(scenario.later(), "g", 1, "m", (LOG,)))
    for offset in (1, 3, 2):
        scenario.commit(offset, outcome=scenario.rng.choice([OK, UNKNOWN, FAILED]))
    scenario.commit(4)
    scenario.committed(4)


@pytest.mark.parametrize("lossless", [True, False])
def test_clean_histories_pass(lossless: bool) -> None:
    for seed in range(100):
        scenario = Scenario(seed, lossless=lossless)
        for _ in range(scenario.rng.randint(1, 3)):
            _some_events(scenario)
            scenario.crash()
            _some_events(scenario)
        scenario.look()
        scenario.read("s")
        scenario.final()
        assert scenario.violated() == set(), seed


def test_an_end_on_its_way_during_a_crash_is_of_the_time_before() -> None:
    for seed in range(100):
        scenario = Scenario(seed, lossless=False)
        _some_events(scenario)
        invoked, end = scenario.later(), len(scenario.log)
        scenario.events.append(history.MachineCrashed(scenario.later(), "broker-0", groups_lossless=True))
        scenario.events.append(history.EndOffset(invoked, scenario.later(), LOG, end))
        del scenario.log[-2:]
        scenario.look()
        assert scenario.violated() == set(), seed
        scenario.events.append(history.EndOffset(scenario.later(), scenario.later(), LOG, len(scenario.log) - 1))
        assert scenario.violated() == {"C8"}, seed


def test_what_a_deletion_and_a_damage_take_may_be_missing() -> None:
    for seed in range(100):
        scenario = Scenario(seed)
        _some_events(scenario)
        offset = _damage(scenario)
        records = tuple(each for each in enumerate(scenario.log) if each[0] != offset)
        scenario.events.append(history.FinalRead(scenario.later(), LOG, 0, len(scenario.log), records))
        assert scenario.violated() == set(), seed
        scenario.send()
        _begin_again(scenario)
        scenario.send()
        scenario.look()
        scenario.read("s")
        scenario.final()
        assert scenario.violated() == set(), seed


def _delete_records(scenario: Scenario) -> int:
    """Delete the first records; returns the new log start."""
    before = scenario.rng.randint(1, len(scenario.log) - 1)
    scenario.events.append(history.RecordsDeleted(scenario.later(), LOG, before))
    return before


def _final_from(scenario: Scenario, start: int) -> None:
    records = tuple(each for each in enumerate(scenario.log) if each[0] >= start)
    scenario.events.append(history.FinalRead(scenario.later(), LOG, start, len(scenario.log), records))


def test_records_that_were_deleted_may_be_missing() -> None:
    for seed in range(100):
        scenario = Scenario(seed)
        _some_events(scenario)
        start = _delete_records(scenario)
        scenario.events.append(history.Positioned(scenario.later(), "late", LOG, 0))
        scenario.events.append(history.Read(scenario.later(), "late", LOG, start, scenario.log[start]))
        _final_from(scenario, start)
        assert scenario.violated() == set(), seed


def _more_deleted_than_asked_for(scenario: Scenario) -> None:
    _final_from(scenario, _delete_records(scenario) + 1)


def _lost(scenario: Scenario) -> None:
    scenario.send()
    scenario.log.pop()
    scenario.final()


def _replaced(scenario: Scenario) -> None:
    scenario.send()
    scenario.read("s")
    scenario.events.append(history.SendInvoked(scenario.later(), "q", LOG, b"other", idempotent=False))
    scenario.events.append(history.Read(scenario.later(), "t", LOG, len(scenario.log) - 1, b"other"))


def _lost_in_the_middle(scenario: Scenario) -> None:
    """A gap where only the end may be lost."""
    scenario.send()
    hole = len(scenario.log) - 1
    scenario.send()
    scenario.events.append(history.MachineCrashed(scenario.later(), "broker-0", groups_lossless=True))
    records = tuple((offset, value) for offset, value in enumerate(scenario.log) if offset != hole)
    scenario.events.append(history.FinalRead(scenario.later(), LOG, 0, len(scenario.log), records))


def _twice(scenario: Scenario) -> None:
    scenario.log.append(scenario.send())
    scenario.final()


def _twice_without_a_reason(scenario: Scenario) -> None:
    scenario.log.append(scenario.send(idempotent=False))
    scenario.final()


def _reordered(scenario: Scenario) -> None:
    for _ in range(2):
        value = b"late %d" % len(scenario.events)
        scenario.events.append(history.SendInvoked(scenario.later(), "late", LOG, value, idempotent=True))
        scenario.log.append(value)
    scenario.log[-2], scenario.log[-1] = scenario.log[-1], scenario.log[-2]
    scenario.final()


def _offset_below_a_known_one(scenario: Scenario) -> None:
    scenario.send()
    value = b"low"
    scenario.events.append(history.SendInvoked(scenario.later(), "low", LOG, value, idempotent=True))
    scenario.events.append(history.SendDone(scenario.later(), LOG, value, OK, len(scenario.log) - 2))


def _gap(scenario: Scenario) -> None:
    scenario.send()
    scenario.events.append(
        history.FinalRead(
            scenario.later(), LOG, 0, len(scenario.log) + 1, (*enumerate(scenario.log), (len(scenario.log) + 1, b""))
        )
    )


def _skipped(scenario: Scenario) -> None:
    scenario.send()
    scenario.send()
    end = len(scenario.log)
    scenario.events.append(history.Positioned(scenario.later(), "s", LOG, end - 2))
    scenario.events.append(history.Read(scenario.later(), "s", LOG, end - 1, scenario.log[-1]))


def _stepped_back(scenario: Scenario) -> None:
    scenario.send()
    scenario.read("s")
    scenario.events.append(history.Read(scenario.later(), "s", LOG, 0, scenario.log[0]))


def _never_sent(scenario: Scenario) -> None:
    scenario.log.append(b"out of nowhere")
    scenario.read("s", len(scenario.log) - 1)


def _refused_and_read(scenario: Scenario) -> None:
    scenario.log.append(scenario.send(outcome=FAILED))
    scenario.final()


def _end_falls(scenario: Scenario) -> None:
    scenario.send()
    scenario.look()
    scenario.events.append(history.EndOffset(scenario.later(), scenario.later(), LOG, len(scenario.log) - 1))


def _end_below_what_was_told(scenario: Scenario) -> None:
    scenario.send()
    scenario.events.append(history.EndOffset(scenario.later(), scenario.later(), LOG, len(scenario.log) - 1))


def _epoch_falls(scenario: Scenario) -> None:
    scenario.look()
    scenario.events.append(history.LeaderEpoch(scenario.later(), scenario.later(), LOG, 2))


def _commit_lost(scenario: Scenario) -> None:
    scenario.commit(7)
    scenario.committed(4)


def _commits_gone(scenario: Scenario) -> None:
    scenario.commit(7)
    scenario.committed(None)


def _refused_commit_told(scenario: Scenario) -> None:
    scenario.commit(7)
    scenario.commit(9, outcome=FAILED)
    scenario.committed(9)


def _zombie_commits(scenario: Scenario) -> None:
    scenario.events.append(history.Assigned(scenario.later(), "g", 2, "n", (LOG,)))
    scenario.commit(3, generation=1)


def _two_owners(scenario: Scenario) -> None:
    scenario.events.append(history.Assigned(scenario.later(), "g", 1, "n", (LOG,)))


def _begin_again(scenario: Scenario) -> None:
    """Delete the log, and create another of its name."""
    scenario.events.append(history.DeletionInvoked(scenario.later(), LOG))
    scenario.events.append(history.LogDeleted(scenario.later(), LOG))
    scenario.log.clear()


def _back_from_a_deletion(scenario: Scenario) -> None:
    value = scenario.send()
    _begin_again(scenario)
    scenario.log.append(value)
    scenario.final()


def _lost_after_a_deletion(scenario: Scenario) -> None:
    _begin_again(scenario)
    scenario.send()
    _lost(scenario)


def _damage(scenario: Scenario) -> int:
    """Damage a batch of one record; returns its offset."""
    scenario.send()
    offset = len(scenario.log) - 1
    scenario.events.append(history.Damaged(scenario.later(), LOG, offset, offset))
    scenario.send()
    return offset


def _damaged_and_served(scenario: Scenario) -> None:
    offset = _damage(scenario)
    scenario.events.append(history.Read(scenario.later(), "t", LOG, offset, b"flipped"))


def _more_lost_than_is_damaged(scenario: Scenario) -> None:
    offset = _damage(scenario)
    records = tuple(each for each in enumerate(scenario.log) if each[0] < offset)
    scenario.events.append(history.FinalRead(scenario.later(), LOG, 0, len(scenario.log), records))


ANOMALIES: list[tuple[Callable[[Scenario], None], str]] = [
    (_lost, "C1"),
    (_lost_in_the_middle, "C5"),
    (_replaced, "C2"),
    (_twice, "C3"),
    (_twice_without_a_reason, "C3"),
    (_reordered, "C4"),
    (_offset_below_a_known_one, "C4"),
    (_gap, "C5"),
    (_skipped, "C6"),
    (_stepped_back, "C6"),
    (_never_sent, "C7"),
    (_refused_and_read, "C7"),
    (_end_falls, "C8"),
    (_end_below_what_was_told, "C13"),
    (_epoch_falls, "C8"),
    (_commit_lost, "C10"),
    (_commits_gone, "C10"),
    (_refused_commit_told, "C10"),
    (_zombie_commits, "C10"),
    (_two_owners, "C10"),
    (_back_from_a_deletion, "C7"),
    (_lost_after_a_deletion, "C1"),
    (_damaged_and_served, "C7"),
    (_more_lost_than_is_damaged, "C1"),
    (_more_lost_than_is_damaged, "C5"),
    (_more_deleted_than_asked_for, "C5"),
]


@pytest.mark.parametrize(("anomaly", "check"), ANOMALIES, ids=[each.__name__.strip("_") for each, _ in ANOMALIES])
def test_anomaly_is_flagged(anomaly: Callable[[Scenario], None], check: str) -> None:
    for seed in range(40):
        scenario = Scenario(seed)
        _some_events(scenario)
        scenario.look()
        anomaly(scenario)
        assert check in scenario.violated(), seed


def test_hole_in_a_log_that_may_lose_its_end_is_flagged() -> None:
    for seed in range(100):
        scenario = Scenario(seed, lossless=False)
        _some_events(scenario)
        _lost_in_the_middle(scenario)
        assert "C1" in scenario.violated(), seed
