"""One Fetch request over its partitions (Kafka class `DelayedFetch`): answered at once, or when enough records have
arrived.

A request is answered at once when

- the available records reach min_bytes,
- a partition answers with an error, with a diverging epoch, or with a preferred read replica, or
- the reader does not want to wait.

Otherwise it waits in the purgatory. A change wakes it, and it reads only the changed partitions: a consumer of
thousands of partitions costs no more than the appends to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, Self, TypeVar

from broker.replication.delayed_operations import Woken
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams, LogReadInfo
from environment.contract import Executor
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid

PartitionData = FetchResponse.PartitionData


class CachedPartition:
    """A client's request for one partition and, in a session, the offsets last sent to the client."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "reported_high_watermark",
        "reported_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str | None, topic_id: Uuid, asked: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = asked.partition
        self.reported_high_watermark = -1
        self.reported_log_start_offset = -1
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset
        """Log start offset of the follower's log."""

    def update_request_params(self, asked: CachedPartition) -> None:
        """Apply new parameters. A reader that goes back, or comes with another epoch, may not have processed earlier
        answers: the next one reports everything again.
        """
        if asked.fetch_offset < self.fetch_offset or asked.current_leader_epoch != self.current_leader_epoch:
            self.reported_high_watermark = -1
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    def must_respond(self, data: PartitionData) -> bool:
        """Whether an incremental answer needs the partition."""
        return (
            data.error_code != 0
            or len(data.records or b"") > 0
            or data.high_watermark != self.reported_high_watermark
            or data.log_start_offset != self.reported_log_start_offset
            or data.preferred_read_replica != -1
            or data.diverging_epoch is not None
        )

    def update_response_data(self, data: PartitionData) -> bool:
        """Record the offsets sent to the client. Returns whether an incremental answer needs the partition."""
        is_needed = self.must_respond(data)
        # After an error, the next answer without one must be sent, too, as if nothing had been reported. The same
        # applies when a follower must truncate: it ignores that high watermark, and may ask for the same offset again.
        is_taken = not data.error_code and data.diverging_epoch is None
        self.reported_high_watermark = data.high_watermark if is_taken else -1
        self.reported_log_start_offset = data.log_start_offset
        return is_needed


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

COLD_ATTEMPTS = 3
"""How often bytes just brought into memory may be evicted again before the reader is answered without them."""

Prefer = Callable[[Partition, FetchParams, int], int]
FetchResult = tuple[CachedPartition, LogReadInfo | ApiError]
"""A requested partition with the result of its read, or the error."""


class Answer(Protocol[T_co]):
    """Turns the results of a fetch into the response."""

    def __call__(self, results: Sequence[FetchResult], /) -> T_co: ...

    async def in_slices(self, results: Sequence[FetchResult], slices: Slices, /) -> T_co:
        """Like a call, in slices."""
        ...


