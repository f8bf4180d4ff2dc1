"""Retention against a naive model: which segments are deleted and which are kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.log.test_retention import HOUR_MS, RECORD_BYTES
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    close_cleanly,
    delete_expired,
    delete_old_segments,
    open_manager,
    values_in,
)


@dataclass
class Segment:
    """One segment, as a human would describe it."""

    base: int
    end: int
    size: int
    newest_ms: int
    """Largest timestamp of its records, or the modification time of its file if none has one."""


def expected_start(
    segments: list[Segment], log_start: int, log_end: int, high_watermark: int, config: LogConfig, now_ms: int
) -> int:
    """The expected log start after a round, in the simplest possible form."""
    left = list(segments)
    while len(left) > 1 and left[0].end <= min(log_start, high_watermark):
        left.pop(0)

    def may_go() -> bool:
        return bool(left) and left[0].size > 0 and left[0].end <= high_watermark

    if "delete" in config.cleanup_policy:
        while config.retention_bytes >= 0 and may_go():
            if sum(each.size for each in left[1:]) < config.retention_bytes:
                break
            left.pop(0)
        while config.retention_ms >= 0 and may_go() and now_ms - left[0].newest_ms > config.retention_ms:
            left.pop(0)
    return max(log_start, left[0].base if left else log_end)


def segments_of(log: UnifiedLog, newest: dict[int, int]) -> list[Segment]:
    """The model of a log; `newest` has the known timestamps, by base offset of the segment."""
    ends = [segment.base_offset for segment in log.segments[1:]] + [log.log_end_offset]
    return [
        Segment(segment.base_offset, end, segment.size, newest.get(segment.base_offset, 0))
        for segment, end in zip(log.segments, ends, strict=True)
    ]


CONFIGS = st.builds(
    LogConfig,
    retention_ms=st.sampled_from([-1, 0, HOUR_MS, 3 * HOUR_MS]),
    retention_bytes=st.sampled_from([-1, 0, 1, 3 * RECORD_BYTES, 5 * RECORD_BYTES + 1, 10**9]),
    cleanup_policy=st.sampled_from([frozenset({"delete"}), frozenset({"compact"}), frozenset({"compact", "delete"})]),
    file_delete_delay_ms=st.just(100),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([-1, -9, -5, -2, 0, 4])),  # hours from now, -1: no timestamp
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 2])),
        st.tuples(st.just("delete records"), st.integers(0, 20)),
        st.tuples(st.just("restart"), st.sampled_from([0, 1])),
        st.tuples(st.just("round"), st.integers(0, 4)),  # records above the high watermark
    ),
    max_size=25,
)


class Scenario:
    """A log and its expected content."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.disk = MemoryFileSystem()
        self.now_ms = T0
        self.manager: LogManager
        self.rows: dict[int, bytes] = {}
        self.newest: dict[int, int] = {}
        self.log_start = 0
        self.open()

    @property
    def log(self) -> UnifiedLog:
        return self.manager.logs[TP]

    def open(self) -> None:
        self.disk.now_ms = self.now_ms
        self.manager, _ = open_manager(self.disk, self.config, now_ms=self.now_ms)
        self.manager.get_or_create(TP, None, self.config, self.now_ms)

    def append(self, hours: int) -> None:
        timestamp = -1 if hours == -1 else self.now_ms + hours * HOUR_MS
        base = self.log.active_segment.base_offset
        known = self.log.active_segment.max_timestamp_and_offset.timestamp
        offset = append(self.log, b"%02d" % len(self.rows), timestamps=[timestamp], now_ms=self.now_ms).first_offset
        if self.log.active_segment.base_offset != base:
            base, known = self.log.active_segment.base_offset, -1
        self.newest[base] = max(timestamp, known) if max(timestamp, known) >= 0 else self.now_ms
        self.rows[offset] = b"%02d" % len(self.rows)

    def restart(self, clean: int) -> None:
        self.manager.checkpoints.write_log_start_offsets()
        if clean:
            close_cleanly(self.manager)
        self.disk.kill_process()
        self.open()

    def delete_records(self, offset: int) -> None:
        offset = min(offset, self.log.log_end_offset)
        self.log_start = max(self.log_start, self.log.delete_records_before(offset, self.log.log_end_offset))

    def round(self, behind: int) -> None:
        log = self.log
        high_watermark = max(log.log_end_offset - behind, log.log_start_offset)
        end = log.log_end_offset
        self.log_start = expected_start(
            segments_of(log, self.newest), self.log_start, end, high_watermark, self.config, self.now_ms
        )
        lookup = self.manager.timestamp_lookup([log], self.now_ms)
        lookup.run()
        lookup.complete()
        reasons = delete_old_segments(self.manager, self.now_ms, high_watermark)
        assert log.log_end_offset == end
        assert all(reason.startswith("Deleting segment") for reason in reasons)
        assert log.segments[0].base_offset <= log.log_start_offset
        assert all(newer.base_offset > log.log_start_offset for _, newer in pairwise(log.segments))
        assert log.log_start_offset <= high_watermark
        assert delete_old_segments(self.manager, self.now_ms, high_watermark) == []

    def check(self) -> None:
        assert self.log.log_start_offset == self.log_start
        assert dict(values_in(self.log)) == {at: value for at, value in self.rows.items() if at >= self.log_start}


@given(config=CONFIGS, steps=STEPS)
def test_what_goes_and_what_stays(config: LogConfig, steps: list[tuple[str, int]]) -> None:
    scenario = Scenario(config)
    actions = {
        "append": scenario.append,
        "roll": lambda _: scenario.log.roll(scenario.now_ms),
        "delete records": scenario.delete_records,
        "restart": scenario.restart,
        "round": scenario.round,
    }
    for name, argument in steps:
        if name == "wait":
            scenario.now_ms += argument * HOUR_MS
            scenario.disk.now_ms = scenario.now_ms
        else:
            actions[name](argument)
        scenario.check()
    delete_expired(scenario.manager, scenario.now_ms)
    delete_expired(scenario.manager, scenario.now_ms + 100)
    names = {info.name for info in scenario.disk.list_dir(f"{DIR}/{TP}")}
    assert not [name for name in names if name.endswith(".deleted")]
    bases = {f"{segment.base_offset:020d}" for segment in scenario.log.segments}
    assert {name[:20] for name in names if name.endswith((".log", ".index", ".timeindex"))} == bases
    scenario.append(0)
    scenario.check()
