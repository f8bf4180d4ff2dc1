"""One Fetch request over its partitions (Kafka class `DelayedFetch`): answered at once, or when enough has come.

A request is answered at once when

- the records that are there reach min_bytes,
- a partition answers with an error, with an epoch from which the reader's log diverges, or with the replica that a
  consumer shall read from instead, or
- the reader does not want to wait.

Otherwise it waits in the purgatory. A change wakes it, and it reads only the partitions that changed: a consumer of
thousands of partitions costs no more than what is written to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, Self, TypeVar

from broker.environment.contract import Executor
from broker.network.slices import Slices, in_slices
from broker.replication.delayed_operations import Woken
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams, LogReadInfo
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid

PartitionData = FetchResponse.PartitionData


class FetchPartition:
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
        """Of a follower's log."""

    def ask(self, asked: FetchPartition) -> None:
        """Take over new parameters. A reader that goes back, or comes in another epoch, has perhaps not taken what it
        was told: it is told all once more.
        """
        if asked.fetch_offset < self.fetch_offset or asked.current_leader_epoch != self.current_leader_epoch:
            self.reported_high_watermark = -1
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    def needs(self, data: PartitionData) -> bool:
        """Whether an incremental answer needs the partition."""
        return (
            data.error_code != 0
            or len(data.records or b"") > 0
            or data.high_watermark != self.reported_high_watermark
            or data.log_start_offset != self.reported_log_start_offset
            or data.preferred_read_replica != -1
            or data.diverging_epoch is not None
        )

    def report(self, data: PartitionData) -> bool:
        """Record the offsets sent to the client; whether an incremental answer needs the partition."""
        is_needed = self.needs(data)
        # After an error, the next answer without one has to be sent as well, as if nothing had been reported. The same
        # where a follower has to truncate: it does not take that high watermark, and may ask for the same offset again.
        is_taken = not data.error_code and data.diverging_epoch is None
        self.reported_high_watermark = data.high_watermark if is_taken else -1
        self.reported_log_start_offset = data.log_start_offset
        return is_needed


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

COLD_ATTEMPTS = 3
"""How often bytes just brought into memory may be evicted again before the reader is answered without them."""

Prefer = Callable[[Partition, FetchParams, int], int]
FetchResult = tuple[FetchPartition, LogReadInfo | ApiError]
"""A requested partition with what was read of it, or the error."""


class Answer(Protocol[T_co]):
    """Makes the response of the results of a fetch."""

    def __call__(self, results: Sequence[FetchResult], /) -> T_co: ...

    async def in_slices(self, results: Sequence[FetchResult], slices: Slices, /) -> T_co:
        """As a call."""
        ...


class DelayedFetch(Generic[T]):
    """One Fetch request and what it has read so far."""

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
        wanted: Sequence[FetchPartition],
        answer: Answer[T],
        prefer: Prefer | None = None,
    ) -> None:
        """`find` gives the replica here, or raises ApiError. `prefer` gives the broker that a consumer shall read a
        partition from, -1 for this one; None when that is the same for all.
        """
        self._find = find
        self._prefer = prefer
        self.params = params
        self._wanted = wanted
        self._answer = answer
        self._reads: list[LogReadInfo | ApiError | None] = [None] * len(wanted)
        self._sources: dict[int, Partition] = {}
        """By position: the partitions that gave records."""
        self._positions: dict[TopicPartition, int] = {}
        self._size = 0
        self._reasons = 0
        """Partitions that have something to tell at once."""
        self.cold: dict[int, Callable[[], object]] = {}
        """By position: look-ups that a read left out because they would have waited for the disk."""

    def __len__(self) -> int:
        """Partitions that are asked for."""
        return len(self._wanted)

    @property
    def is_satisfied(self) -> bool:
        """Whether there is no reason to wait."""
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

    def read_some(self, is_over: Callable[[], bool]) -> bool:
        """Read the partitions in turn until `is_over` says so. Gives whether all of them were read."""
        last = len(self._wanted) - 1
        for at in range(len(self._wanted)):
            self.read(at)
            if at < last and is_over():
                return False
        return True

    def read(self, at: int) -> None:
        """Read the partition at position `at`, perhaps once more, within the bytes that the others leave."""
        before = self._reads[at]
        if before is not None:
            self._forget(at, before)
        wanted, params, size = self._wanted[at], self.params, self._size
        try:
            if wanted.topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {wanted.topic_id}")
            partition = self._find(TopicPartition(wanted.topic, wanted.partition))
            info = None if self._prefer is None else self._referral(self._prefer, partition, wanted)
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
        elif _is_told_at_once(info):
            self._reasons += 1

    def _referral(self, prefer: Prefer, partition: Partition, wanted: FetchPartition) -> LogReadInfo | None:
        if not partition.is_leader:
            return None
        broker_id = prefer(partition, self.params, wanted.fetch_offset)
        return None if broker_id < 0 else partition.refer_to(broker_id, wanted.current_leader_epoch)

    def _forget(self, at: int, before: LogReadInfo | ApiError) -> None:
        self.cold.pop(at, None)
        if isinstance(before, ApiError) or _is_told_at_once(before):
            self._reasons -= 1
        elif before.records is not None:
            self._size -= before.records.size

    def attempt(self, woken: Woken, expired: bool) -> T | None:
        """See `purgatory.Attempt`."""
        return self.respond() if self.look_again(woken, expired) else None

    def when_ready(self, woken: Woken, expired: bool) -> Self | None:
        """As `attempt`; gives this fetch, for `respond_in_slices`."""
        return self if self.look_again(woken, expired) else None

    def look_again(self, woken: Woken, expired: bool) -> bool:
        """Read what changed. Gives whether to respond."""
        changed = [self._positions[key] for key in woken]
        for at in changed:
            self.read(at)
        if not (expired or self.is_satisfied or self.cold):
            return False
        for at, found in enumerate(self._reads):
            # A position found before may be outdated, because its file is gone.
            if isinstance(found, LogReadInfo) and found.records is not None and at not in changed:
                self.read(at)
        return True

    async def read_on(self, executor: Executor, slices: Slices) -> None:
        """Read what was not read yet, in slices, and have threads bring into memory what is not there."""
        async for at in in_slices([at for at, found in enumerate(self._reads) if found is None], slices):
            self.read(at)
        for _ in range(COLD_ATTEMPTS):
            for at, look_up in list(self.cold.items()):
                with contextlib.suppress(ApiError):  # the next read meets it again, and tells it
                    await executor.run(look_up)
                self.read(at)

    def respond(self) -> T:
        """The answer of what was read."""
        answer = self._answer(self._results())
        self._count_bytes(answer)
        return answer

    async def respond_in_slices(self, slices: Slices) -> T:
        """As `respond`."""
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
            return  # a client that has to wait gets nothing
        for at, partition in self._sources.items():
            found = self._reads[at]
            if isinstance(found, LogReadInfo):
                partition.bytes_out += found.size


def _is_told_at_once(info: LogReadInfo) -> bool:
    return info.diverging_epoch is not None or info.preferred_read_replica >= 0
