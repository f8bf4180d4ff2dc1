"""The checker itself: every planted anomaly is flagged, by the right check, and clean histories pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.simulation import history
from tests.simulation.checker import Checker
from tests.simulation.history import FAILED, OK, UNKNOWN, Event

LOG = "broker-0/t-0"


class Story:
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
        """A record is sent; acknowledged ones are in the log, and the unknown may be."""
        value = b"%s %d" % (producer.encode(), len(self.events))
        self.events.append(history.SendInvoked(self.later(), producer, LOG, value, idempotent))
        offset = -1
        if outcome == OK or (outcome == UNKNOWN and self.rng.random() < 0.5):
            offset = len(self.log)
            self.log.append(value)
        self.events.append(history.SendDone(self.later(), LOG, value, outcome, offset if outcome == OK else -1))
        return value

    def read(self, reader: str = "r", start: int = 0) -> None:
        """A reader reads all from `start` on."""
        self.events.append(history.Positioned(self.later(), reader, LOG, start))
        for offset in range(start, len(self.log)):
            self.events.append(history.Read(self.later(), reader, LOG, offset, self.log[offset]))

    def look(self) -> None:
        """The broker tells the end."""
        invoked = self.later()
        self.events.append(history.EndOffset(invoked, self.later(), LOG, len(self.log)))
        self.events.append(history.LeaderEpoch(invoked, self.now, LOG, 3))

    def commit(self, offset: int, generation: int = 1, outcome: str = OK) -> None:
        """A member commits."""
        self._commits += 1
        self.events.append(history.CommitInvoked(self.later(), "g", LOG, self._commits, offset, generation))
        self.events.append(history.CommitDone(self.later(), self._commits, outcome))

    def committed(self, offset: int | None) -> None:
        """The broker tells what is committed."""
        invoked = self.later()
        self.events.append(history.CommittedOffset(invoked, self.later(), "g", LOG, offset))

    def crash(self) -> None:
        """Power fails; without `lossless` the end of the log goes."""
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


def _some_life(story: Story) -> None:
    for _ in range(story.rng.randint(5, 20)):
        story.send(story.rng.choice(["p", "q"]), outcome=story.rng.choice([OK, OK, OK, UNKNOWN]))
        if story.rng.random() < 0.2:
            story.look()
    story.send()
    story.read()
    story.events.append(history.Assigned(story.later(), "g", 1, "m", (LOG,)))
    for offset in (1, 3, 2):
        story.commit(offset, outcome=story.rng.choice([OK, UNKNOWN, FAILED]))
    story.commit(4)
    story.committed(4)


@pytest.mark.parametrize("lossless", [True, False])
def test_clean_histories_pass(lossless: bool) -> None:
    for seed in range(100):
        story = Story(seed, lossless=lossless)
        for _ in range(story.rng.randint(1, 3)):
            _some_life(story)
            story.crash()
            _some_life(story)
        story.look()
        story.read("s")
        story.final()
        assert story.violated() == set(), seed


def _lost(story: Story) -> None:
    story.send()
    story.log.pop()
    story.final()


def _replaced(story: Story) -> None:
    story.send()
    story.read("s")
    story.events.append(history.SendInvoked(story.later(), "q", LOG, b"other", idempotent=False))
    story.events.append(history.Read(story.later(), "t", LOG, len(story.log) - 1, b"other"))


def _lost_in_the_middle(story: Story) -> None:
    """A hole where only the end may be lost."""
    story.send()
    hole = len(story.log) - 1
    story.send()
    story.events.append(history.MachineCrashed(story.later(), "broker-0", groups_lossless=True))
    records = tuple((offset, value) for offset, value in enumerate(story.log) if offset != hole)
    story.events.append(history.FinalRead(story.later(), LOG, 0, len(story.log), records))


def _twice(story: Story) -> None:
    story.log.append(story.send())
    story.final()


def _twice_without_a_reason(story: Story) -> None:
    story.log.append(story.send(idempotent=False))
    story.final()


def _reordered(story: Story) -> None:
    for _ in range(2):
        value = b"late %d" % len(story.events)
        story.events.append(history.SendInvoked(story.later(), "late", LOG, value, idempotent=True))
        story.log.append(value)
    story.log[-2], story.log[-1] = story.log[-1], story.log[-2]
    story.final()


def _offset_below_a_known_one(story: Story) -> None:
    story.send()
    value = b"low"
    story.events.append(history.SendInvoked(story.later(), "low", LOG, value, idempotent=True))
    story.events.append(history.SendDone(story.later(), LOG, value, OK, len(story.log) - 2))


def _gap(story: Story) -> None:
    story.send()
    story.events.append(
        history.FinalRead(story.later(), LOG, 0, len(story.log) + 1, (*enumerate(story.log), (len(story.log) + 1, b"")))
    )


def _skipped(story: Story) -> None:
    story.send()
    story.send()
    end = len(story.log)
    story.events.append(history.Positioned(story.later(), "s", LOG, end - 2))
    story.events.append(history.Read(story.later(), "s", LOG, end - 1, story.log[-1]))


def _stepped_back(story: Story) -> None:
    story.send()
    story.read("s")
    story.events.append(history.Read(story.later(), "s", LOG, 0, story.log[0]))


def _never_sent(story: Story) -> None:
    story.log.append(b"out of nowhere")
    story.read("s", len(story.log) - 1)


def _refused_and_read(story: Story) -> None:
    story.log.append(story.send(outcome=FAILED))
    story.final()


def _end_falls(story: Story) -> None:
    story.send()
    story.look()
    story.events.append(history.EndOffset(story.later(), story.later(), LOG, len(story.log) - 1))


def _end_below_what_was_told(story: Story) -> None:
    story.send()
    story.events.append(history.EndOffset(story.later(), story.later(), LOG, len(story.log) - 1))


def _epoch_falls(story: Story) -> None:
    story.look()
    story.events.append(history.LeaderEpoch(story.later(), story.later(), LOG, 2))


def _commit_lost(story: Story) -> None:
    story.commit(7)
    story.committed(4)


def _commits_gone(story: Story) -> None:
    story.commit(7)
    story.committed(None)


def _refused_commit_told(story: Story) -> None:
    story.commit(7)
    story.commit(9, outcome=FAILED)
    story.committed(9)


def _zombie_commits(story: Story) -> None:
    story.events.append(history.Assigned(story.later(), "g", 2, "n", (LOG,)))
    story.commit(3, generation=1)


def _two_owners(story: Story) -> None:
    story.events.append(history.Assigned(story.later(), "g", 1, "n", (LOG,)))


ANOMALIES: list[tuple[Callable[[Story], None], str]] = [
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
]


@pytest.mark.parametrize(("anomaly", "check"), ANOMALIES, ids=[each.__name__.strip("_") for each, _ in ANOMALIES])
def test_anomaly_is_flagged(anomaly: Callable[[Story], None], check: str) -> None:
    for seed in range(40):
        story = Story(seed)
        _some_life(story)
        story.look()
        anomaly(story)
        assert check in story.violated(), seed


def test_hole_in_a_log_that_may_lose_its_end_is_flagged() -> None:
    for seed in range(100):
        story = Story(seed, lossless=False)
        _some_life(story)
        _lost_in_the_middle(story)
        assert "C1" in story.violated(), seed
