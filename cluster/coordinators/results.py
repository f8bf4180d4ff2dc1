"""Results of an event: records to append, and a response now or later (Kafka's CoordinatorResult)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from protocol.errors import ErrorCode
from protocol.value import Value, maker
from storage.log.log_validator import VerificationGuard

R = TypeVar("R")


class Record(Protocol):
    """A record of a coordinator's log."""

    def encode(self) -> tuple[bytes, bytes | None]:
        """Key and value as they stand in the log. Raises EncodeError for a value that cannot be written."""
        ...


class Producer(Value):
    """The transactional producer for which records are appended. With `ends` the record is the marker that ends its
    transaction, otherwise `guard` says that the transaction is known to have this partition.
    """

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None
    ends: bool = False


class Moment(Value):
    """When an event happens: `now_ms` is the wall clock's time, for records; `monotonic_ms` counts deadlines."""

    now_ms: int
    monotonic_ms: int


class Reply(Value, Generic[R], frozen=False, eq=False):
    """A response that comes later: when records are committed, or when other members have done their part."""

    value: R | None = None
    _receive: Callable[[R], None] | None = None

    def set(self, value: R) -> None:
        """Give the response. Raises RuntimeError when there is one already."""
        if self.value is not None:
            raise RuntimeError(f"answered twice: {self.value!r} and {value!r}")
        self.value = value
        if self._receive is not None:
            self._receive(value)

    def then(self, receive: Callable[[R], None]) -> None:
        """Call `receive` with the response when it comes."""
        self._receive = receive


class Append(Value, frozen=False):
    """Records to append as one batch, atomically.

    When the batch is committed or has failed, `settled` is called with NONE or the log's error, such as
    NOT_LEADER_OR_FOLLOWER. It decides the answer to the client, and may give more appends.
    """

    records: Sequence[Any]
    """Each is a `Record`, of a kind that the shard knows."""
    settled: Callable[[Moment, ErrorCode], Appends]
    producer: Producer | None = None
    """None: the records count as soon as they are committed."""


Appends = Sequence[Append]
"""Appends to be made in this order."""


class Result(Value, Generic[R], frozen=False):
    """The response to an event, and the records that have to be appended because of it.

    A response that rests on the records is a `Reply` that is set when they are committed.
    """

    response: R | Reply[R]
    appends: Appends = ()


make_reply = maker(Reply)
make_result = maker(Result)
