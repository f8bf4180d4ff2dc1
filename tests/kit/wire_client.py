"""A tiny synchronous Kafka client on our own message classes: one request, one answer, every field visible."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

from protocol.messages import RESPONSE_TYPES
from protocol.messages.headers import RequestHeader
from protocol.wire.schema import Request, Response

TIMEOUT_S = 60.0


class ConnectionClosed(Exception):
    """The broker closed the connection instead of answering."""


class WireClient:
    """One connection. Answers come back in the order of the requests, so `send` and `receive` can be pipelined."""

    def __init__(
        self, host: str, port: int, client_id: str | None = "wire-client", timeout_s: float = TIMEOUT_S
    ) -> None:
        self.client_id = client_id
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, request: Request, version: int) -> Response:
        """Send `request` in `version` and read its answer. Raises ConnectionClosed, or TimeoutError after a while."""
        self.send(request, version)
        return self.receive(type(request), version)

    def send(self, request: Request, version: int) -> None:
        """Send a request without waiting."""
        self.send_body(int(request.api_key), version, request.to_bytes(version))

    def send_body(self, api_key: int, version: int, body: bytes, header_version: int | None = None) -> None:
        """Send a request with a raw body, which our message classes would refuse to write."""
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self.client_id,
        )
        if header_version is None:
            header_version = _request_header_version(api_key, version)
        self.send_frame(header.to_bytes(header_version) + body)

    def send_frame(self, frame: bytes) -> None:
        """Send bytes with their length in front."""
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes. Raises ConnectionClosed if the broker has already closed the connection."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionClosed(str(error)) from error

    def receive(self, request_type: type[Request], version: int) -> Response:
        """The next answer, decoded as that of `request_type` in `version`."""
        frame = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        assert correlation_id == self._correlation_id or correlation_id > 0
        api_key = request_type.api_key
        at = 5 if api_key.response_header_version(version) else 4
        response: Response = RESPONSE_TYPES[api_key].decode(memoryview(frame)[at:], version)
        return response

    def receive_frame(self) -> bytes:
        """The next answer's bytes, without the length. Raises ConnectionClosed."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except ConnectionError as error:
                raise ConnectionClosed(str(error)) from error
            if not part:
                raise ConnectionClosed("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def await_bytes(self) -> None:
        """Return when an answer has begun to arrive, without reading it."""
        self._socket.recv(1, socket.MSG_PEEK)

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the broker closes the connection within a while without sending anything."""
        self._socket.settimeout(within_s)
        try:
            return not self._socket.recv(1)
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def _request_header_version(api_key: int, version: int) -> int:
    from protocol.api_keys import ApiKey

    known = next((key for key in ApiKey if key == api_key), None)
    return 1 if known is None else known.request_header_version(version)
