"""Runs one shard: its log, its timer and its waiting requests."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from broker.network.registry import Later, complete_future, make_later
from cluster.coordinators.deadlines import Deadlines
from cluster.coordinators.results import Append, Appends, ClockReading, PendingResponse, Result, TransactionalProducer
from environment.contract import Clock
from environment.slices import SLICE_S
from protocol.api_keys import ApiKey
from protocol.errors import NO_ERROR, ApiError, EncodeError, ErrorCode, detached
from protocol.records.batch import Record

logger = logging.getLogger("kafka.coordinator.CoordinatorRuntime")

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

RESPONSES_AT_ONCE: Final = 32
"""Responses per turn of the event loop. When a join of thousands of members completes, other clients should not have to
wait for all its responses. The limit is a count, because most of the work happens in the next turn, in the callbacks of
futures.
"""

RECORDS_PER_BATCH: Final = 500
"""Maximum number of records in a batch that combines several appends. A batch is encoded, appended and replayed in one
go, in about 5 ms.
"""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Shard(Protocol):
    """The coordinator of one partition: it turns events into `Result`s. Its state changes only in `complete`, when
    appended records are replayed.
    """

    deadlines: Deadlines
    """They determine the next call of `expire`."""

    def start(self, now: ClockReading) -> Appends:
        """Start serving the restored state."""
        ...

    def complete(self, now: ClockReading, append: Append, base_offset: int) -> Appends:
        """`append` was committed; its first record has offset `base_offset` in the log."""
        ...

    def fail(self, now: ClockReading, append: Append, error_code: ErrorCode) -> Appends:
        """`append` was not committed."""
        ...

    def expire(self, now: ClockReading) -> Appends:
        """Process expired deadlines."""
        ...

    def resign(self, now: ClockReading) -> None:
        """Stop: another broker is the coordinator now."""
        ...


S = TypeVar("S", bound=Shard)


class CoordinatorLog(Protocol):
    """The partitions of an internal topic."""

    def partition_count(self) -> int:
        """The topic's partition count, or the count it will be created with."""
        ...

    def append(
        self, partition: int, records: Sequence[Record], producer: TransactionalProducer | None = None
    ) -> asyncio.Future[int]:
        """Append one batch. The future returns the offset of the first record once the batch is committed (acks=all).

        It fails with ApiError, and may already be done on return. The futures of a partition complete in the order of
        its appends.
        """
        ...

    def is_empty(self, partition: int) -> bool:
        """Whether the partition has nothing to load."""
        ...

    def most_record_bytes(self, partition: int) -> int:
        """Size in bytes of the largest batch that the partition accepts. Raises ApiError NOT_COORDINATOR."""
        ...

    async def load(self, partition: int, take: Callable[[memoryview], int | None]) -> None:
        """Pass all complete batches up to the current log end to `take`, off the loop, a chunk at a time.

        `take` returns the offset after the last batch that it processed. Raises ApiError and OSError.
        """
        ...


