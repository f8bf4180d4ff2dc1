"""Loading many partitions of __consumer_offsets: off the loop, and in bounded memory."""

from __future__ import annotations

import asyncio
import errno
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from broker.groups.group_coordinator_service import GroupCoordinatorService
from cluster.groups import loader
from cluster.groups.group_config import GroupConfig
from cluster.groups.records import CommittedOffset, OffsetRecord
from cluster.metadata_image import MetadataImage
from protocol.records.batch import Record, RecordBatch, build_batch
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from storage.log_manager import LogManager
from tests.kit.environment import ManualClock, SeededRandom
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.support import T0, TOPIC_ID, open_manager

T = TypeVar("T")

PARTITIONS = 10
CHUNK_BYTES = 200_000
COMMITS = 40
GROUPS = 4


class SlowExecutor:
    """Runs a function when the loop has turned a few times, as a busy thread would."""

    def __init__(self) -> None:
        self.inside = False
        self._under_way = 0
        self.most_at_once = 0

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return self._run(function, *args)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        self.inside = True
        try:
            return function(*args)
        finally:
            self.inside = False
            self._under_way -= 1

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture(scope="module")
def logs() -> LogManager:
    return filled_logs(MemoryFileSystem())


def filled_logs(file_system: MemoryFileSystem) -> LogManager:
    """Every partition has 40 commits of 16 kB, which supersede one another."""
    manager, _ = open_manager(file_system)
    for partition in range(PARTITIONS):
        log = manager.get_or_create(TopicPartition(CONSUMER_OFFSETS, partition), TOPIC_ID, manager.default_config, T0)
        for number in range(COMMITS):
            committed = CommittedOffset(number, -1, "m" * 4000, T0)
            records = [OffsetRecord(f"g{each}", TopicPartition("t", 0), committed).encode() for each in range(GROUPS)]
            batch = build_batch([Record(0, T0, key, value) for key, value in records])
            log.append_as_leader(memoryview(bytearray(batch)), leader_epoch=0, now_ms=T0)
    return manager


def load_all(
    logs: LogManager, executor: SlowExecutor, expected_offsets: int = PARTITIONS * GROUPS
) -> GroupCoordinatorService:
    """A service that has loaded every partition, and was closed."""
    replicas: Any = SimpleNamespace(partition=lambda at: SimpleNamespace(log=logs.logs[at]))
    log = ReplicatedCoordinatorLog(
        CONSUMER_OFFSETS,
        replicas,
        lambda: MetadataImage(cluster_id="c", brokers={}),
        executor,
        configured_partitions=PARTITIONS,
        load_buffer_bytes=CHUNK_BYTES,
        commit_timeout_ms=5000,
    )
    service = GroupCoordinatorService(GroupConfig(), log, ManualClock(), SeededRandom(), executor)

    async def load() -> None:
        for partition in range(PARTITIONS):
            service.elected(partition)
        while service.is_loading:
            await asyncio.sleep(0)
        assert service.offset_count() == expected_offsets
        await service.close()

    asyncio.run(load())
    return service


def test_few_partitions_are_loaded_at_a_time(logs: LogManager) -> None:
    executor = SlowExecutor()
    load_all(logs, executor)
    assert executor.most_at_once <= 2


def test_memory_is_bounded_by_what_is_live(logs: LogManager) -> None:
    tracemalloc.start()
    try:
        load_all(logs, SlowExecutor())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    live = PARTITIONS * GROUPS * 4000
    assert peak < 6 * CHUNK_BYTES + 2 * live


def test_batches_are_walked_off_the_loop(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, walked = SlowExecutor(), []
    read_batches = loader.read_batches

    def read(buffer: memoryview) -> Iterator[RecordBatch]:
        for batch in read_batches(buffer):
            walked.append(executor.inside)
            yield batch

    monkeypatch.setattr(loader, "read_batches", read)
    load_all(logs, executor)
    assert len(walked) == PARTITIONS * COMMITS
    assert all(walked)


def test_a_disk_that_cannot_be_read_takes_the_log_directory_offline(caplog: pytest.LogCaptureFixture) -> None:
    file_system = MemoryFileSystem()
    logs = filled_logs(file_system)
    file_system.faults_in_reads = True
    file_system.inject = lambda _operation, path: Fault(errno.EIO) if path.endswith(".log") else None
    load_all(logs, SlowExecutor(), expected_offsets=0)
    (directory,) = {log.directory for log in logs.logs.values()}
    assert directory.failure is not None
    assert directory.failure.startswith("Exception while reading from __consumer_offsets-")
    assert "it is not served here" in caplog.text
