"""The group coordinators of this broker: one shard for each partition of __consumer_offsets that it leads.

`cluster.groups` makes the decisions; this module adds time, waiting and the log. It imports `cluster.groups` late, so a
broker that coordinates no groups never loads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker.coordinators.coordinator_runtime import CoordinatorLog, CoordinatorRuntime
from broker.coordinators.coordinator_service import CoordinatorService, ShardLoader
from cluster.coordinators.results import ClockReading
from cluster.groups.group_config import GroupConfig
from config.broker_config import BrokerConfig
from environment.contract import Clock, Executor, Random
from environment.slices import in_slices
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import CONSUMER_OFFSETS

if TYPE_CHECKING:
    from cluster.groups.group import GroupState
    from cluster.groups.loader import GroupLoader
    from cluster.groups.shard import GroupShard


def group_config(config: BrokerConfig) -> GroupConfig:
    """Extract the group coordinators' settings from the broker's configuration."""
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )


class GroupCoordinatorService(CoordinatorService["GroupShard"]):
    """The groups coordinated here. Methods raise ApiError for groups that are coordinated elsewhere, or still being
    loaded.
    """

    def __init__(
        self, config: GroupConfig, log: CoordinatorLog, clock: Clock, random: Random, executor: Executor
    ) -> None:
        super().__init__(CONSUMER_OFFSETS, log, clock, executor, "kafka.coordinator.group.GroupMetadataManager")
        self._config = config
        self._random = random
        self._forgetting: asyncio.Future[None] | None = None
        """Cleanup after the latest deletion of topics; it finishes after all earlier ones."""
        self._deleted_while_loading: dict[int, set[str]] = {}
        """Topics deleted while a partition of __consumer_offsets was loading."""

    def _loader(self, partition: int) -> ShardLoader[GroupShard]:
        from cluster.groups.loader import GroupLoader

        loader = GroupLoader()
        return ShardLoader(loader.take, partial(self._restored_shard, loader, partition))

    def _restored_shard(self, loader: GroupLoader, partition: int, now: ClockReading) -> GroupShard:
        from cluster.groups.shard import GroupShard

        most_record_bytes = partial(self._log.most_record_bytes, partition)
        shard = GroupShard(self._config, self._new_id, loader.finish(), most_record_bytes)
        shard.restore(now)
        return shard

    def resigned(self, partition: int) -> None:
        """See CoordinatorService."""
        self._deleted_while_loading.pop(partition, None)
        super().resigned(partition)

    def _serve(self, partition: int, shard: GroupShard) -> None:
        super()._serve(partition, shard)
        if topics := self._deleted_while_loading.pop(partition, None):
            self._start_forgetting(topics, [self._shards[partition]])

    def _summary(self, shard: GroupShard) -> str:
        return f"{len(shard.groups)} groups"

    def _new_id(self) -> str:
        return self._random.uuid().dashed()

    async def close(self) -> None:
        """Stop serving all groups."""
        self._closed = True
        await self.topics_forgotten()
        await super().close()

    def runtime_of(self, group_id: str, *, may_be_empty: bool = False) -> CoordinatorRuntime[GroupShard]:
        """The runtime of a group's shard. `may_be_empty` allows the id "", which stands for old consumers without a
        group id. Raises INVALID_GROUP_ID, and what `runtime_at` raises.
        """
        if not group_id and not may_be_empty:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        return self.runtime_at(self.partition_of(group_id))

    # -- background ----------------------------------------------------------------------------------------------------

    def postpone_sessions(self, by_ms: int) -> None:
        """Expect the next heartbeats of all members later."""
        for runtime in self._shards.values():
            runtime.shard.postpone_sessions(by_ms)

    async def expire_offsets(self) -> None:
        """Remove expired offsets. Must be called every offsets.retention.check.interval.ms."""
        for runtime in self.runtimes():
            async for group_id in in_slices(list(runtime.shard.groups), self.clock):
                if runtime.is_closed:
                    break
                runtime.handle(runtime.shard.offsets.expire, group_id)

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Start removing the offsets committed so far for deleted topics. See `topics_forgotten`."""
        for partition in self._loading:
            self._deleted_while_loading.setdefault(partition, set()).update(topics)
        self._start_forgetting(topics, self.runtimes())

    def _start_forgetting(self, topics: Collection[str], runtimes: Sequence[CoordinatorRuntime[GroupShard]]) -> None:
        served = [(runtime, runtime.shard.offsets.next_number) for runtime in runtimes]
        self._forgetting = asyncio.ensure_future(self._forget(frozenset(topics), served, self._forgetting))

    async def _forget(
        self,
        topics: Collection[str],
        served: Sequence[tuple[CoordinatorRuntime[GroupShard], int]],
        earlier: asyncio.Future[None] | None,
    ) -> None:
        if earlier is not None:
            await earlier
        for runtime, first_kept in served:
            async for group_id in in_slices(list(runtime.shard.groups), self.clock):
                if runtime.is_closed:
                    break
                try:
                    runtime.handle(runtime.shard.offsets.forget_topics, group_id, topics, first_kept)
                except Exception:  # a bug; without this, no later deletion would finish
                    self._logger.exception(
                        "Offsets of group %s in deleted topics may stay: %s", group_id, ", ".join(topics)
                    )

    async def topics_forgotten(self) -> None:
        """Wait until tombstones for the offsets of all topics deleted so far are in the logs, or will be retried."""
        if self._forgetting is not None:
            await asyncio.shield(self._forgetting)

    def group_counts(self) -> Counter[GroupState]:
        """Number of groups by state, for metrics."""
        return Counter(group.state for runtime in self.runtimes() for group in runtime.shard.groups.values())

    def offset_count(self) -> int:
        """Number of stored offsets, for metrics."""
        return sum(len(group.offsets) for runtime in self.runtimes() for group in runtime.shard.durable.groups.values())
