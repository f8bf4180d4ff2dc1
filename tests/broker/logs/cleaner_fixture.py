"""The log cleaner over in-memory logs, with workers that a test drives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.broker_environment import CleanerWorker
from broker.logs.cleaner_thread import CleanerThread
from broker.logs.log_cleaner import LogCleaner
from broker.observability.metrics import cleaner_metrics
from config.broker_config import BrokerConfig
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.directory.log_directory import LogDirectory
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from tests.kit.environment import InlineExecutor, ManualClock
from tests.kit.executor_worker import ExecutorWorker
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import DIR, batch_of, open_manager

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=200, min_cleanable_dirty_ratio=0.3)
ONE, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)


class Worker:
    """Does the work at once, or runs the test's replacement."""

    def __init__(self, fixture: CleanerFixture) -> None:
        self._fixture = fixture
        self._inner = ExecutorWorker(fixture.disk, InlineExecutor())
        self.rates: list[float] = []
        self.is_closed = False

    async def clean(self, task: CleanTask, bytes_per_second: float) -> CleanResult:
        self.rates.append(bytes_per_second)
        self._fixture.cleaned.append(task.path.rpartition("/")[2])
        if self._fixture.instead is not None:
            await self._fixture.instead(task)
        return await self._inner.clean(task, bytes_per_second)

    def change_rate(self, bytes_per_second: float) -> None:
        self.rates.append(bytes_per_second)

    def abort(self) -> None:
        self._fixture.aborted.set()

    async def close(self) -> None:
        self.is_closed = True
        self._fixture.closed.set()


class CleanerFixture:
    """A cleaner over two logs. `instead` is awaited before a worker does its task."""

    def __init__(self, **settings: str) -> None:
        self.disk = MemoryFileSystem()
        self.clock = ManualClock()
        self.manager, _ = open_manager(self.disk, COMPACTED, now_ms=self.clock.ms)
        self.logs = {tp: self.manager.get_or_create(tp, None, COMPACTED, self.clock.ms) for tp in (ONE, OTHER)}
        self.cleaned: list[str] = []
        self.instead: Callable[[CleanTask], Awaitable[None]] | None = None
        self.closed = asyncio.Event()
        self.aborted = asyncio.Event()
        self.workers: list[Worker] = []
        self.settings = {"log.dirs": DIR, "log.cleaner.backoff.ms": "1", **settings}
        self.cleaner = LogCleaner(
            self.manager,
            lambda: {tp: log.log_end_offset for tp, log in self.logs.items()},
            self.clock,
            InlineExecutor(),
            self._new_worker,
            lambda: BrokerConfig(self.settings),
            self._checkpoint_recovery_points,
        )

    async def _checkpoint_recovery_points(self, directory: LogDirectory) -> None:
        for task in self.manager.checkpoints.recovery_point_tasks():
            task.run()
            task.complete()
            if task.refusal is not None and task.directory is directory:
                raise task.refusal

    def _new_worker(self) -> CleanerWorker:
        self.workers.append(Worker(self))
        return self.workers[-1]

    def thread(self) -> CleanerThread:
        """A cleaner thread that tests drive by hand and can abort."""
        thread = cleaner_thread(self)
        self.cleaner._threads[:] = [thread]
        return thread

    def other_directory(self) -> str:
        """An empty log directory."""
        self.disk.make_dirs("/elsewhere")
        return "/elsewhere"

    def change(self, **settings: str) -> None:
        self.settings |= {name.replace("_", "."): value for name, value in settings.items()}
        self.cleaner.config_changed(BrokerConfig(self.settings))

    def metrics(self) -> dict[str, float]:
        """Values by the suffixes of their names."""
        return {
            metric.name.removeprefix("kafka_log_logcleaner").removeprefix("manager").removeprefix("_"): metric.samples[
                0
            ].value
            for metric in cleaner_metrics(self.cleaner, [DIR])
        }


def fill(log: UnifiedLog, batches: int) -> None:
    """Batches of one key, all but the last in sealed and flushed segments."""
    for at in range(batches):
        log.append_as_leader(batch_of(b"%d" % at + b"x" * 60), leader_epoch=0, now_ms=1)
    log.roll(1)
    log.append_as_leader(batch_of(b"last"), leader_epoch=0, now_ms=1)
    log.flush(1)


def values(log: UnifiedLog) -> list[bytes | None]:
    found = []
    for segment in log.segments:
        data = segment.file.pread(0, segment.size)
        found += [record.value for batch in read_batches(memoryview(data)) for record in batch.records()]
    return found


def play(scenario: Callable[[CleanerFixture], Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        fixture = CleanerFixture(**{name.replace("_", "."): value for name, value in settings.items()})
        try:
            await scenario(fixture)
        finally:
            await fixture.cleaner.close()
        assert all(worker.is_closed for worker in fixture.workers)

    asyncio.run(main())


def cleaner_thread(fixture: CleanerFixture) -> CleanerThread:
    """A cleaner thread that tests drive by hand."""
    worker = Worker(fixture)
    worker.is_closed = True
    return CleanerThread(0, worker)
