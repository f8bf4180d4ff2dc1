"""Tests of the transaction checker: every planted anomaly is flagged, and clean histories pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.simulation import history
from tests.simulation.checker import Checker
from tests.simulation.history import FAILED, OK, UNKNOWN, Event

INPUTS = ("cluster/in-0", "cluster/in-1")
OUTPUT = "cluster/out-0"
LOGS = (*INPUTS, OUTPUT)


class Scenario:
    """A clean history of transactions in two logs and of a loop into a third one. An anomaly changes part of it.

    A log is a list of values, with None for each marker; `committed` holds the values that readers see.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.events: list[Event] = [history.LogCreated(0.0, log, lossless=True, transactional=True) for log in LOGS]
        self.logs: dict[str, list[bytes | None]] = {log: [] for log in LOGS}
        self.committed: dict[bytes, None] = {}
        self.readers: dict[str, int] = {}
        self._numbers = 0
        self._epoch = 0

    def later(self) -> float:
        """Some time passes."""
        self.now += self.rng.uniform(0.001, 0.1)
        return self.now

    def session(self, transactional_id: str, name: str, *, same_epoch: bool = False) -> None:
        """A producer takes over a transactional id."""
        self._epoch += not same_epoch
        self.events.append(history.SessionBegun(self.later(), transactional_id, name, self._epoch))

    def name(self) -> str:
        """A name for the next transaction."""
        self._numbers += 1
        return f"transaction-{self._numbers}"

    def send(self, transaction: str, log: str, value: bytes | None = None, *, session: str = "a/1") -> bytes:
        """Send a record, which is acknowledged."""
        value = b"%s %d" % (transaction.encode(), len(self.events)) if value is None else value
        self.events.append(history.SendInvoked(self.later(), session, log, value, True, transaction))
        self.events.append(history.SendDone(self.later(), log, value, OK, len(self.logs[log])))
        self.logs[log].append(value)
        return value

    def end(
        self, transaction: str, values: dict[bytes, str], *, commit: bool, outcome: str = OK, session: str = "a/1"
    ) -> None:
        """End a transaction; with `outcome` UNKNOWN it may commit or abort."""
        self.events.append(history.EndInvoked(self.later(), transaction, session, commit))
        self.events.append(history.EndDone(self.later(), transaction, outcome))
        self.mark(values, commit=commit and (outcome == OK or self.rng.random() < 0.5))

    def mark(self, values: dict[bytes, str], *, commit: bool) -> None:
        """Write the markers of a transaction."""
        if commit:
            self.committed |= dict.fromkeys(values)
        for log in dict.fromkeys(values.values()):
            self.logs[log].append(None)

    def transact(self, *, commit: bool = True, outcome: str = OK) -> dict[bytes, str]:
        """Run a whole transaction in both inputs; returns its values, and their logs."""
        name = self.name()
        values = {self.send(name, log): log for log in (*INPUTS, self.rng.choice(INPUTS))}
        self.end(name, values, commit=commit, outcome=outcome)
        return values

    def visible(self, log: str) -> list[tuple[int, bytes]]:
        """The records that readers see of a log."""
        return [(at, value) for at, value in enumerate(self.logs[log]) if value is not None and value in self.committed]

    def read(self, reader: str = "r") -> None:
        """A new reader reads everything committed."""
        for log in LOGS:
            self.events.append(history.Positioned(self.later(), reader, log, 0))
            for offset, value in self.visible(log):
                self.events.append(history.Read(self.later(), reader, log, offset, value))

    def stable(self, epoch: int, offset: int) -> None:
        """The leader of an epoch reports a last stable offset."""
        invoked = self.later()
        self.events.append(history.StableOffset(invoked, self.later(), OUTPUT, epoch, offset))

    def take_offsets(self, generation: int) -> None:
        """Add offsets of the loop to a transaction, for a member of a generation."""
        invoked = self.later()
        self.events.append(history.OffsetsTaken(invoked, self.later(), "loop", generation))

    def assign(self, generation: int) -> None:
        """Assign partitions to a member of the loop."""
        self.events.append(history.Assigned(self.later(), "loop", generation, f"l/{generation}", INPUTS))

    def loop(self) -> None:
        """Process the loop's remaining input in one transaction."""
        name = self.name()
        done = {value.rpartition(b"@")[0] for _, value in self.visible(OUTPUT)}
        wanted = [b"out:" + value for log in INPUTS for _, value in self.visible(log)]
        missing = [b"%s@%s" % (each, name.encode()) for each in wanted if each not in done]
        values = {self.send(name, OUTPUT, each, session="l/1"): OUTPUT for each in missing}
        self.end(name, values, commit=True, session="l/1")

    def final(self, *, stable_below: int = 0) -> None:
        """Everything is read."""
        for log, values in self.logs.items():
            records = tuple((at, value) for at, value in enumerate(values) if value is not None)
            markers = tuple(at for at, value in enumerate(values) if value is None)
            self.events.append(history.FinalRead(self.later(), log, 0, len(values), records, markers))
            end = len(values)
            read = history.FinalCommittedRead(self.later(), log, end - stable_below, end, tuple(self.visible(log)))
            self.events.append(read)
        self.events.append(history.TransactionsOver(self.later()))
        self.events.append(history.LoopOver(self.later(), INPUTS, (OUTPUT,), b"out:"))

    def violated(self) -> set[str]:
        """The checks that the history violates."""
        checker = Checker()
        for event in self.events:
            checker.feed(event)
        return {each.check for each in checker.violations}


