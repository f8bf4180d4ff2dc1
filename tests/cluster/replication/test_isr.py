"""In-sync replicas and the high watermark of a leader (KIP-497, KIP-966; KAFKA-7128, KAFKA-13091)."""

from __future__ import annotations

import pytest

from cluster.replication.follower import FetchPosition
from cluster.replication.isr import (
    INELIGIBLE_FOR_MS,
    NOTHING,
    SUPERSEDED,
    IsrChange,
    complete_change,
    on_brokers_removed,
)
from cluster.replication.partition import ACKS_ALL
from protocol.errors import ApiError, ErrorCode
from storage.log.log_appender import LogAppendInfo
from tests.cluster.replication.replicas import LAG_MS, Replicas
from tests.storage.support import T0, batch_of


def high_watermark(replicas: Replicas) -> int:
    return replicas.leader.high_watermark


def test_the_high_watermark_is_what_every_replica_in_sync_has_confirmed() -> None:
    replicas = Replicas()
    replicas.produce(b"a", b"b")
    replicas.fetch(2)
    replicas.fetch(3)
    assert (replicas.end(2), high_watermark(replicas)) == (2, 0), "sent is not confirmed"
    _, outcome = replicas.fetch(2)
    assert (outcome.advanced, high_watermark(replicas)) == (False, 0)
    _, outcome = replicas.fetch(3)
    assert (outcome.advanced, high_watermark(replicas)) == (True, 2)


def test_a_replica_that_is_to_join_is_waited_for_before_it_has_joined() -> None:
    """M6: the controller may have added it, and may elect it, before the leader learns of it."""
    replicas = Replicas(isr=(1,))
    replicas.produce(b"a")
    replicas.fetch(2)
    _, outcome = replicas.fetch(2)
    assert outcome.change is not None
    assert outcome.change.new_isr == ((1, -1), (2, -1))
    replicas.produce(b"b")
    replicas.now_ms += 10 * LAG_MS
    replicas.pass_time(0)
    assert high_watermark(replicas) == 1
    replicas.alter(outcome)
    assert high_watermark(replicas) == 1
    replicas.fetch(2)
    replicas.fetch(2)
    assert high_watermark(replicas) == 2
    assert replicas.leader.image.isr == (1, 2)


def test_a_replica_that_is_to_leave_is_waited_for_until_it_has_left() -> None:
    replicas = Replicas(2)
    replicas.produce(b"a")
    outcome = replicas.pass_time(LAG_MS + 1)
    assert outcome.change is not None
    assert outcome.change.broker_ids == (1,)
    assert high_watermark(replicas) == 0
    replicas.alter(outcome)
    assert high_watermark(replicas) == 1


def test_a_follower_does_not_join_below_the_beginning_of_the_epoch() -> None:
    """M5: records committed under the last leader may still be above the new leader's high watermark."""
    replicas = Replicas(isr=(1, 2))
    replicas.ineligible.add((3, -1))
    replicas.produce(b"a")
    replicas.fetch(3)
    replicas.produce(b"b")
    replicas.fetch(2)
    replicas.elect(2, isr=(2, 1))
    replicas.ineligible.clear()
    assert (replicas.end(3), high_watermark(replicas), replicas.leader.leader_epoch_start_offset) == (1, 0, 2)
    _, outcome = replicas.fetch(3)
    assert outcome.change is None
    _, outcome = replicas.fetch(3)
    assert outcome.change is not None


def test_one_change_at_a_time() -> None:
    replicas = Replicas(isr=(1,))
    replicas.fetch(2)
    in_sync = replicas.leader.in_sync
    assert in_sync is not None
    first = in_sync.pending
    assert first is not None
    _, outcome = replicas.fetch(3)
    assert outcome.change is None
    replicas.produce(b"a")
    assert replicas.pass_time(10 * LAG_MS).change is None
    assert in_sync.pending is first


def test_a_high_watermark_stands_still_below_min_insync_replicas() -> None:
    """KIP-966, and Kafka since 3.7: records on fewer replicas than the topic requires are not committed."""
    replicas = Replicas(min_isr=2)
    replicas.produce(b"a", acks=1)
    replicas.alter(replicas.pass_time(LAG_MS + 1))
    assert (replicas.leader.image.isr, high_watermark(replicas)) == ((1,), 0)
    with pytest.raises(ApiError) as refused:
        replicas.produce(b"b")
    assert refused.value.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
    replicas.produce(b"b", acks=1)
    assert high_watermark(replicas) == 0
    replicas.catch_up(2)
    assert (replicas.leader.image.isr, high_watermark(replicas)) == ((1, 2), 2)


