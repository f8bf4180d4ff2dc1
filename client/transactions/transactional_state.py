"""The state of a transactional producer: which calls it allows, and where errors lead."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import NoReturn

from client.batches import ProducerId
from client.errors import IllegalStateError, TransactionError
from client.transactions.transaction_requests import FENCED, LOST_IDENTITY
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.clients.Producer")


class State(Enum):
    """Of a transactional producer, by Kafka's names."""

    UNINITIALIZED = "UNINITIALIZED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING = "COMMITTING_TRANSACTION"
    ABORTING = "ABORTING_TRANSACTION"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


class TransactionState:
    """The state of the producer of `transactional_id`."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer = ProducerId()
        self.state = State.UNINITIALIZED
        self.must_bump_epoch = False
        """Whether the producer needs another epoch before its next transaction."""
        self.error: TransactionError | None = None
        self.pending: asyncio.Task[None] | None = None
        """A call that begins or ends something, under its name, until a caller has seen its outcome."""

    def check(self, method: str, *sources: State, to: State) -> None:
        """Raises IllegalStateError or TransactionError unless the state is one of `sources`."""
        self.check_pending(method)
        self.raise_error()
        if self.state not in sources:
            raise IllegalStateError(
                f"TransactionalId {self.transactional_id}: Invalid transition attempted from state {self.state.value} "
                f"to state {to.value}"
            )

    def check_pending(self, method: str) -> None:
        """Raises IllegalStateError while a call has to be made again."""
        if self.pending is not None:
            raise IllegalStateError(
                f"Cannot attempt operation `{method}` because the previous call to `{self.pending.get_name()}` timed "
                "out and must be retried"
            )

    def refuse_partition(self, partition: TopicPartition) -> NoReturn:
        """Raises why no record may be sent now."""
        self.check_pending("send")
        self.raise_error()
        if self.producer == ProducerId():
            raise IllegalStateError(
                f"Cannot add partition {partition} to transaction before completing a call to initTransactions"
            )
        raise IllegalStateError(f"Cannot add partition {partition} to transaction while in state  {self.state.value}")

    def raise_error(self) -> None:
        """Raises TransactionError in the state of an error."""
        if self.error is not None:
            cause = self.error.cause
            raise TransactionError(str(self.error), cause, is_fatal=self.error.is_fatal) from cause

    def fail(self, cause: Exception, *, is_fatal: bool) -> TransactionError:
        """Go to the state of an error; gives what is to be raised for it. A fatal error stays."""
        if self.state is not State.FATAL_ERROR:
            message = f"Cannot execute transactional method because we are in an error state: {cause}"
            if isinstance(cause, ApiError) and cause.error_code == ErrorCode.PRODUCER_FENCED:
                message = (
                    f"Producer with transactionalId '{self.transactional_id}' and "
                    f"ProducerIdAndEpoch(producerId={self.producer.producer_id}, epoch={self.producer.epoch}) has been "
                    "fenced by another producer with the same transactionalId"
                )
            logger.info("Transaction of %s failed: %s", self.transactional_id, message)
            self.error = TransactionError(message, cause, is_fatal=is_fatal)
            self.state = State.FATAL_ERROR if is_fatal else State.ABORTABLE_ERROR
        assert self.error is not None
        return self.error

    def refused(self, error: ApiError, *, is_fatal: bool) -> TransactionError:
        """Draw the consequence of a coordinator's answer that will not change."""
        code = error.error_code
        if code in FENCED:
            error = ApiError(ErrorCode.PRODUCER_FENCED, error.message)
        self.must_bump_epoch |= code in LOST_IDENTITY
        return self.fail(error, is_fatal=is_fatal)
