"""One shard with its log, its timer and the requests that wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from broker.environment.contract import Clock
from broker.network.registry import Later, make_later, settle
from broker.network.slices import SLICE_S
from cluster.coordinators.deadlines import Deadlines
from cluster.coordinators.results import Append, Appends, Moment, Producer, Reply, Result
from protocol.api_keys import ApiKey
from protocol.errors import NO_ERROR, ApiError, EncodeError, ErrorCode, detached
from protocol.records.batch import Record

logger = logging.getLogger("kafka.coordinator.CoordinatorRuntime")

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

RESPONSES_AT_ONCE: Final = 32
"""Responses given in one turn of the event loop. A join of thousands of members completes at one moment, and other
clients should not wait for all of its responses. They are counted, as most of the work on them is done in the next
turn, by the callbacks of futures.
"""

RECORDS_PER_BATCH: Final = 500
"""The most that appends have in one batch together. They are encoded, appended and replayed in one go: some 5 ms."""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Shard(Protocol):
    """One partition of the topic, as its coordinator: events come in, a `Result` comes out. Its state changes only in
    `complete`, by replay of what was appended.
    """

    deadlines: Deadlines
    """They say when `expire` is to be called next."""

    def start(self, now: Moment) -> Appends:
        """Begin to serve what was restored."""
        ...

    def complete(self, now: Moment, append: Append, base_offset: int) -> Appends:
        """`append` is committed, its first record at `base_offset` of the log."""
        ...

    def fail(self, now: Moment, append: Append, error_code: ErrorCode) -> Appends:
        """`append` was not committed."""
        ...

    def expire(self, now: Moment) -> Appends:
        """Time has passed."""
        ...

    def resign(self, now: Moment) -> None:
        """Another broker coordinates now."""
        ...


S = TypeVar("S", bound=Shard)


class CoordinatorLog(Protocol):
    """The partitions of an internal topic."""

    def partition_count(self) -> int:
        """Partitions of the topic, or those it will be created with."""
        ...

    def append(
        self, partition: int, records: Sequence[Record], producer: Producer | None = None
    ) -> asyncio.Future[int]:
        """Append one batch; the future gives the offset of its first record once it is committed (acks=all).

        It fails with ApiError, and may be done already when it is returned. Futures of one partition are done in the
        order of the appends.
        """
        ...

    def is_empty(self, partition: int) -> bool:
        """Whether there is nothing to load."""
        ...

    def most_record_bytes(self, partition: int) -> int:
        """Bytes of the largest batch that the partition takes. Raises ApiError NOT_COORDINATOR."""
        ...

    async def load(self, partition: int, take: Callable[[memoryview], int | None]) -> None:
        """Give `take`, off the loop, all complete batches up to the log end of this moment, a chunk at a time.

        `take` returns the offset behind the last batch that it took. Raises ApiError and OSError.
        """
        ...


class Responses:
    """Gives waiting requests their responses: in order, a few in one turn of the event loop."""

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[[Any], None], Any]] = deque()
        """Who is to be given which outcome."""

    def respond(self, outcome: R | Reply[R], translate: Callable[[R], T]) -> T | asyncio.Future[T]:
        """The translated outcome of an event, or a future for it."""
        if not isinstance(outcome, Reply):
            return translate(outcome)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.then(partial(self._put, partial(settle, future, translate)))
        return future

    def respond_later(
        self, outcome: R | Reply[R], translate: Callable[[R], T] | None, lets_pass: frozenset[ApiKey]
    ) -> T | Later[T]:
        """As `respond`, without a future, for a handler; `lets_pass`: see `Later`. Without `translate` the outcome is
        the response.
        """
        if not isinstance(outcome, Reply):
            return cast("T", outcome) if translate is None else translate(outcome)
        later: Later[T] = make_later(lets_pass, translate)
        outcome.then(partial(self._put, later.answer))
        return later

    @staticmethod
    def respond_at_once(
        outcome: R | Reply[R], translate: Callable[[R], T], lets_pass: frozenset[ApiKey]
    ) -> T | Later[T]:
        """As `respond_later`, for responses that are too small to be given a few at a time."""
        if not isinstance(outcome, Reply):
            return translate(outcome)
        later: Later[T] = make_later(lets_pass, translate)
        outcome.then(later.answer)
        return later

    def _put(self, give: Callable[[R], None], value: R) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._give)
        self._due.append((give, value))

    def _give(self) -> None:
        for _ in range(min(RESPONSES_AT_ONCE, len(self._due))):
            give, value = self._due.popleft()
            give(value)
        if self._due:
            asyncio.get_running_loop().call_soon(self._give)

    def give_all(self) -> None:
        """Give all that are due now."""
        while self._due:
            give, value = self._due.popleft()
            give(value)


class CoordinatorRuntime(Generic[S]):
    """Lets a shard handle events, makes the appends that follow, and wakes it when time has passed.

    The first append of a turn of the event loop is made at once. Those that follow are made together in the next turn,
    as one batch: what many clients ask for at one moment costs one write. Appends of a transactional producer are
    batches of their own. A batch that is too large for the log is divided, so that only an append that is too large by
    itself fails.

    Appends are made in the order in which events led to them, in slices, and reported to the shard in the order in
    which they were made. There is at most one timer on the event loop, and none while no deadline is set.
    """

    def __init__(self, partition: int, shard: S, log: CoordinatorLog, clock: Clock) -> None:
        self.shard = shard
        self.is_closed = False
        self._partition = partition
        self._log = log
        self._clock = clock
        self._deadlines = shard.deadlines
        self._due: deque[Append] = deque()
        """Appends to be made, in order, by `_continue`."""
        self._continues = False
        """Whether `_continue` is called in the next turn."""
        self._in_flight: deque[tuple[Append, asyncio.Future[int], int]] = deque()
        """Appends that were made, the offset of the batch that each is in, and its place there."""
        self._reporting = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        """When it fires, infinity while there is none."""
        self._moment = Moment(0, -1)

    def start(self) -> None:
        """Begin to serve."""
        now = self.now()
        self._go_on(now, self.shard.start(now))

    def handle(
        self, event: Callable[Concatenate[Moment, P], Result[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R | Reply[R]:
        """Let the shard handle an event. Gives the response if it is there already."""
        now = self.now()
        return self.finish(now, event(now, *args, **kwargs))

    def finish(self, now: Moment, result: Result[R]) -> R | Reply[R]:
        """Make the appends of an event that the shard handled at `now`. Gives the response if it is there already."""
        self._go_on(now, result.appends)
        response = result.response
        if isinstance(response, Reply) and response.value is not None:
            return response.value
        return response

    def close(self) -> None:
        """Serve no more: send away who waits."""
        now = self.now()
        self.shard.resign(now)
        self.is_closed = True
        while self._due:
            self._append_next(now)
        self._report(now)
        if self._timer is not None:
            self._timer.cancel()

    def now(self) -> Moment:
        """The present moment; the last one, if no millisecond has passed since."""
        monotonic_ms = int(self._clock.monotonic_s() * 1000)
        if monotonic_ms != self._moment.monotonic_ms:
            self._moment = Moment(self._clock.now_ms(), monotonic_ms)
        return self._moment

    def _go_on(self, now: Moment, appends: Appends) -> None:
        if appends:
            self._make(now, appends)
        if self._in_flight:
            self._report(now)
        if self._deadlines.next_ms < self._timer_ms:
            self._set_timer()

    def _make(self, now: Moment, appends: Appends) -> None:
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
        if len(self._due) > 1:  # there is a lot to do: the next come together, too
            self._continue_later()
        now = self.now()
        self._make_some(now)
        self._go_on(now, ())

    def _make_some(self, now: Moment) -> None:
        is_over = self._clock.begin_slice(SLICE_S / 4)  # a whole batch may follow, and other work in the same turn
        while self._due:
            self._append_next(now)
            if is_over():
                return

    def _append_next(self, now: Moment) -> None:
        """Make the next append, and those behind it that may be in its batch."""
        due = self._due
        append = due.popleft()
        together, count = [append], len(append.records)
        if append.producer is None:
            while due and due[0].producer is None and count + len(due[0].records) <= RECORDS_PER_BATCH:
                together.append(due.popleft())
                count += len(together[-1].records)
        self._write(now, together)

    def _write(self, now: Moment, together: Sequence[Append]) -> None:
        """Make appends as one batch, or as smaller ones when it cannot be written."""
        future = self._begin_write(now, together)
        is_done = future.done()
        if is_done and len(together) > 1 and _may_do_apart(future):
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

    def _begin_write(self, now: Moment, together: Sequence[Append]) -> asyncio.Future[int]:
        try:
            records = [Record(0, now.now_ms, *each.encode()) for append in together for each in append.records]
            producer = together[0].producer
            if producer is None:
                return self._log.append(self._partition, records)
            return self._log.append(self._partition, records, producer)
        except Exception as error:  # also a bug: the requester gets it, and the next appends are made
            if not isinstance(error, ApiError | EncodeError):
                logger.exception("A record of a coordinator could not be written")
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(detached(error))
            return failed

    def _on_written(self, _: asyncio.Future[int]) -> None:
        self._go_on(self.now(), ())

    def _report(self, now: Moment) -> None:
        """Tell the shard of finished appends, oldest first. What follows may append again, hence the guard."""
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
        """Move the timer forward to the next deadline."""
        if self.is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        # The shard's clock counts whole milliseconds: a little later than the deadline, it has reached it for sure.
        self._timer_ms = self._deadlines.next_ms
        delay_s = max(0.0, self._timer_ms / 1000 - self._clock.monotonic_s()) + 0.0005
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        now = self.now()
        self._go_on(now, self.shard.expire(now))


def _may_do_apart(future: asyncio.Future[int]) -> bool:
    """Whether a batch failed that is too large, or has a record that cannot be written: its parts may do better."""
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
