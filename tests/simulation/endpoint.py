"""One end of a simulated TCP connection: an asyncio transport with bounded buffers, which can be cut, held and reset.

A machine's kernel keeps running whatever its processes do: data for a paused process waits in its socket.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from random import Random
from typing import Any

from tests.simulation.loop import Process, SimLoop

_EOF = object()
_RESET = object()
_DEFAULT_HIGH_WATER = 64 * 1024


class Links:
    """The wires between the machines. `wire_hash` covers all bytes that have arrived anywhere."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.least_delay_s = 0.000_05
        self.most_delay_s = 0.002
        self.split_chance = 0.05
        self.window_bytes = 64 * 1024
        self.wire_hash = 0
        self.cuts: dict[tuple[str, str], None] = {}
        self.without_power: dict[str, None] = {}
        self.endpoints: dict[Endpoint, None] = {}
        """The ends of all connections that are open or still have something to send."""

    def delay_s(self) -> float:
        """The latency of the next segment."""
        return self.least_delay_s + self.rng.random() * (self.most_delay_s - self.least_delay_s)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether all traffic is cut."""
        return (source, target) in self.cuts


class Endpoint(asyncio.Transport):
    """One end of a connection, as its process sees it; what it writes travels to `peer`."""

    peer: Endpoint

    def __init__(
        self,
        links: Links,
        host: str,
        process: Process,
        context: Context,
        address: tuple[str, int],
        peer_address: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": address, "peername": peer_address})
        self._links = links
        self._loop = links.loop
        self.host = host
        self.process = process
        self.context = context
        self.gone = False
        """The process has closed it, or is dead."""
        self.held = False
        """Written bytes stay here, although the connection is open."""
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_closing = False
        self._is_reset = False
        self._reading_paused = False
        self._inbox: deque[Any] = deque()
        self._pump_scheduled = False
        self._stalled: deque[Any] = deque()
        self._last_arrival = 0.0
        self._unread_bytes = 0
        self._high = _DEFAULT_HIGH_WATER
        self._low = _DEFAULT_HIGH_WATER // 4
        self._writing_paused = False

    def begin(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """The connection stands."""
        self._protocol = protocol_factory()
        self._protocol.connection_made(self)
        self._schedule_pump()

    # -- what a process calls ------------------------------------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._put(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._put(b"".join(list_of_data))

    def _put(self, data: bytes) -> None:
        if self.gone or self._is_closing or not data:
            return
        self._unread_bytes += len(data)
        self._send(data)
        if not self._writing_paused and self._unread_bytes - self._links.window_bytes > self._high:
            self._writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return max(self._unread_bytes - self._links.window_bytes, 0)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _DEFAULT_HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule_pump()

    def close(self) -> None:
        self._leave(_EOF, None)

    def abort(self) -> None:
        # The kernel still sends its buffer; the other side sees an end or a reset.
        self._leave(_EOF if self._links.rng.random() < 0.5 else _RESET, None)

    def _leave(self, last_word: object, error: Exception | None) -> None:
        if self.gone or self._is_closing:
            return
        self._is_closing = True
        self._inbox.clear()
        self._send(last_word)
        self._loop.call_soon(self._lost, error, context=self.context)

    def _lost(self, error: Exception | None) -> None:
        if self.gone:
            return
        self.gone = True
        self._forget()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _forget(self) -> None:
        # The other end may not know yet, or be a machine without power that never learns it.
        self._links.endpoints.pop(self, None) if not self._stalled else None

    # -- the way to the other end --------------------------------------------------------------------------------------

    def _send(self, segment: Any) -> None:
        if self._stalled or self.held or (self.host, self.peer.host) in self._links.cuts:
            self._stalled.append(segment)
        else:
            self._transmit(segment)

    def _transmit(self, segment: Any) -> None:
        if self._is_reset:
            return
        loop = self._loop
        when = loop.time() + self._links.delay_s()
        if when < self._last_arrival:
            when = self._last_arrival
        self._last_arrival = when
        loop.kernel_at(when, self.peer.arrive, segment)

    def send_stalled(self) -> None:
        """Resend what a cut or a hold kept back, once that is over."""
        if self.held or self._links.is_cut(self.host, self.peer.host):
            return
        while self._stalled:
            self._transmit(self._stalled.popleft())
        if self.gone:
            self._links.endpoints.pop(self, None)

    def reset_both_ends(self) -> None:
        """Something in between resets the connection: bytes in flight are lost from any point on."""
        for end in (self, self.peer):
            end._is_reset = True
            end._inbox.clear()
            end._inbox.append(_RESET)
            end._schedule_pump()

    def die(self, *, silently: bool) -> None:
        """Kill the process."""
        self.gone = True
        self._is_closing = True
        self._inbox.clear()
        self._stalled.clear()
        self._links.endpoints.pop(self, None)
        if not silently:
            self._send(_RESET)

    # -- arriving ------------------------------------------------------------------------------------------------------

    def arrive(self, segment: Any) -> None:
        """The kernel of this end's machine gets a segment."""
        if self._is_reset:
            return
        if self.gone or self._is_closing:
            # A closed socket answers with a reset; a machine without power does not answer.
            is_data = segment is not _EOF and segment is not _RESET
            if is_data and not self.peer.gone and self.host not in self._links.without_power:
                self._loop.kernel_at(self._loop.time() + self._links.delay_s(), self.peer.arrive, _RESET)
            return
        if segment is not _EOF and segment is not _RESET:
            self._links.wire_hash = zlib.crc32(segment, self._links.wire_hash)
        self._inbox.append(segment)
        if not self._pump_scheduled:
            self._schedule_pump()

    def _schedule_pump(self) -> None:
        if self._inbox and not self._pump_scheduled and self._protocol is not None:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump, context=self.context)

    def _pump(self) -> None:
        """One read of the process: everything that has arrived, or a part of it."""
        self._pump_scheduled = False
        if self.gone or self._is_closing or self._reading_paused or not self._inbox:
            return
        segment = self._inbox.popleft()
        if segment is _RESET:
            self._inbox.clear()
            self._is_closing = True
            self._lost(ConnectionResetError(104, "Connection reset by peer"))
            return
        if segment is _EOF:
            assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not self._protocol.eof_received():
                self.close()
            return
        links = self._links
        if len(segment) > 1 and links.rng.random() < links.split_chance:
            at = links.rng.randrange(1, len(segment))
            self._inbox.appendleft(segment[at:])
            segment = segment[:at]
        self._receive(segment)
        if self._inbox:
            self._schedule_pump()

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        length = len(data)
        self.peer._was_read(length)
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = protocol.get_buffer(length)
            size = len(buffer)
            if size < length:
                buffer[:] = data[:size]  # type: ignore[index]
                self._inbox.appendleft(data[size:])
                self.peer._unread_bytes += length - size
            else:
                size = length
                buffer[:size] = data  # type: ignore[index]
            protocol.buffer_updated(size)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    def _was_read(self, size: int) -> None:
        self._unread_bytes -= size
        if self._writing_paused and not self.gone and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing, context=self.context)

    def _resume_writing(self) -> None:
        if not self.gone and not self._is_closing and not self._writing_paused and self._protocol is not None:
            self._protocol.resume_writing()
