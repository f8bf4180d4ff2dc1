"""The shards of this broker: one for each partition of an internal topic that it leads."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Generic

from broker.coordinators.coordinator_runtime import CoordinatorLog, CoordinatorRuntime, Responses, S
from cluster.coordinators.results import ClockReading
from environment.contract import Clock, Executor
from protocol.errors import ApiError, ErrorCode
from protocol.value import Value

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, wrapping at 32 bits, signed."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK
    return value - (_MASK + 1) if value & _SIGN else value


@lru_cache(maxsize=4096)
def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition of __consumer_offsets (or __transaction_state) that keeps `key`.

    Uses Kafka's Utils.abs, which maps -2^31 to 0.
    """
    value = java_string_hash(key)
    return 0 if value == -_SIGN else abs(value) % partition_count


LOADED_AT_ONCE: Final = 1
"""Partitions loaded at a time. Each needs a chunk of memory, and the interpreter runs one thread at a time."""


class ShardLoader(Value, Generic[S]):
    """Builds a shard from its log, on any thread.

    `take` processes the complete batches at the start of a chunk and returns the offset after them, or None if the
    chunk does not contain any. It raises ApiError for a batch with unreadable records. `finish` returns the shard,
    which is not started yet.
    """

    take: Callable[[memoryview], int | None]
    finish: Callable[[ClockReading], S]


class CoordinatorService(ABC, Generic[S]):
    """The shards on this broker. Methods raise ApiError for keys that are coordinated elsewhere, or still being loaded.

    Handlers use `responses` to deliver outcomes of events, and `clock` to cut long work into slices.
    """

    def __init__(self, topic: str, log: CoordinatorLog, clock: Clock, executor: Executor, logger: str) -> None:
        """`topic` keeps the state; `logger` is the name of Kafka's class that loads it."""
        self.responses = Responses()
        self.clock = clock
        self._topic = topic
        self._log = log
        self._executor = executor
        self._logger = logging.getLogger(logger)
        self._shards: dict[int, CoordinatorRuntime[S]] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._may_load = asyncio.Semaphore(LOADED_AT_ONCE)
        self._closed = False

    # -- for each kind of coordinator ----------------------------------------------------------------------------------

    @abstractmethod
    def _loader(self, partition: int) -> ShardLoader[S]:
        """Create a loader for an empty shard."""

    @abstractmethod
    def _summary(self, shard: S) -> str:
        """Describe the size of the loaded state, for the log."""

    # -- leadership ----------------------------------------------------------------------------------------------------

    def elected(self, partition: int) -> None:
        """Load a partition that this broker now leads, then serve it."""
        self.resigned(partition)
        if self._closed:
            return
        if self._log.is_empty(partition):
            now = ClockReading(self.clock.now_ms(), int(self.clock.monotonic_s() * 1000))
            self._serve(partition, self._loader(partition).finish(now))
            return
        task = asyncio.get_running_loop().create_task(self._load(partition), name=f"load {self._topic}-{partition}")
        self._loading[partition] = task

    def resigned(self, partition: int) -> None:
        """Stop serving a partition that this broker no longer leads."""
        loading = self._loading.pop(partition, None)
        if loading is not None:
            loading.cancel()
        runtime = self._shards.pop(partition, None)
        if runtime is not None:
            runtime.close()

    async def _load(self, partition: int) -> None:
        try:
            async with self._may_load:
                started_s = self.clock.monotonic_s()
                loader = self._loader(partition)
                await self._log.load(partition, loader.take)
                shard = await self._executor.run(
                    loader.finish, ClockReading(self.clock.now_ms(), int(started_s * 1000))
                )
            del self._loading[partition]
            self._serve(partition, shard)
        except Exception:  # a loader's bug too: clients would wait forever for the load to end
            self._logger.exception("%s-%d cannot be loaded; it is not served here", self._topic, partition)
            self._loading.pop(partition, None)
            self._shards.pop(partition, None)
            return
        self._logger.info(
            "Finished loading %s-%d in %.0f milliseconds: %s",
            self._topic,
            partition,
            (self.clock.monotonic_s() - started_s) * 1000,
            self._summary(shard),
        )

    def _serve(self, partition: int, shard: S) -> None:
        runtime = self._shards[partition] = CoordinatorRuntime(partition, shard, self._log, self.clock)
        runtime.start()

    async def close(self) -> None:
        """Stop serving all shards."""
        self._closed = True
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        self._loading.clear()
        for runtime in self._shards.values():
            runtime.close()
        self._shards.clear()
        self.responses.deliver_all()

    # -- finding shards ------------------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """The partition of the topic that keeps `key`."""
        return coordinator_partition(key, self._log.partition_count())

    def runtime_at(self, partition: int) -> CoordinatorRuntime[S]:
        """The runtime of a partition's shard.

        Raises COORDINATOR_NOT_AVAILABLE (closing), COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is shutting down")
        runtime = self._shards.get(partition)
        if runtime is not None:
            return runtime
        if partition in self._loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._topic}-{partition} is being loaded")
        raise ApiError(ErrorCode.NOT_COORDINATOR, f"{self._topic}-{partition} is not coordinated by this broker")

    @property
    def is_loading(self) -> bool:
        """Whether any partition is still loading."""
        return bool(self._loading)

    @property
    def is_closed(self) -> bool:
        """Whether the service has stopped."""
        return self._closed

    def runtimes(self) -> list[CoordinatorRuntime[S]]:
        """The runtimes of all loaded shards."""
        return list(self._shards.values())
