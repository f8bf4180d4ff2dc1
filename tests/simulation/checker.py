"""Judges a history, event by event: delivery and order of records (C1-C8, C13), transactions (C9, C11), groups (C10).

The checks and their names are those of a cluster; each broker here is a separate cluster, with one replica and without
elections. Values are unique and offsets are reported, so sorting suffices where registers need a search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation import history
from tests.simulation.group_checker import GroupChecker
from tests.simulation.history import FAILED, OK
from tests.simulation.transactions.transaction_checker import TransactionChecker


class Violation(NamedTuple):
    """`check` is the number of the violated check."""

    check: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at:.6f}: {self.text}"


@dataclass(slots=True)
class _Send:
    producer: str
    number: int
    """Its number among the producer's records of the log."""
    idempotent: bool
    invoked: float
    era: int
    floor: int
    """The highest offset that had been reported when it was sent."""
    outcome: str = history.UNKNOWN
    offset: int = -1
    done: float = float("inf")
    done_era: int = -1


@dataclass(slots=True)
class _Log:
    lossless: bool
    transactional: bool = False
    era: int = 0
    """How often the log may have lost its end."""
    told: int = -1
    """The highest offset that was acknowledged or read in this era."""
    end: int = 0
    """The highest end that was reported in this era."""
    end_seen_at: float = -1.0
    epoch: int = -1
    damaged: dict[int, None] = field(default_factory=dict)
    """The offsets whose records the disk may have lost."""
    deleted_before: int = 0
    """The records below this may have been deleted on purpose."""
    sends: dict[bytes, _Send] = field(default_factory=dict)
    values: dict[int, list[bytes]] = field(default_factory=dict)
    told_at: list[tuple[float, int]] = field(default_factory=list)
    """(time, highest offset reported by then), both ascending."""
    born: float = 0.0
    """When the deletion of the previous log with this name was known."""
    first_era: int = 0
    """The era that began at that time."""
    era_began: float = 0.0


