"""A log under random commands behaves as a plain list of records does, restarts of every kind included."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocol.errors import ApiError, ErrorCode
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.memory_file_system import MemoryFileSystem, PowerCut
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    T0,
    TP,
    append,
    batch_of,
    batches_at,
    checkpoint_high_watermarks,
    delete_expired,
    flush_dirty,
    open_manager,
    read_all,
    values_in,
)


class Row(NamedTuple):
    """What the model knows of one record."""

    offset: int
    value: bytes
    timestamp: int
    batch_end: int


class LogModel(RuleBasedStateMachine):
    """Commands on one log, and on the list that it must equal."""

    @initialize(
        segment_bytes=st.sampled_from([250, 700, 5000]),
        interval=st.sampled_from([0, 100, 4096]),
        index_bytes=st.sampled_from([40, 10_000]),
    )
    def start(self, segment_bytes: int, interval: int, index_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            segment_ms=1000,
            file_delete_delay_ms=10,
        )
        self.file_system = MemoryFileSystem()
        self.manager: LogManager
        self.log: UnifiedLog
        self.rows: list[Row] = []
        self.log_start = 0
        self.log_end = 0
        self.durable_end = 0
        self.epoch = 0
        self.now_ms = T0
        self.before_cut: list[Row] | None = None
        """The rows before the end was cut off, as long as a power cut may bring them back."""
        self.has_deleted = False
        """Whether records were deleted, so that a restart may no longer know their producers."""
        self.serial = 0
        self.producers = 0
        self.new_producers()
        self.open()

    def new_producers(self) -> None:
        """The batches that the old ones remember may be gone."""
        self.producers += 2
        self.sequences = [0, 0]

    def open(self) -> None:
        self.manager, report = open_manager(self.file_system, self.config, now_ms=self.now_ms)
        assert not report.refused
        self.log = self.manager.get_or_create(TP, None, self.config, self.now_ms)

    def open_again(self) -> None:
        """After a restart that loses nothing, but for a gap at the very end."""
        self.open()
        last = self.rows[-1].batch_end if self.rows else self.log_start
        assert last <= self.log.log_end_offset <= self.log_end
        self.log_end = self.log.log_end_offset
        self.durable_end = min(self.durable_end, self.log_end)
        if self.has_deleted:
            self.new_producers()

    # -- commands -----------------------------------------------------------------------------------------------------

    def next_values(self, count: int) -> list[bytes]:
        self.serial += count
        return [b"%d" % number for number in range(self.serial - count, self.serial)]

    def note(self, first: int, values: list[bytes], timestamps: list[int]) -> None:
        self.before_cut = None
        end = first + len(values)
        self.rows += [
            Row(first + at, value, stamp, end) for at, (value, stamp) in enumerate(zip(values, timestamps, strict=True))
        ]
        self.log_end = end

    @rule(count=st.integers(1, 5), times=st.lists(st.integers(0, 700), min_size=5, max_size=5))
    def append(self, count: int, times: list[int]) -> None:
        values = self.next_values(count)
        stamps = [self.now_ms + delta for delta in times[:count]]
        info = append(self.log, *values, timestamps=stamps, epoch=self.epoch, now_ms=self.now_ms)
        assert (info.first_offset, info.last_offset) == (self.log_end, self.log_end + count - 1)
        self.note(self.log_end, values, stamps)

    @rule(producer=st.integers(0, 1), count=st.integers(1, 3))
    def append_idempotently_twice(self, producer: int, count: int) -> None:
        values = self.next_values(count)
        options = {
            "producer_id": self.producers + producer,
            "producer_epoch": 0,
            "base_sequence": self.sequences[producer],
        }
        info = append(self.log, *values, epoch=self.epoch, now_ms=self.now_ms, **options)
        assert info.first_offset == self.log_end
        self.note(self.log_end, values, [T0] * count)
        self.sequences[producer] += count
        again = append(self.log, *values, epoch=self.epoch, now_ms=self.now_ms, **options)
        assert (again.first_offset, again.last_offset, again.duplicate) == (info.first_offset, info.last_offset, True)

    @rule(producer=st.integers(0, 1))
    def append_with_a_gap(self, producer: int) -> None:
        if self.sequences[producer]:
            try:
                append(
                    self.log,
                    b"gap",
                    producer_id=self.producers + producer,
                    producer_epoch=0,
                    base_sequence=self.sequences[producer] + 1,
                )
            except ApiError as error:
                assert error.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                raise AssertionError("a gap in the sequence numbers was accepted")

    @rule(gap=st.integers(0, 3), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def append_as_follower(self, gap: int, sizes: list[int]) -> None:
        offset = self.log_end + gap
        batches = []
        noted = []
        for size in sizes:
            values = self.next_values(size)
            batches.append((offset, batch_of(*values)))
            noted.append((offset, values))
            offset += size
        assert self.log.append_as_follower(batches_at(*batches, epoch=self.epoch), now_ms=self.now_ms) is not None
        for first, values in noted:
            self.note(first, values, [T0] * len(values))

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch_start_offset(self.epoch)

    @rule(passing=st.integers(1, 1500))
    def time_passes(self, passing: int) -> None:
        self.now_ms += passing
        delete_expired(self.manager, self.now_ms)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def flush(self) -> None:
        self.log.flush(self.now_ms)
        # A gap at the very end, where no batch is, is not remembered.
        self.durable_end = self.rows[-1].batch_end if self.rows else self.log_start
        self.before_cut = None

    @rule()
    def background_work(self) -> None:
        flush_dirty(self.manager, self.now_ms)
        self.manager.checkpoint_recovery_points()
        self.manager.checkpoint_log_start_offsets()
        checkpoint_high_watermarks(self.manager, {})

    @precondition(lambda self: self.log_end > self.log_start)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.log_end))
        assert self.log.delete_records_before(offset, self.log_end) == offset
        self.manager.checkpoint_log_start_offsets()
        if data.draw(st.booleans()):
            self.log.delete_old_segments()
        self.log_start = offset
        self.has_deleted = True
        self.rows = [row for row in self.rows if row.offset >= offset]

    @precondition(lambda self: self.log_end > self.log_start)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.log_end))
        if self.log.truncate_to(offset, self.now_ms) and self.before_cut is None:
            self.before_cut = self.rows
        # The log ends with its last batch then, or where its last segment begins.
        self.rows = [row for row in self.rows if row.batch_end <= offset]
        assert (self.rows[-1].batch_end if self.rows else 0) <= self.log.log_end_offset <= offset
        self.log_start = min(self.log_start, self.log.log_end_offset)
        self.manager.checkpoint_log_start_offsets()
        self.log_end = self.log.log_end_offset
        self.durable_end = min(self.durable_end, self.rows[-1].batch_end if self.rows else self.log_start)
        self.new_producers()

    # -- restarts -----------------------------------------------------------------------------------------------------

    @rule()
    def stop_cleanly(self) -> None:
        self.manager.close_cleanly(self.now_ms)
        self.durable_end = self.log_end
        self.before_cut = None
        self.file_system.kill_process()
        self.open_again()
        assert self.log.recovery_point == self.log_end

    @rule()
    def kill_process(self) -> None:
        self.file_system.kill_process()
        self.open_again()

    @rule(mode=st.sampled_from(PowerCut), data=st.data())
    def cut_power(self, mode: PowerCut, data: st.DataObject) -> None:
        random = data.draw(st.randoms(use_true_random=False))
        if data.draw(st.booleans()):
            self.manager.checkpoint_recovery_points()
        self.file_system.cut_power(mode, random.randrange)
        self.open()
        end = self.log.log_end_offset
        assert self.durable_end <= end
        if self.before_cut is None:
            assert end <= self.log_end
            rows = self.rows
        else:
            # Nothing was written behind the cut yet, so that it may be undone, as a whole or in part. It can have taken
            # with it a batch that began below the log start.
            rows = [row for row in self.everything() if not self.before_cut or row.offset < self.before_cut[0].offset]
            rows += self.before_cut
            self.before_cut = None
        self.log_start = self.log.log_start_offset
        kept = [row for row in rows if self.log_start <= row.offset < end]
        assert all(row.batch_end <= end for row in kept), "recovery cut a batch in two"
        self.rows = kept
        self.log_end = self.durable_end = end
        self.new_producers()

    def everything(self) -> list[Row]:
        """What the log holds."""
        return [
            Row(record.offset, record.value or b"", record.timestamp, batch.next_offset)
            for batch in read_all(self.log)
            for record in batch.records()
            if record.offset >= self.log.log_start_offset
        ]

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def offsets(self) -> None:
        if hasattr(self, "log"):
            assert self.log.log_start_offset == self.log_start
            assert self.log.log_end_offset >= self.log_start
            assert self.log.recovery_point <= self.log.log_end_offset
            assert self.log.log_end_offset == self.log_end

    @invariant()
    def content(self) -> None:
        if hasattr(self, "log"):
            assert values_in(self.log) == [(row.offset, row.value) for row in self.rows]

    @precondition(lambda self: bool(self.rows))
    @rule(data=st.data(), max_bytes=st.integers(1, 2000))
    def read_from_anywhere(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.log_start, self.log_end))
        bound = data.draw(st.integers(self.log_start, self.log_end))
        info = self.log.read(offset, max_bytes, bound)
        wanted = [row for row in self.rows if row.offset >= offset and row.batch_end <= bound]
        if info.file is None:
            assert not wanted
            return
        found = [record.offset for batch in read_all(self.log, offset, max_bytes)[:1] for record in batch.records()]
        assert wanted[0].offset in found
        again = self.log.try_read(offset, max_bytes, bound)
        assert again is not None
        assert (again.position, again.size) == (info.position, info.size)

    @precondition(lambda self: bool(self.rows))
    @rule(data=st.data())
    def search_by_timestamp(self, data: st.DataObject) -> None:
        target = data.draw(st.integers(T0 - 1, max(row.timestamp for row in self.rows) + 1))
        expected = next((row for row in self.rows if row.timestamp >= target), None)
        found = self.log.offset_for_timestamp(target)
        assert (None if found is None else (found.offset, found.timestamp)) == (
            None if expected is None else (expected.offset, expected.timestamp)
        )


COMMON = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


def test_log_equals_its_model() -> None:
    run_state_machine_as_test(LogModel, settings=settings(COMMON, max_examples=60))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_log_equals_its_model_for_long() -> None:
    run_state_machine_as_test(LogModel, settings=settings(COMMON, max_examples=5000))
