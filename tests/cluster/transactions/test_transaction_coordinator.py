"""Decisions of the transaction coordinator, event by event."""

from __future__ import annotations

import pytest

from cluster.coordinators.results import PendingResponse, Result
from cluster.transactions.producer_sessions import LAST_EPOCH, Initialized
from cluster.transactions.transaction_records import TransactionRecord
from protocol.errors import ErrorCode
from tests.cluster.shard_harness import START_MS
from tests.cluster.transactions.transaction_harness import ID, A, B, Harness

DAYS_MS = 86_400_000


@pytest.fixture
def coordinator() -> Harness:
    return Harness()


def refused(error_code: ErrorCode) -> Initialized:
    return Initialized(error_code)


# -- producers ---------------------------------------------------------------------------------------------------------


def test_a_new_id_begins_with_epoch_0(coordinator: Harness) -> None:
    assert coordinator.init() == Initialized(ErrorCode.NONE, 1001, 0)
    assert (coordinator.state, coordinator.metadata.start_ms, coordinator.metadata.timeout_ms) == ("Empty", -1, 60_000)


def test_every_producer_raises_the_epoch(coordinator: Harness) -> None:
    assert [coordinator.producer()[1] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("timeout_ms", [0, -5, 900_001])
def test_timeouts_out_of_bounds(coordinator: Harness, timeout_ms: int) -> None:
    assert coordinator.init(timeout_ms=timeout_ms) == refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    assert coordinator.log == []


def test_one_change_at_a_time(coordinator: Harness) -> None:
    coordinator.hold = True
    assert coordinator.init() is None
    assert coordinator.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert coordinator.shard.get(ID) is None
    coordinator.commit_one()
    assert coordinator.metadata.producer_epoch == 0


def test_an_id_that_could_not_be_written_leaves_no_trace(coordinator: Harness) -> None:
    coordinator.hold = True
    coordinator.init()
    coordinator.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.shard.ids() == []
    coordinator.hold = False
    assert coordinator.init() == Initialized(ErrorCode.NONE, 1002, 0)


@pytest.mark.parametrize(
    ("error_code", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors_of_the_log_are_told_as_kafka_tells_them(
    coordinator: Harness, error_code: ErrorCode, told: ErrorCode
) -> None:
    producer = coordinator.producer()
    coordinator.hold = True
    answers = []
    result = coordinator.shard.transactions.add_partitions(coordinator.now(), ID, *producer, [A])
    result.response.then(answers.append)  # type: ignore[union-attr]
    coordinator.shard.fail(coordinator.now(), result.appends[0], error_code)
    assert answers == [told]
    assert coordinator.state == "Empty"


def test_a_producer_goes_on_with_its_identity(coordinator: Harness) -> None:
    producer_id, epoch = coordinator.producer()
    assert coordinator.init((producer_id, epoch)) == Initialized(ErrorCode.NONE, producer_id, 1)
    assert coordinator.init((producer_id, epoch)) == Initialized(ErrorCode.NONE, producer_id, 1), "a retry"
    assert coordinator.init((producer_id, 1)) == Initialized(ErrorCode.NONE, producer_id, 2)
    assert coordinator.init((producer_id, epoch)) == refused(ErrorCode.PRODUCER_FENCED)
    assert coordinator.init((producer_id + 1, 2)) == refused(ErrorCode.PRODUCER_FENCED)


def test_a_new_session_ends_the_right_to_go_on(coordinator: Harness) -> None:
    producer_id, epoch = coordinator.producer()
    coordinator.producer()
    assert coordinator.init((producer_id, epoch)) == refused(ErrorCode.PRODUCER_FENCED)


def with_epoch(coordinator: Harness, epoch: int) -> tuple[int, int]:
    """Make `epoch` the current one."""
    producer_id, _ = coordinator.producer()
    record = TransactionRecord(ID, coordinator.metadata.replace(producer_epoch=epoch))
    coordinator.shard._table.replay(record)
    coordinator.log.append(record.encode())
    return producer_id, epoch


def test_behind_the_last_epoch_comes_another_id(coordinator: Harness) -> None:
    producer = with_epoch(coordinator, LAST_EPOCH)
    assert coordinator.init(producer) == Initialized(ErrorCode.NONE, 1002, 0)
    assert coordinator.init(producer) == Initialized(ErrorCode.NONE, 1002, 0), "a retry"
    assert coordinator.init(producer) == Initialized(ErrorCode.NONE, 1002, 0), "another one"
    assert coordinator.init((producer[0], 5)) == refused(ErrorCode.PRODUCER_FENCED)
    assert coordinator.init((1002, 0)) == Initialized(ErrorCode.NONE, 1002, 1)


def test_a_producer_with_the_last_epoch_can_be_fenced(coordinator: Harness) -> None:
    producer = with_epoch(coordinator, LAST_EPOCH)
    coordinator.add(producer, A)
    assert coordinator.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert coordinator.mark().producer_epoch == LAST_EPOCH + 1
    assert coordinator.init() == Initialized(ErrorCode.NONE, 1002, 0)


def test_an_open_transaction_is_aborted_for_the_next_producer(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A, B)
    assert coordinator.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert coordinator.state == "PrepareAbort"
    assert coordinator.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert coordinator.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
    assert coordinator.add(producer, A) is ErrorCode.PRODUCER_FENCED
    assert coordinator.mark() == (ID, producer[0], 1, False, (A, B))
    assert coordinator.init() == Initialized(ErrorCode.NONE, producer[0], 2)


def test_a_fence_that_could_not_be_written_changes_nothing(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A)
    coordinator.hold = True
    assert coordinator.init() is None
    coordinator.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    coordinator.hold = False
    assert coordinator.end(producer, commit=True) is ErrorCode.NONE
    assert coordinator.mark() == (ID, *producer, True, (A,))


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_begins_with_its_first_partition(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.advance(5)
    assert coordinator.add(producer, A) is ErrorCode.NONE
    coordinator.advance(5)
    assert coordinator.add(producer, B) is ErrorCode.NONE
    assert (coordinator.state, coordinator.metadata.start_ms) == ("Ongoing", START_MS + 5)
    assert coordinator.metadata.partitions == {A, B}
    metadata = coordinator.metadata
    assert coordinator.add(producer, A, B) is ErrorCode.NONE, "a retry"
    assert coordinator.metadata == metadata


def test_who_may_add(coordinator: Harness) -> None:
    producer_id, epoch = coordinator.producer()
    assert coordinator.add((producer_id + 1, epoch), A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.add((producer_id, epoch + 1), A) is ErrorCode.PRODUCER_FENCED
    assert coordinator.add((producer_id, epoch), A, transactional_id="?") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("commit", [True, False])
def test_the_end(coordinator: Harness, commit: bool) -> None:
    producer = coordinator.producer()
    assert coordinator.end(producer, commit=commit) is ErrorCode.INVALID_TXN_STATE, "nothing is open"
    coordinator.add(producer, A, B)
    assert coordinator.end(producer, commit=commit) is ErrorCode.NONE
    assert coordinator.end(producer, commit=commit) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.add(producer, A) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.mark(A)
    assert list(coordinator.shard.get(ID).unmarked) == [B]  # type: ignore[union-attr]
    assert coordinator.state == ("PrepareCommit" if commit else "PrepareAbort")
    coordinator.mark(B)
    assert coordinator.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert coordinator.metadata.partitions == frozenset()
    assert coordinator.end(producer, commit=commit) is ErrorCode.NONE, "a retry"
    assert coordinator.end(producer, commit=not commit) is ErrorCode.INVALID_TXN_STATE
    assert coordinator.add(producer, A) is ErrorCode.NONE
    assert coordinator.end((producer[0], 1), commit=True) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("error_code", "answer"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_retry_is_answered_when_the_state_is_written_again(
    coordinator: Harness, error_code: ErrorCode, answer: ErrorCode
) -> None:
    """A replaced coordinator cannot write, and must not trust its state."""
    producer, transactions = coordinator.producer(), coordinator.shard.transactions

    def check(retry: Result[ErrorCode]) -> None:
        metadata = coordinator.metadata
        (append,) = retry.appends
        assert append.records == [TransactionRecord(ID, metadata)]
        assert coordinator.add(producer, B) is ErrorCode.CONCURRENT_TRANSACTIONS
        if error_code is ErrorCode.NONE:
            coordinator.shard.complete(coordinator.now(), append, 0)
        else:
            coordinator.shard.fail(coordinator.now(), append, error_code)
        assert isinstance(retry.response, PendingResponse)
        assert retry.response.value is answer
        assert coordinator.metadata == metadata

    coordinator.add(producer, A)
    check(transactions.add_partitions(coordinator.now(), ID, *producer, [A]))
    coordinator.ended(producer, commit=True)
    check(transactions.end(coordinator.now(), ID, *producer, commit=True))
    assert coordinator.add(producer, B) is ErrorCode.NONE, "the next transaction"


def test_markers_are_sent_only_for_what_is_committed_to_the_log(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A)
    coordinator.hold = True
    assert coordinator.end(producer, commit=True) is None
    assert not coordinator.sent
    coordinator.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert not coordinator.sent
    coordinator.hold = False
    assert coordinator.end(producer, commit=False) is ErrorCode.NONE
    assert not coordinator.mark().is_commit


def test_completion_is_written_until_it_is(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A)
    coordinator.end(producer, commit=True)
    coordinator.hold = True
    coordinator.mark()
    coordinator.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.hold = False
    coordinator.advance(100)
    assert coordinator.state == "CompleteCommit"
    assert coordinator.init() == Initialized(ErrorCode.NONE, producer[0], 1)


def test_what_is_part_of_a_transaction(coordinator: Harness) -> None:
    producer = coordinator.producer()
    verify = coordinator.shard.transactions.verify
    assert verify(ID, *producer, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}
    coordinator.add(producer, A)
    assert verify(ID, *producer, [A, B]) == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(ID, producer[0], 1, [A]) == {A: ErrorCode.PRODUCER_FENCED}
    assert verify("?", *producer, [A]) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    coordinator.end(producer, commit=True)
    assert verify(ID, *producer, [A]) == {A: ErrorCode.CONCURRENT_TRANSACTIONS}
    coordinator.mark()
    assert verify(ID, *producer, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}


# -- time and failure --------------------------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_aborted(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A)
    coordinator.advance(60_000)
    coordinator.handle(coordinator.shard.abort_if_late, ID)
    assert coordinator.state == "Ongoing"
    coordinator.advance(1)
    coordinator.handle(coordinator.shard.abort_if_late, ID)
    assert coordinator.mark() == (ID, producer[0], 1, False, (A,))
    assert coordinator.state == "CompleteAbort"
    assert coordinator.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED


def test_ids_that_nobody_uses_are_forgotten(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A)
    coordinator.producer("other")
    coordinator.advance(7 * DAYS_MS)
    coordinator.handle(coordinator.shard.forget_unused, coordinator.shard.ids())
    assert coordinator.shard.ids() == [ID], "its transaction is open"
    assert coordinator.restarted().shard.ids() == [ID]
    coordinator.ended(producer, commit=True)
    coordinator.advance(7 * DAYS_MS - 1)
    coordinator.handle(coordinator.shard.forget_unused, [ID])
    assert coordinator.shard.ids() == [ID]
    coordinator.advance(1)
    coordinator.handle(coordinator.shard.forget_unused, [ID])
    assert coordinator.shard.ids() == []
    assert coordinator.restarted().shard.ids() == []


def test_an_id_that_could_not_be_forgotten_is_used_on(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.advance(7 * DAYS_MS)
    coordinator.hold = True
    coordinator.handle(coordinator.shard.forget_unused, [ID])
    assert coordinator.shard.get(ID) is None
    assert coordinator.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.fail_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    coordinator.hold = False
    assert coordinator.init() == Initialized(ErrorCode.NONE, producer[0], 1)


@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_sends_the_markers_that_are_missing(coordinator: Harness, commit: bool) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A, B)
    coordinator.end(producer, commit=commit)
    coordinator.mark(A)
    successor = coordinator.restarted()
    assert successor.init() == refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert successor.mark() == (ID, *producer, commit, (A, B))
    assert successor.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_successor_knows_the_open_transaction(coordinator: Harness) -> None:
    producer = coordinator.producer()
    coordinator.add(producer, A)
    successor = coordinator.restarted()
    assert successor.metadata == coordinator.metadata
    assert successor.add(producer, B) is ErrorCode.NONE
    successor.ended(producer, commit=True)
