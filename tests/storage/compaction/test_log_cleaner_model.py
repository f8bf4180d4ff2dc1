"""A log that is cleaned repeatedly has the content of a plain list, whatever happens in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from protocol.records.batch import RecordBatch
from protocol.records.compression import CompressionType
from protocol.records.control_records import ControlRecordType
from storage.compaction.clean_source import marker_type
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.segment_files import TXN_INDEX_SUFFIX
from storage.segment.transaction_index import AbortedTxn, decode_aborted
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.compaction.cleaning import ENOUGH_KEYS, clean_log, data_in, end_transaction, nothing, put
from tests.storage.support import T0, TOPIC_ID, TP, close_cleanly, delete_expired, flush_dirty, open_manager, read_all

RETENTION_MS = 1000
KEYS = [b"a", b"b", b"longer key", b"d", b""]
PRODUCERS = [5, 6]
rows_of_a_batch = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.just(b"v"), st.binary(max_size=40))),
    min_size=1,
    max_size=5,
)


@dataclass
class Row:
    """A record of the model."""

    offset: int
    key: bytes
    value: bytes | None
    batch: int
    transaction: int | None


@dataclass
class Transaction:
    """A transaction of a producer; `is_aborted` is None while it is open."""

    producer_id: int
    is_aborted: bool | None = None


@dataclass
class Model:
    """The expected content of the log."""

    rows: list[Row] = field(default_factory=list)
    horizons: dict[int, int] = field(default_factory=dict)
    """Delete horizon by first offset of the batch."""
    transactions: list[Transaction] = field(default_factory=list)
    first_dirty: int = 0

    def is_aborted(self, row: Row) -> bool:
        return row.transaction is not None and self.transactions[row.transaction].is_aborted is True

    def clean(self, first_dirty: int, end_offset: int, cleaned_end: int, now_ms: int) -> None:
        """Records below `end_offset` were in the offset map, those below `cleaned_end` were rewritten."""
        latest = {
            row.key: row.offset
            for row in self.rows
            if first_dirty <= row.offset < end_offset and not self.is_aborted(row)
        }
        kept = []
        for row in self.rows:
            horizon = self.horizons.get(row.batch)
            is_expired = row.value is None and horizon is not None and horizon <= now_ms
            is_below = row.offset < end_offset
            is_dropped = self.is_aborted(row) or (is_below and (latest.get(row.key, -1) > row.offset or is_expired))
            if row.offset >= cleaned_end or not is_dropped:
                kept.append(row)
        for row in kept:
            if row.offset < cleaned_end and row.value is None:
                self.horizons.setdefault(row.batch, now_ms + RETENTION_MS)
        self.rows = kept


class CleanedLog(RuleBasedStateMachine):
    """Commands on one compacted log, and on the list that it must match."""

    @initialize(segment_bytes=st.sampled_from([300, 1000, 4000]), deletes=st.booleans())
    def start(self, segment_bytes: int, deletes: bool) -> None:
        self.config = LogConfig(
            cleanup_policy=frozenset({"compact", "delete"} if deletes else {"compact"}),
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            delete_retention_ms=RETENTION_MS,
            retention_ms=-1,
            file_delete_delay_ms=50,
        )
        self.now_ms = T0
        self.file_system = MemoryFileSystem()
        self.manager, _ = open_manager(self.file_system, self.config, now_ms=T0)
        self.log = self.manager.get_or_create(TP, TOPIC_ID, self.config, T0)
        self.model = Model()
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.open: dict[int, int] = {}
        self.cleaned_bases: set[int] = set()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _note(self, first_offset: int, rows: list[tuple[bytes, bytes | None]], transaction: int | None = None) -> None:
        for at, (key, value) in enumerate(rows):
            self.model.rows.append(Row(first_offset + at, key, value, first_offset, transaction))

    @rule(rows=rows_of_a_batch, codec=st.sampled_from(CompressionType))
    def append(self, rows: list[tuple[bytes, bytes | None]], codec: CompressionType) -> None:
        info = put(self.log, *rows, now_ms=self.now_ms, compression=codec)
        self._note(info.first_offset, rows)

    @rule(rows=rows_of_a_batch, producer_id=st.sampled_from(PRODUCERS), transactional=st.booleans())
    def append_in_sequence(self, rows: list[tuple[bytes, bytes | None]], producer_id: int, transactional: bool) -> None:
        transactional = transactional or producer_id in self.open
        info = put(
            self.log,
            *rows,
            now_ms=self.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=self.sequences[producer_id],
            is_transactional=transactional,
        )
        self.sequences[producer_id] += len(rows)
        if transactional and producer_id not in self.open:
            self.open[producer_id] = len(self.model.transactions)
            self.model.transactions.append(Transaction(producer_id))
        self._note(info.first_offset, rows, self.open.get(producer_id) if transactional else None)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), aborts=st.booleans())
    def end_transaction(self, data: st.DataObject, aborts: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.open)))
        kind = ControlRecordType.ABORT if aborts else ControlRecordType.COMMIT
        end_transaction(self.log, producer_id, 0, kind, self.now_ms)
        self.model.transactions[self.open.pop(producer_id)].is_aborted = aborts

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def flush(self) -> None:
        flush_dirty(self.manager, self.now_ms)

    @rule(passed_ms=st.sampled_from([10, RETENTION_MS]))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        delete_expired(self.manager, self.now_ms)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        log = self.log
        self._delete_records(
            log.log_start_offset + int(share * (log.last_stable_offset(log.log_end_offset) - log.log_start_offset))
        )

    def _delete_records(self, offset: int) -> None:
        self.log.delete_records_before(offset, self.log.log_end_offset)
        self.manager.checkpoints.write_log_start_offsets()
        self.log.delete_old_segments()

    # -- cleaning -----------------------------------------------------------------------------------------------------

    @rule(
        capacity=st.sampled_from([1, 2, 3, ENOUGH_KEYS, ENOUGH_KEYS]),
        meanwhile=st.sampled_from(["", "", "append", "roll", "truncate"]),
        before_clean=st.booleans(),
        waited_ms=st.sampled_from([0, RETENTION_MS]),
    )
    def clean(self, capacity: int, meanwhile: str, before_clean: bool, waited_ms: int) -> None:
        log = self.log
        self.now_ms += waited_ms
        log.flush(self.now_ms)
        first_dirty = max(self.model.first_dirty, log.log_start_offset)
        undecided = [row.offset for row in self.model.rows if row.transaction in self.open.values()]
        active_base = log.active_segment.base_offset
        do = {"": nothing, "append": self._append_one, "roll": self.roll, "truncate": self._truncate}[meanwhile]
        done = clean_log(
            self.file_system,
            self.manager,
            log,
            self.now_ms,
            map_capacity=capacity,
            before_clean=do if before_clean else nothing,
            before_replace=nothing if before_clean else do,
        )
        if done is None:
            return
        cleanable, result = done
        assert cleanable.first_dirty_offset == first_dirty
        assert first_dirty < result.end_offset <= cleanable.first_uncleanable_offset
        assert cleanable.first_uncleanable_offset <= min([active_base, *undecided])
        if meanwhile == "truncate":
            assert log.cleaner_checkpoint == first_dirty
        else:
            bases = [segment.base_offset for segment in log.segments]
            after = min(base for base in bases if base >= result.end_offset)
            self.model.clean(first_dirty, result.end_offset, after, self.now_ms)
            self.cleaned_bases = {base for base in bases if base < after}
            self.model.first_dirty = result.end_offset
            assert log.cleaner_checkpoint == result.end_offset
        self.check()

    def _append_one(self) -> None:
        self.append([(b"a", b"meanwhile")], CompressionType.NONE)

    def _truncate(self) -> None:
        """Truncate the log above the part being cleaned: the result must not be used."""
        self.log.roll(self.now_ms)
        self.log.truncate_to(put(self.log, (b"z", b"cut off")).first_offset, self.now_ms)
        self.log.flush(self.now_ms)

    # -- looking ------------------------------------------------------------------------------------------------------

    @rule(cleanly=st.booleans(), with_snapshots=st.booleans())
    def restart(self, cleanly: bool, with_snapshots: bool) -> None:
        before = self._producers(self.log)
        checkpoint = self.log.cleaner_checkpoint
        if cleanly:
            close_cleanly(self.manager)
        self.file_system.kill_process()
        # Without the deleted records, only snapshots know their producers.
        if not with_snapshots and self.log.segments[0].base_offset == 0:
            for info in self.file_system.list_dir(self.log.path):
                if info.name.endswith(".snapshot"):
                    self.file_system.remove(f"{self.log.path}/{info.name}")
        self.manager, report = open_manager(self.file_system, self.config, now_ms=self.now_ms)
        assert not report.refused
        assert not report.repaired
        self.log = self.manager.logs[TP]
        known = None if checkpoint is None else max(checkpoint, self.log.log_start_offset)
        assert self.log.cleaner_checkpoint == known
        # Even if rebuilt from the records alone, the state of the producers is unchanged.
        if self.log.segments[0].base_offset == 0:
            assert self._producers(self.log) == before
        for producer_id, entry in self.log.producer_state.entries.items():
            self.sequences[producer_id] = entry.last_sequence + 1
        self.check()

    def _producers(self, log: UnifiedLog) -> dict[int, tuple[int, int, int]]:
        return {
            producer_id: (entry.producer_epoch, entry.last_sequence, entry.batches[-1].last_offset)
            for producer_id, entry in log.producer_state.entries.items()
            if entry.batches
        }

    def check(self) -> None:
        log, start = self.log, self.log.log_start_offset
        batches = read_all(log)
        expected = [(row.offset, row.key, row.value) for row in self.model.rows]
        assert [row for row in data_in(batches) if row[0] >= start] == [row for row in expected if row[0] >= start]
        offsets = [batch.base_offset for batch in batches]
        assert offsets == sorted(set(offsets))
        self._check_aborted(batches)

    def _check_aborted(self, batches: list[RecordBatch]) -> None:
        """A reader of the rest of a transaction must find its marker, and the index must list the aborted ones."""
        left: dict[int, RecordBatch] = {}
        decided = {row.batch: self.model.is_aborted(row) for row in self.model.rows if row.transaction is not None}
        aborted: list[AbortedTxn] = []
        for batch in batches:
            if batch.is_control:
                first = left.pop(batch.producer_id, None)
                if first is not None and batch.count:
                    is_abort = marker_type(batch) is ControlRecordType.ABORT
                    assert decided.get(first.base_offset, is_abort) == is_abort
                    if is_abort:
                        aborted.append(AbortedTxn(batch.producer_id, first.base_offset, batch.last_offset, 0))
            elif batch.is_transactional:
                left.setdefault(batch.producer_id, batch)
        assert set(left) <= set(self.open), "a marker went before its records"
        for segment, following in pairwise(self.log.segments):
            if segment.base_offset in self.cleaned_bases:
                path = segment.files.path_of(TXN_INDEX_SUFFIX)
                data = self.file_system.read_file(path) if self.file_system.exists(path) else b""
                indexed = {(each.producer_id, each.last_offset): each for each in decode_aborted(path, data)}
                for each in aborted:
                    if segment.base_offset <= each.last_offset < following.base_offset:
                        known = indexed[each.producer_id, each.last_offset]
                        assert known.first_offset <= each.first_offset
                        assert known.last_stable_offset <= each.last_offset + 1

    @rule(share=st.floats(0, 1))
    def read_from_anywhere(self, share: float) -> None:
        log = self.log
        offset = log.log_start_offset + int(share * (log.log_end_offset - log.log_start_offset))
        found = [row for row in data_in(read_all(log, offset, max_bytes=200)) if row[0] >= offset]
        assert [row[0] for row in found] == [row.offset for row in self.model.rows if row.offset >= offset]


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        CleanedLog,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.timeout(600)  # shrinking a finding takes up to five minutes
def test_a_cleaned_log_is_what_the_model_says() -> None:
    _run(60, 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cleaned_log_is_what_the_model_says_at_length() -> None:
    _run(300, 80)
