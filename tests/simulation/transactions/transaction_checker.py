"""Checks what a history says of transactions: they are complete or absent (C9), no open or aborted one is read (C7),
readers skip nothing (C6), stable offsets stay stable (C8), and a loop that consumes, transforms and produces does so
exactly once (C11).

A reader never gets a record before the commit of its transaction was requested. That rules out circles of transactions
that have read each other (Jepsen's G1c).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation import history
from tests.simulation.history import FAILED, OK

_Complain = Callable[[str, float, str], None]


@dataclass(slots=True)
class _Transaction:
    values: dict[bytes, str] = field(default_factory=dict)
    """The values that were sent in it, and their logs."""
    commit_invoked: bool = False
    commit_by_zombie: bool = False
    """Whether another session of the transactional id had begun before its commit was requested. An abort proves
    nothing: a client with an empty transaction asks no coordinator to end it.
    """
    outcome: str = history.UNKNOWN
    """The outcome of the commit."""


class TransactionChecker:
    """Gets the events of the transactional logs alone. These logs lose nothing in any crash."""

    def __init__(self, complain: _Complain) -> None:
        self.committed = 0
        """The number of acknowledged commits."""
        self._complain = complain
        self._transactions: dict[str, _Transaction] = {}
        self._of: dict[bytes, str] = {}
        """The transaction of each value."""
        self._zombies: dict[str, None] = {}
        """Sessions that have successors."""
        self._sessions: dict[str, dict[str, int]] = {}
        """The epochs of the sessions of each transactional id."""
        self._sent_by_zombies: dict[bytes, str] = {}
        self._read: dict[bytes, str] = {}
        """The values that were read, and their first readers."""
        self._runs: dict[tuple[str, str], list[list[int]]] = {}
        """The offsets of a log that a reader read, from one `Positioned` to the next."""
        self._final: dict[str, dict[int, bytes]] = {}
        self._stable: dict[str, list[history.StableOffset]] = {}

    # -- producers -----------------------------------------------------------------------------------------------------

    def session_begun(self, event: history.SessionBegun) -> None:
        """All sessions of lower epochs are fenced, even if they do not know it yet."""
        sessions = self._sessions.setdefault(event.transactional_id, {})
        if event.epoch in sessions.values():
            self._complain("C9", event.at, f"epoch {event.epoch} of {event.transactional_id} was given twice")
        sessions[event.session] = event.epoch
        newest = max(sessions.values())
        self._zombies |= {session: None for session, epoch in sessions.items() if epoch < newest}

    def send_invoked(self, event: history.SendInvoked) -> None:
        """A record joins its transaction."""
        if event.transaction is None:
            return
        self._transactions.setdefault(event.transaction, _Transaction()).values[event.value] = event.log
        self._of[event.value] = event.transaction
        if event.producer in self._zombies:
            self._sent_by_zombies[event.value] = event.producer

    def sent(self, event: history.SendDone) -> None:
        """It was acknowledged."""
        zombie = self._sent_by_zombies.get(event.value)
        if zombie is not None:
            self._complain("C9", event.at, f"{event.log} took {event.value!r} of {zombie}, which was fenced before")

    def end_invoked(self, event: history.EndInvoked) -> None:
        """The transaction may end from now on."""
        transaction = self._transactions.setdefault(event.transaction, _Transaction())
        transaction.commit_invoked = event.commit
        transaction.commit_by_zombie = event.commit and event.session in self._zombies

    def end_done(self, event: history.EndDone) -> None:
        """The end was answered."""
        transaction = self._transactions[event.transaction]
        transaction.outcome = event.outcome
        self.committed += event.outcome == OK and transaction.commit_invoked
        if event.outcome == OK and transaction.commit_by_zombie:
            self._complain("C9", event.at, f"{event.transaction} was committed by a producer that was fenced before")

    # -- readers -------------------------------------------------------------------------------------------------------

    def positioned(self, event: history.Positioned) -> None:
        """A reader starts a run."""
        self._runs.setdefault((event.reader, event.log), []).append([])

    def read(self, event: history.Read) -> None:
        """A `read_committed` reader got a record."""
        run = self._runs[event.reader, event.log][-1]
        if run and event.offset <= run[-1]:
            self._complain("C6", event.at, f"{event.reader} read offset {event.offset} of {event.log} after {run[-1]}")
        run.append(event.offset)
        self._read.setdefault(event.value, event.reader)
        self._is_committed(event.at, event.log, event.offset, event.value)

    def _is_committed(self, at: float, log: str, offset: int, value: bytes) -> None:
        name = self._of.get(value)
        if name is None:
            return  # never sent, which another check reports
        transaction = self._transactions[name]
        if not transaction.commit_invoked:
            self._complain(
                "C7", at, f"{log}: {value!r} at offset {offset} is visible; {name} was never to be committed"
            )
        elif transaction.outcome == FAILED:
            self._complain(
                "C7", at, f"{log}: {value!r} at offset {offset} is visible; the commit of {name} was refused"
            )

    def stable_offset(self, event: history.StableOffset) -> None:
        """Everything below is final, whoever leads. A leader of an older epoch may be behind."""
        told = self._stable.setdefault(event.log, [])
        for before in told:
            if before.at < event.invoked and before.epoch <= event.epoch and before.offset > event.offset:
                text = f"{event.log} was stable up to {before.offset} in epoch {before.epoch}"
                self._complain("C8", event.at, f"{text}, and is up to {event.offset} in epoch {event.epoch}")
                return
        # Later values are compared only with the highest of each epoch.
        told[:] = [each for each in told if each.epoch != event.epoch or each.offset > event.offset]
        told.append(event)

    # -- the end -------------------------------------------------------------------------------------------------------

    def final_committed_read(self, event: history.FinalCommittedRead) -> None:
        """All transactions are complete, so the values that readers skipped are known."""
        if event.stable != event.end:
            self._complain("C9", event.at, f"{event.log} is stable up to {event.stable} of {event.end}: one hangs")
        final = self._final[event.log] = dict(event.records)
        for offset, value in event.records:
            self._is_committed(event.at, event.log, offset, value)
        visible = sorted(final)
        for (reader, log), runs in self._runs.items():
            if log == event.log:
                for run in runs:
                    self._skips_nothing(event.at, reader, log, visible, run)

    def _skips_nothing(self, at: float, reader: str, log: str, visible: list[int], run: list[int]) -> None:
        place = {offset: number for number, offset in enumerate(visible)}
        for before, offset in pairwise(run):
            if before in place and offset in place and place[offset] > place[before] + 1:
                self._complain(
                    "C6", at, f"{reader} read offset {offset} of {log} after {before}, and skipped what is between"
                )

    def over(self, event: history.TransactionsOver) -> None:
        """Each transaction is complete or absent."""
        there = {value for final in self._final.values() for value in final.values()}
        for name, transaction in self._transactions.items():
            visible = [each for each in transaction.values if each in there]
            missing = {value: log for value, log in transaction.values.items() if value not in there}
            was_read = [each for each in missing if each in self._read]
            if was_read:
                reader = self._read[was_read[0]]
                self._complain("C9", event.at, f"{was_read[0]!r} of {name} was read by {reader}, and is not committed")
            elif visible and missing:
                self._complain("C9", event.at, f"{name} is torn: {missing} are missing of {len(transaction.values)}")
            elif missing and transaction.commit_invoked and transaction.outcome == OK:
                self._complain("C9", event.at, f"{name} was committed, and {missing} are not visible")

    def loop_over(self, event: history.LoopOver) -> None:
        """The loop has written its whole input, each record exactly once."""
        wanted = Counter(event.prefix + value for log in event.inputs for value in self._final[log].values())
        found = Counter(value.rpartition(b"@")[0] for log in event.outputs for value in self._final[log].values())
        for what, values in (("missing", wanted - found), ("too many", found - wanted)):
            if values:
                self._complain("C11", event.at, f"{sum(values.values())} outputs are {what}: {sorted(values)[:3]}")
