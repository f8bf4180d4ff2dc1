"""How a follower reacts to fetch responses (Kafka: `AbstractFetcherThread`; KIP-101, KIP-279, KIP-320, KIP-595).

A follower appends at the end of its log. Each fetch carries its current leader epoch and the epoch of its last record.
The leader responds with records only if its log contains exactly that record. Otherwise it returns the largest epoch
not above that one, and where it ends in the leader's log. The follower truncates its log there, or at its own end of
that epoch if that is lower, and fetches again until the logs agree. The high watermark is not involved: followers that
truncated to it lost committed records, because they learn it late (KIP-101).

These are pure decisions on the current log: they neither wait nor write.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol

from protocol.errors import ErrorCode
from storage.log.leader_epoch import EpochEntry

UNKNOWN = -1


class FollowedLog(Protocol):
    """The part of the follower's log that the decisions need."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 if it lacks any."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """The largest known epoch not above `epoch`, and its end offset; (-1, -1) if unknown."""
        ...


class FetchPosition(NamedTuple):
    """One partition's part of a fetch request."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Step(Enum):
    """The next action of a follower."""

    IGNORE = auto()
    """Do nothing: the role or the log end has changed since the fetch."""
    APPEND = auto()
    """Append the records, and adopt the leader's high watermark."""
    TRUNCATE = auto()
    """Drop all records from `offset` on."""
    TRUNCATE_FULLY = auto()
    """Drop everything and restart at `offset`."""
    TRUNCATE_FULLY_AND_APPEND = auto()
    """Drop everything, restart at `offset`, and append the records, whose first batch starts there."""
    FETCH_OFFSETS = auto()
    """Ask for the leader's log start and end, and decide with `after_offsets`."""
    RETRY_LATER = auto()
    """Fetch again after a pause."""


class Decision(NamedTuple):
    """A step, and its offset."""

    step: Step
    offset: int = UNKNOWN


def position(log: FollowedLog, leader_epoch: int) -> FetchPosition:
    """The position for the next fetch."""
    return FetchPosition(leader_epoch, log.log_end_offset, log.latest_epoch(), log.log_start_offset)


def after_answer(
    log: FollowedLog,
    leader_epoch: int,
    asked: FetchPosition,
    error_code: int,
    diverging: EpochEntry | None,
    leader_start_offset: int,
    first_offset: int | None,
) -> Decision:
    """The step after the response to `asked`, for a replica that follows in `leader_epoch`. `leader_start_offset` is
    the leader's log start, -1 if not given; `first_offset` is the offset of the first batch, if any.
    """
    end_offset = log.log_end_offset
    if asked.leader_epoch != leader_epoch or asked.fetch_offset != end_offset:
        return Decision(Step.IGNORE)
    if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Decision(Step.FETCH_OFFSETS)
    if error_code:
        # All of these are transient. FENCED_LEADER_EPOCH: a LeaderAndIsr for this replica will follow.
        # UNKNOWN_LEADER_EPOCH and NOT_LEADER_OR_FOLLOWER: the leader has not received its own yet.
        # UNKNOWN_TOPIC_OR_PARTITION: the topic is being created or deleted.
        return Decision(Step.RETRY_LATER)
    if diverging is not None:
        offset = truncation_point(log, diverging)
        if offset >= end_offset and diverging.epoch >= log.latest_epoch():
            return Decision(Step.RETRY_LATER)  # the next fetch would be the same
        if offset < leader_start_offset:
            # The remaining records all lie below the leader's log start and may diverge from its log. A crash before
            # the new log start is persisted would make them visible again. If the offsets are equal, truncate first,
            # and restart after the next response: this replica may be in the ISR, and must not end below that offset
            # meanwhile.
            return Decision(Step.TRUNCATE_FULLY, leader_start_offset)
        return Decision(Step.TRUNCATE, offset)
    is_unknown = end_offset == leader_start_offset and log.log_start_offset < end_offset
    if is_unknown and asked.last_fetched_epoch != leader_epoch:
        # All of our records lie below the leader's log start, so it could not compare them. See above.
        return Decision(Step.TRUNCATE_FULLY, leader_start_offset)
    if first_offset is None or first_offset >= end_offset:
        return Decision(Step.APPEND)
    if end_offset == log.log_start_offset:
        # The leader's log start lies within a batch that the empty follower lacks.
        return Decision(Step.TRUNCATE_FULLY_AND_APPEND, first_offset)
    return Decision(Step.RETRY_LATER)


def truncation_point(log: FollowedLog, diverging: EpochEntry) -> int:
    """Where to truncate, given the leader's largest epoch not above ours, and its end (KIP-279).

    If our log lacks that epoch, truncate to the end of the largest one below; the next fetch compares that one.
    """
    end_offset = log.log_end_offset
    if diverging.start_offset < 0:
        return end_offset
    if diverging.epoch < 0:
        return min(diverging.start_offset, end_offset)
    epoch, own_end_offset = log.end_offset_for_epoch(diverging.epoch)
    if own_end_offset < 0:
        return min(diverging.start_offset, end_offset)
    if epoch != diverging.epoch:
        return min(own_end_offset, end_offset)
    return min(own_end_offset, diverging.start_offset, end_offset)


def after_offsets(log: FollowedLog, leader_start_offset: int, leader_end_offset: int) -> Decision:
    """The step after OFFSET_OUT_OF_RANGE.

    A log that ends above the leader's is truncated to the leader's end. A log that ends below the leader's start has
    nothing in common with it, and restarts there. Otherwise the leader's log has moved since the response.
    """
    if leader_end_offset < log.log_end_offset:
        return Decision(Step.TRUNCATE, leader_end_offset)
    if leader_start_offset > log.log_end_offset:
        return Decision(Step.TRUNCATE_FULLY, leader_start_offset)
    return Decision(Step.RETRY_LATER)
