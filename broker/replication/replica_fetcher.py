"""Fetching from one leader for its followers here (Kafka classes `ReplicaFetcherThread`, `AbstractFetcherThread`).
`cluster.replication.follower` interprets an answer; this module acts on it.

One task sends a fetch, processes the answer, and sends the next. A partition that fails is paused; the others continue.
Bringing a follower's log back to a state shared with its leader's takes a thread or another request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from broker.logs.group_commit import GroupCommit
from broker.replication.follower_session import Followed, FollowedReplicas, FollowerSession
from broker.replication.replication_quota import ReplicationQuota
from client.errors import DisconnectedError
from cluster.replication.follower import Decision, FetchPosition, Step, after_answer, after_offsets, position
from cluster.replication.partition import Partition
from environment.contract import Clock, Executor
from environment.slices import in_slices
from protocol.errors import ApiError, DecodeError, ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from protocol.wire.schema import Request, Response
from storage.log.leader_epoch import EpochEntry
from storage.log.truncation import TruncationTask

logger = logging.getLogger("kafka.server.ReplicaFetcherThread")

R = TypeVar("R", bound=Response)

LIST_OFFSETS_VERSION = 9
LATEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP = -1, -4


class LeaderConnection(Protocol):
    """The part of `InterBrokerClient` that a fetcher needs."""

    async def ask(self, request: Request, response_type: type[R], version: int, timeout_ms: int | None = None) -> R: ...

    def close(self) -> None: ...


class FetcherSettings(Value):
    """Kafka's replica.fetch.* settings, and the id of this broker."""

    broker_id: int
    max_bytes: int
    response_max_bytes: int
    min_bytes: int
    wait_max_ms: int
    backoff_ms: int


class FollowerRepairs:
    """Repairs logs of replicas that follow the broker `leader_id`. Do not append to a log during its repair."""

    def __init__(self, leader_id: int, broker_id: int, clock: Clock, executor: Executor) -> None:
        self._leader_id = leader_id
        self._broker_id = broker_id
        self._clock = clock
        self._executor = executor

    async def fetch_offsets(self, connection: LeaderConnection, partition: Partition, leader_epoch: int) -> Decision:
        """Ask the leader where its log ends and begins, and decide what to do. Raises DisconnectedError, and ApiError
        for an error code in the answer.
        """
        name = partition.topic_partition
        end_offset = await self._list_offset(connection, name, leader_epoch, LATEST_TIMESTAMP)
        start_offset = await self._list_offset(connection, name, leader_epoch, EARLIEST_LOCAL_TIMESTAMP)
        return after_offsets(partition.log, start_offset, end_offset)

    async def _list_offset(
        self, connection: LeaderConnection, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        asked = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=topic_partition.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name=topic_partition.topic, partitions=[asked])
        request = ListOffsetsRequest(replica_id=self._broker_id, topics=[topic])
        response = await connection.ask(request, ListOffsetsResponse, LIST_OFFSETS_VERSION)
        listed = response.topics[0].partitions[0]
        if listed.error_code:
            raise ApiError(ErrorCode.of(listed.error_code), f"broker {self._leader_id} did not tell its offsets")
        return listed.offset

    async def truncate(self, partition: Partition, offset: int) -> None:
        """Truncate the log to `offset`. Raises ApiError KAFKA_STORAGE_ERROR."""
        name, high_watermark = partition.topic_partition, partition.high_watermark
        if offset < high_watermark:
            logger.warning("Truncating %s to offset %d, below its high watermark %d", name, offset, high_watermark)
        else:
            logger.info("Truncating %s to offset %d", name, offset)
        await self._run(partition, partition.begin_truncation(offset, self._clock.now_ms()))

    async def truncate_fully_and_start_at(self, partition: Partition, offset: int) -> None:
        """Delete all records, and restart the log at `offset`. Raises ApiError KAFKA_STORAGE_ERROR."""
        logger.info("%s starts over at offset %d", partition.topic_partition, offset)
        await self._run(partition, partition.begin_full_truncation(offset, self._clock.now_ms()))

    async def _run(self, partition: Partition, task: TruncationTask) -> None:
        await self._executor.run(task.run)
        partition.end_truncation(task)


