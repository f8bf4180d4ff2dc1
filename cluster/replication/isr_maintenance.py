"""A leader sees to its in-sync replicas: when a follower fetches, time passes, or its controller has answered. They
change, and the high watermark with them (Kafka: `Partition.updateFollowerFetchState`, `maybeShrinkIsr`,
`handleAlterPartitionUpdate` and `handleAlterPartitionError`).

Times are of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.metadata_image import PartitionImage
from cluster.replication.follower_progress import FollowerProgress
from cluster.replication.isr_changes import NOT_APPLIED, SUPERSEDED, IsrChange
from cluster.replication.partition import NO_EPOCH, Partition
from cluster.replication.reads import FetchParams
from protocol.errors import ErrorCode
from protocol.uuids import ZERO_UUID
from protocol.value import Value


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
