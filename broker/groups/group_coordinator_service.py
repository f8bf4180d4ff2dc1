"""The group coordinators of this broker: one shard for each partition of __consumer_offsets that it leads.

The decisions are in `cluster.groups`; here are time, waiting and the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from typing import Final

from broker.environment.contract import Clock, Executor, Random
from broker.groups.coordinator_runtime import CoordinatorLog, CoordinatorRuntime, Responses
from broker.network.slices import in_slices
from cluster.groups.group import GroupState
from cluster.groups.group_table import GroupConfig
from cluster.groups.loader import GroupLoader
from cluster.groups.partitioning import coordinator_partition
from cluster.groups.results import Moment
from cluster.groups.shard import GroupShard
from config.broker_config import BrokerConfig
from protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")

LOADED_AT_ONCE: Final = 1
"""Partitions that are loaded at a time. Each needs a chunk of memory, and the interpreter runs one thread at a time."""


def group_config(config: BrokerConfig) -> GroupConfig:
    """Take the settings of the group coordinators from the broker's configuration."""
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )


class GroupCoordinatorService:
    """The shards led here. Methods raise ApiError for groups that are not coordinated here, or not yet.

    `responses` gives handlers the outcomes of events; by `clock` they cut long work into slices.
    """

    def __init__(
        self, config: GroupConfig, log: CoordinatorLog, clock: Clock, random: Random, executor: Executor
    ) -> None:
        self.responses = Responses()
        self.clock = clock
        self._config = config
        self._log = log
        self._random = random
        self._executor = executor
        self._shards: dict[int, CoordinatorRuntime] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._may_load = asyncio.Semaphore(LOADED_AT_ONCE)
        self._closed = False
        self._forgetting: asyncio.Future[None] | None = None
        """The last announced deletion of topics; it ends after the earlier ones."""

    # -- leadership ----------------------------------------------------------------------------------------------------

    def elected(self, partition: int) -> None:
        """Load a partition of __consumer_offsets that this broker leads now, then serve its groups."""
        self.resigned(partition)
        if self._closed:
            return
        if self._log.is_empty(partition):
            self._serve(partition, self._new_shard())
            return
        task = asyncio.get_running_loop().create_task(
            self._load(partition), name=f"load __consumer_offsets-{partition}"
        )
        self._loading[partition] = task

    def resigned(self, partition: int) -> None:
        """Stop serving the groups of a partition that this broker no longer leads."""
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
                loader = GroupLoader()
                await self._log.load(partition, loader.take)
                now = Moment(self.clock.now_ms(), int(started_s * 1000))
                shard = await self._executor.run(self._restored_shard, loader, now)
        except (ApiError, OSError):
            logger.exception("__consumer_offsets-%d cannot be loaded; its groups are not served here", partition)
            del self._loading[partition]
            return
        del self._loading[partition]
        self._serve(partition, shard)
        logger.info(
            "Finished loading offsets and group metadata from __consumer_offsets-%d in %.0f milliseconds: %d groups",
            partition,
            (self.clock.monotonic_s() - started_s) * 1000,
            len(shard.groups),
        )

    def _restored_shard(self, loader: GroupLoader, now: Moment) -> GroupShard:
        """Runs off the loop."""
        shard = GroupShard(self._config, self._new_id, loader.finish())
        shard.restore(now)
        return shard

    def _new_shard(self) -> GroupShard:
        return GroupShard(self._config, self._new_id)

    def _new_id(self) -> str:
        return str(self._random.uuid())

    def _serve(self, partition: int, shard: GroupShard) -> None:
        runtime = self._shards[partition] = CoordinatorRuntime(partition, shard, self._log, self.clock)
        runtime.start()

    async def close(self) -> None:
        """Stop: nothing is served any more."""
        self._closed = True
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        self._loading.clear()
        await self.topics_forgotten()
        for runtime in self._shards.values():
            runtime.close()
        self._shards.clear()
        self.responses.give_all()

    # -- finding shards ------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of __consumer_offsets that keeps a group."""
        return coordinator_partition(group_id, self._log.partition_count())

    def runtime_of(self, group_id: str, *, may_be_empty: bool = False) -> CoordinatorRuntime:
        """The runtime of a group's shard. The id "" stands for old consumers without one, where `may_be_empty` allows
        it.

        Raises INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE (closing), COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        if not group_id and not may_be_empty:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is shutting down")
        partition = self.partition_of(group_id)
        runtime = self._shards.get(partition)
        if runtime is not None:
            return runtime
        if partition in self._loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"__consumer_offsets-{partition} is being loaded")
        raise ApiError(ErrorCode.NOT_COORDINATOR, f"group {group_id!r} is not coordinated by this broker")

    @property
    def is_loading(self) -> bool:
        """Whether some groups are still being loaded."""
        return bool(self._loading)

    def runtimes(self) -> list[CoordinatorRuntime]:
        """All shards that are served."""
        return list(self._shards.values())

    # -- background ----------------------------------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Remove what is past its retention; to be called every offsets.retention.check.interval.ms."""
        for runtime in self.runtimes():
            async for group_id in in_slices(list(runtime.shard.groups), self.clock):
                if runtime.is_closed:
                    break
                runtime.handle(runtime.shard.offsets.expire, group_id)

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Forget offsets of topics that exist no more. It is done when `topics_forgotten` returns."""
        self._forgetting = asyncio.ensure_future(self._forget(frozenset(topics), self._forgetting))

    async def _forget(self, topics: Collection[str], earlier: asyncio.Future[None] | None) -> None:
        if earlier is not None:
            await earlier
        for runtime in self.runtimes():
            async for group_id in in_slices(list(runtime.shard.groups), self.clock):
                if runtime.is_closed:
                    break
                runtime.handle(runtime.shard.offsets.forget_topics, group_id, topics)

    async def topics_forgotten(self) -> None:
        """Wait until the offsets of all topics deleted so far are removed."""
        if self._forgetting is not None:
            await asyncio.shield(self._forgetting)

    def group_counts(self) -> Counter[GroupState]:
        """How many groups are in which state, for metrics."""
        return Counter(group.state for runtime in self.runtimes() for group in runtime.shard.groups.values())

    def offset_count(self) -> int:
        """How many offsets are kept, for metrics."""
        return sum(len(group.offsets) for runtime in self.runtimes() for group in runtime.shard.durable.groups.values())
