"""The end of a log is truncated, and the power fails: truncated records never return after the new ones."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.segment_files import TRUNCATION_MARKER
from tests.faults.matrix import chooser
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.support import T0, TP, append, close_cleanly, open_manager, reopen, values_in

OLD = [b"old %d" % number + b"." * 40 for number in range(8)]
NEW = [b"new %d" % number + b"." * 40 for number in range(3)]
SEGMENTS = pytest.mark.parametrize("segment_bytes", [100_000, 300, 120], ids=["one segment", "some", "one each"])


def cut_log(file_system: MemoryFileSystem, segment_bytes: int, cut_at: int, *, flushed: bool, dies: bool) -> UnifiedLog:
    """A log of OLD, checkpointed and truncated at `cut_at`; with `dies` by a dead process."""
    config = LogConfig(segment_bytes=segment_bytes)
    manager, _ = open_manager(file_system, config)
    log = manager.get_or_create(TP, None, config, T0)
    for value in OLD:
        append(log, value, epoch=1)
    if flushed:
        log.flush(T0)
    manager.checkpoints.write_recovery_points()
    assert log.truncate_to(cut_at, T0)
    return reopen(file_system, config) if dies else log


def branches(cut_at: int) -> list[list[bytes]]:
    """The possible contents of a log after a truncation and new writes: a prefix of either branch."""
    ways = (OLD, OLD[:cut_at] + NEW)
    return [way[:end] for way in ways for end in range(len(way) + 1)]


@SEGMENTS
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies in between"])
@pytest.mark.parametrize("flushed", [False, True], ids=["page cache", "flushed"])
@pytest.mark.parametrize("mode", PowerCut)
def test_two_branches_never_mix(segment_bytes: int, dies: bool, flushed: bool, mode: PowerCut) -> None:
    for seed in range(20):
        cut_at = seed % len(OLD)
        file_system = MemoryFileSystem()
        log = cut_log(file_system, segment_bytes, cut_at, flushed=flushed, dies=dies)
        for value in NEW[: seed % 4]:
            append(log, value, epoch=2)
        file_system.cut_power(mode, chooser(seed))
        found = [value for _, value in values_in(reopen(file_system, LogConfig(segment_bytes=segment_bytes)))]
        assert found in branches(cut_at), f"seed {seed}"
        if flushed:
            assert found[:cut_at] == OLD[:cut_at], f"seed {seed}"


@SEGMENTS
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies in between"])
def test_what_is_flushed_behind_the_cut_survives(segment_bytes: int, dies: bool) -> None:
    for seed in range(20):
        file_system = MemoryFileSystem()
        log = cut_log(file_system, segment_bytes, 3, flushed=True, dies=dies)
        append(log, NEW[0], epoch=2)
        append(log, NEW[1], epoch=2)
        log.flush(T0)
        append(log, NEW[2], epoch=2)
        file_system.cut_power(PowerCut.REORDER, chooser(seed))
        found = [value for _, value in values_in(reopen(file_system, LogConfig(segment_bytes=segment_bytes)))]
        assert found in (OLD[:3] + NEW[:2], OLD[:3] + NEW), f"seed {seed}"


def syncs(file_system: MemoryFileSystem) -> list[str]:
    """The fsyncs from now on."""
    seen: list[str] = []

    def inject(operation: str, path: str) -> Fault | None:
        if operation in ("flush", "sync_file", "sync_dir"):
            seen.append(path)
        return None

    file_system.inject = inject
    return seen


def test_the_disk_is_waited_for_by_the_thread_that_cuts_and_by_no_append() -> None:
    file_system = MemoryFileSystem()
    log = cut_log(file_system, 100_000, 3, flushed=True, dies=False)
    seen = syncs(file_system)
    append(log, NEW[0], epoch=2)
    assert seen == []
    task = log.prepare_truncation(2, T0)
    assert seen == []
    task.run()
    assert [path for path in seen if path.endswith(".log")]
    seen.clear()
    task.complete()
    append(log, NEW[0], epoch=2)
    append(log, NEW[1], epoch=3)
    assert seen == []


def test_an_append_waits_after_a_process_that_died_amid_the_cut() -> None:
    file_system = MemoryFileSystem()
    log = cut_log(file_system, 100_000, 3, flushed=True, dies=True)
    seen = syncs(file_system)
    append(log, NEW[0], epoch=2)
    assert [path for path in seen if path.endswith(".log")]
    seen.clear()
    append(log, NEW[1], epoch=3)
    assert seen == []


def test_a_flush_that_is_under_way_does_not_count() -> None:
    file_system = MemoryFileSystem()
    log = cut_log(file_system, 100_000, 3, flushed=True, dies=True)
    task = log.prepare_flush(T0)
    for file in task.files:
        file.unsynced = False  # as the thread does at its start
    seen = syncs(file_system)
    append(log, NEW[0], epoch=2)
    assert [path for path in seen if path.endswith(".log")], "the append relied on an fsync that was not done"
    task.run()
    task.complete()
    assert log.recovery_point == 3


def test_a_note_tells_of_the_cut_until_the_checkpoint_is_true_again() -> None:
    file_system = MemoryFileSystem()
    log = cut_log(file_system, 100_000, 3, flushed=True, dies=False)
    note = f"{log.path}/{TRUNCATION_MARKER}0"
    assert file_system.exists(note)
    log.flush(T0)
    assert file_system.exists(note), "the checkpoint still says 8"
    for value in OLD[3:]:
        append(log, value, epoch=2)
    log.flush(T0)
    assert not file_system.exists(note)


def test_a_clean_stop_settles_it() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system)
    log = manager.get_or_create(TP, None, LogConfig(), T0)
    for value in OLD:
        append(log, value)
    log.flush(T0)
    log.truncate_to(3, T0)
    close_cleanly(manager)
    log = reopen(file_system)
    assert (log.recovery_point, log.durability.has_unsynced_truncation, log.durability.truncation_marker) == (
        3,
        False,
        None,
    )
    assert not [each for each in file_system.list_dir(log.path) if each.name.startswith(TRUNCATION_MARKER)]


@SEGMENTS
@pytest.mark.parametrize("goes_on", [False, True], ids=["is only looked at", "goes on"])
@pytest.mark.parametrize("mode", PowerCut)
def test_a_cut_that_was_done_by_half_is_whole_or_undone(segment_bytes: int, goes_on: bool, mode: PowerCut) -> None:
    """The process dies during the truncation, and the power fails after the next one has read the rest."""
    config = LogConfig(segment_bytes=segment_bytes)
    halves = 0
    for seed in range(40):
        file_system = MemoryFileSystem()
        log = cut_log(file_system, segment_bytes, 7, flushed=True, dies=False)
        log.flush(T0)
        left = itertools.count(-(seed % 20))
        file_system.inject = lambda _operation, _path, left=left: Fault(crash_before=next(left) == 0)  # type: ignore[misc]
        with contextlib.suppress(SimulatedCrash):
            log.truncate_to(2, T0)
        file_system.kill_process()
        log = reopen(file_system, config)
        seen = len(values_in(log))
        assert values_in(log) == list(enumerate(OLD[:seen]))
        halves += 2 < seen < 7
        if goes_on:
            for value in NEW[: seed % 3 + 1]:
                append(log, value, epoch=2)
        file_system.cut_power(mode, chooser(seed))
        found = [value for _, value in values_in(reopen(file_system, config))]
        ways = (OLD[:7], OLD[:seen] + NEW) if goes_on else (OLD[:7],)
        assert found in [way[:end] for way in ways for end in range(2, len(way) + 1)], f"seed {seed}"
    assert halves or segment_bytes > 1000, "no truncation was done by half"


@SEGMENTS
@pytest.mark.parametrize("rolled", [False, True], ids=["", "the last segment is empty"])
@pytest.mark.parametrize("mode", [None, *PowerCut])
def test_a_log_that_begins_anew_at_its_end_always_ends_there(
    segment_bytes: int, rolled: bool, mode: PowerCut | None
) -> None:
    """A follower may be in the ISR for that end, even if it dies; after a power cut, only if it has flushed that
    much.
    """
    config, end, finished, at = LogConfig(segment_bytes=segment_bytes), len(OLD), False, 0
    while not finished:
        at += 1
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, config)
        log = manager.get_or_create(TP, None, config, T0)
        for value in OLD:
            append(log, value, epoch=1)
        if rolled:
            log.roll(T0)
        if mode is not None:
            log.flush(T0)
        left = itertools.count(-at)
        file_system.inject = lambda _operation, _path, left=left: Fault(crash_before=next(left) == -1)  # type: ignore[misc]
        with contextlib.suppress(SimulatedCrash):
            log.prepare_full_truncation(end, T0).finish()
            finished = True
        file_system.inject = lambda _operation, _path: None
        if mode is None:
            file_system.kill_process()
        else:
            file_system.cut_power(mode, chooser(at))
        log = reopen(file_system, config)
        found = values_in(log)
        assert (log.log_end_offset, found) == (end, list(enumerate(OLD))[len(OLD) - len(found) :])
        assert not found or not finished
        append(log, NEW[0], epoch=2)
        assert values_in(log)[-1] == (end, NEW[0])
    assert at > 4
