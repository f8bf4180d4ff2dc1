"""Metadata of the topics that a producer or consumer uses, refreshed when it is old or proved wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from client.errors import ClientTimeoutError, DisconnectedError
from client.kafka_client import KafkaClient
from client.metadata import Metadata, PartitionMetadata, TopicMetadata
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.clients.Metadata")

STALE_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Error codes which say that leaders are not where the client believes them to be."""


class _Refusal(NamedTuple):
    """The leader of `leader_epoch` is not to be asked before `until_s`, on the loop's clock."""

    leader: int
    leader_epoch: int
    until_s: float


class TrackedMetadata:
    """Metadata of a growing set of topics. `allow_auto_topic_creation` lets asking for one create it."""

    def __init__(self, client: KafkaClient, *, allow_auto_topic_creation: bool) -> None:
        self.current = Metadata()
        self._client = client
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._topics: set[str] | None = set()
        self._loop = asyncio.get_running_loop()
        self._fetched_s = float("-inf")
        self._is_stale = False
        self._refusals: dict[TopicPartition, _Refusal] = {}
        self._lock = asyncio.Lock()

    @property
    def needs_refresh(self) -> bool:
        """Whether the metadata is too old, or something in it has proved wrong."""
        if self._topics is not None and not self._topics:
            return False
        max_age_s = self._client.settings.metadata_max_age_ms / 1000
        return self._is_stale or self._loop.time() - self._fetched_s > max_age_s

    def mark_stale(self) -> None:
        """Mark the metadata as outdated; the next use refreshes it."""
        self._is_stale = True

    def track(self, topics: Iterable[str] | None) -> None:
        """Ask for these topics from now on; None for all."""
        wanted = None if topics is None else set(topics)
        if wanted != self._topics:
            self._topics = wanted
            self._is_stale = True

    def refused(self, partition: TopicPartition) -> None:
        """Mark the leader as wrong: the metadata is stale, and the same leader is not asked for `retry.backoff.ms`."""
        self._is_stale = True
        known = self.current.partition(*partition)
        if known is not None:
            until_s = self._loop.time() + self._client.settings.retry_backoff_ms / 1000
            self._refusals[partition] = _Refusal(known.leader, known.leader_epoch, until_s)

    def leader_of(self, partition: TopicPartition) -> PartitionMetadata | None:
        """The partition, when it has a leader that may be asked; otherwise None, and the metadata counts as stale."""
        known = self.current.partition(*partition)
        if known is None or known.leader < 0 or self._has_just_refused(partition, known):
            self._is_stale = True
            return None
        return known

    def _has_just_refused(self, partition: TopicPartition, known: PartitionMetadata) -> bool:
        refusal = self._refusals.get(partition)
        if refusal is None:
            return False
        is_same = (known.leader, known.leader_epoch) == refusal[:2]
        if is_same and self._loop.time() < refusal.until_s:
            return True
        del self._refusals[partition]
        return False

    async def refresh(self) -> None:
        """Ask a broker. Raises DisconnectedError."""
        async with self._lock:
            if not self.needs_refresh:
                return
            topics = None if self._topics is None else sorted(self._topics)
            self._is_stale = False
            try:
                found = await self._client.fetch_metadata(
                    topics, allow_auto_topic_creation=self._allow_auto_topic_creation
                )
            except BaseException:
                self._is_stale = True
                raise
            self.current = self.current.update(found)
            self._fetched_s = self._loop.time()

    async def await_topic(self, name: str, timeout_ms: int) -> TopicMetadata:
        """A topic with its partitions, created by asking where that is allowed.

        Raises ApiError when it can never be had, ClientTimeoutError when it is not there after `timeout_ms`.
        """
        if self._topics is not None and name not in self._topics:
            self._topics.add(name)
            self._is_stale = True
        deadline = self._loop.time() + timeout_ms / 1000
        backoff = self._client.backoff()
        while True:
            topic = self.current.topics.get(name)
            if topic is not None and topic.error_code == ErrorCode.NONE and topic.partitions:
                return topic
            self._is_stale = True
            try:
                async with asyncio.timeout_at(deadline):
                    await self.refresh()
            except TimeoutError:
                raise self._missing(name, timeout_ms) from None
            except DisconnectedError as error:
                logger.debug("No metadata for %s yet: %s", name, error)
            topic = self.current.topics.get(name)
            if topic is not None and topic.error_code == ErrorCode.NONE and topic.partitions:
                return topic
            code = ErrorCode.LEADER_NOT_AVAILABLE if topic is None else topic.error_code
            if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise ApiError(code, f"Invalid topics: [{name}]")
            if code != ErrorCode.NONE and not code.retriable:
                raise ApiError(code, f"Not authorized to access topics: [{name}]")
            pause_s = backoff.next_s()
            if self._loop.time() + pause_s > deadline:
                raise self._missing(name, timeout_ms)
            await asyncio.sleep(pause_s)

    @staticmethod
    def _missing(name: str, timeout_ms: int) -> ClientTimeoutError:
        return ClientTimeoutError(f"Topic {name} not present in metadata after {timeout_ms} ms.")