def _begin(scenario: Scenario) -> None:
    scenario.session("a", "a/1")
    scenario.session("l", "l/1")
    for _ in range(scenario.rng.randint(2, 6)):
        scenario.transact(commit=scenario.rng.random() < 0.7, outcome=scenario.rng.choice([OK, OK, UNKNOWN]))
    scenario.transact()
    scenario.read("early")


def test_clean_histories_pass() -> None:
    for seed in range(100):
        scenario = Scenario(seed)
        _begin(scenario)
        for generation in (1, 2):
            scenario.assign(generation)
            scenario.take_offsets(generation)
        scenario.loop()
        for epoch, offset in ((1, 4), (1, 4), (0, 2), (2, 5), (2, 9)):
            scenario.stable(epoch, offset)
        scenario.session("a", "a/2")
        name = scenario.name()
        values = {scenario.send(name, log, session="a/2"): log for log in INPUTS}
        scenario.end(name, values, commit=scenario.rng.random() < 0.5, session="a/2")
        scenario.loop()
        scenario.read("late")
        scenario.final()
        assert scenario.violated() == set(), seed


def _torn(scenario: Scenario) -> None:
    values = scenario.transact(commit=False)
    scenario.committed[next(iter(values))] = None
    scenario.events = [
        each._replace(commit=True) if isinstance(each, history.EndInvoked) else each for each in scenario.events
    ]
    scenario.events = [
        each._replace(outcome=UNKNOWN) if isinstance(each, history.EndDone) else each for each in scenario.events
    ]


def _committed_and_not_visible(scenario: Scenario) -> None:
    for value in scenario.transact():
        del scenario.committed[value]


def _read_and_aborted_later(scenario: Scenario) -> None:
    """The commit was never answered, and the transaction was read; but another coordinator aborts it."""
    name = scenario.name()
    values = {scenario.send(name, log): log for log in INPUTS}
    scenario.events.append(history.EndInvoked(scenario.later(), name, "a/1", commit=True))
    scenario.committed |= dict.fromkeys(values)
    scenario.read("late")
    for value in values:
        del scenario.committed[value]
    scenario.mark(values, commit=False)


def _aborted_and_visible(scenario: Scenario) -> None:
    scenario.committed |= dict.fromkeys(scenario.transact(commit=False))
    scenario.read("late")


def _aborted_and_visible_at_the_end(scenario: Scenario) -> None:
    scenario.committed |= dict.fromkeys(scenario.transact(commit=False))


def _refused_and_visible(scenario: Scenario) -> None:
    scenario.committed |= dict.fromkeys(scenario.transact(outcome=FAILED))
    scenario.read("late")


def _open_and_visible(scenario: Scenario) -> None:
    """It is read before its commit is requested."""
    name = scenario.name()
    values = {scenario.send(name, log): log for log in INPUTS}
    scenario.committed |= dict.fromkeys(values)
    scenario.read("late")
    scenario.end(name, values, commit=True)


def _late_produce_in_the_next_transaction(scenario: Scenario) -> None:
    """A record of an aborted transaction arrives while the next one is open, and is committed with it."""
    aborted = scenario.name()
    late = b"late"
    scenario.events.append(history.SendInvoked(scenario.later(), "a/1", INPUTS[0], late, True, aborted))
    scenario.end(aborted, {}, commit=False)
    name = scenario.name()
    values = {scenario.send(name, log): log for log in INPUTS}
    scenario.logs[INPUTS[0]].append(late)
    scenario.end(name, values | {late: INPUTS[0]}, commit=True)


