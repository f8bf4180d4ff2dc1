"""The in-sync replicas of a partition, as its leader sees them: how far each follower has come (Kafka classes
`Replica`, `ReplicaState`), which change of the ISR to ask the controller for, and what is committed (Kafka:
`Partition.updateFollowerFetchState`, `maybeShrinkIsr`, `maybeExpandIsr`).

Source of the rules: Kafka's Partition class; KIP-497 (one change in flight, the maximal ISR), KIP-903 (broker epochs),
KIP-966 (nothing is committed below min.insync.replicas).

`image.isr` is the ISR that the controller has committed. While a replica is to join, the maximal ISR has it already:
the controller may have added it, and elect it, before the leader hears of it (KAFKA-13091). While a replica is to
leave, it stays in the maximal ISR until the controller has confirmed that it is gone.

Times are of the monotonic clock: a wall clock that jumps ahead must not put all followers out of sync at once.
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
"""The leader has not heard of the broker in this epoch; its incarnation is not checked."""

NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller tells that it has not applied the change, and that no other will: the leader's partition epoch is the
right one, and the epochs of controllers only rise.
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
"""The leader knows something old, or was never told. Whether the change was applied is not known: it stays pending
until the controller sends the leader its role again. Every other error is passing: the same change is sent once more.
"""


class IsrChange(Value, eq=False):
    """The in-sync replicas that a partition is to have, with the epochs of their brokers' registrations.

    It is applied only while the partition has this leader epoch and this partition epoch. To send it twice does no
    harm. Two are never equal, so that an answer is matched with the very change that was asked for.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch), the epoch -1 when it is not known."""
    leader_recovery_state: int = 0

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers in `new_isr`."""
        return tuple(broker_id for broker_id, _ in self.new_isr)


UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)


class SessionFetches:
    """The fetches of one fetch session. Each confirms what the follower has of all partitions of the session."""

    __slots__ = ("last_ms",)

    def __init__(self) -> None:
        self.last_ms = NEVER_MS


