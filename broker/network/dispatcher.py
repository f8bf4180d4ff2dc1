"""The path of every request from frame to reply. At DEBUG, `kafka.request.logger` logs a line for each answered request
(Kafka's kafka-request.log).

Invalid requests follow Kafka's rules (SocketServer.parseRequestHeader): an unknown API or version closes the connection
without an answer, except ApiVersions. That is answered in version 0 with UNSUPPORTED_VERSION and the supported range,
so that a newer client can fall back.

The log line is that of Kafka's `RequestChannel`: "Completed request:" and JSON with Kafka's names, without the bodies
of request and response and without the partial times that this broker does not measure.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any, Final, NoReturn

from broker.network.client_quotas import TIME_IS_FREE, ClientQuotas, Timed
from broker.network.connection import Connection, Dispatched
from broker.network.large_request import LargeRequest, abandon
from broker.network.memory import LargeRequestMemory
from broker.network.registry import (
    NOTHING,
    START,
    CloseConnection,
    Handle,
    HandlerRegistry,
    Later,
    Reply,
    RequestContext,
    RequestKind,
    Route,
    Waiting,
)
from broker.network.reply_writer import Parts
from environment.contract import Clock
from environment.slices import SLICE_S, Slices
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.messages import RESPONSE_TYPES
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.messages.headers import RequestHeader
from protocol.value import Value, maker
from protocol.wire.frames import kept
from protocol.wire.schema import Request, Response
from protocol.wire.wire_types import NotSmall

request_logger = logging.getLogger("kafka.request.logger")


def log_completed(route: Route, context: RequestContext, correlation_id: int, peer: str, time_s: float) -> None:
    """Log that a request of `peer` was answered, `time_s` seconds after its processing began."""
    if not request_logger.isEnabledFor(logging.DEBUG):
        return
    described = {
        "requestHeader": {
            "requestApiKey": int(route.api_key),
            "requestApiVersion": context.api_version,
            "correlationId": correlation_id,
            "clientId": context.client_id,
            "requestApiKeyName": route.api_key.name,
        },
        "connection": peer,
        "totalTimeMs": round(time_s * 1000, 3),
        "securityProtocol": context.security_protocol,
        "principal": str(context.principal),
        "listener": context.listener_name,
    }
    request_logger.debug("Completed request:%s", json.dumps(described, separators=(",", ":")))


_KEY_AND_VERSION = struct.Struct(">hh")
_HEADER_AT: Final = START.size
_SIZE = struct.Struct(">i")
_SIZE_BYTES: Final = _SIZE.size

MAX_REMEMBERED_BYTES: Final = 256
"""Longer request headers are not cached but decoded each time."""
MAX_REMEMBERED_KINDS: Final = 32
"""Request kinds, each an API in one version, cached per connection. A client uses about a dozen."""


class _Arrival(Value, eq=False):
    """A request that was not answered at once. `held_s` is how long it has held the event loop until then."""

    connection: Connection
    kind: RequestKind
    correlation_id: int
    size: int
    started_s: float
    held_s: float
    timed: Timed[Reply] | None = None

    @property
    def busy_s(self) -> float:
        """How long the request has held the event loop."""
        return self.held_s + (self.timed.time_s if self.timed is not None else 0.0)


_arrive = maker(_Arrival)


class Dispatcher:
    """Decodes requests, calls their handlers, encodes replies. Owns the tasks of running requests."""

    def __init__(
        self,
        registry: HandlerRegistry,
        clock: Clock,
        quotas: ClientQuotas,
        large_requests: LargeRequestMemory | None = None,
    ) -> None:
        """Without `large_requests` their memory is unlimited."""
        self._large_requests = LargeRequestMemory() if large_requests is None else large_requests
        self._routes = registry.routes
        self._quotas = quotas
        self._clock = clock
        self._now_s = clock.monotonic_s
        self._running: dict[asyncio.Future[Any], None] = {}
        self._unanswered = 0
        """Requests whose `Later` is still unanswered."""
        self._all_answered: asyncio.Event | None = None
        """Set when no request is unanswered. Created by the first waiter."""

    async def drain(self) -> None:
        """Wait for running requests; call it once no more requests come."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        if self._unanswered:
            self._all_answered = asyncio.Event()
            await self._all_answered.wait()

    def dispatch(self, connection: Connection, frame: memoryview) -> Dispatched:
        """See `broker.network.connection.Dispatch`."""
        try:
            start, correlation_id = START.unpack_from(frame)
        except struct.error:
            short = f"Received a request of {len(frame)} bytes, which is shorter than any header"
            raise CloseConnection(short) from None
        kind = connection.kinds.get(start)
        if kind is None or frame[_HEADER_AT : kind.body_at] != kind.header:
            kind = self._kind_of(connection, start, frame)
        route = kind.route
        statistics = route.statistics
        statistics.requests += 1
        started_s = self._now_s()
        try:
            decode = kind.decode if len(frame) <= kind.most_bytes else _not_small
            request = decode(frame, kind.body_at, kind.most_elements)
        except NotSmall:
            return self._serve_large(connection, kind, correlation_id, frame, started_s)
        try:
            reply = kind.handle(kind.context, request)
        except Exception:
            statistics.failures += 1
            raise
        if reply is None or isinstance(reply, Response):
            time_s = self._now_s() - started_s
            statistics.total_time_s += time_s
            if request_logger.level <= logging.DEBUG:
                log_completed(route, kind.context, correlation_id, connection.peer_name, time_s)
            if self._quotas.is_limited:
                return self._charge(connection, kind, correlation_id, reply, len(frame), time_s)
            return None if reply is None else encode_reply(kind, correlation_id, reply)
        if isinstance(reply, Later):
            self._unanswered += 1
            held_s = self._now_s() - started_s if self._quotas.is_limited else 0.0
            reply.arrival = _arrive(connection, kind, correlation_id, len(frame), started_s, held_s)
            reply.then(self._answer)
            return reply
        effective: asyncio.Future[None] | None = None
        timed: Timed[Reply] | None = None
        if isinstance(reply, Waiting):
            lets_pass, work, may_be_cancelled, effective = reply.lets_pass, reply.future, True, reply.effective
        else:
            if self._quotas.is_limited:
                reply = timed = Timed(reply, self._now_s)
            lets_pass, work, may_be_cancelled = NOTHING, asyncio.ensure_future(reply), route.reads_only
        arrival = _arrive(connection, kind, correlation_id, len(frame), started_s, self._now_s() - started_s, timed)
        answer = self._when_done(arrival, work)
        if may_be_cancelled:
            answer.add_done_callback(partial(abandon, work, effective))
        return Waiting(answer, lets_pass, effective)

    def _serve_large(
        self, connection: Connection, kind: RequestKind, correlation_id: int, frame: memoryview, started_s: float
    ) -> Waiting[Parts | None]:
        """Decode, handle and answer a request in slices, once memory is available; commands of a controller do not
        wait.

        Until it has been handled, no other request of its connection may overtake it. If the client disconnects during
        decoding, the work is cancelled; afterwards the ordinary rules apply.
        """
        size = len(frame)
        connection.hold_request(size)
        turn = None if kind.route.in_order else self._large_requests.take(connection.client_address, size)
        large = LargeRequest(kind, correlation_id, kept(frame, kind.body_at), self._clock, turn)
        served: Awaitable[Reply] = large.serve()
        timed = None
        if self._quotas.is_limited:
            served = timed = Timed(served, self._now_s)
        work = asyncio.ensure_future(served)
        work.add_done_callback(lambda _: connection.release_request(size))
        held_s = self._now_s() - started_s
        arrival = _arrive(connection, kind, correlation_id, size, started_s, held_s, timed)
        answer = self._when_done(arrival, work)
        answer.add_done_callback(partial(large.abandon, work))
        if turn is not None:
            # Also after a cancellation: the memory is free once the work has ended.
            answer.add_done_callback(lambda _: work.add_done_callback(turn.end))
        large.waiting = Waiting(answer, NOTHING, large.effective)
        return large.waiting

    def _answer(self, later: Later[Any], outcome: Any) -> None:
        """Encode the response of a pending request."""
        arrival: _Arrival = later.arrival
        connection, kind, correlation_id = arrival.connection, arrival.kind, arrival.correlation_id
        self._unanswered -= 1
        if self._all_answered is not None and not self._unanswered:
            self._all_answered.set()
        time_s = self._now_s() - arrival.started_s
        kind.route.statistics.total_time_s += time_s
        if request_logger.level <= logging.DEBUG:
            log_completed(kind.route, kind.context, correlation_id, connection.peer_name, time_s)
        if connection.closed:
            return
        try:
            response = later.response(outcome)
            if self._quotas.is_limited:
                later.parts = self._charge(connection, kind, correlation_id, response, arrival.size, arrival.held_s)
            else:
                later.parts = encode_reply(kind, correlation_id, response)
        except Exception as mistake:  # noqa: BLE001  the connection logs it
            kind.route.statistics.failures += 1
            connection.reply_failed(mistake)
            return
        connection.send_reply(later)

    def _kind_of(self, connection: Connection, start: int, frame: memoryview) -> RequestKind:
        """Decode a request header. Raises CloseConnection for an API that is not served."""
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
        route = self._routes.get(api_key)
        if route is None:
            raise CloseConnection(f"Received request api key {api_key} which is not enabled")
        header, body_at = RequestHeader.decode_prefix(frame, route.api_key.request_header_version(version))
        handle = route.handle
        if not route.min_version <= version <= route.max_version:
            handle, version = _refusal(route, version), 0
        context = RequestContext(
            version,
            header.client_id,
            connection.client_address,
            connection.listener_name,
            connection.principal,
            connection.security_protocol,
        )
        at_once = self._clock.elements_at_once(route.at_once)
        kind = RequestKind(route, handle, bytes(frame[_HEADER_AT:body_at]), body_at, context, at_once)
        if body_at <= MAX_REMEMBERED_BYTES:
            if len(connection.kinds) >= MAX_REMEMBERED_KINDS:
                connection.kinds.clear()
            connection.kinds[start] = kind
        return kind

    def _charge(
        self, connection: Connection, kind: RequestKind, correlation_id: int, reply: Reply, size: int, time_s: float
    ) -> Parts | None:
        """Apply the client's quota, if any, and encode the reply. Mutes the connection when it exceeds the quota."""
        reply = self._charged(connection, kind, reply, size, time_s)
        if reply is None:
            return None
        started_s = self._now_s()
        parts = encode_reply(kind, correlation_id, reply)
        self._count_time(kind, self._now_s() - started_s)
        return parts

    def _charged(self, connection: Connection, kind: RequestKind, reply: Reply, size: int, time_s: float) -> Reply:
        """Apply the client's quota, if any, and return the reply. Mutes the connection when it exceeds the quota."""
        reply, throttle_ms = self._quotas.charge(kind.route.api_key, kind.context, reply, size, time_s)
        if throttle_ms > 0 and not connection.closed:
            connection.mute(throttle_ms)
        return reply

    def _count_time(self, kind: RequestKind, time_s: float) -> None:
        if self._quotas.is_limited and kind.route.api_key not in TIME_IS_FREE:
            self._quotas.count_time(kind.context, time_s)

    def _when_done(self, arrival: _Arrival, work: asyncio.Future[Reply]) -> asyncio.Future[Parts | None]:
        """A future of the encoded reply; it stays unset if the client has left."""
        connection, kind, correlation_id = arrival.connection, arrival.kind, arrival.correlation_id
        route, context = kind.route, kind.context
        answer: asyncio.Future[Parts | None] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[Reply]) -> None:
            del self._running[done]
            time_s = self._now_s() - arrival.started_s
            route.statistics.total_time_s += time_s
            if request_logger.level <= logging.DEBUG and not done.cancelled():
                log_completed(route, context, correlation_id, connection.peer_name, time_s)
            error = None if done.cancelled() else done.exception()
            if error is not None:
                route.statistics.failures += 1
            if answer.done():
                if self._quotas.is_limited:  # a client cannot evade its produce quota by disconnecting
                    self._quotas.charge(route.api_key, context, None, arrival.size, arrival.busy_s)
                return
            if error is not None:
                answer.set_exception(error)
            elif done.cancelled():
                answer.cancel()
            else:
                reply = done.result()
                if self._quotas.is_limited:
                    reply = self._charged(connection, kind, reply, arrival.size, arrival.busy_s)
                if reply is None:
                    answer.set_result(None)
                else:
                    self._encode(kind, correlation_id, reply, answer)

        # The event loop keeps only a weak reference to a task.
        self._running[work] = None
        work.add_done_callback(finish)
        return answer

    def _encode(
        self, kind: RequestKind, correlation_id: int, reply: Response, answer: asyncio.Future[Parts | None]
    ) -> None:
        """Encode a reply, in slices if it takes longer than one."""
        slices = Slices(self._clock, SLICE_S / 2)  # the handler has already used part of this turn
        encoding = _encode_in_slices(kind, correlation_id, reply, slices)
        started_s = self._now_s()
        try:
            next(encoding)
        except StopIteration as end:
            self._count_time(kind, self._now_s() - started_s)
            answer.set_result(end.value)
            return
        except Exception as mistake:  # noqa: BLE001  the connection, which awaits the answer, logs it
            answer.set_exception(mistake)
            return
        timed = Timed(_encode_rest(encoding, reply, slices, answer), self._now_s)
        work = asyncio.ensure_future(timed)
        self._running[work] = None

        def finish(_: asyncio.Future[None]) -> None:
            del self._running[work]
            self._count_time(kind, timed.time_s + SLICE_S / 2)

        work.add_done_callback(finish)


