"""The possible contents of one log: a plain list of records, and the certainty of each.

A scenario reports its requests to the log and the answers to its History. After a restart, `reconcile` compares the log
with it: no flushed record is lost, no acknowledged record is lost by mere process death, no record is served that was
never written so, no batch is cut in two. If an end left several outcomes open (an unanswered append, an unflushed
truncation), each is allowed, and the one found is assumed from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from protocol.records.batch import NO_SEQUENCE
from storage.log.leader_epoch import EpochEntry
from tests.faults.rows import ProducerState, Row, aborted_in, latest_values, producers_in


class Violation(AssertionError):
    """The log broke a guarantee."""


class Observation(NamedTuple):
    """The state of a loaded log. `first_base` is the base offset of its oldest segment."""

    start: int
    end: int
    first_base: int
    rows: tuple[Row, ...]
    epochs: tuple[EpochEntry, ...]
    producers: dict[int, ProducerState]
    high_watermark: int


@dataclass
class Version:
    """A possible content of the log. `end` is its log end; at least the records up to `acked_end` survive process
    death, those up to `flushed_end` a power cut.
    """

    rows: list[Row] = field(default_factory=list)
    end: int = 0
    acked_end: int = 0
    flushed_end: int = 0

    def copy(self) -> Version:
        return replace(self, rows=list(self.rows))

    def __deepcopy__(self, _memo: object) -> Version:
        return self.copy()

    def cut(self, end: int) -> None:
        """Drop everything from `end` on, which becomes the end."""
        self.rows = [row for row in self.rows if row.batch_end <= end]
        self.end = end
        self.acked_end = min(self.acked_end, end)
        self.flushed_end = min(self.flushed_end, end)


class FlushMark(NamedTuple):
    """The start of a flush."""

    end: int
    truncations: int


@dataclass
class History:
    """The history of the module docstring."""

    is_compacted: bool = False
    now: Version = field(default_factory=Version)
    sent: list[Row] = field(default_factory=list)
    """Appended and unanswered."""
    unsure: list[Version] = field(default_factory=list)
    """The log before unanswered operations."""
    undoable: list[Version] = field(default_factory=list)
    """The log before operations that a power cut may undo."""
    optional: set[int] = field(default_factory=set)
    """Offsets that compaction may have removed."""
    start_on_disk: int = 0
    """The lowest log start after process death ..."""
    start_durable: int = 0
    """... and after a power cut."""
    start_asked: int = 0
    """The highest log start that was ever requested."""
    watermarks: list[int] = field(default_factory=lambda: [0])
    """High watermarks that the checkpoint may have."""
    truncations: int = 0
    horizons: dict[int, int] = field(default_factory=dict)
    """When compaction may remove the tombstones and markers that it has seen, by offset."""

    # -- what is asked and answered -----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.now.end

    def next_sequence(self, producer_id: int) -> int:
        """The required sequence number of the producer's next record."""
        for row in reversed(self.now.rows):
            if row.producer.producer_id == producer_id and row.producer.sequence != NO_SEQUENCE:
                return row.producer.sequence + 1
        return 0

    def sending(self, rows: Iterable[Row]) -> None:
        """These records are about to be appended."""
        self.sent = list(rows)

    def acknowledged(self) -> None:
        """Note that the sent records are in the log."""
        self.now.rows += self.sent
        self.now.end = self.now.acked_end = self.sent[-1].batch_end
        self.sent = []

    def refused(self) -> None:
        """Note that the sent records left no trace."""
        self.sent = []

    def begin_flush(self) -> FlushMark:
        return FlushMark(self.now.end, self.truncations)

    def flushed(self, mark: FlushMark) -> None:
        """The flush that began at `mark` was confirmed."""
        if mark.truncations == self.truncations:
            self.now.flushed_end = max(self.now.flushed_end, mark.end)
            self.undoable = []

    def claimed(self, recovery_point: int) -> None:
        """The log reports that everything below is on stable storage."""
        self.now.flushed_end = max(self.now.flushed_end, min(recovery_point, self.now.end))

    def shortening(self, end: int) -> None:
        """The log is about to be truncated to `end`."""
        self.unsure.append(self.now.copy())
        self.truncations += 1
        self.now.cut(end)
        left = self._end_of_what_is_left()
        self.now.acked_end = min(self.now.acked_end, left)
        self.now.flushed_end = min(self.now.flushed_end, left)

    def _end_of_what_is_left(self) -> int:
        """The minimum log end: the end of its last batch, where compaction may have removed the last batches."""
        return max((row.batch_end for row in self.now.rows if row.offset not in self.optional), default=0)

    def shortened(self, end: int, asked: int) -> None:
        """The log was truncated to `end`; until the next flush, a power cut can bring the rest back.

        It ends after its last batch, or in an empty range after that, up to `asked`. Raises Violation.
        """
        lowest = self._end_of_what_is_left()
        if not lowest <= end <= asked:
            raise Violation(f"truncated to {asked}, the log ends at {end}, not from {lowest}")
        self.now.cut(end)
        self.now.acked_end = end
        for version in self.unsure:
            version.acked_end = min(version.acked_end, self.now.end)
            version.flushed_end = min(version.flushed_end, self.now.end)
        self.undoable += self.unsure
        self.unsure = []

    def not_shortened(self) -> None:
        """The truncation was refused, and the log is unchanged."""
        self.now = self.unsure.pop()
        self.now.acked_end = self.now.end

    def compacting(self, bound: int, now_ms: int, delete_retention_ms: int) -> None:
        """Note a cleaning: superseded records below `bound` are removed, and so are tombstones and markers seen for
        this long.
        """
        rows = [row for row in self.now.rows if row.offset < bound]
        aborted = aborted_in(rows)
        latest = {row.key: row.offset for row in rows if not row.is_marker and row.offset not in aborted}
        for row in rows:
            if row.is_marker or (row.value is None and latest.get(row.key) == row.offset):
                if now_ms >= self.horizons.setdefault(row.offset, now_ms + delete_retention_ms):
                    self.optional.add(row.offset)
            elif row.offset in aborted or latest[row.key] != row.offset:
                self.optional.add(row.offset)

    def must_be_compact(self, found: Observation, bound: int) -> None:
        """Below `bound` no key occurs twice, and aborted transactions are gone. Raises Violation."""
        aborted = aborted_in(self.now.rows)
        seen: dict[bytes | None, Row] = {}
        for row in found.rows:
            if row.offset < bound and not row.is_marker:
                if row.key in seen or row.offset in aborted:
                    raise Violation(f"compaction left {seen.get(row.key, row)} below {bound}")
                seen[row.key] = row

    def starting_at(self, offset: int) -> None:
        """The log start is about to move."""
        self.start_asked = max(self.start_asked, offset)

    def starts_at(self, offset: int, *, is_checkpointed: bool) -> None:
        """It has moved."""
        self.starting_at(offset)
        if is_checkpointed:
            self.start_on_disk = self.start_durable = offset

    def checkpointing(self, high_watermark: int) -> None:
        """The high watermark is about to be checkpointed."""
        self.watermarks.append(high_watermark)

    def checkpointed(self) -> None:
        """It is."""
        self.watermarks = self.watermarks[-1:]

    # -- what is found ------------------------------------------------------------------------------------------------

    def reconcile(self, found: Observation, *, lost_power: bool) -> None:
        """Compare the log with the allowed contents, and assume what was found. Raises Violation."""
        start_low = self.start_durable if lost_power else self.start_on_disk
        if not start_low <= found.start <= max(self.start_asked, start_low):
            raise Violation(f"the log starts at {found.start}, not from {start_low} to {self.start_asked}")
        allowed = {min(value, found.end) for value in self.watermarks}
        if found.start == found.end:
            # Records were deleted up to the high watermark, so a log without its end had at least this high watermark.
            allowed.add(found.start)
        if found.high_watermark not in allowed:
            raise Violation(f"high watermark {found.high_watermark} is not one of {allowed}")
        if found.high_watermark not in self.watermarks:
            # The log was truncated below the checkpoint, and recovery may have written that down.
            self.watermarks.append(found.high_watermark)
        candidates = self._candidates(lost_power=lost_power)
        reasons = []
        # Any part of a truncation may have survived.
        for version in self.unsure:
            version.acked_end = min(version.acked_end, self.now.acked_end)
            version.flushed_end = min(version.flushed_end, self.now.flushed_end)
        for version in candidates:
            reason = self._contradiction(version, found, lost_power=lost_power)
            if reason is None:
                self._believe(version, candidates, found, lost_power=lost_power)
                return
            reasons.append(reason)
        raise Violation("; or ".join(dict.fromkeys(reasons)))

    def must_equal(self, found: Observation) -> None:
        """Compare with the current state of a working log. Raises Violation."""
        reason = self._contradiction(self.now, found, lost_power=False)
        if reason is None and found.end != self.now.end:
            reason = f"the log ends at {found.end}, not at {self.now.end}"
        if reason is not None:
            raise Violation(reason)

    def _candidates(self, *, lost_power: bool) -> list[Version]:
        """All allowed contents, the most likely one first."""
        found = [self.now, *self.unsure]
        if self.sent:
            answered = self.now.copy()
            answered.rows += self.sent
            answered.end = self.sent[-1].batch_end
            found.insert(0, answered)
        return found + self.undoable if lost_power else found

    def _contradiction(self, version: Version, found: Observation, *, lost_power: bool) -> str | None:
        """The part of `found` that cannot be a prefix of `version`."""
        must_end = version.flushed_end if lost_power else version.acked_end
        if not must_end <= found.end <= version.end:
            return f"the log ends at {found.end}, not from {must_end} to {version.end}"
        at = 0
        for row in version.rows:
            if row.offset < found.start or row.batch_end > found.end:
                continue
            if at < len(found.rows) and found.rows[at] == row:
                at += 1
            elif row.offset not in self.optional:
                return f"instead of {row} there is {found.rows[at] if at < len(found.rows) else 'nothing'}"
        if at < len(found.rows):
            return f"{found.rows[at]} was never written so"
        return (
            self._wrong_compaction(version, found) or self._wrong_epochs(found) or self._wrong_producers(version, found)
        )

    def _wrong_compaction(self, version: Version, found: Observation) -> str | None:
        """Compaction must not change the result of reading the whole log."""
        if not self.optional:
            return None
        rows = [row for row in version.rows if row.offset >= found.start and row.batch_end <= found.end]
        aborted = aborted_in(version.rows)
        before, after = latest_values(rows, aborted), latest_values(found.rows, aborted)
        if before != after:
            changed = {key for key in before | after if before.get(key) != after.get(key)}
            return f"compaction changed the values of {changed}: {before} to {after}"
        there = {row.offset for row in found.rows}
        for row in found.rows:
            marker = aborted.get(row.offset)
            if marker is not None and marker < found.end and marker not in there:
                return f"aborted offset {row.offset} is there, and its marker {marker} is not"
        return None

    def _wrong_epochs(self, found: Observation) -> str | None:
        entries = found.epochs
        for older, newer in pairwise(entries):
            if older.epoch >= newer.epoch or older.start_offset >= newer.start_offset:
                return f"leader epochs {entries} do not ascend"
        for row in found.rows:
            known = [entry.epoch for entry in entries if entry.start_offset <= row.offset]
            if not known or known[-1] != row.leader_epoch:
                return f"offset {row.offset} is of epoch {row.leader_epoch}, the log says {entries}"
        if entries and entries[-1].start_offset > found.end:
            return f"leader epochs {entries} go beyond the log end {found.end}"
        return None

    def _wrong_producers(self, version: Version, found: Observation) -> str | None:
        expected = producers_in(version.rows, found.end)
        for producer_id, state in found.producers.items():
            if expected.get(producer_id) != state:
                return f"producer {producer_id} is known as {state}, and wrote {expected.get(producer_id)}"
        for producer_id, state in expected.items():
            if state.last_offset >= found.first_base and producer_id not in found.producers:
                return f"producer {producer_id}, which wrote {state}, is not known"
        return None

    def _believe(self, version: Version, candidates: list[Version], found: Observation, *, lost_power: bool) -> None:
        # A half-done truncation is no more durable than a complete one: until the next flush, a power cut can bring
        # back data that the next process does not see.
        is_cut_by_half = found.end < version.end and any(version is each for each in self.unsure)
        others = [other for other in candidates if other is not version or is_cut_by_half]
        self.undoable = [] if lost_power else self.undoable + others
        self.now = version.copy()
        self.now.cut(found.end)
        self.now.acked_end = found.end
        if lost_power:
            self.now.flushed_end = found.end
            self.start_durable = found.start
        self.start_on_disk = found.start
        self.start_asked = max(self.start_asked, found.start)
        self.unsure, self.sent = [], []
