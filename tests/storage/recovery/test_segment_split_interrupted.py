"""Splitting segments, by recovery and by the cleaner, interrupted at every call."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from protocol.errors import ApiError
from storage.directory.meta_properties import LogDirError
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.compaction.cleaning import COMPACT, clean_log, put
from tests.storage.compaction.test_log_cleaner_crashes import random_from
from tests.storage.recovery.test_segment_split import (
    ALL,
    BEHIND,
    CONFIG,
    FAR,
    GIGA,
    SPARSE,
    bases,
    batches,
    disk_with,
    load,
    names,
    rows_at,
)
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    load_logs,
    open_manager,
    reopen,
    values_in,
)

FAULTS: dict[str, Fault] = {
    "crash before": Fault(crash_before=True),
    "crash after": Fault(crash_after=True),
    "crash amid": Fault(crash_amid=True, written_bytes=100),
    "EIO": Fault(errno=errno.EIO),
    "disk full": Fault(errno=errno.ENOSPC, written_bytes=100),
}


# -- interrupted -------------------------------------------------------------------------------------------------------


def sparse_disk() -> MemoryFileSystem:
    """The first batch of the segment to be split has a higher offset than its base."""
    return disk_with({0: batches((5, *SPARSE[2:])), 6 * GIGA: batches(BEHIND)}, recovery_point=6 * GIGA)


WHOLE = rows_at(5, *SPARSE[2:], *BEHIND)


def count_calls(work: Callable[[], object], file_system: MemoryFileSystem) -> int:
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return None

    file_system.inject = inject
    work()
    return calls


def interrupt(file_system: MemoryFileSystem, work: Callable[[], object], at: int, fault: Fault) -> None:
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return fault if calls == at else None

    file_system.inject = inject
    with contextlib.suppress(SimulatedCrash, OSError, ApiError, LogDirError):
        work()
    file_system.inject = lambda _operation, _path: None


def end(file_system: MemoryFileSystem, mode: PowerCut | None, seed: int) -> None:
    if mode is None:
        file_system.kill_process()
    else:
        file_system.cut_power(mode, random_from(seed))


def load_all(file_system: MemoryFileSystem) -> None:
    manager = LogManager(file_system, [DIR], CONFIG)
    manager.directories.lock()
    load_logs(manager, T0)
    for log in manager.online_logs():
        log.flush(T0)


@pytest.mark.parametrize("mode", [None, *PowerCut])
@pytest.mark.parametrize("fault", FAULTS)
def test_interrupted_at_every_call(fault: str, mode: PowerCut | None) -> None:
    first = sparse_disk()
    calls = count_calls(lambda: load_all(first), first)
    assert 30 < calls < 300, calls
    for at in range(1, calls + 1):
        file_system = sparse_disk()
        interrupt(file_system, partial(load_all, file_system), at, FAULTS[fault])
        end(file_system, mode, at)
        _, report, log = load(file_system)
        assert values_in(log) == WHOLE, at
        assert bases(log) == [5, 3 * GIGA, FAR, 6 * GIGA], at
        assert not sum(result.truncated_bytes for result in report.repaired), at
        assert names(file_system, ".cleaned", ".swap") == []
        append(log, b"next", epoch=1)
        file_system.kill_process()
        _, _, log = load(file_system)
        assert values_in(log) == [*WHOLE, (BEHIND[-1] + 1, b"next")]


def test_without_room_the_log_is_set_aside_and_nothing_is_left_behind() -> None:
    file_system = sparse_disk()
    before = file_system.used_bytes
    file_system.capacity_bytes = before + 600
    manager = LogManager(file_system, [DIR], CONFIG)
    manager.directories.lock()
    report = load_logs(manager, T0)
    reason = report.refused[TP]
    assert f"{0:020d}.log has offsets beyond what its indexes can hold, and cannot be split" in reason
    assert manager.directories[0].failure is None
    assert names(file_system, ".cleaned", ".swap", ".deleted") == []
    file_system.kill_process()
    file_system.capacity_bytes = None
    assert values_in(load(file_system)[2]) == WHOLE


# -- cleaning ----------------------------------------------------------------------------------------------------------


def overflowed_log(offsets: Sequence[int] = SPARSE) -> tuple[MemoryFileSystem, LogManager, UnifiedLog]:
    """A compacted log whose sealed first segment is unchecked: a clean stop left it with its indexes."""
    segments = {0: batches(offsets), 6 * GIGA: batches(BEHIND)}
    file_system = disk_with(segments, clean=True, indexed=True, recovery_point=BEHIND[-1] + 1)
    manager, _ = open_manager(file_system, COMPACT)
    log = manager.logs[TP]
    assert bases(log) == [0, 6 * GIGA]
    return file_system, manager, log


def test_cleaning_splits_what_it_would_have_left_alone() -> None:
    file_system, manager, log = overflowed_log()
    assert clean_log(file_system, manager, log) is not None
    assert bases(log) == [0, 3 * GIGA, FAR, 6 * GIGA]
    assert values_in(log) == ALL
    for segment in log.segments[:3]:
        assert len(segment.files.time_index) == 1
    file_system.kill_process()
    _, report, log = load(file_system)
    assert not report.repaired
    assert values_in(log) == ALL


def test_cleaning_splits_what_it_changes() -> None:
    file_system, manager, log = overflowed_log()
    for offset in (3, 3 * GIGA):
        put(log, (b"%d" % offset, b"newer"))
    log.roll(T0)
    log.flush(T0)
    assert clean_log(file_system, manager, log) is not None
    assert bases(log) == [0, 3 * GIGA + 7, FAR, 6 * GIGA, BEHIND[-1] + 3]
    left = [offset for offset in (*SPARSE, *BEHIND) if offset not in (3, 3 * GIGA)]
    newer = [(BEHIND[-1] + 1, b"newer"), (BEHIND[-1] + 2, b"newer")]
    assert values_in(log) == [*rows_at(*left), *newer]
    assert values_in(reopen(file_system, COMPACT)) == [*rows_at(*left), *newer]


@pytest.mark.parametrize("mode", [None, *PowerCut])
@pytest.mark.parametrize("fault", FAULTS)
def test_cleaning_interrupted_at_every_call(fault: str, mode: PowerCut | None) -> None:
    first, manager, log = overflowed_log()
    calls = count_calls(lambda: clean_log(first, manager, log), first)
    assert 20 < calls < 300, calls
    for at in range(1, calls + 1):
        file_system, manager, log = overflowed_log()
        interrupt(file_system, partial(clean_log, file_system, manager, log), at, FAULTS[fault])
        end(file_system, mode, at)
        manager, report = open_manager(file_system, COMPACT)
        assert not report.refused
        log = manager.logs[TP]
        assert values_in(log) == ALL, at
        assert names(file_system, ".cleaned", ".swap", ".deleted") == []
        clean_log(file_system, manager, log)
        assert values_in(log) == ALL
        assert bases(log) == [0, 3 * GIGA, FAR, 6 * GIGA], at