class DelayedFetch(Generic[T]):
    """One Fetch request and its results so far."""

    __slots__ = (
        "_answer",
        "_find",
        "_positions",
        "_prefer",
        "_reads",
        "_reasons",
        "_size",
        "_sources",
        "_wanted",
        "cold",
        "params",
    )

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        params: FetchParams,
        wanted: Sequence[CachedPartition],
        answer: Answer[T],
        prefer: Prefer | None = None,
    ) -> None:
        """`find` returns the hosted replica, or raises ApiError. `prefer` returns the id of the broker that a consumer
        should read a partition from, or -1 for this one. With `prefer` None, consumers read from this broker.
        """
        self._find = find
        self._prefer = prefer
        self.params = params
        self._wanted = wanted
        self._answer = answer
        self._reads: list[LogReadInfo | ApiError | None] = [None] * len(wanted)
        self._sources: dict[int, Partition] = {}
        """The partitions that returned records, by position."""
        self._positions: dict[TopicPartition, int] = {}
        self._size = 0
        self._reasons = 0
        """Partitions whose result must be reported at once."""
        self.cold: dict[int, Callable[[], object]] = {}
        """Look-ups skipped by reads because they would have waited for the disk, by position."""

    def __len__(self) -> int:
        """The number of requested partitions."""
        return len(self._wanted)

    @property
    def is_satisfied(self) -> bool:
        """Whether to answer without waiting."""
        params = self.params
        return self._size >= params.min_bytes or self._reasons > 0 or params.max_wait_ms <= 0

    def keys(self) -> Collection[TopicPartition]:
        """The partitions whose changes matter."""
        self._positions = {
            TopicPartition(wanted.topic, wanted.partition): at
            for at, wanted in enumerate(self._wanted)
            if wanted.topic is not None
        }
        return self._positions.keys()

    def read_some(self, should_yield: Callable[[], bool]) -> bool:
        """Read the partitions in order until `should_yield` returns True. Returns whether all were read."""
        last = len(self._wanted) - 1
        for at in range(len(self._wanted)):
            self.read(at)
            if at < last and should_yield():
                return False
        return True

    def read(self, at: int) -> None:
        """Read the partition at position `at`, perhaps again, within the bytes that the others leave."""
        before = self._reads[at]
        if before is not None:
            self._forget(at, before)
        wanted, params, size = self._wanted[at], self.params, self._size
        try:
            if wanted.topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {wanted.topic_id}")
            partition = self._find(TopicPartition(wanted.topic, wanted.partition))
            info = None if self._prefer is None else self._redirect(self._prefer, partition, wanted)
            info = info or partition.read(
                params,
                wanted.fetch_offset,
                min(wanted.max_bytes, max(params.max_bytes - size, 0)),
                min_one_message=size == 0 and params.min_one_message,
                topic_id=wanted.topic_id,
                current_leader_epoch=wanted.current_leader_epoch,
                last_fetched_epoch=wanted.last_fetched_epoch,
            )
        except ApiError as error:
            self._reads[at] = detached(error)
            self._reasons += 1
            return
        self._reads[at] = info
        if info.records is not None:
            self._sources[at] = partition
            self._size = size + info.records.size
        elif info.cold is not None:
            self.cold[at] = info.cold
        elif _is_immediate(info):
            self._reasons += 1

    def _redirect(self, prefer: Prefer, partition: Partition, wanted: CachedPartition) -> LogReadInfo | None:
        if not partition.is_leader:
            return None
        broker_id = prefer(partition, self.params, wanted.fetch_offset)
        return None if broker_id < 0 else partition.redirect_to(broker_id, wanted.current_leader_epoch)

    def _forget(self, at: int, before: LogReadInfo | ApiError) -> None:
        self.cold.pop(at, None)
        if isinstance(before, ApiError) or _is_immediate(before):
            self._reasons -= 1
        elif before.records is not None:
            self._size -= before.records.size

    def attempt(self, woken: Woken, expired: bool) -> T | None:
        """See `purgatory.Attempt`."""
        return self.respond() if self.reread_changed(woken, expired) else None

    def when_ready(self, woken: Woken, expired: bool) -> Self | None:
        """Like `attempt`, but returns this fetch, for `respond_in_slices`."""
        return self if self.reread_changed(woken, expired) else None

    def reread_changed(self, woken: Woken, expired: bool) -> bool:
        """Read the changed partitions. Returns whether to respond."""
        changed = [self._positions[key] for key in woken]
        for at in changed:
            self.read(at)
        if not (expired or self.is_satisfied or self.cold):
            return False
        for at, found in enumerate(self._reads):
            # A position found before may be outdated because its file was deleted.
            if isinstance(found, LogReadInfo) and found.records is not None and at not in changed:
                self.read(at)
        return True

    async def finish_reading(self, executor: Executor, slices: Slices) -> None:
        """Read the remaining partitions in slices, and let threads bring uncached data into memory."""
        async for at in in_slices([at for at, found in enumerate(self._reads) if found is None], slices):
            self.read(at)
        for _ in range(COLD_ATTEMPTS):
            for at, look_up in list(self.cold.items()):
                with contextlib.suppress(ApiError):  # the next read hits the error again, and reports it
                    await executor.run(look_up)
                self.read(at)

    def respond(self) -> T:
        """The answer from the results so far."""
        answer = self._answer(self._results())
        self._count_bytes(answer)
        return answer

    async def respond_in_slices(self, slices: Slices) -> T:
        """Like `respond`, in slices."""
        answer = await self._answer.in_slices(self._results(), slices)
        self._count_bytes(answer)
        return answer

    def _results(self) -> list[FetchResult]:
        results: list[FetchResult] = []
        for wanted, found in zip(self._wanted, self._reads, strict=True):
            assert found is not None
            results.append((wanted, found))
        return results

    def _count_bytes(self, answer: T) -> None:
        if getattr(answer, "throttle_time_ms", 0):
            return  # the client is throttled and gets no records
        for at, partition in self._sources.items():
            found = self._reads[at]
            if isinstance(found, LogReadInfo):
                partition.bytes_out += found.size


def _is_immediate(info: LogReadInfo) -> bool:
    return info.diverging_epoch is not None or info.preferred_read_replica >= 0
