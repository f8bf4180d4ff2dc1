"""A follower's log becomes equal to its leader's, whatever elections have left in it (KIP-101, KIP-279, KIP-320,
KIP-595).
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.replication.follower import (
    Decision,
    FetchPosition,
    Step,
    after_answer,
    after_offsets,
    position,
    truncation_point,
)
from protocol.errors import ApiError, ErrorCode
from storage.log.leader_epoch import EpochEntry
from tests.cluster.replication.replicas import Replicas
from tests.storage.support import T0, batch_of

# -- logs as lists -----------------------------------------------------------------------------------------------------


class ListLog:
    """A log whose records are (epoch, value) in a list, with the epochs of the records."""

    def __init__(self, *records: tuple[int, int], start: int = 0) -> None:
        self.records = list(records)
        self.log_start_offset = start

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    def latest_epoch(self) -> int:
        return self.records[-1][0] if self.records else -1

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        if not self.records or epoch > self.latest_epoch():
            return EpochEntry(-1, -1)
        after = [at for at, (each, _) in enumerate(self.records) if each > epoch]
        end = after[0] if after else len(self.records)
        known = self.records[end - 1][0] if end else epoch
        return EpochEntry(known, self.log_start_offset + end)

    def truncate(self, offset: int) -> None:
        if offset < self.log_start_offset:
            self.begin_anew(offset)
        del self.records[offset - self.log_start_offset :]

    def delete_before(self, offset: int) -> None:
        dropped = max(offset - self.log_start_offset, 0)
        self.records = self.records[dropped:]
        self.log_start_offset += dropped

    def begin_anew(self, offset: int) -> None:
        self.records, self.log_start_offset = [], offset


class ListLeader:
    """A leader that answers like Kafka's Partition. It knows its leader epoch."""

    def __init__(self, log: ListLog, epoch: int) -> None:
        self.log = log
        self.epoch = epoch

    def end_of(self, epoch: int) -> EpochEntry:
        log = self.log
        if epoch == self.epoch or (epoch < self.epoch and epoch >= log.latest_epoch() and log.records):
            known = self.epoch if epoch == self.epoch else log.latest_epoch()
            return EpochEntry(known, log.log_end_offset)
        found = log.end_offset_for_epoch(epoch)
        return EpochEntry(epoch, log.log_end_offset) if found.epoch < 0 and not log.records else found

    def answer(self, asked: FetchPosition) -> tuple[ErrorCode, EpochEntry | None, list[tuple[int, int]]]:
        log = self.log
        if asked.leader_epoch != self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, None, []
        if asked.last_fetched_epoch >= 0:
            end = self.end_of(asked.last_fetched_epoch)
            if end.start_offset < 0 or asked.fetch_offset < log.log_start_offset:
                return ErrorCode.OFFSET_OUT_OF_RANGE, None, []
            if end.epoch < asked.last_fetched_epoch or end.start_offset < asked.fetch_offset:
                return ErrorCode.NONE, end, []
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE, None, []
        return ErrorCode.NONE, None, log.records[asked.fetch_offset - log.log_start_offset :]


def follow(log: ListLog, leader: ListLeader) -> int:
    """Fetch until the log ends where the leader's does; returns the number of fetches."""
    for count in range(200):
        asked = position(log, leader.epoch)
        error_code, diverging, records = leader.answer(asked)
        first = asked.fetch_offset if records else None
        decision = after_answer(log, leader.epoch, asked, error_code, diverging, leader.log.log_start_offset, first)
        if decision.step is Step.FETCH_OFFSETS:
            decision = after_offsets(log, leader.log.log_start_offset, leader.log.log_end_offset)
        if decision.step is Step.TRUNCATE:
            log.truncate(decision.offset)
        elif decision.step is Step.TRUNCATE_FULLY:
            log.begin_anew(decision.offset)
        elif decision.step is Step.APPEND:
            log.records += records
            log.delete_before(leader.log.log_start_offset)
            if not records and log.log_end_offset == leader.log.log_end_offset:
                return count
        else:
            raise AssertionError(f"{decision} at {asked}")
    raise AssertionError("the logs never agree")


