"""HTTP/1.1 on the broker's event loop, for the control API: a connection parses with h11, and answers JSON.

A connection answers one request at a time. A body is limited to MAX_BODY_BYTES, and a handler's failure becomes a JSON
object with `error`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from protocol.value import Value

logger = logging.getLogger("odradek.control")

MAX_BODY_BYTES: Final = 64 << 20


class HttpError(Exception):
    """An answer other than 200; the message is the reason for the client."""

    def __init__(self, status: HTTPStatus, message: str, **fields: str) -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": message, **fields}


class HttpRequest(Value):
    """A complete request. `query` has the last value of each parameter; `body` is the parsed JSON object, if any."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    body: dict[str, Any]


Handler = Callable[[HttpRequest], Awaitable[object]]
"""Returns the JSON of the answer. Raises HttpError."""


class HttpConnection(asyncio.Protocol):
    """One client's connection. Requests need the bearer `token`."""

    def __init__(self, handler: Handler, token: str) -> None:
        self._handler = handler
        self._token = token
        self._parser = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._work: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's classes

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.receive_data(data)
        if self._work is None:
            self._parse()

    def eof_received(self) -> bool:
        self._parser.receive_data(b"")
        return self._work is not None

    def _parse(self) -> None:
        """Handle the next complete request, if it is there."""
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(HttpError(HTTPStatus(error.error_status_hint), str(error)))
                return
            if isinstance(event, h11.Request):
                self._head, self._body = event, bytearray()
                if any(name == b"expect" for name, _ in event.headers):
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > MAX_BODY_BYTES:
                    self._refuse(HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MAX_BODY_BYTES} bytes"))
                    return
            elif isinstance(event, h11.EndOfMessage):
                assert self._head is not None
                self._work = asyncio.ensure_future(self._answer(self._head, bytes(self._body)))
                return
            else:
                if isinstance(event, h11.ConnectionClosed) and self._transport is not None:
                    self._transport.close()
                return

    async def _answer(self, head: h11.Request, body: bytes) -> None:
        try:
            status, content = HTTPStatus.OK, await self._handler(self._request(head, body))
        except HttpError as error:
            status, content = error.status, error.content
        except Exception as error:
            logger.exception("The control request %s failed", head.target.decode("latin-1"))
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"}
        self._respond(status, content)
        self._work = None
        if self._parser.our_state is h11.MUST_CLOSE:
            if self._transport is not None:
                self._transport.close()
        elif self._transport is not None:
            self._parser.start_next_cycle()
            self._parse()

    def _request(self, head: h11.Request, body: bytes) -> HttpRequest:
        given = next((value for name, value in head.headers if name == b"authorization"), b"")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise HttpError(HTTPStatus.UNAUTHORIZED, "the header Authorization must be: Bearer <token>")
        url = urlsplit(head.target.decode("latin-1"))
        try:
            parsed = json.loads(body) if body else {}
        except ValueError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise HttpError(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
        path = tuple(unquote(part) for part in url.path.strip("/").split("/"))
        return HttpRequest(head.method.decode(), path, dict(parse_qsl(url.query, keep_blank_values=True)), parsed)

    def _refuse(self, error: HttpError) -> None:
        """Answer a request that is not handled, and close."""
        self._respond(error.status, error.content, close=True)
        if self._transport is not None:
            self._transport.close()

    def _respond(self, status: HTTPStatus, content: object, *, close: bool = False) -> None:
        if self._parser.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        encoded = json.dumps(content).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(encoded)))]
        if close:
            headers.append(("connection", "close"))
        self._send(h11.Response(status_code=status, headers=headers, reason=status.phrase))
        self._send(h11.Data(data=encoded))
        self._send(h11.EndOfMessage())

    def _send(self, event: h11.Event) -> None:
        data = self._parser.send(event)
        if data and self._transport is not None:
            self._transport.write(data)
