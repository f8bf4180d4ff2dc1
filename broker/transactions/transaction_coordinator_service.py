"""The transaction coordinators of this broker: one shard for each partition of __transaction_state that it leads.

`cluster.transactions` makes the decisions; this module adds time, waiting, the log and new producer ids. It imports
`cluster.transactions` late, so a broker that coordinates no transactions never loads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.coordinators.coordinator_runtime import CoordinatorLog, CoordinatorRuntime
from broker.coordinators.coordinator_service import CoordinatorService, ShardLoader
from broker.transactions.marker_sender import MarkerSender, MarkerWork
from cluster.coordinators.results import ClockReading
from cluster.znodes import ProducerIdBlock
from environment.contract import Clock, Executor
from environment.slices import in_slices
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TRANSACTION_STATE, TopicPartition

if TYPE_CHECKING:
    from cluster.transactions.open_transactions import Markers
    from cluster.transactions.producer_sessions import Initialized
    from cluster.transactions.transaction_records import TransactionLoader
    from cluster.transactions.transaction_shard import TransactionShard

IDS_PER_BATCH: Final = 500
"""Transactional ids removed with one batch of tombstones."""


class TransactionCoordinatorService(CoordinatorService["TransactionShard"]):
    """The transactional ids coordinated here. Methods raise ApiError for ids that are coordinated elsewhere, or still
    being loaded.
    """

    def __init__(
        self,
        log: CoordinatorLog,
        clock: Clock,
        executor: Executor,
        sender: MarkerSender,
        leader_epoch: Callable[[TopicPartition], int],
        next_producer_id: Callable[[], Awaitable[int]],
        *,
        max_timeout_ms: int,
        id_expiration_ms: int,
    ) -> None:
        """`leader_epoch` returns the epoch of a partition led here, `next_producer_id` a new producer id. The other
        settings are transaction.max.timeout.ms and transactional.id.expiration.ms.
        """
        super().__init__(
            TRANSACTION_STATE, log, clock, executor, "kafka.coordinator.transaction.TransactionStateManager"
        )
        self._max_timeout_ms = max_timeout_ms
        self._id_expiration_ms = id_expiration_ms
        self._sender = sender
        self._leader_epoch = leader_epoch
        self._next_producer_id = next_producer_id

    def _loader(self, partition: int) -> ShardLoader[TransactionShard]:
        from cluster.transactions.transaction_records import TransactionLoader

        loader = TransactionLoader()
        return ShardLoader(loader.take, partial(self._restored_shard, partition, loader))

    def _restored_shard(self, partition: int, loader: TransactionLoader, _: ClockReading) -> TransactionShard:
        from cluster.transactions.transaction_shard import TransactionShard
        from cluster.transactions.transaction_table import TransactionConfig

        config = TransactionConfig(self._max_timeout_ms, self._id_expiration_ms)
        return TransactionShard(config, partial(self._send, partition), loader.finish())

    def _summary(self, shard: TransactionShard) -> str:
        return f"{len(shard.ids())} transactional ids"

    def _send(self, partition: int, markers: Markers) -> None:
        runtime = self._shards.get(partition)
        if runtime is None:
            return  # this broker has just resigned
        epoch = self._leader_epoch(TopicPartition(TRANSACTION_STATE, partition))
        marked = partial(_report, runtime, markers)
        self._sender.send(MarkerWork(markers, epoch, marked, lambda: runtime.is_closed))

    async def close(self) -> None:
        """Stop serving, and stop sending markers."""
        await self._sender.close()
        await super().close()

    def runtime_of(self, transactional_id: str) -> CoordinatorRuntime[TransactionShard]:
        """The runtime of a transactional id's shard. Raises INVALID_REQUEST for an empty id, and what `runtime_at`
        raises.
        """
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        return self.runtime_at(self.partition_of(transactional_id))

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> Initialized:
        """See `ProducerSessions.init_producer_id`; returns once committed. `expected` is the producer's current id and
        epoch. Raises what `runtime_of` and `next_producer_id` raise.
        """
        from cluster.transactions.producer_sessions import NEEDS_ID, ProducerIdAndEpoch

        identity = None if expected is None else ProducerIdAndEpoch(*expected)
        fresh_id = None
        while True:
            runtime = self.runtime_of(transactional_id)
            event = runtime.shard.producers.init_producer_id
            outcome = runtime.handle(event, transactional_id, timeout_ms, identity, fresh_id)
            if outcome is not NEEDS_ID:
                break
            fresh_id = await self._next_producer_id()
        answer = self.responses.respond(outcome, _same)
        return await answer if isinstance(answer, asyncio.Future) else answer

    # -- background ----------------------------------------------------------------------------------------------------

    async def abort_late_transactions(self) -> None:
        """Abort transactions that exceeded their timeout. Must be called every
        transaction.abort.timed.out.transaction.cleanup.interval.ms.
        """
        for runtime in self.runtimes():
            async for transactional_id in in_slices(runtime.shard.ids(), self.clock):
                if runtime.is_closed:
                    break
                runtime.handle(runtime.shard.abort_if_late, transactional_id)

    async def forget_unused_ids(self) -> None:
        """Remove expired transactional ids. Must be called every
        transaction.remove.expired.transaction.cleanup.interval.ms.
        """
        for runtime in self.runtimes():
            ids = runtime.shard.ids()
            shares = [ids[start : start + IDS_PER_BATCH] for start in range(0, len(ids), IDS_PER_BATCH)]
            async for share in in_slices(shares, self.clock):
                if runtime.is_closed:
                    break
                runtime.handle(runtime.shard.forget_unused, share)


def _report(
    runtime: CoordinatorRuntime[TransactionShard], markers: Markers, partitions: Sequence[TopicPartition]
) -> None:
    if not runtime.is_closed:
        runtime.handle(runtime.shard.transactions.marked, markers, partitions)


def _same(initialized: Initialized) -> Initialized:
    return initialized


class ProducerIds:
    """Hands out producer ids. `allocate_block` reserves the next block in the coordination tree."""

    def __init__(self, allocate_block: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._last = -1
        self._allocating = asyncio.Lock()

    async def next_id(self) -> int:
        """Return an unused producer id. Raises what `allocate_block` raises when the current block is used up."""
        async with self._allocating:
            if self._next > self._last:
                block = await self._allocate_block()
                self._next, self._last = block.first, block.last
            producer_id = self._next
            self._next += 1
            return producer_id
