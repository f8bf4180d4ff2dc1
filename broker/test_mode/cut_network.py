"""A network with faults between the brokers of a cluster under test, and between them and their ZooKeeper tree.

A link says what becomes of the connections to one port: each direction may lose everything, and may have a latency.
A direction that loses everything is a black hole, not a reset, as in a network that is cut: nobody gets an error. What
was sent meanwhile arrives when the link is healed, because TCP would send it again. The same goes for the end of a
connection. A new connection needs both directions, and waits for them.

One end of a connection has the rules for both directions: the broker that opened it, or the tree that accepted it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from broker.test_mode.api_description import boolean, integer, number, struct
from environment.contract import Listener, Network
from protocol.errors import detached
from protocol.value import Value

P = TypeVar("P", bound=asyncio.BaseProtocol)

HIGH_WATER_BYTES: Final = 64 << 10
"""Unsent bytes of a connection beyond which its protocol pauses: asyncio's default."""


LINK: Final = struct(
    {
        "port": integer("The port that the connections go to."),
        "sends?": boolean("Whether what this side sends arrives.", default=True),
        "receives?": boolean("Whether what the other side sends arrives.", default=True),
        "latency_ms?": number("The delay of each direction.", minimum=0, default=0),
    },
    "Link",
)


class Link(Value):
    """The faults of the connections to `port`. `latency_s` is the delay of each direction."""

    port: int
    sends: bool = True
    receives: bool = True
    latency_s: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Link:
        """Read the fields of LINK, which have been checked."""
        sends, receives = given.get("sends", True), given.get("receives", True)
        return cls(given["port"], sends, receives, given.get("latency_ms", 0) / 1000)


class Links:
    """The links of one process, and its connections that they rule."""

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self._links = {link.port: link for link in links}
        self._connections: dict[CutConnection, int] = {}
        """The connections that exist, with their ports; also those that have ended on this side only."""
        self._changed = asyncio.Event()

    def change(self, links: Sequence[Link]) -> None:
        """Replace all links. Ports without one are without faults."""
        self._links = {link.port: link for link in links}
        for connection, port in list(self._connections.items()):
            connection.change(self.of(port))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def of(self, port: int) -> Link:
        """The link to a port."""
        return self._links.get(port) or Link(port)

    async def await_handshake(self, port: int) -> None:
        """Return when a new connection to `port` can be there: its first two packets have arrived."""
        while not ((link := self.of(port)).sends and link.receives):
            await self._changed.wait()
        if link.latency_s:
            await asyncio.sleep(2 * link.latency_s)

    def add(self, connection: CutConnection, port: int) -> None:
        """Rule a connection from now on, until `remove`."""
        self._connections[connection] = port
        connection.change(self.of(port))

    def remove(self, connection: CutConnection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection, None)


class WrappedNetwork(Network):
    """Forwards to another network; subclasses override parts of it."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def bind(self, host: str | None, port: int) -> Listener:
        return self._network.bind(host, port)

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        return await self._network.connect(protocol_factory, host, port)

    async def addresses_of(self, host: str) -> list[str]:
        return await self._network.addresses_of(host)

    def host_name(self) -> str:
        return self._network.host_name()


class CutNetwork(WrappedNetwork):
    """The network of a broker: `links` rule the connections that it opens."""

    def __init__(self, network: Network, links: Links) -> None:
        super().__init__(network)
        self._links = links

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        await self._links.await_handshake(port)
        protocol = protocol_factory()
        connection = CutConnection(protocol, self._links, port)
        await self._network.connect(lambda: connection, host, port)
        return connection.transport, protocol


class _Direction:
    """One direction of a connection. Passes on in order, after the latency, and only while it is open."""

    def __init__(self) -> None:
        self.is_open = True
        self.latency_s = 0.0
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, action: Callable[[], None]) -> None:
        """Call `action` now or later."""
        if self.is_open and not self.latency_s and not self._waiting:
            action()
            return
        self._waiting.append((asyncio.get_running_loop().time() + self.latency_s, action))
        self.flow()

    def flow(self) -> None:
        """Call what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self.is_open and self._waiting:
            due_s, action = self._waiting[0]
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self.flow)
                return
            self._waiting.popleft()
            action()