class Responses:
    """Delivers responses to waiting requests in order, a few per turn of the event loop."""

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[[Any], None], Any]] = deque()
        """Each waiting callback, with its outcome."""

    def respond(self, outcome: R | PendingResponse[R], translate: Callable[[R], T]) -> T | asyncio.Future[T]:
        """Return the translated outcome of an event, or a future of it."""
        if not isinstance(outcome, PendingResponse):
            return translate(outcome)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.then(partial(self._enqueue, partial(complete_future, future, translate)))
        return future

    def respond_later(
        self, outcome: R | PendingResponse[R], translate: Callable[[R], T] | None, lets_pass: frozenset[ApiKey]
    ) -> T | Later[T]:
        """Like `respond`, for a handler and without a future. See `Later` for `lets_pass`. Without `translate`, the
        outcome is the response.
        """
        if not isinstance(outcome, PendingResponse):
            return cast("T", outcome) if translate is None else translate(outcome)
        later: Later[T] = make_later(lets_pass, translate)
        outcome.then(partial(self._enqueue, later.answer))
        return later

    @staticmethod
    def respond_at_once(
        outcome: R | PendingResponse[R], translate: Callable[[R], T], lets_pass: frozenset[ApiKey]
    ) -> T | Later[T]:
        """Like `respond_later`, but responses are not spread over turns: for small ones."""
        if not isinstance(outcome, PendingResponse):
            return translate(outcome)
        later: Later[T] = make_later(lets_pass, translate)
        outcome.then(later.answer)
        return later

    def _enqueue(self, deliver: Callable[[R], None], value: R) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._deliver_some)
        self._due.append((deliver, value))

    def _deliver_some(self) -> None:
        for _ in range(min(RESPONSES_AT_ONCE, len(self._due))):
            deliver, value = self._due.popleft()
            deliver(value)
        if self._due:
            asyncio.get_running_loop().call_soon(self._deliver_some)

    def deliver_all(self) -> None:
        """Deliver all pending responses now."""
        while self._due:
            deliver, value = self._due.popleft()
            deliver(value)


