"""Fetches batches of assigned partitions from their leaders, one request per leader at a time (Kafka class `Fetcher`).

The next fetch to a leader is sent as soon as the buffers of its partitions are empty, so that it overlaps with the
caller's work. A fetch sent earlier, without the buffered partitions, could wait `fetch.max.wait.ms` for new records of
the others, and delay the next fetch of the buffered ones until then (KAFKA-17182).

Records below the position, control batches and, for read_committed, aborted transactions (KIP-98) are left out.

A position belongs to a topic id, not to a name. If the topic was deleted and created again (KIP-516), reading continues
where `auto.offset.reset` says. Kafka's Java client continues at the same offset, and skips records that it has not
read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile, islice
from typing import Final, NamedTuple

from client.errors import ClientError, DisconnectedError
from client.kafka_client import FETCH, KafkaClient
from client.metadata import STALE_ERRORS, TrackedMetadata
from client.settings import ConsumerSettings
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.batch import Record, RecordBatch, read_batches
from protocol.records.control_records import ControlRecordType, control_type
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid

logger = logging.getLogger("kafka.clients.Fetcher")

_PASSING: Final = STALE_ERRORS | {
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}

_OF_THE_LOG: Final = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE})
"""Error codes from a leader that has the log."""


class FetchedBatch(NamedTuple):
    """A batch to read from `from_offset` on; it may begin earlier."""

    batch: RecordBatch
    from_offset: int

    def records(self) -> Iterator[Record]:
        """The records to read. Raises ApiError for a damaged batch."""
        records = self.batch.records()
        if self.batch.base_offset >= self.from_offset:
            return records
        return dropwhile(lambda record: record.offset < self.from_offset, records)


class TopicPartitionState:
    """The position and the buffer of one partition. `position` is None until known."""

    __slots__ = (
        "_aborted",
        "_aborted_producers",
        "_batches",
        "_records",
        "failure",
        "high_watermark",
        "is_out_of_range",
        "must_reset",
        "position",
        "reset_timestamp",
        "topic_id",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        self.must_reset = False
        """Whether to reset the position by `auto.offset.reset`, because it lacks a valid committed offset."""
        self.reset_timestamp: int | None = None
        """The target of a reset, if other than `auto.offset.reset`."""
        self.topic_id = ZERO_UUID
        """The topic id of the position, zero until a leader has returned data for it."""
        self.is_out_of_range = False
        """Whether the position is outside the log."""
        self.high_watermark = -1
        self.failure: ApiError | None = None
        """An error to raise before more of this partition is returned."""
        self._batches: deque[RecordBatch] = deque()
        self._records: Iterator[Record] | None = None
        self._aborted: deque[FetchResponse.AbortedTransaction] = deque()
        self._aborted_producers: set[int] = set()

    @property
    def is_fetchable(self) -> bool:
        """Whether to fetch: the position is known and the buffer is empty."""
        return self.position is not None and self.failure is None and not self.has_data

    @property
    def has_data(self) -> bool:
        """Whether records are buffered."""
        return bool(self._batches) or self._records is not None

    def seek(self, position: int | None) -> None:
        """Continue from `position`; buffered records are dropped."""
        self.position = position
        self.topic_id = ZERO_UUID
        self.failure = None
        self.must_reset = self.is_out_of_range = False
        self.reset_timestamp = None
        self._batches.clear()
        self._records = None
        self._aborted.clear()
        self._aborted_producers.clear()

    def fill(self, data: FetchResponse.PartitionData, *, check_crcs: bool) -> None:
        """Add fetched data to the buffer. Raises ApiError CORRUPT_MESSAGE."""
        self.high_watermark = data.high_watermark
        self._aborted = deque(sorted(data.aborted_transactions or (), key=lambda each: each.first_offset))
        if not data.records:
            return
        for batch in read_batches(memoryview(data.records)):
            if check_crcs:
                batch.ensure_valid()
            if batch.last_offset >= (self.position or 0):
                self._batches.append(batch)

    def take_batches(self) -> list[FetchedBatch]:
        """Take all buffered batches, undecoded; the position moves past them."""
        taken = []
        while self._batches:
            batch = self._batches.popleft()
            if self._is_visible(batch):
                taken.append(FetchedBatch(batch, self.position or 0))
            self.position = batch.next_offset
        return taken

    def take_records(self, limit: int) -> list[Record]:
        """Take at most `limit` records; the position moves past the last one. Raises ApiError for a damaged batch."""
        taken: list[Record] = []
        while len(taken) < limit:
            if self._records is None:
                if not self._batches:
                    break
                batch = self._batches[0]
                if not self._is_visible(batch):
                    self.position = self._batches.popleft().next_offset
                    continue
                self._records = FetchedBatch(batch, self.position or 0).records()
            chunk = list(islice(self._records, limit - len(taken)))
            if chunk:
                taken += chunk
                self.position = chunk[-1].offset + 1
            if self.position is not None and (len(taken) < limit or self.position >= self._batches[0].next_offset):
                self.position = self._batches.popleft().next_offset
                self._records = None
        return taken

    def _is_visible(self, batch: RecordBatch) -> bool:
        """Whether the batch has visible records; also tracks aborted transactions."""
        if not batch.has_producer_id:
            return not batch.is_control
        while self._aborted and self._aborted[0].first_offset <= batch.last_offset:
            self._aborted_producers.add(self._aborted.popleft().producer_id)
        if batch.is_control:
            marker = next(batch.records(), None)
            if marker is not None and control_type(marker) == ControlRecordType.ABORT:
                self._aborted_producers.discard(batch.producer_id)
            return False
        return not (batch.is_transactional and batch.producer_id in self._aborted_producers)


class Fetcher:
    """Positions, buffers and fetches of the partitions a consumer has. `news` is set when a fetch ends."""

    def __init__(
        self, client: KafkaClient, settings: ConsumerSettings, metadata: TrackedMetadata, news: asyncio.Event
    ) -> None:
        self.states: dict[TopicPartition, TopicPartitionState] = {}
        self._client = client
        self._settings = settings
        self._metadata = metadata
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._news = news

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; remaining ones keep their positions and buffers."""
        self.states = {each: self.states.get(each) or TopicPartitionState() for each in partitions}

    def start(self) -> None:
        """Send a fetch to every leader with partitions to fetch, no fetch in flight and empty buffers."""
        wanted: dict[int, list[TopicPartition]] = defaultdict(list)
        busy = set(self._fetches)
        for partition, state in self.states.items():
            if state.is_fetchable or state.has_data:
                known = self._metadata.leader_of(partition)
                if known is None or known.leader in busy:
                    continue
                if state.has_data:
                    busy.add(known.leader)
                else:
                    wanted[known.leader].append(partition)
        for leader, partitions in wanted.items():
            if leader in busy:
                continue
            # The task may start after the assignment has changed, so it gets the current states.
            states = {each: self.states[each] for each in partitions}
            self._fetches[leader] = asyncio.create_task(self._fetch(leader, states))

    def take_batches(self) -> dict[TopicPartition, list[FetchedBatch]]:
        """Take the buffered batches, undecoded. Raises the ApiError of a partition that failed."""
        taken = {}
        for partition, state in self._ready():
            batches = state.take_batches()
            if batches:
                taken[partition] = batches
        return taken

    def take_records(self, limit: int) -> dict[TopicPartition, list[Record]]:
        """Take at most `limit` buffered records. Raises the ApiError of a partition that failed."""
        taken = {}
        for partition, state in self._ready():
            records = state.take_records(limit)
            if records:
                taken[partition] = records
                limit -= len(records)
                if limit <= 0:
                    break
        return taken

    def _ready(self) -> list[tuple[TopicPartition, TopicPartitionState]]:
        ready = []
        for partition, state in self.states.items():
            if state.failure is not None:
                failure, state.failure = state.failure, None
                raise detached(failure)
            if state.has_data:
                ready.append((partition, state))
        return ready

    async def close(self) -> None:
        """Cancel the requests in flight."""
        fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    # -- one fetch -----------------------------------------------------------------------------------------------------

    async def _fetch(self, leader: int, states: Mapping[TopicPartition, TopicPartitionState]) -> None:
        offsets = {each: state.position or 0 for each, state in states.items()}
        try:
            response = await self._ask(leader, offsets)
            if response.error_code:
                raise ApiError(ErrorCode.of(response.error_code), "Fetch failed as a whole")
            for topic in response.responses:
                name = topic.topic or self._metadata.current.topic_names.get(topic.topic_id, "")
                for data in topic.partitions:
                    partition = TopicPartition(name, data.partition_index)
                    self._receive(partition, topic.topic_id, data, offsets.get(partition))
        except (DisconnectedError, ApiError) as error:
            logger.debug("Fetch from broker %d failed: %s", leader, error)
            self._metadata.mark_stale()
            await asyncio.sleep(self._client.settings.retry_backoff_ms / 1000)
        except ClientError as error:
            for state in states.values():
                state.failure = ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error))
        finally:
            self._fetches.pop(leader, None)
            self._news.set()

    async def _ask(self, leader: int, offsets: Mapping[TopicPartition, int]) -> FetchResponse:
        topics: dict[str, list[FetchRequest.FetchPartition]] = defaultdict(list)
        for partition, offset in offsets.items():
            known = self._metadata.current.partition(*partition)
            topics[partition.topic].append(
                FetchRequest.FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=-1 if known is None else known.leader_epoch,
                    fetch_offset=offset,
                    partition_max_bytes=self._settings.max_partition_fetch_bytes,
                )
            )
        ids = {name: self._metadata.current.topics[name].topic_id for name in topics}
        request = FetchRequest(
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=self._settings.fetch_max_bytes,
            isolation_level=self._settings.isolation_level,
            topics=[
                FetchRequest.FetchTopic(topic=name, topic_id=ids[name], partitions=each)
                for name, each in topics.items()
            ],
            rack_id=self._settings.client_rack,
        )
        connection = await self._client.node_connection(leader, FETCH)
        # From v13 on topics are sent by id, which a broker with an old metadata format lacks.
        version = connection.version_of(FetchRequest, 12 if ZERO_UUID in ids.values() else None)
        timeout_ms = self._client.settings.request_timeout_ms + self._settings.fetch_max_wait_ms
        return await connection.ask(request, FetchResponse, version, timeout_ms)

    def _receive(
        self,
        partition: TopicPartition,
        topic_id: Uuid,
        data: FetchResponse.PartitionData,
        asked_offset: int | None,
    ) -> None:
        state = self.states.get(partition)
        if state is None or state.position != asked_offset or state.has_data:
            return  # unassigned, or moved by a seek, since the request was sent
        code = ErrorCode.of(data.error_code)
        if code in _OF_THE_LOG and topic_id != ZERO_UUID:
            if state.topic_id not in (ZERO_UUID, topic_id):
                logger.info(
                    "Topic %s was created again; dropping position %d of %s", partition[0], asked_offset, partition
                )
                state.seek(None)
                state.must_reset = True  # a committed offset belongs to the old topic
                return
            state.topic_id = topic_id
        if code == ErrorCode.NONE:
            try:
                state.fill(data, check_crcs=self._settings.check_crcs)
            except ApiError as error:
                state.failure = ApiError(error.error_code, f"{partition} at offset {state.position}: {error.message}")
        elif code in _PASSING:
            self._metadata.refused(partition)
        else:
            state.is_out_of_range = code == ErrorCode.OFFSET_OUT_OF_RANGE
            state.failure = ApiError(code, f"Fetch position {state.position} of partition {partition} failed")
