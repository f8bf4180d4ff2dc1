"""Which logs are cleaned and when, and the handling of failures; in-memory logs, workers without processes."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import sys

import pytest

from broker.logs.cleaner_thread import BYTES_A_KEY, map_capacity
from broker.logs.cleaner_worker import FailureKind, WorkerDiedError, WorkerFailure
from broker.logs.log_cleaner import MOST_DEATHS
from config.broker_config import BrokerConfig
from protocol.errors import ApiError, ErrorCode
from storage.compaction.clean_task import CleanTask
from storage.directory.log_directory import LogDirectory
from storage.recovery.scrub import Scrub
from tests.broker.logs.cleaner_fixture import ONE, OTHER, CleanerFixture, cleaner_thread, fill, play, values
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.kit.waiting import eventually_on_loop
from tests.storage.support import DIR


def test_the_filthiest_log_first_and_then_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fill(fixture.logs[ONE], 9)
        await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        fill(fixture.logs[ONE], 3)  # partly clean now
        fill(fixture.logs[OTHER], 6)
        fixture.cleaned.clear()
        fixture.cleaner.start()
        await eventually_on_loop(
            "the cleaner gets there",
            lambda: fixture.metrics()["max_dirty_percent"] == 0 and len(fixture.cleaned) == 2,
            pause_s=0.001,
        )
        assert fixture.cleaned == ["other-0", "t-0"]
        assert values(fixture.logs[OTHER]) == [b"5" + b"x" * 60, b"last"]
        assert fixture.metrics()["cleaner_recopy_percent"] < 50
        assert fixture.metrics()["max_buffer_utilization_percent"] == 0
        assert fixture.metrics()["time_since_last_run_ms"] == 0
        checkpoint = bytes(fixture.disk.read_file(f"{DIR}/cleaner-offset-checkpoint")).decode()
        assert sorted(checkpoint.splitlines()[2:]) == [f"other 0 {6}", "t 0 13"]

    with caplog.at_level(logging.INFO):
        play(scenario)
    assert "cleaned log other-0 (dirty section = [0, 6])" in caplog.text
    assert "6 messages), end size" in caplog.text


def test_a_corrupt_log_is_set_aside_and_the_others_are_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fill(fixture.logs[ONE], 9)
        fill(fixture.logs[OTHER], 6)
        segment = fixture.logs[ONE].segments[1]
        corrupt(fixture.disk, segment.path)
        fixture.cleaner.start()
        await eventually_on_loop(
            "the cleaner gets there",
            lambda: fixture.metrics()["uncleanable_partitions_count"] == 1 and "other-0" in fixture.cleaned,
            pause_s=0.001,
        )
        await eventually_on_loop(
            "the cleaner gets there", lambda: values(fixture.logs[OTHER]) == [b"5" + b"x" * 60, b"last"], pause_s=0.001
        )
        assert fixture.cleaned.count("t-0") == 1
        assert fixture.metrics()["uncleanable_bytes"] == sum(each.size for each in fixture.logs[ONE].segments[:-1])
        assert fixture.metrics()["deadthreadcount"] == 0

    play(scenario)
    assert "Marking its partition (t-0) as uncleanable" in caplog.text


def test_damage_is_told_and_counted_as_a_scrub_would() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        log = fixture.logs[ONE]
        fill(log, 9)
        segment = log.segments[1]
        corrupt(fixture.disk, segment.path)
        assert await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        scrub_all(fixture)
        ((where, told),) = log.directory.corruptions.items()
        assert where == (segment.path, 0)
        assert told.startswith(f"{segment.path} is corrupt at byte 0 (")
        first, after = segment.base_offset, log.segments[2].base_offset
        assert told.endswith(f"): offsets {first} to {after - 1} cannot be read")
        with pytest.raises(ApiError) as raised:
            log.read(first, 1000)
        assert raised.value.error_code is ErrorCode.CORRUPT_MESSAGE

    play(scenario)


def scrub_all(fixture: CleanerFixture) -> None:
    """A complete pass of the scrub."""
    scrub = Scrub()
    scrub.begin(fixture.manager.logs)
    while (task := scrub.next_task(fixture.manager.logs, 1 << 20, 1)) is not None:
        task.run()
        task.complete()


def test_what_only_the_worker_sees_is_told_as_it_says() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        log = fixture.logs[ONE]
        fill(log, 9)
        base_offset = log.segments[1].base_offset

        async def fail(_task: CleanTask) -> None:
            raise WorkerFailure("it is odd", FailureKind.RECORDS, corrupt_range=(base_offset, 7))

        fixture.instead = fail
        assert await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        assert log.directory.corruptions == {(log.segments[1].path, 7): "it is odd"}
        assert log.uncleanable_reason == "it is odd"

    play(scenario)


def test_a_log_that_is_moved_is_cleaned_when_it_has_arrived() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        log = fixture.logs[ONE]
        fill(log, 9)
        before = values(log)

        async def move(_task: CleanTask) -> None:
            fixture.manager.futures.create(log, LogDirectory(fixture.other_directory(), lambda _path, _reason: None), 1)
            fixture.cleaner.abort(ONE)
            await fixture.aborted.wait()

        fixture.instead = move
        assert await fixture.cleaner.clean_filthiest(fixture.thread()), "others may be waiting"
        assert values(log) == before, "what was cleaned meanwhile is thrown away"
        fixture.instead = None
        assert not await fixture.cleaner.clean_filthiest(fixture.thread())
        fixture.manager.futures.drop(ONE, 1)
        assert await fixture.cleaner.clean_filthiest(fixture.thread())
        assert len(values(log)) == 2

    play(scenario)


def test_only_what_is_moved_is_aborted() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        async def ask(_task: CleanTask) -> None:
            fixture.cleaner.abort(OTHER)

        fixture.instead = ask
        fill(fixture.logs[ONE], 9)
        assert await fixture.cleaner.clean_filthiest(fixture.thread())
        assert not fixture.aborted.is_set()
        fixture.cleaner.abort(ONE)
        assert not fixture.aborted.is_set(), "it is not being cleaned any more"

    play(scenario)


def corrupt(disk: MemoryFileSystem, path: str) -> None:
    data = bytearray(disk.read_file(path))
    data[70] ^= 1
    disk.write_file(path, bytes(data))


def test_what_kills_its_workers_is_set_aside_after_a_few() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        async def die(task: CleanTask) -> None:
            if task.path.endswith("t-0"):
                raise WorkerDiedError("killed by signal 9")

        fixture.instead = die
        fill(fixture.logs[ONE], 9)
        fixture.cleaner.start()
        await eventually_on_loop(
            "the cleaner gets there", lambda: fixture.metrics()["uncleanable_partitions_count"] == 1, pause_s=0.001
        )
        assert fixture.cleaned == ["t-0"] * MOST_DEATHS
        assert fixture.metrics()["deadthreadcount"] == 1
        fill(fixture.logs[OTHER], 6)
        await eventually_on_loop(
            "the cleaner gets there", lambda: fixture.metrics()["deadthreadcount"] == 0, pause_s=0.001
        )

    play(scenario)


@pytest.mark.parametrize(
    ("failure", "is_offline", "is_set_aside"),
    [
        (WorkerFailure("full", FailureKind.DISK, errno.ENOSPC), False, False),
        (WorkerFailure("broken", FailureKind.DISK, errno.EIO), True, False),
        (WorkerFailure("changed", FailureKind.ABORTED), False, False),
        (WorkerFailure("no idea", FailureKind.BUG), False, True),
    ],
)
def test_failures(failure: WorkerFailure, is_offline: bool, is_set_aside: bool) -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        async def fail(_task: CleanTask) -> None:
            raise failure

        fixture.instead = fail
        log = fixture.logs[ONE]
        fill(log, 9)
        await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        assert (log.directory.failure is not None) == is_offline
        assert (log.uncleanable_reason is not None) == is_set_aside
        fixture.instead = None
        assert await fixture.cleaner.clean_filthiest(cleaner_thread(fixture)) == (not is_offline and not is_set_aside)

    play(scenario)


def test_a_failure_of_a_log_that_was_cut_meanwhile_says_nothing() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        log = fixture.logs[ONE]

        async def cut(_task: CleanTask) -> None:
            log.truncate_to(4, 1)
            raise WorkerFailure("corrupt", FailureKind.RECORDS)

        fixture.instead = cut
        fill(log, 9)
        assert not await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        assert log.uncleanable_reason is None

    play(scenario)


def test_the_result_for_a_log_that_was_cut_meanwhile_is_thrown_away() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        log = fixture.logs[ONE]

        async def cut(_task: CleanTask) -> None:
            log.truncate_to(4, 1)

        fixture.instead = cut
        fill(log, 9)
        assert not await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        assert [value and value[:1] for value in values(log)] == [b"0", b"1", b"2", b"3"]

    play(scenario)


def test_a_map_without_room_cleans_nothing_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fill(fixture.logs[ONE], 9)
        assert not await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))

    play(scenario, log_cleaner_io_buffer_load_factor="0")
    assert "offset map is too small to fit in even a single message" in caplog.text


def test_threads_come_and_go_and_share_the_rate() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fixture.cleaner.start()
        assert len(fixture.workers) == 1
        fixture.change(log_cleaner_threads="2", log_cleaner_io_max_bytes_per_second="1000")
        assert [worker.rates[-1] for worker in fixture.workers] == [500.0, 500.0]
        fixture.change(log_cleaner_threads="1")
        assert fixture.workers[0].rates[-1] == 1000.0
        await fixture.closed.wait()
        assert [worker.is_closed for worker in fixture.workers] == [False, True]
        fixture.change(log_cleaner_io_max_bytes_per_second="-1")
        assert fixture.workers[0].rates[-1] == sys.float_info.max

    play(scenario)


def test_two_threads_clean_two_logs_at_a_time() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        both = asyncio.Barrier(2)

        async def meet(_task: CleanTask) -> None:
            await both.wait()

        fixture.instead = meet
        fill(fixture.logs[ONE], 9)
        fill(fixture.logs[OTHER], 6)
        fixture.cleaner.start()
        await eventually_on_loop(
            "the cleaner gets there",
            lambda: len(values(fixture.logs[ONE])) == len(values(fixture.logs[OTHER])) == 2,
            pause_s=0.001,
        )

    play(scenario, log_cleaner_threads="2")


def test_a_new_backoff_ends_a_long_pause() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fixture.cleaner.start()
        await eventually_on_loop(
            "the cleaner gets there", lambda: fixture.cleaner.numbers.last_run_ms is not None, pause_s=0.001
        )
        fill(fixture.logs[ONE], 9)
        fixture.change(log_cleaner_backoff_ms="1")
        await eventually_on_loop("the cleaner gets there", lambda: fixture.cleaned == ["t-0"], pause_s=0.001)

    play(scenario, log_cleaner_backoff_ms="1000000000")


def test_without_the_cleaner_there_are_no_workers() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fixture.cleaner.start()
        fixture.change(log_cleaner_threads="2")
        assert fixture.workers == []

    play(scenario, log_cleaner_enable="false")


def test_buffers_are_shared_and_as_large_as_is_said() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        sizes = []

        async def note(task: CleanTask) -> None:
            sizes.append(task.read_bytes)

        fixture.instead = note
        fill(fixture.logs[ONE], 9)
        await fixture.cleaner.clean_filthiest(cleaner_thread(fixture))
        assert sizes == [25]
        assert len(values(fixture.logs[ONE])) == 2, "a buffer smaller than a batch is no hindrance"

    play(scenario, log_cleaner_io_buffer_size="100", log_cleaner_threads="2")


def test_a_buffer_of_more_than_2_gigabytes_is_not_used_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fixture.cleaner.start()
        assert "Cannot use more than 2G of cleaner buffer space per cleaner thread" not in caplog.text
        fixture.change(log_cleaner_dedupe_buffer_size=str(2**31))

    play(scenario)
    assert "Cannot use more than 2G of cleaner buffer space per cleaner thread" in caplog.text


def test_the_buffer_says_how_many_keys() -> None:
    def capacity(size: int, threads: int, factor: float) -> int:
        return map_capacity(
            BrokerConfig(
                {
                    "log.cleaner.dedupe.buffer.size": str(size),
                    "log.cleaner.threads": str(threads),
                    "log.cleaner.io.buffer.load.factor": str(factor),
                }
            )
        )

    assert capacity(1280 * BYTES_A_KEY * 100, 1, 0.9) == 115_200
    assert capacity(1280 * BYTES_A_KEY * 100, 2, 0.9) == 57_600
    assert capacity(1280 * BYTES_A_KEY * 100, 1, 5) == 128_000
    assert capacity(2**40, 1, 1) == math.floor((2**31 - 1) / BYTES_A_KEY)


def test_nothing_is_cleaned_before_the_recovery_points_are_written() -> None:
    async def scenario(fixture: CleanerFixture) -> None:
        fill(fixture.logs[ONE], 9)
        name = f"{DIR}/recovery-point-offset-checkpoint"
        fixture.disk.inject = lambda operation, path: (
            Fault(errno.ENOSPC) if operation == "write_file" and path.startswith(name) else None
        )
        thread = cleaner_thread(fixture)
        assert not await fixture.cleaner.clean_filthiest(thread)
        assert fixture.cleaned == []
        fixture.disk.inject = lambda _operation, _path: None
        assert await fixture.cleaner.clean_filthiest(thread)
        assert fixture.cleaned == ["t-0"]
        assert f"t 0 {fixture.logs[ONE].recovery_point}\n".encode() in fixture.disk.read_file(name)

    play(scenario)
