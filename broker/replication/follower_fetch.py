"""A Fetch request of a follower, seen from its leader: it reads up to the log end, and what it asks for tells how far
it has come. In a session only those partitions are read that a `SessionWatch` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.network.slices import Slices, in_slices
from broker.replication.delayed_fetch import Answer, DelayedFetch, T
from broker.replication.fetch_partition import FetchPartition
from broker.replication.purgatory import Woken
from broker.replication.replication_quota import ReplicationQuota
from broker.replication.session_watch import SessionWatch
from cluster.replication.isr import NOTHING, FollowerProgress, Outcome, record_fetch, settled_follower
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams, LogReadInfo
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition


class FollowerFetch(DelayedFetch[T]):
    """As `DelayedFetch`. The offset of each partition is recorded when it is read first; a fetch that waits, and reads
    again, confirms nothing new. A log start that is above what the follower knows is a reason to answer at once.
    """

    __slots__ = (
        "_all_wanted",
        "_do",
        "_monotonic_ms",
        "_news",
        "_quota",
        "_recorded",
        "_tells_high_watermark",
        "_watch",
    )

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        params: FetchParams,
        wanted: Sequence[FetchPartition],
        answer: Answer[T],
        monotonic_ms: int,
        do: Callable[[Partition, Outcome], None],
        watch: SessionWatch | None = None,
        quota: ReplicationQuota | None = None,
        *,
        tells_high_watermark: bool = False,
    ) -> None:
        """`do` does what follows from what was recorded. `quota` limits what throttled followers get. With
        `tells_high_watermark`, one that is higher than what the follower was told last is a reason to answer at once:
        consumers read from it (KIP-392).
        """
        self._all_wanted = list(wanted)
        super().__init__(find, params, self._all_wanted, answer)
        self._watch = watch
        self._monotonic_ms = monotonic_ms
        self._do = do
        self._recorded: set[int] = set()
        self._quota = quota
        self._tells_high_watermark = tells_high_watermark
        self._news: set[int] = set()
        """Positions of the partitions of which the follower is to hear at once."""

    @property
    def is_satisfied(self) -> bool:
        """See `DelayedFetch.is_satisfied`."""
        return bool(self._news) or super().is_satisfied

    def read(self, at: int) -> None:
        """See `DelayedFetch.read`."""
        super().read(at)
        self._record(at)
        if self._quota is not None and self._quota.throttled:
            self._hold_back(at, self._quota)
        self._look_for_news(at)

    def _hold_back(self, at: int, quota: ReplicationQuota) -> None:
        """Leave the records out that a follower which is not in sync may not have now. It asks for them again."""
        found, partition = self._reads[at], self._sources.get(at)
        if (
            isinstance(found, LogReadInfo)
            and found.records is not None
            and partition is not None
            and self.params.replica_id not in partition.image.isr
            and quota.is_throttled(partition.topic_partition)
            and quota.is_exceeded
        ):
            self._size -= found.size
            found.records = None
            del self._sources[at]

    def _look_for_news(self, at: int) -> None:
        found, wanted = self._reads[at], self._wanted[at]
        if isinstance(found, LogReadInfo) and (
            0 <= self._known_log_start(at) < found.log_start_offset
            or (self._tells_high_watermark and 0 <= wanted.reported_high_watermark < found.high_watermark)
        ):
            self._news.add(at)
        else:
            self._news.discard(at)

    def _known_log_start(self, at: int) -> int:
        """The log start that the follower was told last; in a new session where its own log begins."""
        wanted = self._wanted[at]
        told = wanted.reported_log_start_offset
        return told if told >= 0 else wanted.log_start_offset

    def _record(self, at: int) -> None:
        found = self._reads[at]
        if at in self._recorded or not isinstance(found, LogReadInfo) or found.diverging_epoch is not None:
            return
        self._recorded.add(at)
        wanted = self._wanted[at]
        if wanted.topic is None:
            return
        partition = self._find(TopicPartition(wanted.topic, wanted.partition))
        outcome = record_fetch(
            partition,
            self.params,
            wanted.fetch_offset,
            wanted.log_start_offset,
            partition.log.log_end_offset,
            self._monotonic_ms,
        )
        if outcome != NOTHING:
            self._do(partition, outcome)
            found.high_watermark = partition.high_watermark

    def look_again(self, woken: Woken, expired: bool) -> bool:
        """See `DelayedFetch.look_again`. A partition that was settled when the fetch came, and was confirmed by it as
        it was then, is read for the first time when it changes.
        """
        if self._watch is not None:
            for key in woken:
                wanted = self._watch.get(key)
                if key not in self._positions and wanted is not None:
                    at = self._positions[key] = len(self._wanted)
                    self._all_wanted.append(wanted)
                    self._reads.append(None)
                    self._recorded.add(at)
            woken = {key: error for key, error in woken.items() if key in self._positions}
        return super().look_again(woken, expired)

    def respond(self) -> T:
        """See `DelayedFetch.respond`."""
        if self._watch is not None:
            for wanted, found in zip(self._wanted, self._reads, strict=True):
                self._settle(self._watch, wanted, found)
        self._count_throttled()
        return super().respond()

    async def respond_in_slices(self, slices: Slices) -> T:
        """See `DelayedFetch.respond_in_slices`. A partition that changes after it was settled is read by the next fetch
        of the session.
        """
        if self._watch is not None:
            async for wanted, found in in_slices(list(zip(self._wanted, self._reads, strict=True)), slices):
                self._settle(self._watch, wanted, found)
        self._count_throttled()
        return await super().respond_in_slices(slices)

    def _settle(self, watch: SessionWatch, wanted: FetchPartition, found: LogReadInfo | ApiError | None) -> None:
        follower = None if found is None else self._settled_follower(wanted, found)
        has_records = isinstance(found, LogReadInfo) and found.records is not None
        watch.settle(wanted, follower, has_records=has_records)

    def _count_throttled(self) -> None:
        if self._quota is not None and self._quota.throttled:
            self._count(self._quota)

    def _count(self, quota: ReplicationQuota) -> None:
        for at, partition in self._sources.items():
            found = self._reads[at]
            if isinstance(found, LogReadInfo) and quota.is_throttled(partition.topic_partition):
                quota.record(found.size)

    def _settled_follower(self, wanted: FetchPartition, found: LogReadInfo | ApiError) -> FollowerProgress | None:
        """The follower's progress if it need not be looked at again before something changes."""
        if (
            wanted.topic is None
            or not isinstance(found, LogReadInfo)
            or found.records is not None
            or found.diverging_epoch is not None
            or found.high_watermark != wanted.fetch_offset
        ):
            return None
        try:
            partition = self._find(TopicPartition(wanted.topic, wanted.partition))
        except ApiError:
            return None  # it is gone since
        if found.log_start_offset != partition.log.log_start_offset:
            return None
        return settled_follower(partition, self.params, wanted.fetch_offset)
