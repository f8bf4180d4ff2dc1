"""The cleaner's worker process: real processes on real files, killed and orphaned."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.logs.cleaner_worker import FailureKind, ProcessWorker, WorkerDiedError, WorkerFailure
from protocol.records.batch import Record, build_batch, read_batches
from storage.compaction.clean_task import CleanTask, SegmentSize
from storage.compaction.cleaner import clean
from storage.io.os_file_system import OsFileSystem
from tests.kit.environment import InlineExecutor
from tests.kit.executor_worker import ExecutorWorker
from tests.kit.waiting import eventually_on_loop

ROOT = Path(__file__).resolve().parents[3]
FREE = math.inf
ONE_BYTE_A_SECOND = 1.0


def write_log(directory: Path, segments: int = 3) -> CleanTask:
    """Write a log of segments with a batch of two records each, one of them with a repeated key; all but the last are
    cleanable.
    """
    directory.mkdir(parents=True)
    sizes = []
    for base in range(0, 2 * segments, 2):
        rows = [Record(0, 1000 + base, key, b"v%d" % base) for key in (b"again", b"once%d" % base)]
        batch = build_batch(rows, base_offset=base, partition_leader_epoch=0)
        (directory / f"{base:020d}.log").write_bytes(batch)
        sizes.append(SegmentSize(base, len(batch)))
    return CleanTask(
        path=str(directory),
        segments=sizes,
        log_end_offset=2 * segments,
        first_dirty_offset=0,
        first_uncleanable_offset=sizes[-1].base_offset,
        producers=[],
        truncations=0,
        map_capacity=1000,
        now_ms=5000,
        delete_retention_ms=1000,
        segment_bytes=1 << 20,
        segment_index_bytes=1 << 20,
        index_interval_bytes=4096,
    )


def keys_in(directory: Path, suffix: str) -> list[bytes | None]:
    """The keys of all records in the files with `suffix`."""
    paths = sorted(directory.glob(f"*{suffix}"))
    return [
        record.key
        for path in paths
        for batch in read_batches(memoryview(path.read_bytes()))
        for record in batch.records()
    ]


def run(scenario: Callable[[ProcessWorker], Awaitable[None]], idle_s: float = 60) -> None:
    async def main() -> None:
        worker = ProcessWorker(idle_s)
        try:
            await scenario(worker)
        finally:
            await worker.close()
        assert worker.pid is None

    asyncio.run(main())


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def started(worker: ProcessWorker) -> int:
    """The worker's process, once it has started."""
    await eventually_on_loop("a process", lambda: worker.pid is not None, pause_s=0.01)
    assert worker.pid is not None
    return worker.pid


async def gone(pid: int) -> None:
    """Wait until the process does not exist any more."""
    await eventually_on_loop(f"the end of process {pid}", lambda: not runs(pid), pause_s=0.01)


def test_a_worker_does_what_the_function_does(tmp_path: Path) -> None:
    expected = clean(OsFileSystem(), write_log(tmp_path / "a"))

    async def scenario(worker: ProcessWorker) -> None:
        assert worker.pid is None, "no process before there is work"
        assert await worker.clean(write_log(tmp_path / "b"), FREE) == expected
        first = worker.pid
        assert await worker.clean(write_log(tmp_path / "c"), FREE) == expected
        assert worker.pid == first
        assert os.getpriority(os.PRIO_PROCESS, first or 0) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)

    run(scenario)
    assert keys_in(tmp_path / "b", ".cleaned") == [b"once0", b"again", b"once2"]


def test_an_executor_worker_does_the_same(tmp_path: Path) -> None:
    expected = clean(OsFileSystem(), write_log(tmp_path / "a"))
    worker = ExecutorWorker(OsFileSystem(), InlineExecutor())
    assert asyncio.run(worker.clean(write_log(tmp_path / "b"), FREE)) == expected
    with pytest.raises(WorkerFailure) as raised:
        asyncio.run(worker.clean(corrupt(write_log(tmp_path / "c")), FREE))
    assert raised.value.kind is FailureKind.RECORDS


def corrupt(task: CleanTask) -> CleanTask:
    path = Path(task.path) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    return task


