"""A consumer: partitions assigned manually or by a group, polled for records or whole batches (`KafkaConsumer`)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self, TypeVar

from client import admin
from client.consumer_group import ConsumerCoordinator, Joined
from client.errors import ClientError, DisconnectedError, NoOffsetError
from client.fetcher import FetchedBatch, Fetcher, TopicPartitionState
from client.groups import GroupMetadata, OffsetAndMetadata, alter_offsets, fetch_offsets
from client.kafka_client import KafkaClient
from client.metadata import TrackedMetadata
from client.settings import ConsumerSettings
from protocol.errors import ApiError, ErrorCode, detached
from protocol.records.batch import Record
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.clients.Consumer")

T = TypeVar("T")


class RebalanceListener(Protocol):
    """Called from `Consumer.poll` when the group assigns or revokes partitions."""

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called with the added partitions; the listener may seek in them."""

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called with the partitions that will be revoked; the listener may commit offsets."""


class Consumer:
    """Reads through a client, which it does not close. Only one poll may run at a time."""

    def __init__(self, client: KafkaClient, settings: ConsumerSettings) -> None:
        self.settings = settings
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._metadata = TrackedMetadata(client, allow_auto_topic_creation=settings.allow_auto_create_topics)
        self._fetcher = Fetcher(client, settings, self._metadata, self._news)
        self._member: ConsumerCoordinator | None = None
        self._listener: RebalanceListener | None = None
        self._topics: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._join: asyncio.Task[Joined | None] | None = None
        self._auto_commit_s = self._loop.time() + settings.auto_commit_interval_ms / 1000
        self._backoff = client.backoff()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- subscription --------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group."""
        chosen = list(partitions)
        self._metadata.track({each.topic for each in chosen})
        self._fetcher.assign(chosen)

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Read the partitions that the group assigns from these topics. Raises ClientError without `group.id`."""
        self._start_membership(listener)
        self._topics = sorted(topics)
        self._metadata.track(self._topics)

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None = None) -> None:
        """Read the partitions that the group assigns from all topics whose full name matches, including future ones."""
        self._start_membership(listener)
        self._pattern = pattern
        self._metadata.track(None)

    def _start_membership(self, listener: RebalanceListener | None) -> None:
        self._member = ConsumerCoordinator(self._client, self.settings, self._group_id, self._news)
        self._listener = listener

    @property
    def _group_id(self) -> str:
        if self.settings.group_id is None:
            raise ClientError("To use the group management or offset commit APIs, you must provide a valid group.id")
        return self.settings.group_id

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._fetcher.states)

    @property
    def group_metadata(self) -> GroupMetadata:
        """The member for `Producer.send_offsets_to_transaction`. Raises ClientError without `group.id`."""
        if self._member is not None:
            return self._member.metadata
        return GroupMetadata(self._group_id, group_instance_id=self.settings.group_instance_id)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that a poll returns, or None while unknown."""
        return self._fetcher.states[partition].position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading an assigned partition at `offset`."""
        self._fetcher.states[partition].seek(offset)

    def seek_to_timestamp(self, partition: TopicPartition, timestamp: int) -> None:
        """Continue at the first record from `timestamp` (ms) on; -1 is the end, -2 the start. The next poll looks it
        up.
        """
        state = self._fetcher.states[partition]
        state.seek(None)
        state.must_reset = True
        state.reset_timestamp = timestamp

    # -- polling -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float) -> dict[TopicPartition, list[Record]]:
        """At most `max.poll.records` records by partition; empty if none arrive within `timeout_s`.

        Raises ApiError and ClientError for permanent errors: no permission, an offset out of range without a reset
        policy, a damaged batch, a fenced member.
        """
        return await self._poll(timeout_s, lambda: self._fetcher.take_records(self.settings.max_poll_records))

    async def poll_batches(self, timeout_s: float) -> dict[TopicPartition, list[FetchedBatch]]:
        """All buffered batches, undecoded; see `poll`."""
        return await self._poll(timeout_s, self._fetcher.take_batches)

    async def _poll(self, timeout_s: float, take: Callable[[], dict[TopicPartition, T]]) -> dict[TopicPartition, T]:
        deadline = self._loop.time() + timeout_s
        while True:
            self._news.clear()
            await self._refresh_metadata()
            if self._member is not None:
                await self._poll_group(self._member, deadline)
            await self._find_positions(deadline)
            # Take buffered records first: a new fetch would leave out their partitions and delay the next fetch of
            # these.
            taken = self._take(take)
            self._fetcher.start()
            if taken:
                # Prefetch while the caller works: let the fetch tasks run once.
                await asyncio.sleep(0)
                return taken
            remaining_s = deadline - self._loop.time()
            if remaining_s <= 0:
                return {}
            await self._wait(remaining_s)

    def _take(self, take: Callable[[], dict[TopicPartition, T]]) -> dict[TopicPartition, T]:
        try:
            return take()
        except ApiError as error:
            if error.error_code != ErrorCode.OFFSET_OUT_OF_RANGE or self.settings.auto_offset_reset == "none":
                raise
            for state in self._fetcher.states.values():
                if state.is_out_of_range:
                    state.seek(None)
                    state.must_reset = True
            return {}

    async def _wait(self, timeout_s: float) -> None:
        """Wait for news, or until the metadata or positions should be retried."""
        if self._metadata.needs_refresh or self._has_unknown_positions():
            timeout_s = min(timeout_s, self._backoff.next_s())
        else:
            self._backoff = self._client.backoff()
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    async def _refresh_metadata(self) -> None:
        if not self._metadata.needs_refresh:
            return
        try:
            await self._metadata.refresh()
        except DisconnectedError as error:
            logger.debug("%s", error)
            self._metadata.mark_stale()
            return
        topics = self._metadata.current.topics
        for name, topic in topics.items():
            code = topic.error_code
            if code in {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}:
                is_invalid = code == ErrorCode.INVALID_TOPIC_EXCEPTION
                raise ApiError(code, f"Invalid topics: [{name}]" if is_invalid else f"Not authorized: [{name}]")
            if code.retriable and self._pattern is None:
                self._metadata.mark_stale()
        member = self._member
        if self._pattern is not None and member is not None:
            matching = sorted(
                name
                for name, topic in topics.items()
                if self._pattern.fullmatch(name) and not (topic.is_internal and self.settings.exclude_internal_topics)
            )
            if matching != self._topics:
                self._topics = matching
                member.needs_join = True
        if member is not None and self._was_assigned_otherwise(member):
            member.needs_join = True

    def _was_assigned_otherwise(self, member: ConsumerCoordinator) -> bool:
        """Whether this member, as leader, made its assignment for other partition counts than in the metadata."""
        if member.partition_counts is None:
            return False
        topics = self._metadata.current.topics
        counts = {name: len(topics[name].partitions) for name in self._topics if name in topics}
        return any(count != member.partition_counts.get(name, 0) for name, count in counts.items())

    # -- the group -----------------------------------------------------------------------------------------------------

    async def _poll_group(self, member: ConsumerCoordinator, deadline: float) -> None:
        """Join if necessary, apply the result of a join, and auto-commit."""
        member.last_poll_s = self._loop.time()
        if member.failure is not None:
            raise detached(member.failure)
        joined = None
        while joined is None and (self._join is not None or member.needs_join):
            if self._join is None:
                await self._prepare_join(member)
                self._join = asyncio.create_task(member.join(self._topics))
            await asyncio.wait({self._join}, timeout=max(0.0, deadline - self._loop.time()))
            if not self._join.done():
                return
            join, self._join = self._join, None
            joined = join.result()
        if joined is not None:
            await self._accept(member, joined)
        if self._loop.time() >= self._auto_commit_s:
            await self._auto_commit()

    async def _prepare_join(self, member: ConsumerCoordinator) -> None:
        """Revoke partitions before a rejoin: all of them, unless all assignors are cooperative and the group still
        knows this member. Other members may have read the partitions of a member that the group forgot, so their
        positions must be looked up again.
        """
        if member.is_cooperative and not member.was_lost:
            return
        if not member.was_lost:
            await self._auto_commit()
        revoked, member.owned = member.owned, []
        member.was_lost = False
        self._fetcher.assign([])
        if self._listener is not None and revoked:
            await self._listener.on_partitions_revoked(revoked)

    async def _accept(self, member: ConsumerCoordinator, joined: Joined) -> None:
        revoked = [each for each in member.owned if each not in joined.partitions]
        added = [each for each in joined.partitions if each not in member.owned]
        if revoked:
            await self._auto_commit()
            if self._listener is not None:
                await self._listener.on_partitions_revoked(revoked)
            # Revoked partitions are assigned to other members in the next round (KIP-429).
            member.needs_join = True
        if self._was_assigned_otherwise(member):
            # A topic was created, deleted or grew during the join. Only this check notices it for topics without a
            # fetch.
            self._metadata.mark_stale()
        member.owned = joined.partitions
        self._fetcher.assign(joined.partitions)
        self._auto_commit_s = self._loop.time() + self.settings.auto_commit_interval_ms / 1000
        if self._listener is not None:
            await self._listener.on_partitions_assigned(added)

    async def _auto_commit(self) -> None:
        self._auto_commit_s = self._loop.time() + self.settings.auto_commit_interval_ms / 1000
        if not self.settings.enable_auto_commit or self.settings.group_id is None:
            return
        try:
            await self.commit()
        except (ApiError, ClientError) as error:
            logger.warning("Auto-commit of offsets failed: %s", error)

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit `offsets`, or all positions. Raises ApiError, and ClientError (such as without `group.id`)."""
        group_id = self._group_id
        if offsets is None:
            offsets = {
                partition: OffsetAndMetadata(state.position)
                for partition, state in self._fetcher.states.items()
                if state.position is not None
            }
        if not offsets:
            return
        if self._member is not None:
            await self._member.commit(offsets)
        else:
            await alter_offsets(self._client, group_id, offsets)

    # -- positions -----------------------------------------------------------------------------------------------------

    def _has_unknown_positions(self) -> bool:
        return any(state.position is None for state in self._fetcher.states.values())

    async def _find_positions(self, deadline: float) -> None:
        """Set missing positions to the committed offset, or by `auto.offset.reset`."""
        if not self._has_unknown_positions():
            return
        try:
            async with asyncio.timeout_at(max(deadline, self._loop.time() + _MIN_WAIT_S)):
                await self._use_committed_offsets()
                await self._reset_positions()
        except (TimeoutError, DisconnectedError) as error:
            logger.debug("Positions are not known yet: %s", error)

    def _without_position(self) -> dict[TopicPartition, TopicPartitionState]:
        return {each: state for each, state in self._fetcher.states.items() if state.position is None}

    async def _use_committed_offsets(self) -> None:
        asking = [each for each, state in self._without_position().items() if not state.must_reset]
        if not asking:
            return
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if self.settings.group_id is not None:
            coordinator = self._member.coordinator if self._member is not None else None
            committed = await fetch_offsets(
                self._client, self.settings.group_id, asking, require_stable=True, coordinator=coordinator
            )
        for partition in asking:
            state = self._fetcher.states[partition]
            if partition in committed:
                state.seek(committed[partition].offset)
            else:
                state.must_reset = True

    async def _reset_positions(self) -> None:
        asking = self._without_position()
        if not asking:
            return
        is_earliest = self.settings.auto_offset_reset == "earliest"
        policy = admin.EARLIEST_TIMESTAMP if is_earliest else admin.LATEST_TIMESTAMP
        wanted = {
            partition: policy if state.reset_timestamp is None else state.reset_timestamp
            for partition, state in asking.items()
        }
        if self.settings.auto_offset_reset == "none":
            lost = [str(partition) for partition, state in asking.items() if state.reset_timestamp is None]
            if lost:
                raise NoOffsetError(f"Undefined offset with no reset policy for partitions: [{', '.join(lost)}]")
        found = await admin.list_offsets(
            self._client, wanted, isolation_level=self.settings.isolation_level, retry=False
        )
        for partition, outcome in found.items():
            state = self._fetcher.states[partition]
            if isinstance(outcome, ApiError):
                if not outcome.error_code.retriable:
                    raise detached(outcome)
                self._metadata.mark_stale()
            elif state.position is None:
                state.seek(outcome.offset)

    async def close(self) -> None:
        """Commit (with `enable.auto.commit`), leave the group, and cancel requests in flight."""
        if self._join is not None:
            self._join.cancel()
            await asyncio.gather(self._join, return_exceptions=True)
        if self._member is not None:
            if self._fetcher.states and not self._member.needs_join:
                await self._auto_commit()
            revoked, self._member.owned = self._member.owned, []
            if self._listener is not None and revoked:
                await self._listener.on_partitions_revoked(revoked)
            await self._member.leave()
        await self._fetcher.close()


_MIN_WAIT_S = 0.1
"""Even a poll with timeout 0 allows a request for offsets this much time."""
