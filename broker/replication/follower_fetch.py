"""A follower's Fetch request, on the leader. It reads up to the log end, and its offsets report the follower's
progress. In a session, only the partitions that a `SessionWatch` names are read.

With each fetch, a follower confirms for every partition of its session that it has everything below the offset it last
asked for (KIP-227). A partition is idle when the leader has nothing more for it: the follower is in sync, has
everything, and knows the high watermark, which is the log end. Such a partition is not read again until it changes, so
a fetch costs no more than the changes. Until then the partition uses the time of the session's last fetch
(`FollowerProgress.confirm_by`); it is copied when the partition is read again.

Still, all partitions are read from time to time, so that a change without a wake-up is not missed for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from broker.replication.delayed_fetch import Answer, CachedPartition, DelayedFetch, T
from broker.replication.delayed_operations import DelayedOperation, Purgatory, Woken
from broker.replication.replication_quota import ReplicationQuota
from cluster.replication.isr import (
    NOTHING,
    FollowerProgress,
    LeaderActions,
    SessionFetches,
    idle_follower,
    record_fetch,
)
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams, LogReadInfo
from environment.slices import Slices, in_slices
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition

ALL_ARE_READ_EVERY_MS: Final = 10_000


class SessionWatch:
    """Determines the partitions to read for one session. `partitions` is a live view of all of them.

    One fetch at a time: `begin`, then `finish_read` for each partition read. It watches for changes from the first
    fetch until `close`; a waiting fetch enters it as it would enter the purgatory.
    """

    __slots__ = (
        "_changed",
        "_due",
        "_fetches",
        "_idle",
        "_is_closed",
        "_named",
        "_partitions",
        "_purgatory",
        "_read_all_ms",
        "_replica",
        "_waiting",
    )

    def __init__(self, partitions: Mapping[Any, CachedPartition]) -> None:
        self._partitions = partitions
        self._named: dict[TopicPartition, CachedPartition] = {}
        """The watched partitions."""
        self._due: dict[CachedPartition, None] = {}
        """Partitions that each fetch reads until they are idle."""
        self._changed: dict[CachedPartition, None] = {}
        """Partitions that changed since the last fetch began."""
        self._idle: dict[CachedPartition | None, FollowerProgress] = {}
        self._fetches = SessionFetches()
        self._replica: tuple[int, int] | None = None
        self._read_all_ms = 0
        self._purgatory: Purgatory | None = None
        self._waiting: DelayedOperation[Any] | None = None
        self._is_closed = False

    def get(self, key: TopicPartition) -> CachedPartition | None:
        """The partition of that name, unless it has been forgotten."""
        return self._named.get(key)

    # -- changes of the session ----------------------------------------------------------------------------------------

    def ask(self, partition: CachedPartition) -> None:
        """The follower asks for a partition, or for another offset of it."""
        self._due[partition] = None

    def forget(self, partition: CachedPartition) -> None:
        """The follower no longer asks for a partition, and so confirms nothing for it."""
        self._due.pop(partition, None)
        self._changed.pop(partition, None)
        self._take_over(partition)
        if partition.topic is not None:
            key = TopicPartition(partition.topic, partition.partition)
            if self._named.get(key) is partition:
                del self._named[key]
                if self._purgatory is not None:
                    self._purgatory.remove(self, (key,))

    def close(self) -> None:
        """End the session."""
        self._is_closed = True
        if self._purgatory is not None:
            self._purgatory.remove(self, self._named)

    # -- a fetch -------------------------------------------------------------------------------------------------------

    def begin(
        self, purgatory: Purgatory, replica_id: int, replica_epoch: int, monotonic_ms: int
    ) -> list[CachedPartition]:
        """Begin a fetch. It confirms all idle partitions that have not changed; returns the others, to be read.

        After a restart of the follower, all partitions are read.
        """
        self._purgatory = purgatory
        due = self._due
        replica = replica_id, replica_epoch
        if replica != self._replica or monotonic_ms - self._read_all_ms >= ALL_ARE_READ_EVERY_MS:
            self._replica, self._read_all_ms = replica, monotonic_ms
            due.update(dict.fromkeys(self._partitions.values()))
        due.update(self._changed)
        self._changed.clear()
        for partition in due:
            self._take_over(partition)
            self._watch(purgatory, partition)
        self._fetches.last_ms = monotonic_ms
        return list(due)

    def _take_over(self, partition: CachedPartition) -> None:
        follower = self._idle.pop(partition, None)
        if follower is not None:
            follower.take_over(self._fetches)

    def _watch(self, purgatory: Purgatory, partition: CachedPartition) -> None:
        if partition.topic is not None:
            key = TopicPartition(partition.topic, partition.partition)
            known = self._named.get(key)
            if known is None:
                purgatory.add(self, (key,))
            if known not in self._idle:  # a topic of the same name may have replaced another one
                self._named[key] = partition

    def finish_read(self, partition: CachedPartition, follower: FollowerProgress | None, *, has_records: bool) -> None:
        """Process a partition after its read: with a `follower`, which has everything, it is idle; with None it is not.

        A partition that returned records is read after the others next time, so that a byte limit cannot starve them.
        """
        if self._is_closed:
            return
        name = TopicPartition(partition.topic or "", partition.partition)
        if follower is not None and self._named.get(name) is partition:
            self._due.pop(partition, None)
            self._idle[partition] = follower
            follower.confirm_by(self._fetches)
            return
        if has_records:
            self._due.pop(partition, None)
        self._due[partition] = None

    # -- changes -------------------------------------------------------------------------------------------------------

    def wake(self, key: TopicPartition, error: ApiError | None) -> None:
        """See `Purgatory.wake`."""
        self._changed[self._named[key]] = None
        if self._waiting is not None:
            self._waiting.wake(key, error)

    def enter(self, operation: DelayedOperation[Any], _keys: Iterable[TopicPartition]) -> None:
        """See `Purgatory.enter`: the starting fetch is notified of changes of all partitions of the session."""
        self._waiting = operation
        self._count(1)

    def leave(self, operation: DelayedOperation[Any], _keys: Iterable[TopicPartition]) -> None:
        """See `Purgatory.leave`."""
        if self._waiting is operation:
            self._waiting = None
        self._count(-1)

    def _count(self, operations: int) -> None:
        if self._purgatory is not None:
            self._purgatory.size += operations


class FollowerFetch(DelayedFetch[T]):
    """Like `DelayedFetch`. The offset of each partition is recorded at its first read; a waiting fetch that reads again
    confirms nothing new. A log start offset that the follower does not know yet triggers an answer at once.
    """

    __slots__ = (
        "_all_wanted",
        "_changed_reads",
        "_do",
        "_monotonic_ms",
        "_quota",
        "_recorded",
        "_reports_high_watermark",
        "_watch",
    )

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        params: FetchParams,
        wanted: Sequence[CachedPartition],
        answer: Answer[T],
        monotonic_ms: int,
        do: Callable[[Partition, LeaderActions], None],
        watch: SessionWatch | None = None,
        quota: ReplicationQuota | None = None,
        *,
        reports_high_watermark: bool = False,
    ) -> None:
        """`do` processes the outcome of recorded offsets. `quota` limits the bytes for throttled followers. With
        `reports_high_watermark`, a high watermark above the last reported one triggers an answer at once: consumers
        read from this follower (KIP-392).
        """
        self._all_wanted = list(wanted)
        super().__init__(find, params, self._all_wanted, answer)
        self._watch = watch
        self._monotonic_ms = monotonic_ms
        self._do = do
        self._recorded: set[int] = set()
        self._quota = quota
        self._reports_high_watermark = reports_high_watermark
        self._changed_reads: set[int] = set()
        """Positions of partitions with news that the follower must receive at once."""

    @property
    def is_satisfied(self) -> bool:
        """See `DelayedFetch.is_satisfied`."""
        return bool(self._changed_reads) or super().is_satisfied

    def read(self, at: int) -> None:
        """See `DelayedFetch.read`."""
        super().read(at)
        self._record(at)
        if self._quota is not None and self._quota.throttled:
            self._hold_back(at, self._quota)
        self._check_for_changes(at)

    def _hold_back(self, at: int, quota: ReplicationQuota) -> None:
        """Drop the records if the quota does not permit them for a follower that is out of sync. It will ask for them
        again.
        """
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

    def _check_for_changes(self, at: int) -> None:
        found, wanted = self._reads[at], self._wanted[at]
        if isinstance(found, LogReadInfo) and (
            0 <= self._known_log_start(at) < found.log_start_offset
            or (self._reports_high_watermark and 0 <= wanted.reported_high_watermark < found.high_watermark)
        ):
            self._changed_reads.add(at)
        else:
            self._changed_reads.discard(at)

    def _known_log_start(self, at: int) -> int:
        """The log start offset last sent to the follower; in a new session, the follower's own."""
        wanted = self._wanted[at]
        reported = wanted.reported_log_start_offset
        return reported if reported >= 0 else wanted.log_start_offset

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

    def reread_changed(self, woken: Woken, expired: bool) -> bool:
        """See `DelayedFetch.reread_changed`. A partition that was idle and confirmed when the fetch began is read
        for the first time when it changes.
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
        return super().reread_changed(woken, expired)

    def respond(self) -> T:
        """See `DelayedFetch.respond`."""
        if self._watch is not None:
            for wanted, found in zip(self._wanted, self._reads, strict=True):
                self._finish_read(self._watch, wanted, found)
        self._count_throttled()
        return super().respond()

    async def respond_in_slices(self, slices: Slices) -> T:
        """See `DelayedFetch.respond_in_slices`. A partition that changes after it became idle is read by the session's
        next fetch.
        """
        if self._watch is not None:
            async for wanted, found in in_slices(list(zip(self._wanted, self._reads, strict=True)), slices):
                self._finish_read(self._watch, wanted, found)
        self._count_throttled()
        return await super().respond_in_slices(slices)

    def _finish_read(self, watch: SessionWatch, wanted: CachedPartition, found: LogReadInfo | ApiError | None) -> None:
        follower = None if found is None else self._idle_follower(wanted, found)
        has_records = isinstance(found, LogReadInfo) and found.records is not None
        watch.finish_read(wanted, follower, has_records=has_records)

    def _count_throttled(self) -> None:
        if self._quota is not None and self._quota.throttled:
            self._count(self._quota)

    def _count(self, quota: ReplicationQuota) -> None:
        for at, partition in self._sources.items():
            found = self._reads[at]
            if isinstance(found, LogReadInfo) and quota.is_throttled(partition.topic_partition):
                quota.record(found.size)

    def _idle_follower(self, wanted: CachedPartition, found: LogReadInfo | ApiError) -> FollowerProgress | None:
        """The follower's progress if the partition can be skipped until it changes."""
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
            return None  # the replica is gone
        if found.log_start_offset != partition.log.log_start_offset:
            return None
        return idle_follower(partition, self.params, wanted.fetch_offset)
