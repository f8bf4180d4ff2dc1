"""From a frame to a reply: the one way every request takes.

Kafka's rules for what cannot be served (SocketServer.parseRequestHeader): an unknown API or version closes the
connection without an answer, except ApiVersions itself, which is answered in version 0 with UNSUPPORTED_VERSION and
its own range, so that a newer client can fall back.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable

from broker.network.connection import Connection, Parts
from broker.registry import CloseConnection, HandlerRegistry, Reply, RequestContext, Route
from broker.request_log import log_completed, request_logger
from broker.seams import Clock
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.messages import ApiVersionsResponse, RequestHeader
from protocol.schema import Response

_KEY_AND_VERSION = struct.Struct(">hh")
_SIZE = struct.Struct(">i")
_SIZE_AND_CORRELATION_ID = struct.Struct(">ii")


class Dispatcher:
    """Decodes requests, calls their handlers, encodes replies. Owns the tasks of what is under way."""

    def __init__(self, registry: HandlerRegistry, clock: Clock) -> None:
        self._routes = registry.routes
        self._clock = clock
        self._running: set[asyncio.Task[Reply]] = set()

    async def drain(self) -> None:
        """Wait for the work that is under way; to be called when no more requests come."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def dispatch(self, connection: Connection, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        """See `broker.network.connection.Dispatch`."""
        if len(frame) < _KEY_AND_VERSION.size:
            raise CloseConnection(f"Received a request of {len(frame)} bytes, which is shorter than any header")
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
        route = self._routes.get(api_key)
        if route is None:
            raise CloseConnection(f"Received request api key {api_key} which is not enabled")
        header, body_at = RequestHeader.decode_prefix(frame, route.api_key.request_header_version(version))
        context = RequestContext(
            version,
            header.correlation_id,
            header.client_id,
            connection.client_address,
            connection.listener_name,
        )
        statistics = route.statistics
        statistics.requests += 1
        if not route.min_version <= version <= route.max_version:
            return self._refuse_version(route, context)
        request = route.request_type.decode(frame[body_at:], version)
        started_s = self._clock.monotonic_s()
        try:
            reply = route.handle(context, request)
        except Exception:
            statistics.failures += 1
            raise
        if reply is None or isinstance(reply, Response):
            time_s = self._clock.monotonic_s() - started_s
            statistics.total_time_s += time_s
            if request_logger.level <= logging.DEBUG:
                log_completed(route, context, connection.peer_name, time_s)
            return encode_reply(route.api_key, context, reply)
        return self._when_done(route, context, connection.peer_name, asyncio.ensure_future(reply), started_s)

    def _when_done(
        self, route: Route, context: RequestContext, peer: str, waiting: asyncio.Future[Reply], started_s: float
    ) -> asyncio.Future[Parts | None]:
        """The encoded reply, when it comes. Giving up on it gives up what waits, but never work that is under way."""
        answer: asyncio.Future[Parts | None] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[Reply]) -> None:
            time_s = self._clock.monotonic_s() - started_s
            route.statistics.total_time_s += time_s
            if request_logger.level <= logging.DEBUG and not done.cancelled():
                log_completed(route, context, peer, time_s)
            error = None if done.cancelled() else done.exception()
            if error is not None:
                route.statistics.failures += 1
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            elif done.cancelled():
                answer.cancel()
            else:
                try:
                    answer.set_result(encode_reply(route.api_key, context, done.result()))
                except Exception as mistake:  # noqa: BLE001  whoever awaits the answer logs it
                    answer.set_exception(mistake)

        waiting.add_done_callback(finish)
        if isinstance(waiting, asyncio.Task):
            # The event loop itself would forget a task that nothing else refers to.
            self._running.add(waiting)
            waiting.add_done_callback(self._running.discard)
        else:
            answer.add_done_callback(lambda given_up: waiting.cancel() if given_up.cancelled() else None)
        return answer

    def _refuse_version(self, route: Route, context: RequestContext) -> Parts | None:
        if route.api_key != ApiKey.API_VERSIONS:
            raise CloseConnection(
                f"Received request for api with key {int(route.api_key)} ({route.name}) and unsupported version "
                f"{context.api_version}"
            )
        own_range = ApiVersionsResponse.ApiVersion(
            api_key=int(route.api_key), min_version=route.advertised_from, max_version=route.max_version
        )
        context.api_version = 0
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own_range])
        return encode_reply(route.api_key, context, response)


def encode_reply(api_key: ApiKey, context: RequestContext, reply: Reply) -> Parts | None:
    """Frame a reply: size, response header, body."""
    if reply is None:
        return None
    version = context.api_version
    head = bytearray(9 if api_key.response_header_version(version) else 8)
    _SIZE_AND_CORRELATION_ID.pack_into(head, 0, 0, context.correlation_id)
    try:
        parts: Parts = reply.encode_after(head, version)  # type: ignore[assignment]  # nothing else holds the list
    except ApiError as error:
        # The handler's mistake, not the client's: it set a field that this version does not have.
        raise EncodeError(str(error)) from error
    size = len(head) if len(parts) == 1 else sum(map(len, parts))
    _SIZE.pack_into(head, 0, size - _SIZE.size)
    return parts
