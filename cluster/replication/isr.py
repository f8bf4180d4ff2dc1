"""The in-sync replicas of a partition as tracked by its leader: the progress of each follower (Kafka classes `Replica`,
`ReplicaState`), ISR changes to request from the controller, and what is committed (Kafka:
`Partition.updateFollowerFetchState`, `maybeShrinkIsr`, `maybeExpandIsr`).

Source of the rules: Kafka's Partition class; KIP-497 (one change in flight, the maximal ISR), KIP-903 (broker epochs),
KIP-966 (commits stop below min.insync.replicas).

`image.isr` is the ISR that the controller has committed. The maximal ISR already includes a replica that is being
added: the controller may have added it, and may elect it, before the leader learns of that (KAFKA-13091). A replica
that is being removed stays in the maximal ISR until the controller has confirmed the removal.

Times are monotonic: a wall clock that jumps ahead must not put all followers out of sync at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cluster.metadata_image import PartitionImage
from cluster.replication.reads import FetchParams
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value

if TYPE_CHECKING:
    from cluster.replication.partition import Partition

NO_EPOCH = -1


UNKNOWN_BROKER_EPOCH: Final = -1
"""The broker's epoch is unknown, so its incarnation is not checked."""

NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller did not apply the change, and no later controller will: the leader's partition epoch is current, and
controller epochs only rise.
"""

SUPERSEDED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The leader's view is outdated, or was wrong. The change may or may not have been applied, so it stays pending until
the controller sends the leader a new LeaderAndIsr. All other errors are transient: the same change is sent again.
"""


class IsrChange(Value, eq=False):
    """The requested in-sync replicas of a partition, with their broker epochs.

    The change applies only in this leader epoch and this partition epoch, so sending it twice is harmless. Two changes
    are never equal, so a response matches only the change it answers.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch); the epoch is -1 if unknown."""
    leader_recovery_state: int = 0

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers in `new_isr`."""
        return tuple(broker_id for broker_id, _ in self.new_isr)


UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)


class SessionFetches:
    """The fetches of one fetch session. Each confirms the follower's progress in all partitions of the session."""

    __slots__ = ("last_ms",)

    def __init__(self) -> None:
        self.last_ms = NEVER_MS


