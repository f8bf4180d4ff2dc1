"""One shard with its log, its timer and the requests that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from broker.environment.contract import Clock
from cluster.coordinators.results import Append, Appends, Moment, Producer, Reply, Result
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.records.batch import Record

logger = logging.getLogger("kafka.coordinator.CoordinatorRuntime")

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

RESPONSES_AT_ONCE: Final = 16
"""Responses sent in one turn of the event loop. A join of thousands of members completes at one moment, and other
clients should not wait for all of its responses.
"""


RECORDS_PER_SLICE: Final = 500
"""Records that are encoded, appended and replayed in one turn of the event loop: some 5 ms of work."""


class Shard(Protocol):
    """One partition of the topic, as its coordinator: events come in, a `Result` comes out. Its state changes only in
    `complete`, by replay of what was appended.
    """

    def start(self, now: Moment) -> Appends:
        """Begin to serve what was restored."""
        ...

    def complete(self, now: Moment, append: Append, base_offset: int) -> Appends:
        """`append` is committed, its first record at `base_offset` of the log."""
        ...

    def fail(self, now: Moment, append: Append, error_code: ErrorCode) -> Appends:
        """`append` was not committed."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `expire` is to be called next (monotonic milliseconds); None: no time matters now."""
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

    async def load(self, partition: int, take: Callable[[memoryview], int | None]) -> None:
        """Give `take`, off the loop, all complete batches up to the log end of this moment, a chunk at a time.

        `take` returns the offset behind the last batch that it took. Raises ApiError and OSError.
        """
        ...


class Responses:
    """Gives waiting requests their responses: in order, a few in one turn of the event loop."""

    def __init__(self) -> None:
        self._due: deque[tuple[asyncio.Future[Any], Callable[[Any], Any], Any]] = deque()

    def respond(self, outcome: R | Reply[R], translate: Callable[[R], T]) -> T | asyncio.Future[T]:
        """The translated outcome of an event, or a future for it."""
        if not isinstance(outcome, Reply):
            return translate(outcome)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.then(partial(self._put, future, translate))
        return future

    def _put(self, future: asyncio.Future[Any], translate: Callable[[Any], Any], value: Any) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._give)
        self._due.append((future, translate, value))

    def _give(self) -> None:
        for _ in range(min(RESPONSES_AT_ONCE, len(self._due))):
            future, translate, value = self._due.popleft()
            if not future.done():
                future.set_result(translate(value))
        if self._due:
            asyncio.get_running_loop().call_soon(self._give)

    def give_all(self) -> None:
        """Give all that are due now."""
        while self._due:
            future, translate, value = self._due.popleft()
            if not future.done():
                future.set_result(translate(value))


class CoordinatorRuntime(Generic[S]):
    """Lets a shard handle events, makes the appends that follow, and wakes it when time has passed.

    Appends are made in the order in which events led to them, those of an event that leads to many in slices, and
    reported to the shard in the order in which they were made. There is at most one timer on the event
    loop, and none while no deadline is set.
    """

    def __init__(self, partition: int, shard: S, log: CoordinatorLog, clock: Clock) -> None:
        self.shard = shard
        self.is_closed = False
        self._partition = partition
        self._log = log
        self._clock = clock
        self._due: deque[Append] = deque()
        """Appends to be made, in order, by `_continue`."""
        self._in_flight: deque[tuple[Append, asyncio.Future[int]]] = deque()
        self._reporting = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def start(self) -> None:
        """Begin to serve."""
        self._go_on(self.shard.start(self._now()))

    def handle(
        self, event: Callable[Concatenate[Moment, P], Result[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R | Reply[R]:
        """Let the shard handle an event. Gives the response if it is there already."""
        result = event(self._now(), *args, **kwargs)
        self._go_on(result.appends)
        response = result.response
        if isinstance(response, Reply) and response.value is not None:
            return response.value
        return response

    def close(self) -> None:
        """Serve no more: send away who waits."""
        self.shard.resign(self._now())
        self.is_closed = True
        while self._due:
            self._append_next()
        self._report()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> Moment:
        return Moment(self._clock.now_ms(), int(self._clock.monotonic_s() * 1000))

    def _go_on(self, appends: Appends) -> None:
        self._make(appends)
        if self._in_flight:
            self._report()
        self._set_timer()

    def _make(self, appends: Appends) -> None:
        is_due_later = bool(self._due)
        self._due.extend(appends)
        if not is_due_later:
            self._make_some()

    def _make_some(self) -> None:
        room = RECORDS_PER_SLICE
        while self._due and room > 0:
            room -= self._append_next()
        if self._due:
            asyncio.get_running_loop().call_soon(self._continue)

    def _append_next(self) -> int:
        """Make the next append; gives how many records it has."""
        append = self._due.popleft()
        future = self._write(append)
        self._in_flight.append((append, future))
        if not future.done():
            future.add_done_callback(self._on_written)
        return len(append.records)

    def _continue(self) -> None:
        self._make_some()
        self._report()
        self._set_timer()

    def _write(self, append: Append) -> asyncio.Future[int]:
        now_ms = self._clock.now_ms()
        try:
            records = [Record(0, now_ms, *record.encode()) for record in append.records]
            if append.producer is None:
                return self._log.append(self._partition, records)
            return self._log.append(self._partition, records, append.producer)
        except (ApiError, EncodeError) as error:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _on_written(self, _: asyncio.Future[int]) -> None:
        self._report()
        self._set_timer()

    def _report(self) -> None:
        """Tell the shard of finished appends, oldest first. What follows may append again, hence the guard."""
        if self._reporting:
            return
        self._reporting = True
        try:
            while self._in_flight and self._in_flight[0][1].done():
                append, future = self._in_flight.popleft()
                error_code = _error_of(future)
                if error_code is ErrorCode.NONE:
                    self._make(self.shard.complete(self._now(), append, future.result()))
                else:
                    self._make(self.shard.fail(self._now(), append, error_code))
        finally:
            self._reporting = False

    def _set_timer(self) -> None:
        next_ms = self.shard.next_deadline_ms()
        if next_ms is None or self.is_closed or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        # The shard's clock counts whole milliseconds: a little later than the deadline, it has reached it for sure.
        delay_s = max(0.0, next_ms / 1000 - self._clock.monotonic_s()) + 0.0005
        self._timer_ms = next_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._go_on(self.shard.expire(self._now()))


def _error_of(future: asyncio.Future[int]) -> ErrorCode:
    if future.cancelled():
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    error = future.exception()
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, ApiError):
        return error.error_code
    logger.error("A record of a coordinator could not be written", exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
