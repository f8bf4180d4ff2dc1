"""Loading logs at start: the number of threads, the progress messages, and few descriptors."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from broker.logs.startup_loading import load_logs, log_progress
from environment.system import SystemClock, ThreadExecutor
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.records.batch import Record, build_batch, read_batches
from protocol.topic_partition import TopicPartition
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.directory_loading import LoadProgress
from tests.kit.broker_process import BrokerProcess
from tests.kit.environment import InlineExecutor, ManualClock
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import new_topic
from tests.storage.support import T0, append, close_cleanly, open_manager

T = TypeVar("T")

DIRECTORIES = ("/a", "/b")
LOGS = 8
PARTITIONS = 150


def killed_disk() -> MemoryFileSystem:
    """LOGS logs of one batch each in two directories, not closed."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, LogConfig(), *DIRECTORIES)
    for number in range(LOGS):
        append(manager.get_or_create(TopicPartition("t", number), None, LogConfig(), T0), b"v" * 1000)
    file_system.kill_process()
    return file_system


def manager_on(file_system: MemoryFileSystem) -> LogManager:
    manager = LogManager(file_system, DIRECTORIES, LogConfig())
    manager.directories.lock()
    return manager


class Meeting:
    """A disk whose reads wait until the expected number of threads, for each directory, are reading at the same
    time.
    """

    def __init__(self, threads: int) -> None:
        self._barriers = {directory: threading.Barrier(threads) for directory in DIRECTORIES}
        self._met = {directory: threading.local() for directory in DIRECTORIES}
        self.threads: dict[str, set[int]] = {directory: set() for directory in DIRECTORIES}

    def __call__(self, operation: str, path: str) -> Fault | None:
        if operation == "pread":
            directory = path[:2]
            self.threads[directory].add(threading.get_ident())
            if not hasattr(self._met[directory], "once"):
                self._met[directory].once = True
                self._barriers[directory].wait(60)
        return None


@pytest.mark.parametrize("threads", [1, 3])
def test_so_many_threads_for_each_directory(threads: int) -> None:
    file_system = killed_disk()
    manager = manager_on(file_system)
    file_system.faults_in_reads = True
    file_system.inject = meeting = Meeting(threads)
    executor = ThreadExecutor(threads * len(DIRECTORIES))
    try:
        report = asyncio.run(load_logs(manager, {}, SystemClock(), executor, threads))
    finally:
        executor.close()
    assert len(manager.logs) == LOGS
    assert not report.clean
    assert {directory: len(found) for directory, found in meeting.threads.items()} == dict.fromkeys(
        DIRECTORIES, threads
    )


def test_what_is_said_at_a_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file_system = killed_disk()
    manager = manager_on(file_system)
    asyncio.run(load_logs(manager, {}, ManualClock(), InlineExecutor(), 1))
    close_cleanly(manager)
    asyncio.run(load_logs(manager_on(file_system), {}, ManualClock(), InlineExecutor(), 1))
    said = [record.getMessage() for record in caplog.records if record.name == "kafka.log.LogManager"]
    assert said == [
        "Recovering 4 logs from /a since no clean shutdown file was found",
        "Recovering 4 logs from /b since no clean shutdown file was found",
        "Loaded 8 logs in 0ms (unclean log dirs = [/a, /b], 0 MB recovered)",
        "Skipping recovery of 4 logs from /a since clean shutdown file was found",
        "Skipping recovery of 4 logs from /b since clean shutdown file was found",
        "Loaded 8 logs in 0ms (unclean log dirs = [], 0 MB recovered)",
    ]


@pytest.mark.parametrize(
    ("progress", "elapsed_s", "expected"),
    [
        (
            LoadProgress("/a", 3, 10, 40_000_000, 100_000_000),
            2.0,
            "Loading logs of /a: 3 of 10 done, 40 of 100 MB recovered, 20 MB/s, about 3 s left",
        ),
        (
            LoadProgress("/a", 2500, 10_000, 0, 0),
            1.0,
            "Loading logs of /a: 2500 of 10000 done, 2500 logs/s, about 3 s left",
        ),
        (
            LoadProgress("/a", 0, 10, 0, 100_000_000),
            1.0,
            "Loading logs of /a: 0 of 10 done, 0 of 100 MB recovered",
        ),
        (LoadProgress("/a", 10, 10, 1, 1), 1.0, None),
    ],
)
def test_rate_and_remaining_time(
    caplog: pytest.LogCaptureFixture, progress: LoadProgress, elapsed_s: float, expected: str | None
) -> None:
    caplog.set_level(logging.INFO)
    log_progress(progress, elapsed_s)
    assert [record.getMessage() for record in caplog.records] == ([] if expected is None else [expected])