def test_below_min_insync_replicas_what_is_stored_is_acknowledged_and_not_refused() -> None:
    """librdkafka assumes that batches refused with this error were not stored, and stores them again in a new producer
    epoch.
    """
    replicas = Replicas(min_isr=2)

    def send(sequence: int) -> LogAppendInfo:
        batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=sequence)
        return replicas.leader.append_as_leader(batch, required_acks=ACKS_ALL, now_ms=T0)

    send(0)
    replicas.catch_up(2, 3)
    send(1)
    replicas.alter(replicas.pass_time(LAG_MS + 1))
    assert (replicas.leader.image.isr, high_watermark(replicas)) == ((1,), 1)
    assert (send(0).duplicate, send(0).is_acknowledged) == (True, True)
    assert (send(1).duplicate, send(1).is_acknowledged) == (True, False)
    for sequence in (2, 3):
        with pytest.raises(ApiError) as refused:
            send(sequence)
        assert refused.value.error_code is ErrorCode.NOT_ENOUGH_REPLICAS, "the order is not looked at"
    for records in (b"", bytes(100)):
        with pytest.raises(ApiError) as refused:
            replicas.leader.append_as_leader(memoryview(records), required_acks=ACKS_ALL, now_ms=T0)
        assert refused.value.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
    replicas.catch_up(2)
    assert replicas.leader.is_acknowledged(1, ACKS_ALL)


def test_what_was_committed_by_too_few_is_told_to_its_producer() -> None:
    replicas = Replicas(min_isr=2)
    last = replicas.produce(b"a")
    replicas.catch_up(2, 3)
    assert replicas.leader.is_acknowledged(last, ACKS_ALL)
    replicas.produce(b"b")
    replicas.alter(replicas.pass_time(LAG_MS + 1))
    assert replicas.leader.is_acknowledged(last, 1)
    with pytest.raises(ApiError) as refused:
        replicas.leader.is_acknowledged(last, ACKS_ALL)
    assert refused.value.error_code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_topic_with_fewer_replicas_than_min_insync_asks_for_all_it_has() -> None:
    replicas = Replicas(2, min_isr=5)
    last = replicas.produce(b"a")
    replicas.catch_up(2)
    assert replicas.leader.is_acknowledged(last, ACKS_ALL)


def test_a_follower_that_always_has_what_was_there_at_its_last_fetch_stays_in_sync() -> None:
    replicas = Replicas(2)
    for _ in range(10):
        replicas.produce(b"a")
        replicas.now_ms += LAG_MS // 2
        replicas.fetch(2)
    assert replicas.pass_time(0).change is None
    assert replicas.pass_time(2 * LAG_MS).change is not None


def test_a_caught_up_follower_out_of_sync_is_waited_for_while_its_broker_lives() -> None:
    replicas = Replicas(2, isr=(1,))
    replicas.produce(b"a")
    replicas.ineligible.add((2, -1))
    replicas.fetch(2)
    replicas.fetch(2)
    in_sync = replicas.leader.in_sync
    assert in_sync is not None
    assert in_sync.pending is None, "its broker does not live"
    replicas.produce(b"b")
    assert high_watermark(replicas) == 2
    replicas.ineligible.clear()
    replicas.produce(b"c")
    assert high_watermark(replicas) == 2, "it would never reach a high watermark that runs ahead of it"
    replicas.pass_time(LAG_MS + 1)
    assert high_watermark(replicas) == 3


def test_nobody_waits_for_a_follower_that_the_controller_refuses() -> None:
    replicas = Replicas(3, isr=(1, 2))
    _, outcome = replicas.fetch(3)
    assert outcome.change is not None
    replicas.produce(b"a")
    replicas.fetch(2)
    replicas.fetch(2)
    assert high_watermark(replicas) == 0, "the third is about to join"
    assert complete_change(replicas.leader, outcome.change, ErrorCode.INELIGIBLE_REPLICA).advanced
    assert high_watermark(replicas) == 1


def test_nobody_waits_for_a_follower_whose_broker_left() -> None:
    replicas = Replicas(3, isr=(1, 2))
    _, outcome = replicas.fetch(3)
    assert outcome.change is not None
    complete_change(replicas.leader, outcome.change, ErrorCode.OPERATION_NOT_ATTEMPTED)
    replicas.produce(b"a")
    replicas.fetch(2)
    replicas.fetch(2)
    assert high_watermark(replicas) == 0, "the third is caught up, and would join"
    replicas.ineligible.add((3, -1))
    assert on_brokers_removed(replicas.leader, {4}) == NOTHING
    assert on_brokers_removed(replicas.leader, {3}).advanced
    assert high_watermark(replicas) == 1


def test_the_incarnation_that_fetched_is_the_one_that_is_to_join() -> None:
    """M7: the controller compares the epoch with the broker's registration (KIP-903)."""
    replicas = Replicas(2, isr=(1,))
    _, outcome = replicas.fetch(2, 70)
    assert outcome.change is not None
    assert outcome.change.new_isr == ((1, -1), (2, 70))
    complete_change(replicas.leader, outcome.change, ErrorCode.INELIGIBLE_REPLICA)
    replicas.ineligible.add((2, 70))
    assert replicas.fetch(2, 70)[1].change is None
    assert replicas.fetch(2, 71)[1].change is not None


