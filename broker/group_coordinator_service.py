"""Runs the group coordinators: one shard for each partition of __consumer_offsets that this broker leads.

The decisions are in `cluster.coordinator`; here are time, waiting and the log. A shard's appends are reported to it in
the order in which they were made. A shard has at most one timer on the event loop, and none while nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from broker.seams import Clock, Executor, Random
from cluster.coordinator.durable_groups import DurableGroups
from cluster.coordinator.group import GroupState
from cluster.coordinator.group_table import GroupConfig
from cluster.coordinator.partitioning import coordinator_partition
from cluster.coordinator.shard import GroupShard
from cluster.coordinator.turn import Append, Turn
from config.broker_config import BrokerConfig
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.records import Record, read_batches

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")

R = TypeVar("R")


def group_config(config: BrokerConfig) -> GroupConfig:
    """What the group coordinators go by."""
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )


class CoordinatorLog(Protocol):
    """The partitions of __consumer_offsets."""

    def partition_count(self) -> int:
        """Partitions of the topic, or those it will be created with."""
        ...

    def append(self, partition: int, records: Sequence[Record]) -> asyncio.Future[int]:
        """Append one batch; the future gives the offset of its first record once it is committed (acks=all).

        It fails with ApiError, and may be done already when it is returned. Futures of one partition are done in the
        order of the appends.
        """
        ...

    def is_empty(self, partition: int) -> bool:
        """Whether there is nothing to load."""
        ...

    def read(self, partition: int) -> AsyncIterator[bytes]:
        """All complete batches up to the log end of this moment, in order, a bounded chunk at a time."""
        ...


class Reply(Generic[R]):
    """An answer that is there already, or will come."""

    __slots__ = ("_future", "_value")

    def __init__(self) -> None:
        self._value: R | None = None
        self._future: asyncio.Future[R] | None = None

    def set(self, value: R) -> None:
        """Give the answer; nothing happens when whoever waited has gone."""
        if self._future is None:
            self._value = value
        elif not self._future.done():
            self._future.set_result(value)

    def get(self) -> R | asyncio.Future[R]:
        """The answer, or a future for it. To be called once."""
        if self._value is not None:
            return self._value
        self._future = asyncio.get_running_loop().create_future()
        return self._future


class ShardDriver:
    """One shard with its log and its timer."""

    def __init__(self, partition: int, shard: GroupShard, log: CoordinatorLog, clock: Clock) -> None:
        self.shard = shard
        self._partition = partition
        self._log = log
        self._clock = clock
        self._in_flight: deque[tuple[Append, asyncio.Future[int]]] = deque()
        self._reporting = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False

    def run(self, event: Callable[[Turn], R]) -> R:
        """Let the shard handle an event, and carry out what follows."""
        turn = self._new_turn()
        result = event(turn)
        self._carry_out(turn)
        self._report()
        self._set_timer()
        return result

    def close(self, *, resigned: bool) -> None:
        """Stop the timer; `resigned` sends away who waits."""
        if resigned:
            self.run(self.shard.resign)
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _new_turn(self) -> Turn:
        return Turn(self._clock.now_ms(), int(self._clock.monotonic_s() * 1000))

    def _carry_out(self, turn: Turn) -> None:
        for reply in turn.replies:
            reply()
        for append in turn.appends:
            future = self._write(append, turn.now_ms)
            self._in_flight.append((append, future))
            if not future.done():
                future.add_done_callback(self._on_written)

    def _write(self, append: Append, now_ms: int) -> asyncio.Future[int]:
        try:
            records = [Record(0, now_ms, *record.encode()) for record in append.records]
            return self._log.append(self._partition, records)
        except (ApiError, EncodeError) as error:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _on_written(self, _: asyncio.Future[int]) -> None:
        self._report()
        self._set_timer()

    def _report(self) -> None:
        """Tell the shard of finished appends, oldest first. What follows may append again, hence the guard."""
        if self._reporting:
            return
        self._reporting = True
        try:
            while self._in_flight and self._in_flight[0][1].done():
                append, future = self._in_flight.popleft()
                turn = self._new_turn()
                error_code = _error_of(future)
                if error_code is ErrorCode.NONE:
                    self.shard.complete(append, future.result(), turn)
                else:
                    self.shard.fail(append, error_code, turn)
                self._carry_out(turn)
        finally:
            self._reporting = False

    def _set_timer(self) -> None:
        next_ms = self.shard.next_deadline_ms()
        if next_ms is None or self._closed or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, next_ms / 1000 - self._clock.monotonic_s())
        self._timer_ms = next_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.run(self.shard.expire)


def _error_of(future: asyncio.Future[int]) -> ErrorCode:
    if future.cancelled():
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    error = future.exception()
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, ApiError):
        return error.error_code
    logger.error("A group record could not be written", exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR


class GroupCoordinatorService:
    """The shards led here. Methods raise ApiError for groups that are not coordinated here, or not yet."""

    def __init__(
        self, config: GroupConfig, log: CoordinatorLog, clock: Clock, random: Random, executor: Executor
    ) -> None:
        self._config = config
        self._log = log
        self._clock = clock
        self._random = random
        self._executor = executor
        self._shards: dict[int, ShardDriver] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    # -- leadership ----------------------------------------------------------------------------------------------------

    def elected(self, partition: int) -> None:
        """This broker leads a partition of __consumer_offsets: load it, then serve its groups."""
        self.resigned(partition)
        if self._closed:
            return
        if self._log.is_empty(partition):
            self._serve(partition, DurableGroups())
            return
        task = asyncio.get_running_loop().create_task(
            self._load(partition), name=f"load __consumer_offsets-{partition}"
        )
        self._loading[partition] = task

    def resigned(self, partition: int) -> None:
        """This broker leads the partition no more."""
        loading = self._loading.pop(partition, None)
        if loading is not None:
            loading.cancel()
        driver = self._shards.pop(partition, None)
        if driver is not None:
            driver.close(resigned=True)

    async def _load(self, partition: int) -> None:
        started_s = self._clock.monotonic_s()
        durable = DurableGroups()
        try:
            async for chunk in self._log.read(partition):
                await self._executor.run(_replay, durable, chunk)
        except (ApiError, OSError):
            logger.exception("__consumer_offsets-%d cannot be loaded; its groups are not served here", partition)
            del self._loading[partition]
            return
        del self._loading[partition]
        self._serve(partition, durable)
        logger.info(
            "Finished loading offsets and group metadata from __consumer_offsets-%d in %.0f milliseconds: %d groups",
            partition,
            (self._clock.monotonic_s() - started_s) * 1000,
            len(durable.groups),
        )

    def _serve(self, partition: int, durable: DurableGroups) -> None:
        shard = GroupShard(self._config, lambda: str(self._random.uuid()), durable)
        driver = self._shards[partition] = ShardDriver(partition, shard, self._log, self._clock)
        driver.run(shard.start)

    async def close(self) -> None:
        """Stop: nothing is served any more."""
        self._closed = True
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        self._loading.clear()
        for driver in self._shards.values():
            driver.close(resigned=True)
        self._shards.clear()

    # -- finding shards ------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of __consumer_offsets that keeps a group."""
        return coordinator_partition(group_id, self._log.partition_count())

    def driver_of(self, group_id: str, *, may_be_empty: bool = False) -> ShardDriver:
        """Who runs a group's shard. The id "" stands for old consumers without one, where `may_be_empty` allows it.

        Raises INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE (closing), COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        if not group_id and not may_be_empty:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is shutting down")
        partition = self.partition_of(group_id)
        driver = self._shards.get(partition)
        if driver is not None:
            return driver
        if partition in self._loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"__consumer_offsets-{partition} is being loaded")
        raise ApiError(ErrorCode.NOT_COORDINATOR, f"group {group_id!r} is not coordinated by this broker")

    @property
    def is_loading(self) -> bool:
        """Whether some groups are not known yet."""
        return bool(self._loading)

    def drivers(self) -> list[ShardDriver]:
        """All shards that are served."""
        return list(self._shards.values())

    # -- background ----------------------------------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Remove what is past its retention; to be called every offsets.retention.check.interval.ms."""
        for driver in self.drivers():
            driver.run(driver.shard.offsets.expire)
            await asyncio.sleep(0)

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Forget offsets of topics that exist no more."""
        for driver in self.drivers():
            driver.run(partial(driver.shard.offsets.forget_topics, topics=topics))

    def group_counts(self) -> Counter[GroupState]:
        """How many groups are in which state, for metrics."""
        return Counter(group.state for driver in self.drivers() for group in list(driver.shard.groups.values()))

    def offset_count(self) -> int:
        """How many offsets are kept, for metrics."""
        return sum(
            len(group.offsets) for driver in self.drivers() for group in list(driver.shard.durable.groups.values())
        )


def _replay(durable: DurableGroups, chunk: bytes) -> None:
    for batch in read_batches(memoryview(chunk)):
        durable.replay_batch(batch)
