"""Fetching from one leader for the replicas here that follow it (Kafka classes `ReplicaFetcherThread`,
`AbstractFetcherThread`). What an answer means is decided in `cluster.replication.follower`; here it is done.

One task asks, works the answer off, and asks again. A partition that fails is left out for a while; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from broker.environment.contract import Clock, Executor
from broker.logs.group_commit import GroupCommit
from broker.replication.follower_repairs import FetcherSettings, FollowerRepairs, LeaderConnection
from broker.replication.follower_session import FollowerSession
from client.errors import DisconnectedError
from cluster.replication.follower import Decision, FetchPosition, Step, after_answer, position
from cluster.replication.partition import Partition
from protocol.errors import ApiError, DecodeError, ErrorCode
from protocol.messages import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from storage.log.leader_epoch import EpochEntry
from storage.log_config import UNLIMITED

logger = logging.getLogger("kafka.server.ReplicaFetcherThread")

PARTITIONS_PER_SLICE = 50
"""Partitions that are appended to before the event loop gets its turn."""
BYTES_PER_SLICE = 2 << 20
FIRST_BACKOFF_MS, QUICK_RETRIES = 20, 5
"""The pause after an error, and how often it is that short in a row. It doubles after that."""
INTERRUPT_AFTER_S = 0.02
"""A leader that has records answers sooner."""
FIRST_VERSION_OF_REPLICA_STATE = 15
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""A new session is all that they ask for."""


class _Followed:
    """A replica that is fetched for. Another role, even of the same epoch, makes another object."""

    __slots__ = ("failures", "leader_epoch", "partition", "retry_at_s", "work")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        """In a row."""
        self.retry_at_s = 0.0
        self.work: asyncio.Future[None] | None = None
        """The work on its log by other threads."""