def _encode_in_slices(
    kind: RequestKind, correlation_id: int, reply: Response, slices: Slices
) -> Generator[None, None, Parts]:
    """Like `encode_reply`, in slices."""
    head = bytearray(kind.reply_head.pack(0, correlation_id))
    encode = RESPONSE_TYPES[kind.route.api_key].encoder_in_slices(kind.context.api_version)
    try:
        parts: Parts = yield from encode(reply, head, slices.should_yield)  # type: ignore[assignment]  # nothing else holds the list
    except ApiError as error:
        raise EncodeError(str(error)) from error
    return _framed(head, parts)


async def _encode_rest(
    encoding: Generator[None, None, Parts], reply: Response, slices: Slices, answer: asyncio.Future[Parts | None]
) -> None:
    """Finish the encoding, set `answer`, then free the reply."""
    replies = [reply]
    del reply
    try:
        await slices.pause()
        parts = await slices.finish(encoding)
    except Exception as mistake:  # noqa: BLE001  the connection, which awaits the answer, logs it
        if not answer.done():
            answer.set_exception(mistake)
        return
    if not answer.done():
        answer.set_result(parts)
    del encoding, parts
    await slices.free(replies)


def _not_small(*_: object) -> NoReturn:
    raise NotSmall


def _refusal(route: Route, version: int) -> Handle:
    """The handler for ApiVersions requests in an unsupported version: it answers in version 0. Raises CloseConnection
    for other requests.
    """
    if route.api_key != ApiKey.API_VERSIONS:
        route.statistics.requests += 1
        raise CloseConnection(
            f"Received request for api with key {int(route.api_key)} ({route.name}) and unsupported version {version}"
        )

    def refuse(_context: RequestContext, _request: Request) -> ApiVersionsResponse:
        own_range = ApiVersionsResponse.ApiVersion(
            api_key=int(route.api_key), min_version=route.advertised_from, max_version=route.max_version
        )
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own_range])

    return refuse


def encode_reply(kind: RequestKind, correlation_id: int, reply: Response) -> Parts:
    """Frame a reply: size, response header, body."""
    head = bytearray(kind.reply_head.pack(0, correlation_id))
    try:
        parts: Parts = kind.encode(reply, head)  # type: ignore[assignment]  # nothing else holds the list
    except ApiError as error:
        # A bug of the handler, not an error of the client: it set a field that this version lacks.
        raise EncodeError(str(error)) from error
    return _framed(head, parts)


def _framed(head: bytearray, parts: Parts) -> Parts:
    """Write the total size into the head, which is the first part."""
    size = len(head) if len(parts) == 1 else sum(map(len, parts))
    _SIZE.pack_into(head, 0, size - _SIZE_BYTES)
    return parts