class FollowerProgress:
    """A follower's confirmed progress: its log contains everything below `log_end_offset`."""

    __slots__ = (
        "_session",
        "broker_epoch",
        "is_awaited",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "may_join_from_ms",
    )

    def __init__(self) -> None:
        self.log_end_offset = self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = self.last_caught_up_ms = NEVER_MS
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """The broker epoch of the last fetch."""
        self.may_join_from_ms = NEVER_MS
        """Until then, do not propose this incarnation for the ISR."""
        self.is_awaited = False
        """Whether it was caught up at the last check."""
        self._session: SessionFetches | None = None
        """While the follower is caught up, this session's fetches are as good as recorded here."""

    def begin_epoch(self, now_ms: int, *, is_in_sync: bool) -> None:
        """Start a leader epoch. An in-sync follower has `replica.lag.time.max.ms` from now to fetch; other followers do
        not hold the high watermark back.
        """
        self.last_fetch_ms = self.last_caught_up_ms = now_ms if is_in_sync else NEVER_MS
        self.may_join_from_ms = NEVER_MS
        self.is_awaited = False
        self._session = None

    def carry_over(self, leader_end_offset: int) -> None:
        """Keep the follower's confirmed progress in a new epoch of the same leader."""
        self.last_fetch_leader_end_offset = leader_end_offset

    def record(
        self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """Record a fetch at `fetch_offset`, while the leader's log ended at `leader_end_offset`.

        The follower is caught up now if it has reached that end. If it has only reached the end at its previous fetch,
        it was caught up then. So a follower that fetches continuously stays caught up under a steady load.
        """
        if self._session is not None:
            self.take_over(self._session)
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = max(leader_end_offset, self.last_fetch_leader_end_offset)
        self.last_fetch_ms = now_ms
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.may_join_from_ms = NEVER_MS

    def confirm_by(self, session: SessionFetches) -> None:
        """The follower is caught up, and its fetch was recorded. Later fetches of the session confirm the same until
        `take_over`, to be called before the first fetch after an append.
        """
        if self._session is not None:
            self.take_over(self._session)
        self._session = session

    def take_over(self, session: SessionFetches) -> None:
        """Record the session's last fetch if the session confirms this progress; later fetches no longer do."""
        if self._session is session:
            self.last_fetch_ms = max(self.last_fetch_ms, session.last_ms)
            self.last_caught_up_ms = max(self.last_caught_up_ms, session.last_ms)
            self._session = None

    @property
    def caught_up_ms(self) -> int:
        """The last time it was known to be caught up."""
        session = self._session
        return self.last_caught_up_ms if session is None else max(self.last_caught_up_ms, session.last_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it is caught up, or was within the last `lag_time_max_ms`."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_time_max_ms


class LeaderActions(Value):
    """The next actions: whether the high watermark moved, a change to send to the controller, and whether the low
    watermark may have moved.
    """

    advanced: bool = False
    change: IsrChange | None = None
    low_watermark_moved: bool = False


NOTHING = LeaderActions()


def record_fetch(
    partition: Partition,
    params: FetchParams,
    fetch_offset: int,
    log_start_offset: int,
    leader_end_offset: int,
    monotonic_ms: int,
) -> LeaderActions:
    """Record a served fetch: the follower has everything below `fetch_offset`. `leader_end_offset` is the log end at
    the time of the read, so that later appends do not count against the follower.

    Call it once per request, and not for responses with an error or a diverging epoch.
    """
    in_sync = partition.in_sync
    follower = None if in_sync is None else in_sync.follower(params.replica_id, params.replica_epoch)
    if in_sync is None or follower is None:
        return NOTHING
    before, start_before = follower.log_end_offset, follower.log_start_offset
    follower.record(fetch_offset, log_start_offset, leader_end_offset, params.replica_epoch, monotonic_ms)
    in_sync.check_caught_up(follower, leader_end_offset, monotonic_ms)
    change = None
    if in_sync.pending is None and params.replica_id not in partition.image.isr:
        least_offset = max(partition.high_watermark, partition.leader_epoch_start_offset)
        topic_id = partition.log.topic_id or ZERO_UUID
        change = in_sync.expansion(
            partition.topic_partition, topic_id, partition.image, params.replica_id, least_offset
        )
    advanced = fetch_offset != before and partition.advance_high_watermark()
    return LeaderActions(advanced, change, log_start_offset > start_before)


def low_watermark(partition: Partition, is_alive: Callable[[int], bool]) -> int:
    """The lowest log start offset of replicas on live brokers; -1 while a follower's is unknown. Raises
    NOT_LEADER_OR_FOLLOWER.
    """
    partition.check_leader(NO_EPOCH)
    start_offset = partition.log.log_start_offset
    if partition.in_sync is None:
        return start_offset
    followers = partition.in_sync.followers.items()
    return min([start_offset, *(each.log_start_offset for broker_id, each in followers if is_alive(broker_id))])


def idle_follower(partition: Partition, params: FetchParams, fetch_offset: int) -> FollowerProgress | None:
    """The progress of a follower if more fetches at that offset would only change times: it is in sync, and has
    confirmed the whole log, all of it committed.
    """
    in_sync = partition.in_sync
    if in_sync is None or in_sync.pending is not None or params.replica_id not in partition.image.isr:
        return None
    follower = in_sync.followers.get(params.replica_id)
    if (
        follower is None
        or not follower.is_awaited
        or follower.broker_epoch != params.replica_epoch
        or not follower.log_end_offset == fetch_offset == partition.high_watermark == partition.log.log_end_offset
    ):
        return None
    return follower


def check_lag(partition: Partition, monotonic_ms: int) -> LeaderActions:
    """Request the removal of followers that lag for more than `replica.lag.time.max.ms`. Call it at least every half of
    that time.
    """
    in_sync = partition.in_sync
    if in_sync is None:
        return NOTHING
    leader_end_offset = partition.log.log_end_offset
    for follower in in_sync.followers.values():
        in_sync.check_caught_up(follower, leader_end_offset, monotonic_ms)
    change = in_sync.shrinkage(
        partition.topic_partition,
        partition.log.topic_id or ZERO_UUID,
        partition.image,
        leader_end_offset,
        monotonic_ms,
    )
    return LeaderActions(partition.advance_high_watermark(), change)


def on_brokers_removed(partition: Partition, gone: set[int]) -> LeaderActions:
    """These brokers have died or restarted: the leader no longer waits for their fetches or log starts. This has to
    advance the high watermark, because the other followers may already have confirmed everything.
    """
    in_sync = partition.in_sync
    if in_sync is None or gone.isdisjoint(in_sync.followers):
        return NOTHING
    return LeaderActions(partition.advance_high_watermark(), low_watermark_moved=True)


def complete_change(partition: Partition, change: IsrChange, answer: PartitionImage | ErrorCode) -> LeaderActions:
    """Handle the controller's response to `change`: the state of the partition, or an error. `LeaderActions.change` is
    to be sent again.

    A response to a change that is no longer pending is ignored, since the leader has received a new role meanwhile.
    """
    in_sync = partition.in_sync
    if in_sync is None or in_sync.pending is not change:
        return NOTHING
    if isinstance(answer, ErrorCode):
        if answer in SUPERSEDED:
            return NOTHING
        if answer not in NOT_APPLIED:
            return LeaderActions(change=change)
        if answer is ErrorCode.INELIGIBLE_REPLICA:
            in_sync.mark_ineligible()
        else:
            in_sync.complete_change()
        return LeaderActions(partition.advance_high_watermark())
    image = partition.image
    if answer.leader_epoch != image.leader_epoch or answer.partition_epoch < image.partition_epoch:
        return NOTHING
    partition.image = image.replace(
        isr=answer.isr,
        partition_epoch=answer.partition_epoch,
        leader_recovery_state=answer.leader_recovery_state,
        eligible=answer.eligible,
    )
    in_sync.complete_change()
    return LeaderActions(partition.advance_high_watermark())


DEFAULT_LAG_TIME_MAX_MS = 30_000
"""Kafka's default of replica.lag.time.max.ms."""
INELIGIBLE_FOR_MS = 1_000
"""The pause before proposing a follower again that the controller called ineligible: it may be shutting down, and
fetches until it receives its StopReplica.
"""


def _everybody(_broker_id: int, _broker_epoch: int) -> bool:
    return True


class IsrRules(Value):
    """The rules for in-sync replicas, common to all partitions of a broker.

    `is_eligible(broker_id, broker_epoch)` says whether the broker is alive, in that incarnation if both epochs are
    known.
    """

    lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS
    is_eligible: Callable[[int, int], bool] = _everybody


ALL_ARE_ELIGIBLE = IsrRules()


class InSyncReplicas:
    """The followers of one partition, while this broker leads it."""

    __slots__ = ("_joining", "_rules", "followers", "pending")

    def __init__(self, rules: IsrRules) -> None:
        self._rules = rules
        self.followers: dict[int, FollowerProgress] = {}
        """By broker id: all replicas except the leader."""
        self.pending: IsrChange | None = None
        """The one change in flight. It may or may not have been applied."""
        self._joining = -1
        """The replica that `pending` adds; -1 if it adds none."""

    def begin_epoch(self, image: PartitionImage, leader_end_offset: int, now_ms: int) -> None:
        """Start the leader epoch of `image`. A pending change is dropped: `image` is newer, and its response will be
        ignored.
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
                follower.carry_over(leader_end_offset)
            follower.begin_epoch(now_ms, is_in_sync=is_in_sync)
            self.followers[broker_id] = follower
        self.complete_change()

    def complete_change(self) -> None:
        """Clear the pending change."""
        self.pending = None
        self._joining = -1

    def mark_ineligible(self) -> None:
        """The follower that the pending change adds is ineligible for now."""
        follower = self.followers.get(self._joining)
        if follower is not None:
            follower.may_join_from_ms = follower.last_fetch_ms + INELIGIBLE_FOR_MS
        self.complete_change()

    # -- progress ------------------------------------------------------------------------------------------------------

    def follower(self, broker_id: int, broker_epoch: int) -> FollowerProgress | None:
        """The progress of a fetching follower, or None if the broker is not a replica. Raises NOT_LEADER_OR_FOLLOWER
        for an older incarnation than the last one to fetch, because the records it confirms may be lost by now.
        """
        follower = self.followers.get(broker_id)
        if follower is not None and UNKNOWN_BROKER_EPOCH < broker_epoch < follower.broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} fetches with epoch {broker_epoch}, which is older than {follower.broker_epoch}",
            )
        return follower

    def size_of_maximal_isr(self, image: PartitionImage) -> int:
        """The number of replicas in the committed ISR, plus the one being added."""
        return len(image.isr) + (self._joining >= 0)

    def check_caught_up(self, follower: FollowerProgress, leader_end_offset: int, now_ms: int) -> None:
        """Check whether a follower is caught up, after a fetch or a time."""
        follower.is_awaited = follower.is_caught_up(leader_end_offset, now_ms, self._rules.lag_time_max_ms)

    def committed_end(self, image: PartitionImage, end_offset: int) -> int:
        """The end of the records that all in-sync replicas have, at most `end_offset`; -1 if unknown.

        It also waits for a caught-up replica outside the maximal ISR that may join: such a replica could never reach a
        high watermark that keeps pace with the leader's log end.
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
        """Whether the controller would accept a caught-up follower into the ISR."""
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
        """A change that adds the follower, now pending, or None if it may not join.

        `least_offset` is the high watermark, or the start of the leader epoch if that is higher: records below it may
        have been committed by an earlier leader, although our high watermark has not reached them yet (KAFKA-7128).
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
        """A change that removes the followers that lag too long, now pending, or None if all keep up."""
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