def _zombie_commits(scenario: Scenario) -> None:
    name = scenario.name()
    values = {scenario.send(name, log): log for log in INPUTS}
    scenario.session("a", "a/2")
    scenario.end(name, values, commit=True)


def _zombie_writes(scenario: Scenario) -> None:
    scenario.session("a", "a/2")
    scenario.send(scenario.name(), INPUTS[0])


def _epoch_given_twice(scenario: Scenario) -> None:
    scenario.session("a", "a/2")
    scenario.session("a", "a/3", same_epoch=True)


def _skipped(scenario: Scenario) -> None:
    """A reader misses one transaction between two others."""
    values = scenario.transact()
    scenario.transact()
    for value in values:
        del scenario.committed[value]
    scenario.read("late")
    scenario.committed |= dict.fromkeys(values)


def _stepped_back(scenario: Scenario) -> None:
    scenario.read("late")
    offset, value = scenario.visible(INPUTS[0])[0]
    scenario.events.append(history.Read(scenario.later(), "late", INPUTS[0], offset, value))


def _gap(scenario: Scenario) -> None:
    """A log lacks a marker, and its offset."""
    scenario.transact()
    scenario.final()
    at = next(
        number
        for number, each in enumerate(scenario.events)
        if isinstance(each, history.FinalRead) and each.log == INPUTS[0]
    )
    event = scenario.events[at]
    assert isinstance(event, history.FinalRead)
    scenario.events[at] = event._replace(markers=event.markers[:-1])


def _loop_writes_twice(scenario: Scenario) -> None:
    scenario.loop()
    name = scenario.name()
    _, first = scenario.visible(OUTPUT)[0]
    value = scenario.send(name, OUTPUT, first.replace(b"@", b"@again "), session="l/1")
    scenario.end(name, {value: OUTPUT}, commit=True, session="l/1")


def _log_has_a_record_twice(scenario: Scenario) -> None:
    values = scenario.transact()
    scenario.logs[INPUTS[0]].append(next(iter(values)))


def _loop_writes_out_of_nowhere(scenario: Scenario) -> None:
    scenario.loop()
    name = scenario.name()
    value = scenario.send(name, OUTPUT, b"out:of nowhere", session="l/1")
    scenario.end(name, {value: OUTPUT}, commit=True, session="l/1")


def _loop_misses_one(scenario: Scenario) -> None:
    scenario.loop()
    scenario.transact()


def _stable_offset_falls(scenario: Scenario) -> None:
    """The next leader lacks a marker below the offset."""
    scenario.stable(3, 9)
    scenario.stable(scenario.rng.choice([3, 4]), 7)


def _fenced_member_commits(scenario: Scenario) -> None:
    scenario.assign(1)
    scenario.assign(2)
    scenario.take_offsets(1)


ANOMALIES: list[tuple[Callable[[Scenario], None], str]] = [
    (_torn, "C9"),
    (_committed_and_not_visible, "C9"),
    (_read_and_aborted_later, "C9"),
    (_aborted_and_visible, "C7"),
    (_aborted_and_visible_at_the_end, "C7"),
    (_refused_and_visible, "C7"),
    (_open_and_visible, "C7"),
    (_late_produce_in_the_next_transaction, "C7"),
    (_zombie_commits, "C9"),
    (_zombie_writes, "C9"),
    (_epoch_given_twice, "C9"),
    (_skipped, "C6"),
    (_stepped_back, "C6"),
    (_gap, "C5"),
    (_loop_writes_twice, "C11"),
    (_log_has_a_record_twice, "C3"),
    (_loop_writes_out_of_nowhere, "C11"),
    (_loop_misses_one, "C11"),
    (_stable_offset_falls, "C8"),
    (_fenced_member_commits, "C10"),
]


@pytest.mark.parametrize(
    ("anomaly", "check"), ANOMALIES, ids=[f"{each.__name__.strip('_')}-{check}" for each, check in ANOMALIES]
)
def test_anomaly_is_flagged(anomaly: Callable[[Scenario], None], check: str) -> None:
    for seed in range(40):
        scenario = Scenario(seed)
        _begin(scenario)
        anomaly(scenario)
        if not any(isinstance(each, history.TransactionsOver) for each in scenario.events):
            scenario.final()
        assert check in scenario.violated(), seed


def test_transaction_that_hangs_is_flagged() -> None:
    for seed in range(40):
        scenario = Scenario(seed)
        _begin(scenario)
        scenario.loop()
        scenario.final(stable_below=1)
        assert scenario.violated() == {"C9"}, seed