class CoordinatorRuntime(Generic[S]):
    """Runs a shard: passes it events, makes its appends, and wakes it at its deadlines.

    The first append of a turn of the event loop is made immediately. Later ones of the same turn are combined into one
    batch in the next turn, so that simultaneous requests of many clients cost one write. Each append of a transactional
    producer is a separate batch. A batch that is too large for the log is split, so an append fails only if it is too
    large on its own.

    Appends are made in the order of their events, in slices, and reported to the shard in the same order. The event
    loop has at most one timer, and only while a deadline is set.
    """

    def __init__(self, partition: int, shard: S, log: CoordinatorLog, clock: Clock) -> None:
        self.shard = shard
        self.is_closed = False
        self._partition = partition
        self._log = log
        self._clock = clock
        self._deadlines = shard.deadlines
        self._due: deque[Append] = deque()
        """Appends that `_continue` will make, in order."""
        self._continues = False
        """Whether `_continue` is scheduled for the next turn."""
        self._in_flight: deque[tuple[Append, asyncio.Future[int], int]] = deque()
        """Appends made but not yet reported, each with the future of its batch and its position in it."""
        self._reporting = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        """When the timer fires; infinity without a timer."""
        self._now = ClockReading(0, -1)

    def start(self) -> None:
        """Start serving."""
        now = self.now()
        self._process(now, self.shard.start(now))

    def handle(
        self, event: Callable[Concatenate[ClockReading, P], Result[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R | PendingResponse[R]:
        """Pass an event to the shard. Returns the response if it is available immediately."""
        now = self.now()
        return self.finish(now, event(now, *args, **kwargs))

    def finish(self, now: ClockReading, result: Result[R]) -> R | PendingResponse[R]:
        """Make the appends of an event that the shard handled at `now`. Returns the response if it is available
        immediately.
        """
        self._process(now, result.appends)
        response = result.response
        if isinstance(response, PendingResponse) and response.value is not None:
            return response.value
        return response

    def close(self) -> None:
        """Stop serving, and fail the waiting requests."""
        now = self.now()
        self.shard.resign(now)
        self.is_closed = True
        while self._due:
            self._append_next(now)
        self._report(now)
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> ClockReading:
        """The current time; returns the previous `ClockReading` again within the same millisecond."""
        monotonic_ms = int(self._clock.monotonic_s() * 1000)
        if monotonic_ms != self._now.monotonic_ms:
            self._now = ClockReading(self._clock.now_ms(), monotonic_ms)
        return self._now

    def _process(self, now: ClockReading, appends: Appends) -> None:
        if appends:
            self._make(now, appends)
        if self._in_flight:
            self._report(now)
        if self._deadlines.next_ms < self._timer_ms:
            self._set_timer()

    def _make(self, now: ClockReading, appends: Appends) -> None:
        self._due.extend(appends)
        if not self._continues and self._due:
            self._continue_later()
            self._make_some(now)

    def _continue_later(self) -> None:
        self._continues = True
        asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._continues = False
        if not self._due:
            return
        if len(self._due) > 1:  # busy: combine the next appends too
            self._continue_later()
        now = self.now()
        self._make_some(now)
        self._process(now, ())

    def _make_some(self, now: ClockReading) -> None:
        should_yield = self._clock.begin_slice(SLICE_S / 4)  # a whole batch may follow, and the turn has other work
        while self._due:
            self._append_next(now)
            if should_yield():
                return

    def _append_next(self, now: ClockReading) -> None:
        """Make the next append, combined with those after it that fit into its batch."""
        due = self._due
        append = due.popleft()
        together, count = [append], len(append.records)
        if append.producer is None:
            while due and due[0].producer is None and count + len(due[0].records) <= RECORDS_PER_BATCH:
                together.append(due.popleft())
                count += len(together[-1].records)
        self._write(now, together)

    def _write(self, now: ClockReading, together: Sequence[Append]) -> None:
        """Write appends as one batch; if that fails, as smaller ones."""
        future = self._begin_write(now, together)
        is_done = future.done()
        if is_done and len(together) > 1 and _may_split(future):
            middle = len(together) // 2
            self._write(now, together[:middle])
            self._write(now, together[middle:])
            return
        position = 0
        for append in together:
            self._in_flight.append((append, future, position))
            position += len(append.records)
        if not is_done:
            future.add_done_callback(self._on_written)

    def _begin_write(self, now: ClockReading, together: Sequence[Append]) -> asyncio.Future[int]:
        try:
            records = [Record(0, now.now_ms, *each.encode()) for append in together for each in append.records]
            producer = together[0].producer
            if producer is None:
                return self._log.append(self._partition, records)
            return self._log.append(self._partition, records, producer)
        except Exception as error:  # a bug too: its requester gets the error, and later appends continue
            if not isinstance(error, ApiError | EncodeError):
                logger.exception("A record of a coordinator could not be written")
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(detached(error))
            return failed

    def _on_written(self, _: asyncio.Future[int]) -> None:
        self._process(self.now(), ())

    def _report(self, now: ClockReading) -> None:
        """Report finished appends to the shard, oldest first. Guarded against reentry, because the shard may append
        again.
        """
        if self._reporting:
            return
        self._reporting = True
        in_flight, shard = self._in_flight, self.shard
        try:
            while in_flight and in_flight[0][1].done():
                append, future, position = in_flight.popleft()
                error_code = _error_of(future)
                if error_code is NO_ERROR:
                    more = shard.complete(now, append, future.result() + position)
                else:
                    more = shard.fail(now, append, error_code)
                if more:
                    self._make(now, more)
        finally:
            self._reporting = False

    def _set_timer(self) -> None:
        """Restart the timer for the next deadline."""
        if self.is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        # The shard's clock counts whole milliseconds; fire slightly late so that it has reached the deadline.
        self._timer_ms = self._deadlines.next_ms
        delay_s = max(0.0, self._timer_ms / 1000 - self._clock.monotonic_s()) + 0.0005
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        now = self.now()
        self._process(now, self.shard.expire(now))


def _may_split(future: asyncio.Future[int]) -> bool:
    """Whether a batch failed because it was too large or had a record that cannot be written; parts of it may
    succeed.
    """
    error = None if future.cancelled() else future.exception()
    return isinstance(error, EncodeError) or (isinstance(error, ApiError) and error.error_code in _TOO_LARGE)


def _error_of(future: asyncio.Future[int]) -> ErrorCode:
    if future.cancelled():
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    error = future.exception()
    if error is None:
        return NO_ERROR
    if isinstance(error, ApiError):
        return error.error_code
    logger.error("A record of a coordinator could not be written", exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
