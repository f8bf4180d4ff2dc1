"""A log under random commands behaves like a plain list of records, including all kinds of restarts."""

from __future__ import annotations

from typing import ClassVar

from crc32c import crc32c
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
from protocol.records.compression import CompressionType
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from tests.faults import move_steps, shortening_steps, steps
from tests.faults.rows import Row
from tests.faults.steps import Step
from tests.faults.trial import Spec, Trial, check_indexes
from tests.kit.memory_file_system import MemoryFileSystem, PowerCut
from tests.storage.support import DIR, T0, read_all

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
POLICIES = [frozenset({"delete"}), frozenset({"compact"}), frozenset({"compact", "delete"})]


class LogMachine(RuleBasedStateMachine):
    """Commands on one log, and on the History that it must match."""

    steps_done: ClassVar[int] = 0

    @initialize(
        segment_bytes=st.sampled_from([600, 1500, 5000]),
        interval=st.sampled_from([0, 100, 4096]),
        index_bytes=st.sampled_from([40, 10_000]),
        policy=st.sampled_from(POLICIES),
        retention_bytes=st.sampled_from([-1, 2000]),
    )
    def begin(
        self, segment_bytes: int, interval: int, index_bytes: int, policy: frozenset[str], retention_bytes: int
    ) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            segment_ms=1000,
            cleanup_policy=policy,
            retention_ms=3000,
            retention_bytes=retention_bytes,
            delete_retention_ms=1000,
            min_cleanable_dirty_ratio=0.01,
            file_delete_delay_ms=10,
        )
        self.trial = Trial(MemoryFileSystem(), config, (DIR, "/more"))
        self.do(steps.start)

    def do(self, *all_steps: Step) -> None:
        for step in all_steps:
            step(self.trial)
            self.trial.claim()

    @property
    def log(self) -> UnifiedLog:
        assert self.trial.log is not None
        return self.trial.log

    @property
    def rows(self) -> list[Row]:
        return [row for row in self.trial.history.now.rows if row.offset >= self.log.log_start_offset]

    # -- commands -----------------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=4),
        deltas=st.lists(st.integers(0, 700), min_size=4, max_size=4),
        size=st.sampled_from([20, 120]),
        codec=st.sampled_from(CompressionType),
        producer=st.sampled_from([-1, -1, 5, 6]),
        is_tombstone=st.booleans(),
    )
    def append(
        self,
        keys: list[bytes],
        deltas: list[int],
        size: int,
        codec: CompressionType,
        producer: int,
        is_tombstone: bool,
    ) -> None:
        count = len(keys)
        spec = Spec(count, size, codec, producer, tuple(keys), tuple(deltas[:count]), is_tombstone)
        self.do(steps.appending(spec))

    @rule(producer=st.sampled_from([5, 6]))
    def append_with_a_gap(self, producer: int) -> None:
        data, _ = self.trial.place(Spec(producer_id=producer))
        sequence = self.trial.history.next_sequence(producer)
        if producer in self.log.producer_state.entries:
            data[53:57] = (sequence + 1).to_bytes(4, "big")
            try:
                self.log.append_as_leader(_with_crc(data), leader_epoch=self.trial.epoch, now_ms=self.trial.now_ms)
            except ApiError as error:
                assert error.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                raise AssertionError("a gap in the sequence numbers was accepted")

    @rule(gap=st.integers(0, 3), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def append_as_follower(self, gap: int, sizes: list[int]) -> None:
        self.do(steps.follow(*sizes, gap=gap))

    @rule(batches=st.integers(1, 5))
    def truncate(self, batches: int) -> None:
        self.do(shortening_steps.truncate(batches), steps.new_epoch)

    @rule(count=st.integers(1, 6))
    def delete_records(self, count: int) -> None:
        self.do(shortening_steps.delete_records(count))

    @rule(passing=st.integers(1, 4000))
    def retain(self, passing: int) -> None:
        self.do(shortening_steps.retain(passing))

    @rule(
        passing=st.integers(0, 1500),
        meanwhile=st.sampled_from([(), (steps.flush,), (shortening_steps.delete_records(2),)]),
    )
    def compact(self, passing: int, meanwhile: tuple[Step, ...]) -> None:
        self.do(steps.compact(*meanwhile, passing_ms=passing))

    @rule(step=st.sampled_from([steps.new_epoch, steps.roll, steps.flush, steps.background, steps.lag(1)]))
    def go_on(self, step: Step) -> None:
        self.do(step)

    @rule(lag=st.integers(0, 6))
    def fall_behind(self, lag: int) -> None:
        self.do(steps.lag(lag))

    @rule(
        step=st.sampled_from([move_steps.begin_move, move_steps.copy(200), move_steps.copy(2000), move_steps.end_move])
    )
    def move(self, step: Step) -> None:
        self.do(step)

    @rule(size=st.sampled_from([40, 600]))
    def flush_while_it_grows(self, size: int) -> None:
        self.do(steps.flush_during(steps.append(size=min(size, self.trial.config.segment_bytes - 200)), steps.roll))

    # -- restarts -----------------------------------------------------------------------------------------------------

    @rule()
    def stop(self) -> None:
        self.do(steps.stop, steps.start)

    @rule()
    def kill(self) -> None:
        self.do(steps.kill, steps.start)

    @rule(mode=st.sampled_from(PowerCut), data=st.data())
    def cut_power(self, mode: PowerCut, data: st.DataObject) -> None:
        random = data.draw(st.randoms(use_true_random=False))
        self.trial.file_system.cut_power(mode, random.randrange)
        self.trial.lost_power = True
        self.do(steps.start)

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def content(self) -> None:
        if hasattr(self, "trial"):
            type(self).steps_done += 1
            self.trial.check_live()
            assert self.log.recovery_point <= self.log.log_end_offset

    @rule()
    def look_at_the_indexes(self) -> None:
        check_indexes(self.log)

    @precondition(lambda self: bool(self.rows))
    @rule(data=st.data(), max_bytes=st.integers(1, 2000))
    def read_from_anywhere(self, data: st.DataObject, max_bytes: int) -> None:
        log, optional = self.log, self.trial.history.optional
        offset = data.draw(st.integers(log.log_start_offset, log.log_end_offset))
        bound = data.draw(st.integers(log.log_start_offset, log.log_end_offset))
        info = log.read(offset, max_bytes, bound)
        wanted = [row for row in self.rows if row.offset >= offset and row.batch_end <= bound]
        if info.file is None:
            assert all(row.offset in optional for row in wanted)
            return
        found = {record.offset for batch in read_all(log, offset, max_bytes)[:1] for record in batch.records()}
        kept = [row.offset for row in wanted if row.offset not in optional]
        assert not found or not kept or min(found) <= kept[0]
        again = log.try_read(offset, max_bytes, bound)
        assert again is not None
        assert (again.position, again.size) == (info.position, info.size)

    @precondition(lambda self: bool(self.rows) and not self.trial.history.optional)
    @rule(data=st.data())
    def search_by_timestamp(self, data: st.DataObject) -> None:
        target = data.draw(st.integers(T0 - 1, max(row.timestamp for row in self.rows) + 1))
        expected = next((row for row in self.rows if row.timestamp >= target), None)
        found = self.log.offset_for_timestamp(target)
        assert (None if found is None else (found.offset, found.timestamp)) == (
            None if expected is None else (expected.offset, expected.timestamp)
        )


def _with_crc(data: memoryview) -> memoryview:
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return data


def run_machine(examples: int) -> int:
    """Run this many random trials of 40 steps; returns the number of steps. Raises the steps' errors."""
    LogMachine.steps_done = 0
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    return LogMachine.steps_done