INTERRUPT_AFTER_S = 0.02
"""A leader with records answers within this time."""
FIRST_VERSION_OF_REPLICA_STATE = 15
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors that only require a new session."""


_LEADER_HAS_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Answers of a broker that is not the leader any more, or not yet."""


class ReplicaFetcher:
    """The fetches of some replicas from the broker `leader_id`, over a separate connection.

    `connect()` returns the connection, which may be closed and replaced. `broker_epoch()` is the epoch of this broker's
    registration. `changed(partition)` is called when a high watermark has moved. `quota` limits the fetched bytes.
    `keep_log_starts` returns once the current log start offsets are on disk.
    """

    def __init__(
        self,
        leader_id: int,
        connect: Callable[[], LeaderConnection],
        settings: FetcherSettings,
        clock: Clock,
        executor: Executor,
        group_commit: GroupCommit,
        broker_epoch: Callable[[], int],
        changed: Callable[[TopicPartition], None],
        quota: ReplicationQuota,
        keep_log_starts: Callable[[], Awaitable[None]],
    ) -> None:
        self.leader_id = leader_id
        self._connect = connect
        self._connection = connect()
        self._settings = settings
        self._clock = clock
        self._repairs = FollowerRepairs(leader_id, settings.broker_id, clock, executor)
        self._group_commit = group_commit
        self._broker_epoch = broker_epoch
        self._changed = changed
        self._session = FollowerSession(settings.max_bytes)
        self._replicas = FollowedReplicas(self._session, quota, settings.backoff_ms, clock.monotonic_s)
        self._followed = self._replicas.all
        self._keep_log_starts = keep_log_starts
        self._is_closing = False
        self._is_unreachable = False
        self._fetches = 0
        self._is_waiting = False
        """Whether a fetch is outstanding."""
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"replica-fetcher-{leader_id}")

    # -- replicas ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._followed

    def add(self, partition: Partition) -> None:
        """Fetch for a replica that has become a follower of this leader."""
        topic_partition = partition.topic_partition
        self.drop(topic_partition)
        self._replicas.add(partition)
        self._wake.set()
        if self._is_waiting:
            asyncio.get_running_loop().call_later(INTERRUPT_AFTER_S, self._interrupt, self._fetches)

    def _interrupt(self, number: int) -> None:
        """Abort fetch `number` if it is still outstanding. The leader has nothing for it, and newly added replicas
        would have to wait for its answer, which would slow down each leader change.
        """
        if self._is_waiting and self._fetches == number and self._replicas.due and not self._is_closing:
            before, self._connection = self._connection, self._connect()
            before.close()

    def drop(self, topic_partition: TopicPartition) -> asyncio.Future[None] | None:
        """Stop fetching for a replica: nothing is appended from now on. Before the replica gets another role, await the
        returned work of other threads on its log.
        """
        followed = self._replicas.drop(topic_partition)
        return None if followed is None else followed.work

    async def close(self) -> None:
        """Stop, once running work has ended."""
        self._is_closing = True
        self._wake.set()
        self._connection.close()
        await asyncio.gather(self._task, return_exceptions=True)

    # -- fetches -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            self._replicas.resume_due()
            try:
                await self._round()
            except Exception:  # a bug, but without a restart nothing would be fetched from this leader
                logger.exception("Fetching from broker %d failed; it begins again", self.leader_id)
                self._restart_session()

    async def _round(self) -> None:
        """One fetch, with the work before and after it."""
        await self._flush_what_is_due()
        await self._keep_log_starts_due()
        self._request_positions()
        if not self._session.positions:
            await self._pause()
            return
        connection = self._connection
        try:
            self._is_waiting = True
            self._fetches += 1
            response = await self._fetch()
        except (DisconnectedError, DecodeError, ApiError, OSError) as error:
            self._session.reset()
            if connection is self._connection:
                self._unreachable(error)
            return
        finally:
            self._is_waiting = False
        self._is_unreachable = False
        await self._process_response(response)

    def _restart_session(self) -> None:
        """Pause all replicas, then fetch in a new session."""
        self._replicas.delay(list(self._followed))
        self._session.reset()

    async def _flush_what_is_due(self) -> None:
        """A position confirms everything below it. So the flush that flush.messages requires comes before the position
        is sent, whether the records came from this leader or existed before.
        """
        while in_progress := [
            self._begin_flush(topic_partition, self._followed[topic_partition], target)
            for topic_partition in self._replicas.due
            if (target := self._followed[topic_partition].flush_target) is not None
        ]:
            await asyncio.gather(*in_progress)

    async def _keep_log_starts_due(self) -> None:
        """A position also confirms the log start offset, and DeleteRecords is answered when all replicas have confirmed
        it. If the leader dies in between, deleted records must not come back.
        """
        moved = [each for each in map(self._followed.__getitem__, self._replicas.due) if each.log_start_moved]
        if not moved:
            return
        try:
            await self._keep_log_starts()
        except ApiError as error:
            for followed in moved:
                topic_partition = followed.partition.topic_partition
                if self._followed.get(topic_partition) is followed:
                    self._failed(topic_partition, followed, error)
            return
        for followed in moved:
            followed.log_start_moved = False

    def _begin_flush(self, topic_partition: TopicPartition, followed: Followed, target: int) -> asyncio.Future[None]:
        followed.work = asyncio.ensure_future(self._flush(topic_partition, followed, target))
        return followed.work

    async def _flush(self, topic_partition: TopicPartition, followed: Followed, target: int) -> None:
        """Flush, and apply the leader's high watermark again: the leader sends it only once, and only now the log
        reaches it.
        """
        try:
            await self._group_commit.wait(followed.partition.log, target)
            if self._followed.get(topic_partition) is followed:
                self._append(followed, memoryview(b""))
        except ApiError as error:
            if self._followed.get(topic_partition) is followed:
                self._failed(topic_partition, followed, error)

    def _request_positions(self) -> None:
        due, self._replicas.due = self._replicas.due, {}
        for topic_partition in due:
            followed = self._followed[topic_partition]
            log = followed.partition.log
            try:
                self._session.ask(topic_partition, log.topic_id, position(log, followed.leader_epoch))
            except ApiError as error:
                self._failed(topic_partition, followed, error)

    async def _pause(self) -> None:
        """Wait until there is something to fetch."""
        try:
            async with asyncio.timeout(self._replicas.pause_s()):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _fetch(self) -> FetchResponse:
        settings = self._settings
        request, version = self._session.request()
        if version >= FIRST_VERSION_OF_REPLICA_STATE:
            request.replica_state = FetchRequest.ReplicaState(
                replica_id=settings.broker_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = settings.broker_id
        request.max_wait_ms = self._replicas.longest_wait_ms(settings.wait_max_ms)
        request.min_bytes = settings.min_bytes
        request.max_bytes = settings.response_max_bytes
        return await self._connection.ask(request, FetchResponse, version)

    def _unreachable(self, error: Exception) -> None:
        if not self._is_closing:
            level = logging.DEBUG if self._is_unreachable else logging.WARNING
            logger.log(level, "Fetching from broker %d failed: %s", self.leader_id, error)
            self._is_unreachable = True
            self._replicas.delay_all()

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _process_response(self, response: FetchResponse) -> None:
        """Process the answers. Slow work runs for all partitions at once, and is awaited: the next fetch confirms the
        state of the logs after it.
        """
        if response.error_code:
            logger.info("Broker %d ended the fetch session: %d", self.leader_id, response.error_code)
            if response.error_code not in SESSION_ERRORS:
                self._replicas.delay(list(self._followed))
        in_progress: list[asyncio.Future[None]] = []
        async for topic_partition, asked, data in in_slices(self._session.accept(response), self._clock):
            followed = self._followed.get(topic_partition)
            if followed is None:
                continue
            work = self._answered(topic_partition, followed, asked, data)
            if work is not None:
                followed.work = work
                in_progress.append(work)
        if in_progress:
            await asyncio.gather(*in_progress)

    def _answered(
        self,
        topic_partition: TopicPartition,
        followed: Followed,
        asked: FetchPosition,
        data: FetchResponse.PartitionData,
    ) -> asyncio.Future[None] | None:
        """Process the answer for one partition. Returns the remaining work if it is slow."""
        log = followed.partition.log
        records = memoryview(data.records or b"")
        diverging = data.diverging_epoch
        try:
            decision = after_answer(
                log,
                followed.leader_epoch,
                asked,
                data.error_code,
                None if diverging is None else EpochEntry(diverging.epoch, diverging.end_offset),
                data.log_start_offset,
                int.from_bytes(records[:8]) if len(records) >= 8 else None,
            )
            if decision.step is Step.APPEND:
                self._append_answer(followed, records, data)
                return None
        except ApiError as error:
            self._failed(topic_partition, followed, error)
            return None
        if decision.step is Step.IGNORE:
            self._replicas.due[topic_partition] = None
            return None
        if decision.step is Step.RETRY_LATER:
            if not followed.failures:
                self._log_reason(topic_partition, data.error_code)
            self._replicas.delay((topic_partition,))
            return None
        return asyncio.ensure_future(self._repair(topic_partition, followed, decision, records, data))

    def _append_answer(self, followed: Followed, records: memoryview, data: FetchResponse.PartitionData) -> None:
        followed.leader_high_watermark, followed.leader_log_start_offset = data.high_watermark, data.log_start_offset
        self._append(followed, records)
        self._replicas.count(followed.partition.topic_partition, len(records))
        followed.failures = 0

    def _append(self, followed: Followed, records: memoryview) -> None:
        partition = followed.partition
        before, log_start_before = partition.high_watermark, partition.log.log_start_offset
        partition.append_as_follower(
            records,
            leader_epoch=followed.leader_epoch,
            leader_high_watermark=followed.leader_high_watermark,
            leader_log_start_offset=followed.leader_log_start_offset,
            now_ms=self._clock.now_ms(),
        )
        self._replicas.due[partition.topic_partition] = None
        if partition.log.log_start_offset != log_start_before:
            followed.log_start_moved = True
        if partition.high_watermark != before:
            self._changed(partition.topic_partition)

    # -- repairs -------------------------------------------------------------------------------------------------------

    async def _repair(
        self,
        topic_partition: TopicPartition,
        followed: Followed,
        decision: Decision,
        records: memoryview,
        data: FetchResponse.PartitionData,
    ) -> None:
        """Bring the log back to a state shared with the leader's."""
        partition = followed.partition
        try:
            if decision.step is Step.FETCH_OFFSETS:
                decision = await self._repairs.fetch_offsets(self._connection, partition, followed.leader_epoch)
            if self._followed.get(topic_partition) is not followed:
                return
            if decision.step is Step.TRUNCATE:
                await self._repairs.truncate(partition, decision.offset)
            elif decision.step in (Step.TRUNCATE_FULLY, Step.TRUNCATE_FULLY_AND_APPEND):
                await self._repairs.truncate_fully_and_start_at(partition, decision.offset)
            if self._followed.get(topic_partition) is not followed:
                return
            if decision.step is Step.RETRY_LATER:
                self._replicas.delay((topic_partition,))
                return
            if decision.step is Step.TRUNCATE_FULLY_AND_APPEND:
                self._append_answer(followed, records, data)
            self._replicas.due[topic_partition] = None
        except (ApiError, DisconnectedError, DecodeError, OSError) as error:
            if self._followed.get(topic_partition) is followed:
                self._failed(topic_partition, followed, error)

    # -- failures ------------------------------------------------------------------------------------------------------

    def _failed(self, topic_partition: TopicPartition, followed: Followed, error: Exception) -> None:
        """Pause a partition; it stays paused if its disk is offline."""
        has_moved = isinstance(error, ApiError) and error.error_code in _LEADER_HAS_MOVED
        level = logging.WARNING if has_moved or isinstance(error, DisconnectedError) else logging.ERROR
        logger.log(level, "Replication of %s from broker %d failed: %s", topic_partition, self.leader_id, error)
        if followed.partition.log.directory.failure is not None:
            self.drop(topic_partition)
        else:
            self._replicas.delay((topic_partition,))

    def _log_reason(self, topic_partition: TopicPartition, error_code: int) -> None:
        name = ErrorCode.of(error_code).name if error_code else "an answer that does not fit"
        logger.info("Broker %d gives %s no records: %s", self.leader_id, topic_partition, name)
