"""A Fetch request of a follower, seen from its leader: it reads up to the log end, and what it asks for tells how far
it has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.replication.delayed_fetch import DelayedFetch, FetchResult, T
from broker.replication.fetch_session import FetchPartition
from cluster.replication.isr_maintenance import Outcome, record_fetch
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams, LogReadInfo
from protocol.topic_partition import TopicPartition


class FollowerFetch(DelayedFetch[T]):
    """As `DelayedFetch`. The offset of each partition is recorded when it is read first; a fetch that waits, and reads
    again, confirms nothing new.
    """

    __slots__ = ("_do", "_monotonic_ms", "_recorded")

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        params: FetchParams,
        wanted: Sequence[FetchPartition],
        answer: Callable[[Sequence[FetchResult]], T],
        monotonic_ms: int,
        do: Callable[[Partition, Outcome], None],
    ) -> None:
        """`do` does what follows from what was recorded."""
        super().__init__(find, params, wanted, answer)
        self._monotonic_ms = monotonic_ms
        self._do = do
        self._recorded: set[int] = set()

    def read(self, at: int) -> None:
        """See `DelayedFetch.read`."""
        super().read(at)
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
        if outcome.advanced or outcome.change is not None:
            self._do(partition, outcome)
            found.high_watermark = partition.high_watermark