class FollowerProgress:
    """The progress that the fetches of one follower have confirmed: everything below `log_end_offset` is in its log."""

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
        """Of the incarnation that fetched last."""
        self.may_join_from_ms = NEVER_MS
        """Before, this incarnation is not to be proposed for the ISR."""
        self.is_awaited = False
        """Whether it was caught up when that was looked at last."""
        self._session: SessionFetches | None = None
        """Its fetches are as if they were recorded here, while it has everything."""

    def begin_epoch(self, now_ms: int, *, is_in_sync: bool) -> None:
        """This broker begins to lead, or goes on in a new epoch. A follower that is in sync has until
        `replica.lag.time.max.ms` from now to show it; another one does not hold the high watermark back.
        """
        self.last_fetch_ms = self.last_caught_up_ms = now_ms if is_in_sync else NEVER_MS
        self.may_join_from_ms = NEVER_MS
        self.is_awaited = False
        self._session = None

    def go_on(self, leader_end_offset: int) -> None:
        """This broker leads on: what the follower has confirmed in the epoch before still holds."""
        self.last_fetch_leader_end_offset = leader_end_offset

    def record(
        self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """A fetch came, which asks for what begins at `fetch_offset` while the leader's log ended where it says.

        The follower was caught up now if it has everything; or when it fetched last if it has everything that was there
        then. So one that fetches without pause stays caught up even when records come all the time.
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
        """It has everything, and the fetch that said so was recorded. Those of the session that follow say the same
        until `take_over`, which is to be called before the first one that comes after an append.
        """
        if self._session is not None:
            self.take_over(self._session)
        self._session = session

    def take_over(self, session: SessionFetches) -> None:
        """Record the last fetch of the session, if it was one that confirms this; its later ones do not."""
        if self._session is session:
            self.last_fetch_ms = max(self.last_fetch_ms, session.last_ms)
            self.last_caught_up_ms = max(self.last_caught_up_ms, session.last_ms)
            self._session = None

    @property
    def caught_up_ms(self) -> int:
        """When it had everything last, as far as that is known."""
        session = self._session
        return self.last_caught_up_ms if session is None else max(self.last_caught_up_ms, session.last_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has everything, or had everything at a time not longer ago than that."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_time_max_ms


class Outcome(Value):
    """The consequences: whether the high watermark moved, a change to send to the controller, and whether the low
    watermark may have moved.
    """

    advanced: bool = False
    change: IsrChange | None = None
    low_watermark_moved: bool = False


NOTHING = Outcome()


def record_fetch(
    partition: Partition,
    params: FetchParams,
    fetch_offset: int,
    log_start_offset: int,
    leader_end_offset: int,
    monotonic_ms: int,
) -> Outcome:
    """A follower's fetch was served: it has everything below `fetch_offset`. `leader_end_offset` is the log end when
    the records were looked up, so that appends since then do not count against the follower.

    To be called once for each request, and not for one that was answered with an error or a diverging epoch.
    """
    in_sync = partition.in_sync
    follower = None if in_sync is None else in_sync.follower(params.replica_id, params.replica_epoch)
    if in_sync is None or follower is None:
        return NOTHING
    before, start_before = follower.log_end_offset, follower.log_start_offset
    follower.record(fetch_offset, log_start_offset, leader_end_offset, params.replica_epoch, monotonic_ms)
    in_sync.look_at(follower, leader_end_offset, monotonic_ms)
    change = None
    if in_sync.pending is None and params.replica_id not in partition.image.isr:
        least_offset = max(partition.high_watermark, partition.leader_epoch_start_offset)
        topic_id = partition.log.topic_id or ZERO_UUID
        change = in_sync.expansion(
            partition.topic_partition, topic_id, partition.image, params.replica_id, least_offset
        )
    advanced = fetch_offset != before and partition.advance_high_watermark()
    return Outcome(advanced, change, log_start_offset > start_before)


def low_watermark(partition: Partition, is_alive: Callable[[int], bool]) -> int:
    """The least log start offset of the replicas whose brokers live; -1 while a follower has told none. Raises
    NOT_LEADER_OR_FOLLOWER.
    """
    partition.check_leader(NO_EPOCH)
    start_offset = partition.log.log_start_offset
    if partition.in_sync is None:
        return start_offset
    followers = partition.in_sync.followers.items()
    return min([start_offset, *(each.log_start_offset for broker_id, each in followers if is_alive(broker_id))])


def settled_follower(partition: Partition, params: FetchParams, fetch_offset: int) -> FollowerProgress | None:
    """The progress of a follower for which further fetches from that offset change nothing but times: it is in sync,
    and what it has confirmed is the whole log and committed.
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


def check_lag(partition: Partition, monotonic_ms: int) -> Outcome:
    """Time has passed: followers that are behind for longer than `replica.lag.time.max.ms` have to leave. To be called
    regularly, at least every half of that time.
    """
    in_sync = partition.in_sync
    if in_sync is None:
        return NOTHING
    leader_end_offset = partition.log.log_end_offset
    for follower in in_sync.followers.values():
        in_sync.look_at(follower, leader_end_offset, monotonic_ms)
    change = in_sync.shrinkage(
        partition.topic_partition,
        partition.log.topic_id or ZERO_UUID,
        partition.image,
        leader_end_offset,
        monotonic_ms,
    )
    return Outcome(partition.advance_high_watermark(), change)


def brokers_left(partition: Partition, gone: set[int]) -> Outcome:
    """These brokers are not alive any more, or are other incarnations: the leader waits neither for their fetches nor
    for their log starts. The other followers may have confirmed all they have, so that no fetch of theirs comes to move
    the high watermark.
    """
    in_sync = partition.in_sync
    if in_sync is None or gone.isdisjoint(in_sync.followers):
        return NOTHING
    return Outcome(partition.advance_high_watermark(), low_watermark_moved=True)


def settle(partition: Partition, change: IsrChange, answer: PartitionImage | ErrorCode) -> Outcome:
    """The controller answered `change` with the state of the partition, or with an error. `Outcome.change` is to be
    sent once more.

    An answer to what is no longer pending is of no use: the leader has got its role anew since.
    """
    in_sync = partition.in_sync
    if in_sync is None or in_sync.pending is not change:
        return NOTHING
    if isinstance(answer, ErrorCode):
        if answer in SUPERSEDED:
            return NOTHING
        if answer not in NOT_APPLIED:
            return Outcome(change=change)
        if answer is ErrorCode.INELIGIBLE_REPLICA:
            in_sync.refuse()
        else:
            in_sync.settle()
        return Outcome(partition.advance_high_watermark())
    image = partition.image
    if answer.leader_epoch != image.leader_epoch or answer.partition_epoch < image.partition_epoch:
        return NOTHING
    partition.image = image.replace(
        isr=answer.isr,
        partition_epoch=answer.partition_epoch,
        leader_recovery_state=answer.leader_recovery_state,
        eligible=answer.eligible,
    )
    in_sync.settle()
    return Outcome(partition.advance_high_watermark())


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
