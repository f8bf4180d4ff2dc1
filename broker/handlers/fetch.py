"""Fetch: records from the log, at once or when enough have come (KIP-227, KIP-320, KIP-516)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import cast
from uuid import UUID

from broker.fetch_session import ErrorFetchContext, FetchContext, FetchPartition, FetchSessionCache, PartitionData
from broker.network.file_slice import FileSlice
from broker.registry import RequestContext, api
from broker.replica_manager import ReplicaManager
from broker.seams import Executor
from cluster.partition import IsolationLevel, Partition
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import FetchRequest, FetchResponse
from protocol.records import CompressionType
from protocol.topic_partition import TopicPartition
from storage.log_reader import FetchDataInfo

UNKNOWN_OFFSET = -1
COLD_ATTEMPTS = 3
"""How often what was just brought into memory may be gone again before the client is answered without it."""
FIRST_VERSION_OF_ZSTD = 10
REFUSED_UNREAD = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors of a partition that is not even looked at."""

Result = tuple[FetchPartition, PartitionData]


class FetchHandlers:
    """Reads for consumers. `max_response_bytes` is the broker's own cap (fetch.max.bytes)."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        sessions: FetchSessionCache,
        executor: Executor,
        max_response_bytes: int,
    ) -> None:
        self._replica_manager = replica_manager
        self._sessions = sessions
        self._executor = executor
        self._max_response_bytes = max_response_bytes

    @api(ApiKey.FETCH, versions=(4, 17))
    def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse | Awaitable[FetchResponse]:
        """Answer at once when enough is there, something failed or nobody wants to wait; else when it comes."""
        fetch = self._sessions.open(request, context.api_version, self._replica_manager.topic_name)
        if isinstance(fetch, ErrorFetchContext) or not fetch.partitions:
            return fetch.respond(())
        reader = _Reader(
            self._replica_manager, request, context.api_version, fetch.partitions, self._max_response_bytes
        )
        answer_now = reader.read()
        if reader.cold:
            return self._fetch_cold(fetch, reader, request.max_wait_ms)
        if answer_now or request.max_wait_ms <= 0:
            return self._answer(fetch, reader.results)
        return self._wait(fetch, reader, request.max_wait_ms)

    def _wait(self, fetch: FetchContext, reader: _Reader, max_wait_ms: int) -> asyncio.Future[FetchResponse]:
        def attempt(expired: bool) -> FetchResponse | None:
            return self._answer(fetch, reader.results) if reader.read() or reader.cold or expired else None

        return self._replica_manager.delayed_fetches.watch(reader.keys(), max_wait_ms, attempt)

    async def _fetch_cold(self, fetch: FetchContext, reader: _Reader, max_wait_ms: int) -> FetchResponse:
        """Let a thread bring into memory what tells where the records are, and read again."""
        answer_now = False
        for _ in range(COLD_ATTEMPTS):
            for look_up in reader.cold:
                with contextlib.suppress(ApiError):  # the next attempt meets it again, and answers it
                    await self._executor.run(look_up)
            answer_now = reader.read()
            if not reader.cold:
                break
        if answer_now or reader.cold or max_wait_ms <= 0:
            return self._answer(fetch, reader.results)
        return await self._wait(fetch, reader, max_wait_ms)

    def _answer(self, fetch: FetchContext, results: list[Result]) -> FetchResponse:
        for wanted, data in results:
            if data.records and wanted.topic is not None:
                topic_partition = TopicPartition(wanted.topic, wanted.partition)
                self._replica_manager.partition(topic_partition).statistics.bytes_out += len(data.records)
        return fetch.respond(results)


def _slice(info: FetchDataInfo | None) -> bytes | memoryview:
    if info is None or info.file is None:
        return b""
    # Passed through the encoder as a part of its own; the connection reads it when the socket has room.
    return cast("memoryview", FileSlice(info.file, info.position, info.size))


class _Reader:
    """Reads the partitions of one Fetch request, possibly several times while it waits."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        request: FetchRequest,
        version: int,
        partitions: Iterable[FetchPartition],
        max_response_bytes: int,
    ) -> None:
        self._replica_manager = replica_manager
        self._reads_zstd = version >= FIRST_VERSION_OF_ZSTD
        self._partitions = partitions
        self._isolation = IsolationLevel.of(request.isolation_level)
        self._max_bytes = min(request.max_bytes, max_response_bytes)
        self._min_bytes = request.min_bytes
        self._is_consumer = request.replica_id < 0 and (
            request.replica_state is None or request.replica_state.replica_id < 0
        )
        self.results: list[Result] = []
        self.cold: list[Callable[[], object]] = []
        """Look-ups that the last `read` left out because they would have waited for the disk."""

    def keys(self) -> set[TopicPartition]:
        """What the request waits for."""
        return {TopicPartition(p.topic, p.partition) for p in self._partitions if p.topic is not None}

    def read(self) -> bool:
        """Read everything into `results`; whether the client should be answered now."""
        self.results = results = []
        self.cold = []
        remaining = self._max_bytes
        total = 0
        answer_now = False
        for partition in self._partitions:
            data = self._read_partition(partition, remaining, at_least_one=total == 0)
            size = len(data.records or b"")
            remaining = max(0, remaining - size)
            total += size
            if data.error_code or data.diverging_epoch is not None:
                answer_now = True
            results.append((partition, data))
        return answer_now or total >= self._min_bytes

    def _read_partition(self, wanted: FetchPartition, remaining: int, *, at_least_one: bool) -> PartitionData:
        try:
            return self._read_log(wanted, remaining, at_least_one=at_least_one)
        except ApiError as error:
            return PartitionData(
                partition_index=wanted.partition,
                error_code=error.error_code,
                high_watermark=UNKNOWN_OFFSET,
                last_stable_offset=UNKNOWN_OFFSET,
                log_start_offset=UNKNOWN_OFFSET,
                # Kafka refuses these before it reads; its other errors have what a successful read has.
                aborted_transactions=[] if error.error_code in REFUSED_UNREAD else self._no_aborted_transactions(),
                records=b"",
            )

    def _read_log(self, wanted: FetchPartition, remaining: int, *, at_least_one: bool) -> PartitionData:
        if wanted.topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {wanted.topic_id}")
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        partition = self._replica_manager.leader_of(topic_partition, wanted.current_leader_epoch)
        self._check_topic_id(partition, wanted.topic_id)
        if not self._reads_zstd and partition.log.config.compression_type is CompressionType.ZSTD:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{topic_partition} is kept in zstd, which this version has not"
            )
        if not self._is_consumer:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the fetching broker is not a replica of {topic_partition}"
            )
        if wanted.last_fetched_epoch >= 0:
            diverging = self._diverging_epoch(partition, wanted)
            if diverging is not None:
                return diverging
        offsets = partition.offsets()
        end = offsets.last_stable_offset if self._isolation is IsolationLevel.READ_COMMITTED else offsets.high_watermark
        max_bytes = min(wanted.max_bytes, remaining)
        log = partition.log
        info = log.try_read(wanted.fetch_offset, max_bytes, end, at_least_one)
        if info is None:
            self.cold.append(partial(log.read, wanted.fetch_offset, max_bytes, end, at_least_one))
        aborted = self._no_aborted_transactions()
        if aborted is not None and info is not None and info.size:
            if not partition.aborted_transactions.are_known(log):
                self.cold.append(partial(partition.aborted_transactions.learn, log))
                info = None
            else:
                aborted = [
                    FetchResponse.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                    for each in partition.aborted_transactions.between(log, wanted.fetch_offset, end)
                ]
        return PartitionData(
            partition_index=wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            aborted_transactions=aborted,
            records=_slice(info),
        )

    def _diverging_epoch(self, partition: Partition, wanted: FetchPartition) -> PartitionData | None:
        """KIP-595: tell a reader whose log split from ours where the common part ends."""
        epoch, end_offset = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if end_offset == UNKNOWN_OFFSET:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the end of epoch {wanted.last_fetched_epoch} of {partition.topic_partition} is not known",
            )
        if epoch == wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
            return None
        offsets = partition.offsets()
        return PartitionData(
            partition_index=wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            aborted_transactions=self._no_aborted_transactions(),
            diverging_epoch=FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset),
            records=b"",
        )

    def _no_aborted_transactions(self) -> list[FetchResponse.AbortedTransaction] | None:
        # A read_uncommitted reader gets null, as from Kafka.
        return [] if self._isolation is IsolationLevel.READ_COMMITTED else None

    @staticmethod
    def _check_topic_id(partition: Partition, topic_id: UUID) -> None:
        if topic_id.int and partition.log.topic_id is not None and partition.log.topic_id != topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{partition.topic_partition} has another topic id")
