"""One event being handled: the time it happens at, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cluster.coordinator.records import CoordinatorRecord
from protocol.errors import ErrorCode
from protocol.schema import Struct

S = TypeVar("S", bound=Struct)


@dataclass(slots=True)
class Append:
    """Records to append as one batch, atomically. Exactly one of `committed` and `failed` is called, once.

    `failed` gets the error of the log, such as NOT_LEADER_OR_FOLLOWER; what a client is told is decided there.
    """

    records: Sequence[CoordinatorRecord]
    committed: Callable[[Turn], None]
    failed: Callable[[Turn, ErrorCode], None]


@dataclass(slots=True)
class Turn:
    """Effects of one event. `now_ms` is wall-clock time for records, `monotonic_ms` counts deadlines.

    `replies` are to be called in order; `appends` are to be written in order.
    """

    now_ms: int
    monotonic_ms: int
    replies: list[Callable[[], None]] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)

    def reply(self, answer: Callable[[S], None], response: S) -> None:
        """Give `response` to whoever waits behind `answer`, once the turn is over."""
        self.replies.append(lambda: answer(response))

    def append(
        self,
        records: Sequence[CoordinatorRecord],
        committed: Callable[[Turn], None],
        failed: Callable[[Turn, ErrorCode], None],
    ) -> None:
        """Ask for `records` (at least one) to be written."""
        self.appends.append(Append(records, committed, failed))
