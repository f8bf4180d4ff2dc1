"""Which batches begin a transaction in a log, and which markers end one."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from storage.log.log_validator import NOT_VERIFIED, ONGOING, AppendOrigin, VerificationGuard
from storage.log.unified_log import UnifiedLog
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import T0, TOPIC_ID, TP, batch_of, close_cleanly, new_log, open_manager, reopen

ID = 7


def guard_of(log: UnifiedLog, sequence: int = 0, epoch: int = 0) -> VerificationGuard:
    return log.producer_state.begin_verification(ID, epoch, sequence, T0)


def write(
    log: UnifiedLog,
    guard: VerificationGuard | None,
    sequence: int = 0,
    *,
    epoch: int = 0,
    is_transactional: bool = True,
) -> int:
    batch = batch_of(
        b"v", producer_id=ID, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional
    )
    return log.appender.append_as_leader(batch, leader_epoch=1, now_ms=T0, guard=guard).first_offset


def mark(log: UnifiedLog, coordinator_epoch: int = 0, epoch: int = 0) -> int:
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.COMMIT, coordinator_epoch), timestamp=T0, producer_id=ID, producer_epoch=epoch
    )
    records = memoryview(bytearray(marker))
    return log.append_as_leader(records, leader_epoch=1, now_ms=T0, origin=AppendOrigin.COORDINATOR).first_offset


def refused(code: ErrorCode, log: UnifiedLog, guard: VerificationGuard | None, sequence: int = 0, **how: bool) -> None:
    end_offset = log.log_end_offset
    with pytest.raises(ApiError) as raised:
        write(log, guard, sequence, **how)  # type: ignore[arg-type]
    assert raised.value.error_code is code
    assert log.log_end_offset == end_offset


def test_a_transaction_begins_with_a_guard_and_goes_on_without() -> None:
    log = new_log()
    assert write(log, guard_of(log)) == 0
    assert guard_of(log, 1) is ONGOING
    assert write(log, ONGOING, 1) == 1


def test_batches_that_wait_have_one_guard() -> None:
    log = new_log()
    first, second = guard_of(log), guard_of(log, 1)
    assert first is second
    write(log, first)
    write(log, second, 1)


def test_a_guard_is_void_once_a_marker_was_appended() -> None:
    log = new_log()
    guard = guard_of(log)
    mark(log)
    refused(ErrorCode.INVALID_TXN_STATE, log, guard)
    assert guard_of(log) is not guard


def test_what_was_ongoing_may_have_ended() -> None:
    log = new_log()
    write(log, guard_of(log))
    mark(log)
    refused(ErrorCode.INVALID_TXN_STATE, log, ONGOING, 1)


def test_a_strangers_guard() -> None:
    log = new_log()
    guard_of(log)
    refused(ErrorCode.INVALID_TXN_STATE, log, VerificationGuard())
    refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, log, None)


def test_verification_may_be_switched_off() -> None:
    assert write(new_log(), NOT_VERIFIED) == 0


def test_a_retry_is_recognized_after_the_end() -> None:
    log = new_log()
    write(log, guard_of(log))
    mark(log)
    batch = batch_of(b"v", producer_id=ID, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert log.appender.append_as_leader(batch, leader_epoch=1, now_ms=T0, guard=guard_of(log)).duplicate


def test_a_batch_that_overtakes_a_refused_one() -> None:
    """The first one was refused while the producer waited for its coordinator, and will be resent."""
    log = new_log()
    guard_of(log, 0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, guard_of(log, 3), 3)
    write(log, guard_of(log, 0))


def test_a_batch_that_overtakes_a_refused_one_after_a_marker_without_records() -> None:
    log = new_log()
    mark(log)
    guard_of(log, 0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, guard_of(log, 3), 3)
    write(log, guard_of(log, 0))


def test_a_late_copy_from_the_transaction_before() -> None:
    """It makes the next transaction fail, as in Kafka; the producer continues under its next epoch."""
    log = new_log()
    write(log, guard_of(log))
    mark(log)
    guard_of(log, 0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, guard_of(log, 1), 1)
    mark(log, epoch=1)
    assert write(log, guard_of(log, 0, epoch=1), 0, epoch=1) == 3


def test_plain_writes_amid_a_transaction() -> None:
    log = new_log()
    write(log, guard_of(log))
    refused(ErrorCode.INVALID_TXN_STATE, log, None, 1, is_transactional=False)
    mark(log)
    assert write(log, None, 1, is_transactional=False) == 2


def test_a_higher_epoch_of_a_fenced_producer() -> None:
    log = new_log()
    write(log, guard_of(log))
    mark(log, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, guard_of(log, 1), 1)
    write(log, guard_of(log, 0, 2), epoch=2)


def test_guards_are_forgotten_in_time() -> None:
    log = new_log()
    guard = guard_of(log)
    log.producer_state.remove_expired(T0 + 999, 1000)
    assert guard_of(log) is guard
    log.producer_state.remove_expired(T0 + 1000, 1000)
    refused(ErrorCode.INVALID_TXN_STATE, log, guard)


@pytest.mark.parametrize("clean", [True, False])
def test_a_deposed_coordinator_stays_deposed(clean: bool) -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system)
    mark(manager.get_or_create(TP, TOPIC_ID, manager.default_config, T0), 3)
    if clean:
        close_cleanly(manager)
    log = reopen(file_system)
    with pytest.raises(ApiError) as raised:
        mark(log, 2)
    assert raised.value.error_code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    mark(log, 3)
