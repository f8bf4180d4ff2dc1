"""A follower's decisions on its leader's answers (Kafka: `AbstractFetcherThread`; KIP-101, KIP-279, KIP-320, KIP-595).

A follower appends where its log ends. With every fetch it tells the leader epoch that it follows in, and the epoch of
its last record. The leader answers with records only when it has that very record; else it tells where the epoch, or
the largest one below, ends in its own log. The follower cuts its log there, or where it knows that epoch to end itself,
and asks again, until the logs agree. The high watermark has no part in it: a follower that was cut there lost records
that were committed, because it hears of the high watermark late (KIP-101).

Everything here is a decision on a log as it is at that moment; nothing waits and nothing is written.
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
        """The newest leader epoch of the log; -1 when there is none."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """The largest known epoch not above `epoch` and its end offset; (-1, -1) when not known."""
        ...


class FetchPosition(NamedTuple):
    """The part of a fetch about one partition."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Step(Enum):
    """Something that is to be done."""

    IGNORE = auto()
    """Nothing: the answer is to a question that another role, or another log end, has made obsolete."""
    APPEND = auto()
    """Append the records, and take the leader's high watermark over."""
    TRUNCATE = auto()
    """Drop what is at `offset` and behind it."""
    BEGIN_ANEW = auto()
    """Drop everything and begin at `offset`."""
    BEGIN_ANEW_AND_APPEND = auto()
    """The same, and append the records, the first batch of which begins there."""
    ASK_FOR_OFFSETS = auto()
    """Ask the leader where its log begins and ends, and decide with `after_offsets`."""
    RETRY_LATER = auto()
    """Fetch again after a pause."""


class Decision(NamedTuple):
    """A step, and the offset it needs."""

    step: Step
    offset: int = UNKNOWN


def position(log: FollowedLog, leader_epoch: int) -> FetchPosition:
    """Give what the next fetch says."""
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
    """The step after the answer to `asked`, for a replica that follows in `leader_epoch` now. `leader_start_offset` is
    where the leader's log begins, -1 when it does not say; `first_offset` is that of the first batch that came, None
    without one.
    """
    end_offset = log.log_end_offset
    if asked.leader_epoch != leader_epoch or asked.fetch_offset != end_offset:
        return Decision(Step.IGNORE)
    if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Decision(Step.ASK_FOR_OFFSETS)
    if error_code:
        # With FENCED_LEADER_EPOCH a new role is on its way; with UNKNOWN_LEADER_EPOCH and NOT_LEADER_OR_FOLLOWER the
        # leader has not heard of its own yet; UNKNOWN_TOPIC_OR_PARTITION comes with topics that are being made or gone.
        return Decision(Step.RETRY_LATER)
    if diverging is not None:
        offset = truncation_point(log, diverging)
        if offset >= end_offset and diverging.epoch >= log.latest_epoch():
            return Decision(Step.RETRY_LATER)  # it would ask the same again
        if offset < leader_start_offset:
            # The leader knows nothing of what is left: it may have diverged, and would come to light again if this
            # broker died before it had kept its new log start. At exactly that offset the log is truncated first, and
            # begins anew after the next answer: this replica may be in the ISR, and must not end below it meanwhile.
            return Decision(Step.BEGIN_ANEW, leader_start_offset)
        return Decision(Step.TRUNCATE, offset)
    is_unknown = end_offset == leader_start_offset and log.log_start_offset < end_offset
    if is_unknown and asked.last_fetched_epoch != leader_epoch:
        # The leader knows none of our records, and could not tell whether they are its own. See above.
        return Decision(Step.BEGIN_ANEW, leader_start_offset)
    if first_offset is None or first_offset >= end_offset:
        return Decision(Step.APPEND)
    if end_offset == log.log_start_offset:
        # The leader's log start lies within a batch, of which the follower has nothing yet.
        return Decision(Step.BEGIN_ANEW_AND_APPEND, first_offset)
    return Decision(Step.RETRY_LATER)


def truncation_point(log: FollowedLog, diverging: EpochEntry) -> int:
    """Where to cut when the leader says that the largest epoch that it knows, not above ours, ends there (KIP-279).

    Where our log does not have that epoch, we cut behind the largest one below it, and the leader is asked about that.
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
    """The step when the leader did not have the offset that was asked for.

    A log that reaches beyond the leader's is cut at the leader's end. One that ends before the leader's begins has
    nothing in common with it any more. Otherwise the leader's log has moved since it answered.
    """
    if leader_end_offset < log.log_end_offset:
        return Decision(Step.TRUNCATE, leader_end_offset)
    if leader_start_offset > log.log_end_offset:
        return Decision(Step.BEGIN_ANEW, leader_start_offset)
    return Decision(Step.RETRY_LATER)
