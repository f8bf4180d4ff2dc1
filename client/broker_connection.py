"""One connection to one broker: negotiated versions, pipelined requests, ordered responses, a deadline for each.

Responses arrive in the order of the requests (Kafka's protocol guarantees it), so pending requests form a queue. A
response with another correlation id, or one that does not decode, closes the connection, because the rest of the stream
cannot be trusted. So does a request timeout, as in Kafka's clients: a late response would be taken for that of the next
request.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar, cast

from client.environment import LoopNetwork, Network
from client.errors import DisconnectedError, UnsupportedVersionError
from client.settings import MAX_FRAME_BYTES
from odradek import __version__
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, DecodeError, ErrorCode, detached
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.headers import RequestHeader, ResponseHeader
from protocol.wire.frames import FrameError, FrameReader, ReceiveBuffer
from protocol.wire.schema import Request, Response

logger = logging.getLogger("kafka.clients.Connection")

R = TypeVar("R", bound=Response)

SOFTWARE_NAME: Final = "odradek"

_LENGTH: Final = struct.Struct(">i")
_ERROR_CODE: Final = struct.Struct(">h")


class _Pending(NamedTuple):
    """A request that waits for its response until `deadline` (loop time)."""

    correlation_id: int
    response_type: type[Response]
    version: int
    deadline: float
    answer: asyncio.Future[Any]


class BrokerConnection(asyncio.BufferedProtocol):
    """A connection to the broker at `address`. `connect` creates it; all methods belong to the loop's thread."""

    def __init__(
        self,
        address: str,
        client_id: str,
        request_timeout_ms: int,
        receive_buffer: ReceiveBuffer,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`numbers` become the correlation ids, modulo 2^31; None counts from 1."""
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        """The lowest and highest version that the broker serves, by API key."""
        self._client_id = client_id
        self._request_timeout_s = request_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(MAX_FRAME_BYTES, receive_buffer)
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._numbers = count(1) if numbers is None else numbers
        self._timer: asyncio.TimerHandle | None = None
        self._failure: DisconnectedError | None = None
        self._is_retiring = False

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._failure is None and self._transport is not None

    @property
    def in_flight(self) -> int:
        """The number of requests waiting for a response."""
        return len(self._pending)

    def version_of(self, request_type: type[Request], at_most: int | None = None) -> int:
        """The highest version of a request that both sides know; `at_most` limits it.

        Raises UnsupportedVersionError without a common version.
        """
        low, high = self.versions.get(int(request_type.api_key), (0, -1))
        best = min(high, request_type.max_version, request_type.max_version if at_most is None else at_most)
        if best < max(low, request_type.min_version):
            raise UnsupportedVersionError(f"The node does not support {request_type.api_key.name}")
        return best

    async def ask(
        self, request: Request, response_type: type[R], version: int | None = None, timeout_ms: int | None = None
    ) -> R:
        """Send `request`, in the highest common version unless one is given, and wait for the response.

        Raises DisconnectedError if the connection ends first or the response takes longer than `timeout_ms` (None:
        `request.timeout.ms`), UnsupportedVersionError and EncodeError if the request cannot be sent.
        """
        return await self.send(request, response_type, version, timeout_ms)

    def send(
        self, request: Request, response_type: type[R], version: int | None = None, timeout_ms: int | None = None
    ) -> asyncio.Future[R]:
        """The sending part of `ask`: requests are sent in the order of these calls."""
        if version is None:
            version = self.version_of(type(request))
        answer: asyncio.Future[R] = self._loop.create_future()
        correlation_id = self._write(request, version)
        timeout_s = self._request_timeout_s if timeout_ms is None else timeout_ms / 1000
        deadline = self._loop.time() + timeout_s
        self._pending.append(_Pending(correlation_id, response_type, version, deadline, answer))
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._check_deadline)
        return answer

    def send_unanswered(self, request: Request) -> None:
        """Send a request without a response (Produce with acks 0). Raises as `ask`."""
        self._write(request, self.version_of(type(request)))

    def retire_after(self, seconds: float) -> None:
        """Close the connection when it is first idle after this many seconds."""
        self._loop.call_later(seconds, self._retire)

    def _retire(self) -> None:
        self._is_retiring = True
        if not self._pending:
            self._fail("its session was about to end")

    def close(self) -> None:
        """Close the connection. Pending requests fail with DisconnectedError."""
        self._fail("it was closed")

    async def negotiate(self) -> None:
        """Ask for the versions that the broker serves (KIP-35, KIP-511). Raises DisconnectedError and ApiError."""
        version = ApiVersionsRequest.max_version
        while True:
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
            response = await self.ask(request, ApiVersionsResponse, version)
            ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            known = ranges.get(int(ApiKey.API_VERSIONS), (0, 0))[1]
            if known >= version:
                break
            version = known
        if response.error_code:
            raise ApiError(ErrorCode.of(response.error_code), f"{self.address} did not return its API versions")
        self.versions = ranges

    def _write(self, request: Request, version: int) -> int:
        """Send a request; returns its correlation id."""
        if self._transport is None or self._failure is not None:
            raise detached(self._failure or DisconnectedError(f"not connected to {self.address}"))
        api_key = request.api_key
        correlation_id = next(self._numbers) & 0x7FFFFFFF
        header = RequestHeader(
            request_api_key=int(api_key),
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=self._client_id,
        )
        head = bytearray(_LENGTH.size)
        head += header.to_bytes(api_key.request_header_version(version))
        parts = request.encode_after(head, version)
        size = sum(map(len, parts)) - _LENGTH.size
        _LENGTH.pack_into(head, 0, size)
        self._transport.writelines(parts)
        return correlation_id

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport, but are not subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "the broker closed it", exc)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.received(nbytes)
            while (frame := self._reader.next_frame()) is not None:
                # Responses keep slices of their frame (records), while the reader reuses its buffer for the next frame.
                self._receive(memoryview(bytes(frame)))
                if self._failure is not None:
                    return
            self._reader.keep()
        except (FrameError, DecodeError) as error:
            self._fail(str(error))

    def _receive(self, frame: memoryview) -> None:
        if not self._pending:
            raise FrameError("a response without a request")
        pending = self._pending.popleft()
        header_version = pending.response_type.api_key.response_header_version(pending.version)
        try:
            header, size = ResponseHeader.decode_prefix(frame, header_version)
            if header.correlation_id != pending.correlation_id:
                raise FrameError(
                    f"a response with correlation id {header.correlation_id} instead of {pending.correlation_id}"
                )
            body = frame[size:]
            version = pending.version
            if pending.response_type is ApiVersionsResponse and _is_unsupported_version(body):
                # A broker that does not know the version responds in version 0, which all clients can read.
                version = 0
            response = pending.response_type.decode(body, version)
        except (FrameError, DecodeError) as error:
            if not pending.answer.done():
                pending.answer.set_exception(self._disconnected(str(error)))
            raise
        if not pending.answer.done():
            pending.answer.set_result(response)
        if self._is_retiring and not self._pending:
            self._fail("its session was about to end")

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._pending:
            return
        # Timeouts differ, so the first request in the queue may not be the first to expire.
        deadline = min(pending.deadline for pending in self._pending)
        if self._loop.time() < deadline:
            self._timer = self._loop.call_at(deadline, self._check_deadline)
            return
        self._fail("a request was not answered in time")

    def _disconnected(self, reason: str, cause: Exception | None = None) -> DisconnectedError:
        error = DisconnectedError(f"Connection to {self.address} ended: {reason}")
        error.__cause__ = cause
        return error

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        if self._failure is None:
            self._failure = self._disconnected(reason, cause)
            logger.debug("%s", self._failure)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        while self._pending:
            answer = self._pending.popleft().answer
            if not answer.done():
                answer.set_exception(self._disconnected(reason, cause))


def _is_unsupported_version(body: memoryview) -> bool:
    return len(body) >= _ERROR_CODE.size and _ERROR_CODE.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION


async def connect(
    network: Network,
    host: str,
    port: int,
    *,
    client_id: str,
    request_timeout_ms: int,
    setup_timeout_ms: int,
    receive_buffer: ReceiveBuffer,
    negotiate: bool = True,
    numbers: Iterator[int] | None = None,
) -> BrokerConnection:
    """Connect to a broker and negotiate versions. Raises DisconnectedError if that fails or times out.

    Without `negotiate` every request must give its version. For `numbers` see `BrokerConnection`.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(setup_timeout_ms / 1000):
            _, connection = await network.connect(
                lambda: BrokerConnection(address, client_id, request_timeout_ms, receive_buffer, numbers), host, port
            )
    except (OSError, TimeoutError) as error:
        reason = "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
        if isinstance(error, ConnectionRefusedError):
            reason = "Connection refused"  # asyncio's message has the address instead of the operating system's text
        raise DisconnectedError(f"Connection to {address} could not be established: {reason}") from error
    if not negotiate or connection.versions:
        return connection
    try:
        await connection.negotiate()
    except DisconnectedError as error:
        connection.close()
        if isinstance(network, LoopNetwork):
            hint = "if the listener wants TLS, set security.protocol to SSL or SASL_SSL"
            raise DisconnectedError(f"{error}; {hint}") from error
        raise
    except BaseException:
        connection.close()
        raise
    return connection