class CutConnection(asyncio.Protocol):
    """Stands between a protocol and its TCP connection, and is the protocol's `transport`."""

    _tcp: asyncio.Transport

    def __init__(self, protocol: asyncio.BaseProtocol, links: Links, port: int | None = None) -> None:
        """`port` is the one that the link belongs to; None for the local port of an accepted connection."""
        self._protocol = protocol
        self._links = links
        self._port = port
        self._out, self._in = _Direction(), _Direction()
        self._receives = True
        self._is_reading = True
        self._has_closed = False
        """Whether the protocol has closed the connection: what still waits to be sent is sent, as by a kernel."""
        self._has_ended = False
        """Whether `connection_lost` has been called."""
        self._unsent_bytes = 0
        self._is_full = False
        self._high_water_bytes = HIGH_WATER_BYTES
        self.transport = CutTransport(self)

    def change(self, link: Link) -> None:
        """Follow a changed link."""
        self._receives = link.receives
        self._out.is_open = link.sends
        self._out.latency_s = self._in.latency_s = link.latency_s
        self._read_or_pause()
        self._out.flow()

    def _read_or_pause(self) -> None:
        """A direction that is cut is not read, so that neither data nor an end is seen."""
        if not self._tcp.is_closing():
            if self._receives and self._is_reading:
                self._tcp.resume_reading()
            else:
                self._tcp.pause_reading()
        self._in.is_open = self._receives and self._is_reading
        self._in.flow()

    # -- TCP's side ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's classes
        port = transport.get_extra_info("sockname")[1] if self._port is None else self._port
        self._links.add(self, port)
        self._protocol.connection_made(self.transport)

    def data_received(self, data: bytes) -> None:
        self._in.put(partial(self._deliver, bytes(data)))

    def eof_received(self) -> bool:
        self._in.put(self._deliver_end)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._links.remove(self)
        self._in.put(partial(self._end, None if error is None else detached(error)))

    def pause_writing(self) -> None:
        self._check_room()

    def resume_writing(self) -> None:
        self._check_room()

    def _deliver(self, data: bytes) -> None:
        if self._has_closed:
            return
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            left = memoryview(data)
            while left and not self._has_closed:
                buffer = memoryview(self._protocol.get_buffer(len(left)))
                size = min(len(buffer), len(left))
                buffer[:size] = left[:size]
                left = left[size:]
                self._protocol.buffer_updated(size)
        else:
            cast("asyncio.Protocol", self._protocol).data_received(data)

    def _deliver_end(self) -> None:
        if not self._has_closed and not cast("asyncio.Protocol", self._protocol).eof_received():
            self.close()

    def _end(self, error: Exception | None) -> None:
        if not self._has_ended:
            self._has_ended = self._has_closed = True
            self._protocol.connection_lost(error)

    # -- the protocol's side -------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send, when the link lets it."""
        if self._has_closed or not data:
            return
        self._unsent_bytes += len(data)
        self._out.put(partial(self._write, data))
        self._check_room()

    def _write(self, data: bytes) -> None:
        self._unsent_bytes -= len(data)
        if not self._tcp.is_closing():
            self._tcp.write(data)
        self._check_room()

    def send_end(self) -> None:
        """Send the end of the stream, after the data."""
        self._out.put(self._write_end)

    def _write_end(self) -> None:
        if not self._tcp.is_closing():
            self._tcp.write_eof()

    def close(self) -> None:
        """End this side at once; the other side learns of it when the link lets it."""
        if not self._has_closed:
            self._has_closed = True
            self._out.put(self._close_tcp)
            asyncio.get_running_loop().call_soon(self._end, None)

    def _close_tcp(self) -> None:
        self._tcp.close()

    def read(self, is_reading: bool) -> None:
        """Pause or resume reading."""
        self._is_reading = is_reading
        self._read_or_pause()

    def set_high_water(self, size: int) -> None:
        """Change the number of unsent bytes beyond which the protocol is paused."""
        self._high_water_bytes = size
        self._check_room()

    @property
    def tcp(self) -> asyncio.Transport:
        """The transport of the real connection."""
        return self._tcp

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._unsent_bytes + self._tcp.get_write_buffer_size()

    @property
    def has_closed(self) -> bool:
        """Whether the protocol has closed the connection, or lost it."""
        return self._has_closed or (self._receives and self._tcp.is_closing())

    def _check_room(self) -> None:
        is_full = self.unsent_bytes > self._high_water_bytes
        if is_full is not self._is_full and not self._has_closed:
            self._is_full = is_full
            if is_full:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()


class CutTransport(asyncio.Transport):
    """The transport of a protocol behind a `CutConnection`."""

    def __init__(self, connection: CutConnection) -> None:
        super().__init__()
        self._connection = connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.tcp.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.send(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._connection.send(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._connection.send_end()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        # A socket that is closed without more ado leaves its kernel to send the rest as well.
        self._connection.close()

    def is_closing(self) -> bool:
        return self._connection.has_closed

    def pause_reading(self) -> None:
        self._connection.read(False)

    def resume_reading(self) -> None:
        self._connection.read(True)

    def get_write_buffer_size(self) -> int:
        return self._connection.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._connection.set_high_water(HIGH_WATER_BYTES if high is None else high)