def test_a_worker_says_what_is_wrong_and_goes_on(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        with pytest.raises(WorkerFailure, match=r"00000000000000000000\.log is corrupt at byte 0") as raised:
            await worker.clean(corrupt(write_log(tmp_path / "a")), FREE)
        assert raised.value.kind is FailureKind.RECORDS
        assert raised.value.corrupt_range == (0, 0)
        pid = worker.pid
        task = write_log(tmp_path / "b")
        for path in (tmp_path / "b").iterdir():
            path.unlink()
        (tmp_path / "b").rmdir()
        with pytest.raises(WorkerFailure) as raised:
            await worker.clean(task, FREE)
        assert raised.value.kind is FailureKind.ABORTED
        await worker.clean(write_log(tmp_path / "c"), FREE)
        assert worker.pid == pid

    run(scenario)


def test_a_killed_worker_is_told_and_the_next_task_gets_another(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        cleaning = asyncio.ensure_future(worker.clean(write_log(tmp_path / "a"), ONE_BYTE_A_SECOND))
        os.kill(await started(worker), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="killed by signal 9"):
            await cleaning
        assert worker.pid is None
        await worker.clean(write_log(tmp_path / "b"), FREE)

    run(scenario)


def test_a_worker_killed_while_idle_is_replaced(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        await worker.clean(write_log(tmp_path / "a"), FREE)
        first = worker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await gone(first)
        await worker.clean(write_log(tmp_path / "b"), FREE)
        assert worker.pid not in {None, first}

    run(scenario)


def test_a_new_rate_counts_for_the_task_that_runs(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        cleaning = asyncio.ensure_future(worker.clean(write_log(tmp_path / "a"), ONE_BYTE_A_SECOND))
        done, _ = await asyncio.wait([cleaning], timeout=1)
        assert not done, "the log is some hundred bytes long"
        worker.change_rate(FREE)
        await cleaning

    run(scenario)


def test_a_task_is_aborted_at_once_and_the_next_one_is_not(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        worker.abort()  # no task is running
        cleaning = asyncio.ensure_future(worker.clean(write_log(tmp_path / "a"), ONE_BYTE_A_SECOND))
        pid = await started(worker)
        done, _ = await asyncio.wait([cleaning], timeout=1)
        assert not done, "the log is some hundred bytes long"
        worker.abort()
        with pytest.raises(WorkerFailure) as raised:
            await cleaning
        assert raised.value.kind is FailureKind.ABORTED
        assert list((tmp_path / "a").glob("*.cleaned")) == []
        worker.abort()
        await worker.clean(write_log(tmp_path / "b"), FREE)
        assert worker.pid == pid

    run(scenario)


def test_what_is_said_while_the_process_starts_counts_as_well(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        cleaning = asyncio.ensure_future(worker.clean(write_log(tmp_path / "a"), ONE_BYTE_A_SECOND))
        await asyncio.sleep(0)
        assert worker.pid is None
        worker.change_rate(FREE)
        await cleaning

    run(scenario)

    async def another(worker: ProcessWorker) -> None:
        cleaning = asyncio.ensure_future(worker.clean(write_log(tmp_path / "b"), ONE_BYTE_A_SECOND))
        await asyncio.sleep(0)
        assert worker.pid is None
        worker.abort()
        with pytest.raises(WorkerFailure) as raised:
            await cleaning
        assert raised.value.kind is FailureKind.ABORTED
        await worker.clean(write_log(tmp_path / "c"), FREE)

    run(another)


def test_a_worker_without_work_ends_and_another_is_started_for_more(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        await worker.clean(write_log(tmp_path / "a"), FREE)
        first = worker.pid
        assert first is not None
        await gone(first)
        assert worker.pid is None
        await worker.clean(write_log(tmp_path / "b"), FREE)

    run(scenario, idle_s=0.05)


def test_closing_ends_a_worker_at_work(tmp_path: Path) -> None:
    async def scenario(worker: ProcessWorker) -> None:
        cleaning = asyncio.ensure_future(worker.clean(write_log(tmp_path / "a"), ONE_BYTE_A_SECOND))
        pid = await started(worker)
        await worker.close()
        with pytest.raises(WorkerDiedError):
            await cleaning
        await gone(pid)
        with pytest.raises(WorkerDiedError, match="it was closed"):
            await worker.clean(write_log(tmp_path / "b"), FREE)

    run(scenario)


def test_the_process_ends_with_its_input_during_a_task(tmp_path: Path) -> None:
    """The worker's pipe is closed, as if the broker had been killed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "broker.logs.cleaner_process"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    task = write_log(tmp_path / "a")
    process.stdin.write(json.dumps({"bytes_per_second": 1.0, "task": task.to_json()}).encode() + b"\n")
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.stdin.close()
    assert process.wait(30) == 0
    assert process.stdout.read() == b""
    process.stdout.close()
    assert clean(OsFileSystem(), task).end_offset == 4
