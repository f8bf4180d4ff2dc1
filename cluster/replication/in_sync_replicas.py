"""A leader's view of its followers: who is in sync, who is to join or to leave, and what is committed.

Source of the rules: Kafka's Partition class; KIP-497 (one change in flight, the maximal ISR), KIP-903 (broker epochs),
KIP-966 (nothing is committed below min.insync.replicas).

`image.isr` is the ISR that the controller has committed. While a replica is to join, the maximal ISR has it already:
the controller may have added it, and elect it, before the leader hears of it (KAFKA-13091). While a replica is to
leave, it stays in the maximal ISR until the controller has confirmed that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.metadata_image import PartitionImage
from cluster.replication.follower_progress import FollowerProgress
from cluster.replication.isr_changes import UNKNOWN_BROKER_EPOCH, IsrChange
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value

DEFAULT_LAG_TIME_MAX_MS = 30_000
"""Kafka's default of replica.lag.time.max.ms."""
INELIGIBLE_FOR_MS = 1_000
"""How long a follower is not proposed again that the controller has found ineligible: it may be about to stop, and
goes on to fetch until it is told not to.
"""


def _everybody(_broker_id: int, _broker_epoch: int) -> bool:
    return True


class IsrRules(Value):
    """The rules for in-sync replicas, the same for all partitions of a broker.

    `is_eligible(broker_id, broker_epoch)` says whether the broker is alive, and in that incarnation if both are known.
    """

    lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS
    is_eligible: Callable[[int, int], bool] = _everybody


ALL_ARE_ELIGIBLE = IsrRules()


class InSyncReplicas:
    """The followers of one partition that this broker leads. Lives as long as the leadership."""

    __slots__ = ("_joining", "_rules", "followers", "pending")

    def __init__(self, rules: IsrRules) -> None:
        self._rules = rules
        self.followers: dict[int, FollowerProgress] = {}
        """By broker id: all replicas but the leader's own."""
        self.pending: IsrChange | None = None
        """The one change that the controller was asked for. It may or may not have been applied."""
        self._joining = -1
        """The replica that joins with `pending`; -1 for none."""

    def begin_epoch(self, image: PartitionImage, leader_end_offset: int, now_ms: int) -> None:
        """The leader epoch of `image` begins. A change that is pending is given up: `image` is newer, and an answer to
        it belongs to nothing any more.
        """
        known = self.followers
        self.followers = {}
        for broker_id in image.replicas:
            if broker_id == image.leader:
                continue
            follower, is_in_sync = known.get(broker_id), broker_id in image.isr
            if follower is None:
                follower = FollowerProgress()
            else:
                follower.go_on(leader_end_offset)
            follower.begin_epoch(now_ms, is_in_sync=is_in_sync)
            self.followers[broker_id] = follower
        self.settle()

    def settle(self) -> None:
        """Nothing is pending any more."""
        self.pending = None
        self._joining = -1

    def refuse(self) -> None:
        """The follower that joins with the pending change is ineligible, for now."""
        follower = self.followers.get(self._joining)
        if follower is not None:
            follower.may_join_from_ms = follower.last_fetch_ms + INELIGIBLE_FOR_MS
        self.settle()

    # -- progress ------------------------------------------------------------------------------------------------------

    def follower(self, broker_id: int, broker_epoch: int) -> FollowerProgress | None:
        """The progress of a follower that fetches; None when the broker has no replica. Raises NOT_LEADER_OR_FOLLOWER
        for an incarnation that is older than one that has fetched already: it confirms what may be gone by now.
        """
        follower = self.followers.get(broker_id)
        if follower is not None and UNKNOWN_BROKER_EPOCH < broker_epoch < follower.broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} fetches with epoch {broker_epoch}, which is older than {follower.broker_epoch}",
            )
        return follower

    def size_of_maximal_isr(self, image: PartitionImage) -> int:
        """Replicas in the committed ISR, and the one that joins."""
        return len(image.isr) + (self._joining >= 0)

    def look_at(self, follower: FollowerProgress, leader_end_offset: int, now_ms: int) -> None:
        """Find out whether a follower is caught up: it has fetched, or time has passed."""
        follower.is_awaited = follower.is_caught_up(leader_end_offset, now_ms, self._rules.lag_time_max_ms)

    def committed_end(self, image: PartitionImage, end_offset: int) -> int:
        """The offset below which all in-sync replicas have everything, at most `end_offset`; -1 when it is not known.

        A replica outside of the maximal ISR is waited for as well, if it is caught up and may join: it would never
        reach a high watermark that runs ahead of it with the leader's end, and so never join.
        """
        isr = image.isr
        for broker_id, follower in self.followers.items():
            if follower.log_end_offset < end_offset and (
                broker_id in isr
                or broker_id == self._joining
                or (follower.is_awaited and self._may_join(broker_id, follower))
            ):
                end_offset = follower.log_end_offset
        return end_offset

    def _may_join(self, broker_id: int, follower: FollowerProgress) -> bool:
        """Whether the controller would let a follower join that has everything."""
        return follower.last_fetch_ms >= follower.may_join_from_ms and self._rules.is_eligible(
            broker_id, follower.broker_epoch
        )

    # -- changes -------------------------------------------------------------------------------------------------------

    def expansion(
        self,
        name: TopicPartition,
        topic_id: Uuid,
        image: PartitionImage,
        broker_id: int,
        least_offset: int,
    ) -> IsrChange | None:
        """The change that lets a follower join, which is pending from now on; None when it may not.

        `least_offset` is the high watermark, or where the leader epoch began if that is higher: below it may lie
        records that were committed under an earlier leader and are above our high watermark still (KAFKA-7128).
        """
        if self.pending is not None or broker_id in image.isr:
            return None
        follower = self.followers.get(broker_id)
        if follower is None or follower.log_end_offset < least_offset or not self._may_join(broker_id, follower):
            return None
        self._joining = broker_id
        return self._begin_change(name, topic_id, image, (*image.isr, broker_id))

    def shrinkage(
        self, name: TopicPartition, topic_id: Uuid, image: PartitionImage, leader_end_offset: int, now_ms: int
    ) -> IsrChange | None:
        """The change that drops the followers which are behind for too long, pending from now on; None when none is."""
        if self.pending is not None:
            return None
        slow = self.out_of_sync(image, leader_end_offset, now_ms)
        if not slow:
            return None
        return self._begin_change(name, topic_id, image, tuple(each for each in image.isr if each not in slow))

    def out_of_sync(self, image: PartitionImage, leader_end_offset: int, now_ms: int) -> list[int]:
        """The followers in the ISR that are not caught up."""
        return [
            broker_id
            for broker_id in image.isr
            if broker_id != image.leader
            and not (
                broker_id in self.followers
                and self.followers[broker_id].is_caught_up(leader_end_offset, now_ms, self._rules.lag_time_max_ms)
            )
        ]

    def _begin_change(
        self, name: TopicPartition, topic_id: Uuid, image: PartitionImage, isr: tuple[int, ...]
    ) -> IsrChange:
        new_isr = tuple((each, self._epoch_of(each)) for each in isr)
        self.pending = IsrChange(name, topic_id, image.leader_epoch, image.partition_epoch, new_isr)
        return self.pending

    def _epoch_of(self, broker_id: int) -> int:
        follower = self.followers.get(broker_id)
        return UNKNOWN_BROKER_EPOCH if follower is None else follower.broker_epoch