class ReplicaFetcher:
    """The fetches for some replicas from the broker `leader_id`, over a connection of its own.

    `connect()` gives the connection, which may be closed and replaced. `broker_epoch()` is the epoch of this broker's
    registration. `changed(partition)` is called when a high watermark has moved.
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
        self._followed: dict[TopicPartition, _Followed] = {}
        self._due: dict[TopicPartition, None] = {}
        """Partitions whose next position is to be told to the leader."""
        self._delayed: dict[TopicPartition, None] = {}
        """Partitions that are left out until their `retry_at_s`."""
        self._session = FollowerSession(settings.max_bytes)
        self._is_closing = False
        self._is_unreachable = False
        self._fetches = 0
        self._is_waiting = False
        """Whether a fetch is under way."""
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"replica-fetcher-{leader_id}")

    # -- what is fetched for -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._followed

    def add(self, partition: Partition) -> None:
        """Fetch for a replica, which has become a follower of this leader."""
        topic_partition = partition.topic_partition
        self.drop(topic_partition)
        self._followed[topic_partition] = _Followed(partition)
        self._due[topic_partition] = None
        self._wake.set()
        if self._is_waiting:
            asyncio.get_running_loop().call_later(INTERRUPT_AFTER_S, self._interrupt, self._fetches)

    def _interrupt(self, number: int) -> None:
        """Give up the fetch of that number, if it is still under way: the leader has nothing for it, and what was added
        since would have to wait until the leader answers all the same. That would be felt in each change of leaders.
        """
        if self._is_waiting and self._fetches == number and self._due and not self._is_closing:
            before, self._connection = self._connection, self._connect()
            before.close()

    def drop(self, topic_partition: TopicPartition) -> asyncio.Future[None] | None:
        """Fetch for a replica no longer: nothing is appended from now on. What is under way on other threads is to be
        waited for before the replica gets another role.
        """
        followed = self._followed.pop(topic_partition, None)
        if followed is None:
            return None
        self._session.drop(topic_partition)
        self._due.pop(topic_partition, None)
        self._delayed.pop(topic_partition, None)
        return followed.work

    async def close(self) -> None:
        """Stop, when what is under way is done."""
        self._is_closing = True
        self._wake.set()
        self._connection.close()
        await asyncio.gather(self._task, return_exceptions=True)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            self._take_up_delayed()
            self._tell_positions()
            if not self._session.positions:
                await self._pause()
                continue
            connection = self._connection
            try:
                self._is_waiting = True
                self._fetches += 1
                response = await self._fetch()
            except (DisconnectedError, DecodeError, ApiError, OSError) as error:
                self._session.reset()
                if connection is self._connection:
                    self._unreachable(error)
                continue
            finally:
                self._is_waiting = False
            self._is_unreachable = False
            try:
                await self._work_off(response)
            except Exception:
                logger.exception("An answer of broker %d could not be worked off", self.leader_id)
                self._delay(list(self._followed))
                self._session.reset()

    def _take_up_delayed(self) -> None:
        now_s = self._clock.monotonic_s()
        for topic_partition in [each for each in self._delayed if self._followed[each].retry_at_s <= now_s]:
            del self._delayed[topic_partition]
            self._due[topic_partition] = None

    def _tell_positions(self) -> None:
        due, self._due = self._due, {}
        for topic_partition in due:
            followed = self._followed[topic_partition]
            log = followed.partition.log
            try:
                self._session.ask(topic_partition, log.topic_id, position(log, followed.leader_epoch))
            except ApiError as error:
                self._failed(topic_partition, followed, error)

    async def _pause(self) -> None:
        """Wait until there is something to fetch again."""
        waits = [self._followed[each].retry_at_s for each in self._delayed]
        timeout_s = max(min(waits) - self._clock.monotonic_s(), 0.001) if waits else None
        try:
            async with asyncio.timeout(timeout_s):
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
        request.max_wait_ms = self._longest_wait_ms()
        request.min_bytes = settings.min_bytes
        request.max_bytes = settings.response_max_bytes
        return await self._connection.ask(request, FetchResponse, version)

    def _longest_wait_ms(self) -> int:
        """The leader must not hold up what is to be tried again."""
        wait_ms = self._settings.wait_max_ms
        for topic_partition in self._delayed:
            left_ms = int((self._followed[topic_partition].retry_at_s - self._clock.monotonic_s()) * 1000) + 1
            wait_ms = max(min(wait_ms, left_ms), 0)
        return wait_ms

    def _unreachable(self, error: Exception) -> None:
        if not self._is_closing:
            level = logging.DEBUG if self._is_unreachable else logging.WARNING
            logger.log(level, "Fetching from broker %d failed: %s", self.leader_id, error)
            self._is_unreachable = True
            self._delay([each for each in self._followed if each not in self._delayed])

    def _delay(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Leave partitions out for a while: up to replica.fetch.backoff.ms, and less at first. After a change of
        leaders some hear of it a moment before the others, and nothing is acknowledged until all in sync fetch.
        """
        now_s = self._clock.monotonic_s()
        for topic_partition in topic_partitions:
            followed = self._followed[topic_partition]
            doublings = min(max(followed.failures - QUICK_RETRIES, 0), 20)
            pause_ms = min(FIRST_BACKOFF_MS << doublings, self._settings.backoff_ms)
            followed.failures += 1
            followed.retry_at_s = now_s + pause_ms / 1000
            self._session.drop(topic_partition)
            self._due.pop(topic_partition, None)
            self._delayed[topic_partition] = None

    # -- working off ---------------------------------------------------------------------------------------------------

    async def _work_off(self, response: FetchResponse) -> None:
        """Do what the answers ask for. What takes long is done for all partitions at once, and waited for: the next
        fetch confirms what is in the logs then.
        """
        if response.error_code:
            logger.info("Broker %d ended the fetch session: %d", self.leader_id, response.error_code)
            if response.error_code not in SESSION_ERRORS:
                self._delay(list(self._followed))
        under_way: list[asyncio.Future[None]] = []
        count = size = 0
        for topic_partition, asked, data in self._session.accept(response):
            followed = self._followed.get(topic_partition)
            if followed is None:
                continue
            work = self._answered(topic_partition, followed, asked, data)
            if work is not None:
                followed.work = work
                under_way.append(work)
            count += 1
            size += len(data.records or b"")
            if count >= PARTITIONS_PER_SLICE or size >= BYTES_PER_SLICE:
                count = size = 0
                await asyncio.sleep(0)
        if under_way:
            await asyncio.gather(*under_way)

    def _answered(
        self,
        topic_partition: TopicPartition,
        followed: _Followed,
        asked: FetchPosition,
        data: FetchResponse.PartitionData,
    ) -> asyncio.Future[None] | None:
        """Do what the answer for one partition asks for; the rest of the work, if it takes long."""
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
                int.from_bytes(records[:8]) if len(records) >= 8 else None,
            )
            if decision.step is Step.APPEND:
                self._append(followed, records, data)
                return self._flush_if_needed(topic_partition, followed, data)
        except ApiError as error:
            self._failed(topic_partition, followed, error)
            return None
        if decision.step is Step.IGNORE:
            self._due[topic_partition] = None
            return None
        if decision.step is Step.RETRY_LATER:
            if not followed.failures:
                self._say_why(topic_partition, data.error_code)
            self._delay((topic_partition,))
            return None
        return asyncio.ensure_future(self._repair(topic_partition, followed, decision, records, data))

    def _append(self, followed: _Followed, records: memoryview, data: FetchResponse.PartitionData) -> None:
        partition = followed.partition
        before = partition.high_watermark
        partition.append_as_follower(
            records,
            leader_epoch=followed.leader_epoch,
            leader_high_watermark=data.high_watermark,
            leader_log_start_offset=data.log_start_offset,
            now_ms=self._clock.now_ms(),
        )
        followed.failures = 0
        self._due[partition.topic_partition] = None
        if partition.high_watermark != before:
            self._changed(partition.topic_partition)

    def _flush_if_needed(
        self, topic_partition: TopicPartition, followed: _Followed, data: FetchResponse.PartitionData
    ) -> asyncio.Future[None] | None:
        """A follower confirms no more than flush.messages lets a leader acknowledge."""
        local = followed.partition.log.local
        if local.config.flush_messages == UNLIMITED or local.flush_limit_offset >= local.log_end_offset:
            return None
        return asyncio.ensure_future(self._flush(topic_partition, followed, data))

    async def _flush(
        self, topic_partition: TopicPartition, followed: _Followed, data: FetchResponse.PartitionData
    ) -> None:
        """Flush, and take over the high watermark again, which the log has only now: the leader tells it once."""
        log = followed.partition.log
        try:
            await self._group_commit.wait(log, log.log_end_offset + 1 - log.config.flush_messages)
            if self._followed.get(topic_partition) is followed:
                self._append(followed, memoryview(b""), data)
        except ApiError as error:
            if self._followed.get(topic_partition) is followed:
                self._failed(topic_partition, followed, error)

    # -- repairing -----------------------------------------------------------------------------------------------------

    async def _repair(
        self,
        topic_partition: TopicPartition,
        followed: _Followed,
        decision: Decision,
        records: memoryview,
        data: FetchResponse.PartitionData,
    ) -> None:
        """Bring the log back to something that the leader's has too."""
        partition = followed.partition
        try:
            if decision.step is Step.ASK_FOR_OFFSETS:
                decision = await self._repairs.ask_for_offsets(self._connection, partition, followed.leader_epoch)
            if self._followed.get(topic_partition) is not followed:
                return
            if decision.step is Step.TRUNCATE:
                await self._repairs.truncate(partition, decision.offset)
            elif decision.step in (Step.BEGIN_ANEW, Step.BEGIN_ANEW_AND_APPEND):
                await self._repairs.begin_anew(partition, decision.offset)
            if self._followed.get(topic_partition) is not followed:
                return
            if decision.step is Step.RETRY_LATER:
                self._delay((topic_partition,))
                return
            if decision.step is Step.BEGIN_ANEW_AND_APPEND:
                self._append(followed, records, data)
            self._due[topic_partition] = None
        except (ApiError, DisconnectedError, DecodeError, OSError) as error:
            if self._followed.get(topic_partition) is followed:
                self._failed(topic_partition, followed, error)

    # -- failures ------------------------------------------------------------------------------------------------------

    def _failed(self, topic_partition: TopicPartition, followed: _Followed, error: Exception) -> None:
        """Leave a partition out for a while; for good when its disk is offline."""
        logger.error("Replication of %s from broker %d failed: %s", topic_partition, self.leader_id, error)
        if followed.partition.log.directory.failure is not None:
            self.drop(topic_partition)
        else:
            self._delay((topic_partition,))

    def _say_why(self, topic_partition: TopicPartition, error_code: int) -> None:
        name = ErrorCode.of(error_code).name if error_code else "an answer that does not fit"
        logger.info("Broker %d gives %s no records: %s", self.leader_id, topic_partition, name)
