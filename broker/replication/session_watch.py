"""The changes in a follower's fetch session: each fetch reads the partitions that need it, and confirms the others.

A follower's fetch says of every partition of its session that the follower has everything below the offset it asked for
last (KIP-227). A partition is settled when the leader has nothing more for it: the follower is in sync, has everything,
and has been told the high watermark, which is the log end. Such a partition is not read again before something changes,
so a fetch costs no more than what happens. The time of the session's last fetch stands in for its own
(`FollowerProgress.confirm_by`), and is taken over as soon as the partition is read again.

All partitions are read from time to time all the same, so that a change that wakes nobody is not missed for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.replication.fetch_partition import FetchPartition
from broker.replication.purgatory import DelayedOperation, Purgatory
from cluster.replication.isr import FollowerProgress, SessionFetches
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition

ALL_ARE_READ_EVERY_MS: Final = 10_000


class SessionWatch:
    """Tells what is to be read of one session. `partitions` are all of them, a view of what it has at any time.

    One fetch at a time: `begin`, then `settle` for what was read. It watches for changes from the first fetch until
    `close`; a fetch that waits enters it as it would enter the purgatory.
    """

    __slots__ = (
        "_changed",
        "_due",
        "_fetches",
        "_is_closed",
        "_named",
        "_partitions",
        "_purgatory",
        "_read_all_ms",
        "_replica",
        "_settled",
        "_waiting",
    )

    def __init__(self, partitions: Mapping[Any, FetchPartition]) -> None:
        self._partitions = partitions
        self._named: dict[TopicPartition, FetchPartition] = {}
        """Those that are watched."""
        self._due: dict[FetchPartition, None] = {}
        """To be read by each fetch until they are settled."""
        self._changed: dict[FetchPartition, None] = {}
        """Those that have changed since the last fetch began."""
        self._settled: dict[FetchPartition | None, FollowerProgress] = {}
        self._fetches = SessionFetches()
        self._replica: tuple[int, int] | None = None
        self._read_all_ms = 0
        self._purgatory: Purgatory | None = None
        self._waiting: DelayedOperation[Any] | None = None
        self._is_closed = False

    def get(self, key: TopicPartition) -> FetchPartition | None:
        """The partition of that name, unless it was forgotten meanwhile."""
        return self._named.get(key)

    # -- what the follower says ----------------------------------------------------------------------------------------

    def ask(self, partition: FetchPartition) -> None:
        """The follower asks for a partition, or for another offset of it."""
        self._due[partition] = None

    def forget(self, partition: FetchPartition) -> None:
        """The follower asks for a partition no longer, and so confirms nothing of it."""
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
        """The session is over."""
        self._is_closed = True
        if self._purgatory is not None:
            self._purgatory.remove(self, self._named)

    # -- a fetch -------------------------------------------------------------------------------------------------------

    def begin(
        self, purgatory: Purgatory, replica_id: int, replica_epoch: int, monotonic_ms: int
    ) -> list[FetchPartition]:
        """A fetch has come, which confirms all settled partitions that have not changed; give the others, to be read.

        All are read when another incarnation of the follower goes on with the session.
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

    def _take_over(self, partition: FetchPartition) -> None:
        follower = self._settled.pop(partition, None)
        if follower is not None:
            follower.take_over(self._fetches)

    def _watch(self, purgatory: Purgatory, partition: FetchPartition) -> None:
        if partition.topic is not None:
            key = TopicPartition(partition.topic, partition.partition)
            known = self._named.get(key)
            if known is None:
                purgatory.add(self, (key,))
            if known not in self._settled:  # a topic of the same name may have come in place of another one
                self._named[key] = partition

    def settle(self, partition: FetchPartition, follower: FollowerProgress | None, *, has_records: bool) -> None:
        """A partition was read: it is settled with the `follower` that has everything, or not with None.

        One that gave records is read after the others next time, so that a byte limit cannot starve them.
        """
        if self._is_closed:
            return
        name = TopicPartition(partition.topic or "", partition.partition)
        if follower is not None and self._named.get(name) is partition:
            self._due.pop(partition, None)
            self._settled[partition] = follower
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
        """See `Purgatory.enter`: a fetch begins, which hears of each partition of the session."""
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
