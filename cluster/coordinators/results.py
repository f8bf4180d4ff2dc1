"""Results of an event: records to append, and a response now or later (Kafka's CoordinatorResult)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from protocol.errors import ErrorCode
from protocol.value import Value, maker
from storage.log.log_validator import VerificationGuard

R = TypeVar("R")


class EncodableRecord(Protocol):
    """A record in a coordinator's log."""

    def encode(self) -> tuple[bytes, bytes | None]:
        """The record's key and value. Raises EncodeError for a value that cannot be encoded."""
        ...


class TransactionalProducer(Value):
    """The transactional producer of the records. With `ends` the record is its transaction's end marker; otherwise
    `guard` proves that the transaction contains this partition.
    """

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None
    ends: bool = False


class ClockReading(Value):
    """The time of an event: `now_ms` of the wall clock for records, `monotonic_ms` for deadlines."""

    now_ms: int
    monotonic_ms: int


class PendingResponse(Value, Generic[R], frozen=False, eq=False):
    """A response for later: after a commit of records, or after requests from other members."""

    value: R | None = None
    _receive: Callable[[R], None] | None = None

    def set(self, value: R) -> None:
        """Set the response. Raises RuntimeError if already set."""
        if self.value is not None:
            raise RuntimeError(f"answered twice: {self.value!r} and {value!r}")
        self.value = value
        if self._receive is not None:
            self._receive(value)

    def then(self, receive: Callable[[R], None]) -> None:
        """Call `receive` with the response once it is set."""
        self._receive = receive


class Append(Value, frozen=False):
    """Records to append as one batch, atomically.

    Once the batch is committed or has failed, `completed` is called with NONE or the log's error, such as
    NOT_LEADER_OR_FOLLOWER. It completes the client's response, and may return more appends.
    """

    records: Sequence[Any]
    """Each is an `EncodableRecord` of a type that the shard handles."""
    completed: Callable[[ClockReading, ErrorCode], Appends]
    producer: TransactionalProducer | None = None
    """Without one, the records apply once committed."""


Appends = Sequence[Append]
"""Appends to make in this order."""


class Result(Value, Generic[R], frozen=False):
    """The response to an event, and the records to append for it.

    If the response depends on the records, it is a `PendingResponse`, set once they are committed.
    """

    response: R | PendingResponse[R]
    appends: Appends = ()


make_reply = maker(PendingResponse)
make_result = maker(Result)
