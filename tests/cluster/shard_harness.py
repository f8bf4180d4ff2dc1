"""A coordinator's shard on an in-memory log, with a clock that tests advance."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from broker.coordinators.coordinator_runtime import Shard
from cluster.coordinators.results import Append, Appends, ClockReading
from protocol.errors import ErrorCode

S = TypeVar("S", bound=Shard)

START_MS = 1_700_000_000_000


class ShardHarness(Generic[S]):
    """`log` is the committed content: (key, value) pairs. With `hold`, appends wait for `commit_one` or `fail_one`;
    with `fails_with` they fail.
    """

    shard: S

    def __init__(self, log: list[tuple[bytes, bytes | None]] | None, now_ms: int) -> None:
        self.now_ms = now_ms
        self.wall_clock_skew_ms = 0
        self.log = [] if log is None else log
        self.hold = False
        self.fails_with: ErrorCode | None = None
        self.waiting: deque[Append] = deque()

    def now(self) -> ClockReading:
        return ClockReading(self.now_ms + self.wall_clock_skew_ms, self.now_ms - START_MS)

    def make(self, appends: Appends) -> None:
        """Execute the appends of an event, and those that follow from them."""
        self.waiting.extend(appends)
        while self.waiting and not self.hold:
            if self.fails_with is None:
                self.commit_one()
            else:
                self.fail_one(self.fails_with)

    def commit_one(self) -> None:
        append = self.waiting.popleft()
        base_offset = len(self.log)
        self.log.extend(record.encode() for record in append.records)
        self.committed(append, base_offset)
        self.make(self.shard.complete(self.now(), append, base_offset))

    def committed(self, append: Append, base_offset: int) -> None:
        """The records of `append` are committed from `base_offset` on."""

    def fail_one(self, error_code: ErrorCode) -> None:
        self.make(self.shard.fail(self.now(), self.waiting.popleft(), error_code))

    def advance(self, milliseconds: int) -> None:
        """Advance the time, firing each timer when it is due."""
        end_ms = self.now_ms + milliseconds
        while (next_ms := self.shard.deadlines.next_ms + START_MS) <= end_ms:
            self.now_ms = max(self.now_ms, int(next_ms))
            self.make(self.shard.expire(self.now()))
        self.now_ms = end_ms