@settings(max_examples=400)
@given(st.data())
def test_logs_agree_after_any_elections(data: st.DataObject) -> None:
    """Replicas are elected at random, cleanly or not; each leads alone for a while, and others follow it or do not. In
    the end all follow one leader, and have its records.
    """
    logs = [ListLog() for _ in range(3)]
    value = 0
    for epoch in range(1, data.draw(st.integers(1, 8)) + 1):
        number = data.draw(st.integers(0, 2))
        leader = ListLeader(logs[number], epoch)
        for _ in range(data.draw(st.integers(0, 4))):
            value += 1
            leader.log.records.append((epoch, value))
        for other in data.draw(st.sets(st.sampled_from([0, 1, 2]))):
            if other != number:
                follow(logs[other], leader)
        if data.draw(st.booleans()):
            drop = data.draw(st.integers(0, len(leader.log.records)))
            leader.log.delete_before(leader.log.log_start_offset + drop)
    number = data.draw(st.integers(0, 2))
    leader = ListLeader(logs[number], 99)
    for log in logs:
        if log is not leader.log:
            before, high = list(log.records), log.log_start_offset
            common = common_prefix(log, leader.log)
            follow(log, leader)
            start = max(log.log_start_offset, leader.log.log_start_offset)
            assert (
                log.records[start - log.log_start_offset :] == leader.log.records[start - leader.log.log_start_offset :]
            )
            if log.log_start_offset == high:
                kept = log.records[: common - high]
                assert kept == before[: common - high], "what both had was not cut off"


def common_prefix(log: ListLog, other: ListLog) -> int:
    """The offset up to which two logs hold the same records, as far as neither has deleted them."""
    offset = max(log.log_start_offset, other.log_start_offset)
    while (
        offset < min(log.log_end_offset, other.log_end_offset)
        and log.records[offset - log.log_start_offset] == other.records[offset - other.log_start_offset]
    ):
        offset += 1
    return offset


def test_two_fast_fail_overs_are_told_apart_epoch_by_epoch() -> None:
    """M2, the example of KIP-279: the follower does not have the epoch that the leader names."""
    leader = ListLeader(ListLog((1, 1), (1, 2), (3, 5), (3, 6)), 4)
    follower = ListLog((1, 1), (1, 2), (2, 3), (2, 4))
    follow(follower, leader)
    assert follower.records == leader.log.records


# -- decisions one by one ----------------------------------------------------------------------------------------------

LOG = ListLog((1, 1), (1, 2), (3, 3), (3, 4))


@pytest.mark.parametrize(
    ("leader_says", "offset"),
    [
        ((3, 3), 3),  # the epoch is shorter at the leader
        ((3, 9), 4),
        ((2, 2), 2),  # we do not have that epoch: continue after the largest lower one
        ((1, 1), 1),
        ((1, 7), 2),  # it was longer at the leader
        ((-1, 2), 2),  # the leader does not have epochs
        ((-1, -1), 4),
    ],
)
def test_where_a_log_is_cut(leader_says: tuple[int, int], offset: int) -> None:
    assert truncation_point(LOG, EpochEntry(*leader_says)) == offset


def decide(
    error_code: int = 0,
    diverging: EpochEntry | None = None,
    leader_start: int = 0,
    first: int | None = None,
    **asked: int,
) -> Decision:
    """The decision of a follower in epoch 5 that has requested its log end."""
    return after_answer(LOG, 5, position(LOG, 5)._replace(**asked), error_code, diverging, leader_start, first)


def test_an_answer_to_another_question_is_ignored() -> None:
    """M3: it belongs to an old epoch, or to another log end than the current one."""
    assert decide(first=4, leader_epoch=4).step is Step.IGNORE
    assert decide(first=3, fetch_offset=3).step is Step.IGNORE
    assert decide(diverging=EpochEntry(1, 1), leader_epoch=4).step is Step.IGNORE
    assert decide(first=4).step is Step.APPEND


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ],
)
def test_errors_that_pass_are_waited_for(error: ErrorCode) -> None:
    assert decide(error).step is Step.RETRY_LATER