def test_a_fetch_of_an_earlier_incarnation_confirms_nothing() -> None:
    replicas = Replicas(2)
    replicas.produce(b"a", b"b")
    replicas.fetch(2, 71)
    replicas.produce(b"c")
    with pytest.raises(ApiError) as refused:
        replicas.read(2, FetchPosition(0, 2, -1, 0), 70)
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("epoch", "error"), [(0, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_a_broker_that_is_no_replica_is_refused(epoch: int, error: ErrorCode) -> None:
    replicas = Replicas(2)
    with pytest.raises(ApiError) as refused:
        replicas.read(9, FetchPosition(epoch, 0, -1, 0))
    assert refused.value.error_code is error


# -- answers of the controller -----------------------------------------------------------------------------------------


def joining() -> tuple[Replicas, IsrChange]:
    """A leader with broker 2 about to join its ISR."""
    replicas = Replicas(2, isr=(1,))
    replicas.produce(b"a")
    replicas.fetch(2)
    _, outcome = replicas.fetch(2)
    assert outcome.change is not None
    return replicas, outcome.change


def test_a_change_that_was_applied_twice_does_no_harm() -> None:
    """M11: the answer was lost, and the change is resent."""
    replicas, change = joining()
    replicas.decide(change)
    version = replicas.state.partition_epoch
    complete_change(replicas.leader, change, replicas.decide(change))
    assert (replicas.leader.image.isr, replicas.leader.image.partition_epoch) == ((1, 2), version)
    assert replicas.state.partition_epoch == version


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_change_that_was_not_applied_is_forgotten(error: ErrorCode) -> None:
    replicas, change = joining()
    replicas.produce(b"b")
    assert complete_change(replicas.leader, change, error).change is None
    in_sync = replicas.leader.in_sync
    assert in_sync is not None
    assert in_sync.pending is None
    assert in_sync.size_of_maximal_isr(replicas.leader.image) == 1


@pytest.mark.parametrize("error", sorted(SUPERSEDED))
def test_a_change_of_unknown_fate_stays_pending_until_the_role_is_told_again(error: ErrorCode) -> None:
    replicas, change = joining()
    replicas.produce(b"b")
    assert complete_change(replicas.leader, change, error) == NOTHING
    in_sync = replicas.leader.in_sync
    assert in_sync is not None
    assert in_sync.pending is change
    replicas.pass_time(10 * LAG_MS)
    assert replicas.leader.high_watermark == 1, "it may have been applied"
    replicas.elect(1)
    assert in_sync.pending is None
    assert complete_change(replicas.leader, change, replicas.state) == NOTHING, "the answer to what is forgotten"
    assert replicas.leader.image.isr == (1,)


def test_an_answer_to_an_earlier_change_leaves_the_present_one_pending() -> None:
    """M11: the controller has applied the current one, so the leader must wait for the joining replica."""
    replicas, earlier = joining()
    complete_change(replicas.leader, earlier, ErrorCode.OPERATION_NOT_ATTEMPTED)
    _, outcome = replicas.fetch(2)
    assert outcome.change not in (None, earlier)
    complete_change(replicas.leader, earlier, ErrorCode.OPERATION_NOT_ATTEMPTED)
    in_sync = replicas.leader.in_sync
    assert in_sync is not None
    assert in_sync.pending is outcome.change
    assert in_sync.size_of_maximal_isr(replicas.leader.image) == 2


def test_an_ineligible_replica_is_not_proposed_again_at_once() -> None:
    """A broker that shuts down still fetches for a moment, and would be refused each time."""
    replicas, change = joining()
    complete_change(replicas.leader, change, ErrorCode.INELIGIBLE_REPLICA)
    for _ in range(3):
        assert replicas.fetch(2)[1].change is None
    replicas.now_ms += INELIGIBLE_FOR_MS
    assert replicas.fetch(2)[1].change is not None


def test_an_unexpected_error_has_the_change_sent_again() -> None:
    replicas, change = joining()
    assert complete_change(replicas.leader, change, ErrorCode.UNKNOWN_SERVER_ERROR).change is change
    assert complete_change(replicas.leader, change, ErrorCode.REQUEST_TIMED_OUT).change is change


@pytest.mark.parametrize("state", [{"leader_epoch": 1}, {"partition_epoch": -1}])
def test_an_answer_of_another_time_changes_nothing(state: dict[str, int]) -> None:
    replicas, change = joining()
    answer = replicas.state.replace(isr=(1, 2), **state)
    assert complete_change(replicas.leader, change, answer) == NOTHING
    assert replicas.leader.image.isr == (1,)


def test_a_leader_with_no_other_replica_keeps_no_account_of_any() -> None:
    assert Replicas(1).leader.in_sync is None


def test_a_leader_elected_again_remembers_what_its_followers_have_confirmed() -> None:
    replicas = Replicas(2)
    replicas.produce(b"a")
    replicas.catch_up(2)
    replicas.elect(1)
    assert replicas.leader.in_sync is not None
    assert replicas.leader.in_sync.followers[2].log_end_offset == 1
    assert replicas.leader.high_watermark == 1