class LateExecutor(ThreadExecutor):
    """Loads nothing before the message that nothing is loaded yet."""

    def __init__(self, threads: int, said: Callable[[], bool]) -> None:
        super().__init__(threads)
        self._said = said

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        def late() -> T:
            deadline = time.monotonic() + 60
            while not self._said():
                assert time.monotonic() < deadline, "nothing was said"
                time.sleep(0.01)
            return function(*args)

        return super().run(late if getattr(function, "__name__", "") == "work" else function, *args)


def test_a_line_each_second_while_it_lasts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("broker.logs.startup_loading.PROGRESS_INTERVAL_S", 0.01)
    said = "Loading logs of /a: 0 of 4 done"
    executor = LateExecutor(2, lambda: said in [record.getMessage() for record in list(caplog.records)])
    try:
        asyncio.run(load_logs(manager_on(killed_disk()), {}, SystemClock(), executor, 1))
    finally:
        executor.close()
    lines = [record.getMessage() for record in caplog.records]
    assert said in lines
    assert lines[-1].startswith("Loaded 8 logs in")


# -- real brokers ------------------------------------------------------------------------------------------------------


def produce_to_all(client: WireClient, value: bytes) -> list[int]:
    """Produce one record to each partition of `t`; returns the error codes."""
    batch = build_batch([Record(0, T0, None, value)])
    data = [ProduceRequest.PartitionProduceData(index=number, records=batch) for number in range(PARTITIONS)]
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=data)
    answer = client.ask(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic]), 9)
    assert isinstance(answer, ProduceResponse)
    return [each.error_code for each in answer.responses[0].partition_responses]


def values_of_all(client: WireClient) -> list[list[bytes | None]]:
    """The records of each partition of `t`, with one request for each."""
    found = []
    for number in range(PARTITIONS):
        partition = FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic]), 12)
        assert isinstance(answer, FetchResponse)
        records = answer.responses[0].partitions[0].records or b""
        found.append([record.value for batch in read_batches(memoryview(records)) for record in batch.records()])
    return found


@pytest.fixture
def small_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker limited to 100 open files: fewer than its partitions, and a quarter of their files."""
    broker = BrokerProcess(
        tmp_path,
        {"num.recovery.threads.per.data.dir": "3", "log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"},
        open_files=100,
    )
    yield broker
    broker.kill()


def connect(broker: BrokerProcess) -> WireClient:
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


def test_more_partitions_than_descriptors(small_broker: BrokerProcess) -> None:
    small_broker.start()
    with connect(small_broker) as client:
        client.ask(new_topic("t", PARTITIONS), 7)
        assert set(produce_to_all(client, b"first")) == {0}
    assert small_broker.stop() == 0
    small_broker.start()
    with connect(small_broker) as client:
        assert values_of_all(client) == [[b"first"]] * PARTITIONS
        assert set(produce_to_all(client, b"second")) == {0}
    small_broker.kill()
    small_broker.start()
    with connect(small_broker) as client:
        assert values_of_all(client) == [[b"first", b"second"]] * PARTITIONS
    assert small_broker.stop() == 0
    output = small_broker.output.read_text()
    assert "Too many open files" not in output
    assert re.search(rf"Loaded {PARTITIONS} logs in \d+ms \(unclean log dirs = \[\], 0 MB recovered\)", output)


def test_a_broker_killed_while_it_recovers(small_broker: BrokerProcess) -> None:
    small_broker.start()
    with connect(small_broker) as client:
        client.ask(new_topic("t", PARTITIONS), 7)
        assert set(produce_to_all(client, b"first")) == {0}
    small_broker.kill()
    for milliseconds in (150, 200, 250, 300, 400):
        with small_broker.output.open("ab") as output:
            process = small_broker.spawn(output)
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGKILL)
        process.wait()
    small_broker.start()
    with connect(small_broker) as client:
        assert values_of_all(client) == [[b"first"]] * PARTITIONS
        assert set(produce_to_all(client, b"second")) == {0}
