"""Checks what a history says of groups (C10): committed offsets as registers, and the owners of partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation import history
from tests.simulation.history import FAILED, OK

_Complain = Callable[[str, float, str], None]


@dataclass(slots=True)
class _Commit:
    offset: int
    invoked: float
    group: str
    generation: int | None
    is_zombie: bool
    """Whether anyone had learned of a newer generation before."""
    done: float = float("inf")
    outcome: str = history.UNKNOWN


@dataclass(slots=True)
class _Register:
    """The offset of one log that a group has committed."""

    commits: list[_Commit] = field(default_factory=list)
    lost_at: float = -1.0
    """When commits may last have been lost."""


IN_FLIGHT_S = 0.1
"""How long answers may still arrive after their machine lost power. A restart takes longer."""


class GroupChecker:
    """A read of a register must return a commit that was not superseded: no other one was made later and acknowledged
    before the read.
    """

    def __init__(self, complain: _Complain) -> None:
        self._complain = complain
        self._registers: dict[tuple[str, str], _Register] = {}
        self._commits: dict[int, _Commit] = {}
        self._owners: dict[tuple[str, int, str], str] = {}
        self._generations: dict[str, int] = {}
        self._told: dict[str, list[tuple[int, float]]] = {}
        """The generations that members learned of, and when."""
        self._deleting: dict[str, None] = {}
        self._lost_at = -IN_FLIGHT_S

    def _register(self, group: str, log: str) -> _Register:
        return self._registers.setdefault((group, log), _Register())

    def commit_invoked(self, event: history.CommitInvoked) -> None:
        """A commit is in flight, and may take effect from now on."""
        commit = self._commits[event.commit] = _Commit(
            event.offset,
            event.at,
            event.group,
            event.generation,
            event.generation is not None and event.generation < self._generations.get(event.group, -1),
        )
        self._register(event.group, event.log).commits.append(commit)

    def commit_done(self, event: history.CommitDone) -> None:
        """A commit was answered."""
        commit = self._commits[event.commit]
        commit.outcome = event.outcome
        if event.outcome == OK:
            commit.done = event.at
            if commit.is_zombie:
                self._complain(
                    "C10",
                    event.at,
                    f"{commit.group} took a commit of generation {commit.generation}, though a newer one had begun",
                )

    def offsets_taken(self, event: history.OffsetsTaken) -> None:
        """Commits of older generations than the ones that members know of must be refused."""
        told = [generation for generation, at in self._told.get(event.group, []) if at < event.invoked]
        if told and max(told) > event.generation:
            text = f"{event.group} took offsets of generation {event.generation}, though {max(told)} had begun"
            self._complain("C10", event.at, text)

    def committed_offset(self, event: history.CommittedOffset) -> None:
        """A register was read."""
        register = self._register(event.group, event.log)
        # Before the read, an acknowledged commit supersedes all commits that were acknowledged before it began.
        candidates = [each for each in register.commits if each.outcome != FAILED and each.invoked < event.at]
        settled = [each for each in candidates if register.lost_at < each.invoked and each.done < event.invoked]
        latest = max((each.invoked for each in settled), default=-1.0)
        possible = [each for each in candidates if each.done >= latest]
        if event.offset is None:
            if settled and event.log not in self._deleting:
                self._complain(
                    "C10",
                    event.at,
                    f"{event.group} has committed {settled[-1].offset} of {event.log}, and nothing is told",
                )
        elif all(each.offset != event.offset for each in possible):
            offsets = sorted({each.offset for each in possible})
            self._complain(
                "C10", event.at, f"{event.group}: {event.log} is told to be at {event.offset}, possible are {offsets}"
            )

    def assigned(self, event: history.Assigned) -> None:
        """A member owns its assignment in that generation. An answer that arrives right after a crash which lost
        generations belongs to the time before.
        """
        if event.at < self._lost_at + IN_FLIGHT_S:
            return
        self._generations[event.group] = max(event.generation, self._generations.get(event.group, -1))
        self._told.setdefault(event.group, []).append((event.generation, event.at))
        for log in event.logs:
            owner = self._owners.setdefault((event.group, event.generation, log), event.member)
            if owner != event.member:
                self._complain(
                    "C10",
                    event.at,
                    f"{log} belongs to {owner} and {event.member} in generation {event.generation} of {event.group}",
                )

    def deletion_invoked(self, event: history.DeletionInvoked) -> None:
        """Commits of this log may disappear with it from now on."""
        self._deleting[event.log] = None

    def log_deleted(self, log: str) -> None:
        """Commits of this log are gone, except those in flight."""
        self._deleting.pop(log, None)
        self.log_made_again(log)

    def log_made_again(self, log: str) -> None:
        """Commits of this log until now may have belonged to the deleted one."""
        for (_, its_log), register in self._registers.items():
            if its_log == log:
                self._may_be_lost(register)

    @staticmethod
    def _may_be_lost(register: _Register) -> None:
        register.lost_at = max((each.invoked for each in register.commits), default=-1.0)

    def lost(self, broker: str, at: float) -> None:
        """Commits at this broker may be lost, and generations may be reused."""
        for (_, log), register in self._registers.items():
            if log.startswith(f"{broker}/"):
                self._may_be_lost(register)
        self._owners.clear()
        self._generations.clear()
        self._told.clear()
        self._lost_at = at
