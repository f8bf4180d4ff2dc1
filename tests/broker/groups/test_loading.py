"""Loading many partitions of __consumer_offsets: off the event loop, and in bounded memory."""

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
from cluster.replication.partition import ACKS_ALL
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, RecordBatch, build_batch
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from storage.log_manager import LogManager
from tests.kit.environment import ManualClock, SeededRandom
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.kit.waiting import eventually_on_loop
from tests.storage.support import T0, TOPIC_ID, open_manager

T = TypeVar("T")

PARTITIONS = 10
CHUNK_BYTES = 200_000
COMMITS = 40
GROUPS = 4


class SlowExecutor:
    """Runs a function after a few turns of the loop, like a busy thread."""

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
        """Do nothing: no thread is running."""


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


class Replicas:
    """Replaces a ReplicaManager: unless they are committed, its partitions lack one offset until `commit`."""

    def __init__(self, logs: LogManager, *, are_committed: bool = True, are_under_min_isr: bool = False) -> None:
        self._partitions = {
            at: SimpleNamespace(
                log=log,
                topic_partition=at,
                high_watermark=log.log_end_offset - (not are_committed),
                is_under_min_isr=are_under_min_isr,
            )
            for at, log in logs.logs.items()
        }
        self.waiting: list[asyncio.Future[tuple[ApiError | None]]] = []

    def partition(self, at: TopicPartition) -> Any:
        return self._partitions[at]

    def when_acknowledged(
        self, appends: list[tuple[TopicPartition, int]], answer: Any, *, required_acks: int, timeout_ms: int
    ) -> asyncio.Future[tuple[ApiError | None]]:
        assert (answer, required_acks, timeout_ms) == (tuple, ACKS_ALL, 5000)
        ((at, last_offset),) = appends
        assert last_offset == self._partitions[at].log.log_end_offset - 1
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    def commit(self) -> None:
        for each in self._partitions.values():
            each.high_watermark = each.log.log_end_offset
        self.waiting[-1].set_result((None,))


def service_of(replicas: Any, executor: SlowExecutor) -> GroupCoordinatorService:
    log = ReplicatedCoordinatorLog(
        CONSUMER_OFFSETS,
        replicas,
        lambda: MetadataImage(cluster_id="c", brokers={}),
        executor,
        configured_partitions=PARTITIONS,
        load_buffer_bytes=CHUNK_BYTES,
        commit_timeout_ms=5000,
    )
    return GroupCoordinatorService(GroupConfig(), log, ManualClock(), SeededRandom(), executor)


def load_all(
    logs: LogManager, executor: SlowExecutor, expected_offsets: int = PARTITIONS * GROUPS
) -> GroupCoordinatorService:
    """A service that loaded every partition, and was closed."""
    service = service_of(Replicas(logs), executor)

    async def load() -> None:
        for partition in range(PARTITIONS):
            service.elected(partition)
        await eventually_on_loop("all is loaded", lambda: not service.is_loading)
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


@pytest.mark.parametrize("error_code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_what_was_loaded_is_served_once_it_is_committed(logs: LogManager, error_code: ErrorCode) -> None:
    replicas = Replicas(logs, are_committed=False)

    async def load() -> None:
        service = service_of(replicas, SlowExecutor())
        service.elected(0)
        await eventually_on_loop("the load waits", lambda: replicas.waiting)
        # It may be committed anyway, but this one is not.
        replicas.waiting[0].set_result((ApiError(error_code),))
        await eventually_on_loop("it waits again", lambda: replicas.waiting[1:])
        assert service.is_loading
        replicas.commit()
        await eventually_on_loop("it is loaded", lambda: not service.is_loading)
        assert service.offset_count() == GROUPS
        await service.close()

    asyncio.run(load())


def test_what_a_deposed_leader_loaded_is_not_served(logs: LogManager, caplog: pytest.LogCaptureFixture) -> None:
    replicas = Replicas(logs, are_committed=False)

    async def load() -> None:
        service = service_of(replicas, SlowExecutor())
        service.elected(0)
        await eventually_on_loop("the load waits", lambda: replicas.waiting)
        replicas.waiting[0].set_result((ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER),))
        await eventually_on_loop("the load ends", lambda: not service.is_loading)
        assert not service.runtimes()
        await service.close()

    asyncio.run(load())
    assert "it is not served here" in caplog.text


def test_what_cannot_be_committed_is_served_as_it_is(logs: LogManager) -> None:
    async def load() -> None:
        service = service_of(Replicas(logs, are_committed=False, are_under_min_isr=True), SlowExecutor())
        service.elected(0)
        await eventually_on_loop("it is loaded", lambda: not service.is_loading)
        assert service.offset_count() == GROUPS
        await service.close()

    asyncio.run(load())


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


@pytest.mark.parametrize("step", ["take", "finish"])
def test_a_bug_in_the_loader_does_not_leave_a_partition_loading(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(loader.GroupLoader, step, broken)
    service = load_all(logs, SlowExecutor(), expected_offsets=0)
    assert not service.runtimes()
    assert "KeyError: 'bug'" in caplog.text