def test_a_truncation_that_would_change_nothing_is_not_repeated_at_once() -> None:
    assert decide(diverging=EpochEntry(3, 4)).step is Step.RETRY_LATER
    assert decide(diverging=EpochEntry(2, 4)) == Decision(Step.TRUNCATE, 2)


def test_a_log_of_which_the_leader_knows_nothing_is_begun_anew() -> None:
    for diverging in (EpochEntry(2, 4), EpochEntry(1, 2)):
        decisions = [decide(diverging=diverging, leader_start=each) for each in (1, 2, 3)]
        assert decisions == [Decision(Step.TRUNCATE, 2)] * 2 + [Decision(Step.TRUNCATE_FULLY, 3)]
    assert [decide(leader_start=each).step for each in (3, 4)] == [Step.APPEND, Step.TRUNCATE_FULLY]


def test_batches_that_do_not_fit_are_not_appended() -> None:
    assert decide(first=3).step is Step.RETRY_LATER
    empty = ListLog(start=5)
    assert after_answer(empty, 5, position(empty, 5), 0, None, 3, 3) == Decision(Step.TRUNCATE_FULLY_AND_APPEND, 3)


def test_an_offset_that_the_leader_does_not_have() -> None:
    """M15."""
    assert decide(ErrorCode.OFFSET_OUT_OF_RANGE).step is Step.FETCH_OFFSETS
    assert after_offsets(LOG, 0, 3) == Decision(Step.TRUNCATE, 3)
    assert after_offsets(LOG, 9, 12) == Decision(Step.TRUNCATE_FULLY, 9)
    assert after_offsets(LOG, 4, 12).step is Step.RETRY_LATER


# -- real logs ---------------------------------------------------------------------------------------------------------


def test_a_restarted_follower_keeps_what_lies_above_its_high_watermark() -> None:
    """M1: it does not know the high watermark yet; truncated there, and then elected, it would lose acknowledged
    records.
    """
    replicas = Replicas(2)
    replicas.produce(b"a", b"b")
    replicas.catch_up(2)
    assert replicas.leader.high_watermark == 2
    replicas.restart(2)
    assert replicas.partitions[2].high_watermark == 0
    replicas.elect(1)
    replicas.fetch(2)
    replicas.elect(2, isr=(2,))
    assert replicas.values(2) == [b"a", b"b"]


def test_records_of_a_deposed_leader_are_replaced() -> None:
    replicas = Replicas()
    replicas.produce(b"a")
    replicas.catch_up(2, 3)
    replicas.produce(b"lost")
    replicas.elect(2, isr=(2, 3))
    replicas.produce(b"b")
    replicas.catch_up(3)
    replicas.catch_up(1)
    for each in (1, 2, 3):
        assert replicas.values(each) == [b"a", b"b"]


def test_a_high_watermark_is_not_taken_over_before_the_log_is_cut() -> None:
    """M13: the leader's high watermark says nothing about records that the leader lacks."""
    replicas = Replicas()
    replicas.produce(b"a")
    replicas.catch_up(2, 3)
    replicas.produce(b"lost", b"lost")
    replicas.elect(2, isr=(2, 3))
    replicas.produce(b"b", b"c", b"d")
    replicas.catch_up(3)
    assert replicas.leader.high_watermark == 4
    step, _ = replicas.fetch(1)
    assert (step, replicas.partitions[1].high_watermark, replicas.end(1)) == (Step.TRUNCATE, 1, 1)
    replicas.fetch(1)
    assert (replicas.partitions[1].high_watermark, replicas.values(1)) == (4, [b"a", b"b", b"c", b"d"])


def test_a_high_watermark_is_not_taken_over_beyond_the_own_log_end() -> None:
    replicas = Replicas(2, isr=(1,))
    replicas.ineligible.add((2, -1))
    for value in (b"a", b"b"):
        replicas.produce(value)
    asked = position(replicas.partitions[2].log, 0)
    info = replicas.read(2, asked)
    assert info.high_watermark == 2
    replicas.partitions[2].append_as_follower(
        memoryview(b""), leader_epoch=0, leader_high_watermark=2, leader_log_start_offset=0, now_ms=T0
    )
    assert replicas.partitions[2].high_watermark == 0