class Checker:
    """Feed it a history with `feed`, then call `finish`; `violations` is up to date after each event."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.acknowledged = 0
        self.reads = 0
        self._logs: dict[str, _Log] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._next: dict[tuple[str, str], int | None] = {}
        self._disturbed_at = float("inf")
        self._groups = GroupChecker(self._violated)
        groups = self._groups
        transactions = self._transactions = TransactionChecker(self._violated)
        self._handlers: dict[type, Callable[[Any], None]] = {
            history.LogCreated: self._log_created,
            history.DeletionInvoked: groups.deletion_invoked,
            history.LogDeleted: self._log_deleted,
            history.LogMadeAgain: lambda event: self._groups.log_made_again(event.log),
            history.RecordsDeleted: self._records_deleted,
            history.SendInvoked: self._send_invoked,
            history.SendDone: self._send_done,
            history.Read: self._read,
            history.Positioned: self._positioned,
            history.FinalRead: self._final_read,
            history.SessionBegun: transactions.session_begun,
            history.EndInvoked: transactions.end_invoked,
            history.EndDone: transactions.end_done,
            history.FinalCommittedRead: transactions.final_committed_read,
            history.TransactionsOver: transactions.over,
            history.LoopOver: transactions.loop_over,
            history.EndOffset: self._end_offset,
            history.StableOffset: transactions.stable_offset,
            history.LeaderEpoch: self._leader_epoch,
            history.CommitInvoked: groups.commit_invoked,
            history.CommitDone: groups.commit_done,
            history.OffsetsTaken: groups.offsets_taken,
            history.CommittedOffset: groups.committed_offset,
            history.Assigned: groups.assigned,
            history.MachineCrashed: self._machine_crashed,
            history.Damaged: self._damaged,
            history.Disturbed: self._disturbed,
            history.Trouble: self._trouble,
        }

    @property
    def committed(self) -> int:
        """Transactions whose commits were acknowledged."""
        return self._transactions.committed

    def feed(self, event: history.Event) -> None:
        """Process the next event."""
        self._handlers[type(event)](event)

    def _violated(self, check: str, at: float, text: str) -> None:
        self.violations.append(Violation(check, at, text))

    # -- the machines --------------------------------------------------------------------------------------------------

    def _log_created(self, event: history.LogCreated) -> None:
        self._logs[event.log] = _Log(event.lossless, event.transactional)

    def _log_deleted(self, event: history.LogDeleted) -> None:
        log = self._logs[event.log]
        self._begin_era(log, event.at)
        log.born, log.first_era, log.epoch = event.at, log.era, -1
        log.damaged.clear()
        log.deleted_before = 0
        self._groups.log_deleted(event.log)

    def _records_deleted(self, event: history.RecordsDeleted) -> None:
        log = self._logs[event.log]
        log.deleted_before = max(log.deleted_before, event.before)

    @staticmethod
    def _begin_era(log: _Log, at: float) -> None:
        log.era += 1
        log.era_began = at
        log.told, log.end = -1, 0
        log.told_at.clear()

    def _machine_crashed(self, event: history.MachineCrashed) -> None:
        for name, log in self._logs.items():
            if name.startswith(f"{event.broker}/") and not log.lossless:
                self._begin_era(log, event.at)
        if not event.groups_lossless:
            self._groups.lost(event.broker, event.at)

    def _damaged(self, event: history.Damaged) -> None:
        self._logs[event.log].damaged.update(dict.fromkeys(range(event.first, event.last + 1)))

    def _disturbed(self, event: history.Disturbed) -> None:
        self._disturbed_at = min(self._disturbed_at, event.at)

    def _trouble(self, event: history.Trouble) -> None:
        self._violated(event.check, event.at, event.text)

    # -- producers -----------------------------------------------------------------------------------------------------

    def _send_invoked(self, event: history.SendInvoked) -> None:
        log = self._logs[event.log]
        self._counts[event.producer, event.log] += 1
        number = self._counts[event.producer, event.log]
        log.sends[event.value] = _Send(event.producer, number, event.idempotent, event.at, log.era, log.told)
        self._transactions.send_invoked(event)

    def _send_done(self, event: history.SendDone) -> None:
        log = self._logs[event.log]
        send = log.sends[event.value]
        send.outcome, send.offset, send.done, send.done_era = event.outcome, event.offset, event.at, log.era
        if event.outcome != OK:
            return
        self._transactions.sent(event)
        self.acknowledged += 1
        if event.offset < 0:
            return
        self._one_value(event.at, event.log, log, event.offset, event.value)
        if send.era == log.era:
            if event.offset <= send.floor:
                self._violated(
                    "C4",
                    event.at,
                    f"{event.log}: {event.value!r} got offset {event.offset}, but {send.floor} was known before",
                )
            self._tell(log, event.at, event.offset)

    @staticmethod
    def _tell(log: _Log, at: float, offset: int) -> None:
        if offset > log.told:
            log.told = offset
            log.told_at.append((at, offset))

    def _one_value(self, at: float, name: str, log: _Log, offset: int, value: bytes) -> None:
        values = log.values.setdefault(offset, [])
        if value in values:
            return
        values.append(value)
        if len(values) > 1 + log.era:
            self._violated("C2", at, f"{name}: offset {offset} had {len(values)} values: {values}")

    # -- readers -------------------------------------------------------------------------------------------------------

    def _positioned(self, event: history.Positioned) -> None:
        self._next[event.reader, event.log] = event.offset
        self._transactions.positioned(event)

    def _read(self, event: history.Read) -> None:
        self.reads += 1
        log = self._logs[event.log]
        if log.transactional:
            self._transactions.read(event)
        else:
            self._follows(event, log)
        self._was_sent(event.at, event.log, log, event.offset, event.value)
        self._one_value(event.at, event.log, log, event.offset, event.value)
        # Records of a deleted log may arrive late.
        if (log.lossless and not log.first_era) or not log.era:
            self._tell(log, event.at, event.offset)

    def _follows(self, event: history.Read, log: _Log) -> None:
        """Whether the record follows the reader's last one."""
        expected = self._next.get((event.reader, event.log))
        may_start_again = log.era > 0 and event.offset == 0
        is_behind_deleted = expected is not None and expected < event.offset <= log.deleted_before
        if expected is not None and event.offset != expected and not may_start_again and not is_behind_deleted:
            self._violated(
                "C6", event.at, f"{event.reader} read offset {event.offset} of {event.log} instead of {expected}"
            )
        self._next[event.reader, event.log] = event.offset + 1

    def _was_sent(self, at: float, name: str, log: _Log, offset: int, value: bytes) -> None:
        send = log.sends.get(value)
        if send is None:
            self._violated("C7", at, f"{name}: nobody sent {value!r}, which is at offset {offset}")
        elif send.outcome == FAILED:
            self._violated("C7", at, f"{name}: {value!r} at offset {offset} was refused")

    # -- what the broker tells -----------------------------------------------------------------------------------------

    def _end_offset(self, event: history.EndOffset) -> None:
        log = self._logs[event.log]
        # A late answer may describe the previous era.
        if event.invoked < log.era_began:
            return
        before = bisect_left(log.told_at, (event.invoked,))
        told = log.told_at[before - 1][1] if before else -1
        if event.offset <= told:
            self._violated("C13", event.at, f"{event.log} ends at {event.offset}, but offset {told} was told before")
        if log.end_seen_at < event.invoked and event.offset < log.end:
            self._violated("C8", event.at, f"the high watermark of {event.log} fell from {log.end} to {event.offset}")
        if event.offset > log.end:
            log.end, log.end_seen_at = event.offset, event.at

    def _leader_epoch(self, event: history.LeaderEpoch) -> None:
        log = self._logs[event.log]
        if event.invoked < log.born:
            return
        if event.epoch < log.epoch:
            self._violated("C8", event.at, f"the leader epoch of {event.log} fell from {log.epoch} to {event.epoch}")
        log.epoch = max(log.epoch, event.epoch)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _final_read(self, event: history.FinalRead) -> None:
        log = self._logs[event.log]
        offsets = [offset for offset, _ in event.records]
        if event.markers:
            offsets = sorted([*offsets, *event.markers])
        there = set(offsets)
        if event.start > log.deleted_before:
            self._violated("C5", event.at, f"{event.log} begins at {event.start}, though nobody deleted that much")
        if offsets != [each for each in range(event.start, event.end) if each in there or each not in log.damaged]:
            self._violated(
                "C5",
                event.at,
                f"{event.log} runs from {event.start} to {event.end}, but what is read has gaps: {offsets}",
            )
        for offset, value in event.records:
            self._was_sent(event.at, event.log, log, offset, value)
            self._one_value(event.at, event.log, log, offset, value)
        self._all_there(event, log)
        self._duplicates(event, log)
        self._order(event, log)

    def _all_there(self, event: history.FinalRead, log: _Log) -> None:
        """C1: all acknowledged records exist, except at an end that may have been lost."""
        final = dict(event.records)
        present = set(final.values())
        survivors: dict[int, int] = {}
        missing: list[tuple[bytes, _Send]] = []
        for value, send in log.sends.items():
            if send.outcome != OK:
                continue
            is_there = final.get(send.offset) == value if send.offset >= 0 else value in present
            if send.done_era < log.first_era:
                if value in present:
                    self._violated("C7", event.at, f"{event.log}: {value!r} is there, and was in a deleted log")
            elif is_there:
                survivors[send.done_era] = max(survivors.get(send.done_era, -1), send.offset)
            elif send.offset in log.damaged or send.offset < log.deleted_before:
                continue
            elif send.era == log.era:
                self._violated("C1", event.at, f"{event.log}: {value!r}, acknowledged at {send.offset}, is not there")
            else:
                missing.append((value, send))
        for value, send in missing:
            highest = survivors.get(send.done_era, -1)
            if send.era == send.done_era and 0 <= send.offset < highest:
                self._violated(
                    "C1",
                    event.at,
                    f"{event.log}: {value!r}, acknowledged at {send.offset}, is not there, though {highest} survived",
                )

    def _duplicates(self, event: history.FinalRead, log: _Log) -> None:
        for value, count in Counter(value for _, value in event.records).items():
            send = log.sends.get(value)
            if count > 1 and send is not None and (send.idempotent or send.done < self._disturbed_at):
                self._violated("C3", event.at, f"{event.log}: {value!r} is there {count} times")

    def _order(self, event: history.FinalRead, log: _Log) -> None:
        last: dict[str, tuple[int, bytes]] = {}
        for offset, value in event.records:
            send = log.sends.get(value)
            if send is None or not send.idempotent:
                continue
            number, before = last.get(send.producer, (0, b""))
            if send.number < number:
                self._violated("C4", event.at, f"{event.log}: {value!r} at offset {offset} comes behind {before!r}")
            last[send.producer] = (send.number, value)