def test_an_unclean_leader_takes_its_followers_back() -> None:
    replicas = Replicas(2)
    replicas.produce(b"a")
    replicas.catch_up(2)
    replicas.produce(b"gone")
    replicas.alter(replicas.pass_time(10_000))
    assert replicas.leader.high_watermark == 2
    replicas.elect(2, isr=(2,))
    replicas.produce(b"b")
    replicas.catch_up(1)
    assert replicas.values(1) == [b"a", b"b"]
    assert replicas.partitions[1].high_watermark == 2


def test_a_follower_below_the_leaders_log_start_begins_there() -> None:
    """M15."""
    replicas = Replicas(2, isr=(1,))
    replicas.ineligible.add((2, -1))
    replicas.produce(b"a")
    replicas.fetch(2)
    for value in (b"b", b"c", b"d"):
        replicas.produce(value)
    replicas.leader.delete_records_before(3)
    assert replicas.fetch(2)[0] is Step.TRUNCATE_FULLY
    follower = replicas.partitions[2]
    assert (follower.log.log_start_offset, follower.log.log_end_offset, follower.high_watermark) == (3, 3, 3)
    replicas.catch_up(2)
    assert replicas.values(2) == [b"d"]


def test_a_leaders_log_start_within_a_batch() -> None:
    replicas = Replicas(2, isr=(1,))
    replicas.ineligible.add((2, -1))
    replicas.produce(b"a", b"b", b"c", b"d")
    replicas.leader.delete_records_before(2)
    assert replicas.fetch(2)[0] is Step.TRUNCATE_FULLY
    assert replicas.fetch(2)[0] is Step.TRUNCATE_FULLY_AND_APPEND
    follower = replicas.partitions[2]
    assert (follower.log.log_start_offset, follower.log.log_end_offset, follower.high_watermark) == (2, 4, 4)
    assert replicas.fetch(2)[0] is Step.APPEND


def test_a_followers_log_start_follows_the_leaders() -> None:
    replicas = Replicas(2)
    for value in (b"a", b"b", b"c"):
        replicas.produce(value)
    replicas.catch_up(2)
    replicas.leader.delete_records_before(2)
    replicas.catch_up(2)
    assert replicas.partitions[2].log.log_start_offset == 2


def test_an_answer_in_another_epoch_is_not_appended() -> None:
    """M3: this replica's role has changed since the request."""
    replicas = Replicas(2)
    replicas.elect(1)
    follower = replicas.partitions[2]
    for epoch in (0, 2):
        with pytest.raises(ApiError) as refused:
            follower.append_as_follower(
                batch_of(b"a"), leader_epoch=epoch, leader_high_watermark=1, leader_log_start_offset=0, now_ms=T0
            )
        assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(ApiError):
        replicas.leader.append_as_follower(
            batch_of(b"a"), leader_epoch=1, leader_high_watermark=1, leader_log_start_offset=0, now_ms=T0
        )
    assert replicas.end(1) == replicas.end(2) == 0


def test_a_leader_whose_epoch_is_behind_or_ahead_is_not_read() -> None:
    replicas = Replicas(2)
    replicas.elect(1, told=(1,))
    assert replicas.fetch(2)[0] is Step.RETRY_LATER
    replicas.elect(1, told=(2,))
    assert replicas.fetch(2)[0] is Step.RETRY_LATER
    replicas.tell(1)
    assert replicas.fetch(2)[0] is Step.APPEND


def test_an_epoch_in_which_nothing_was_written_does_not_hold_a_follower_up() -> None:
    """A deposed leader knows its own epoch, which no other replica has seen."""
    replicas = Replicas()
    replicas.produce(b"a")
    replicas.catch_up(2, 3)
    replicas.elect(2)
    replicas.elect(3)
    replicas.produce(b"b")
    replicas.catch_up(1, 2)
    assert replicas.values(2) == replicas.values(1) == [b"a", b"b"]
