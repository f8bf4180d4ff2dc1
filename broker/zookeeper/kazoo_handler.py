"""kazoo on the event loop: everything from kazoo's thread arrives there, in one queue and in its order.

kazoo runs results and watches on two queues with a thread each, and so loses their order: a read could show a change
before its watch had fired. Here both queues are one object, which schedules calls on the event loop. The only remaining
thread reads and writes kazoo's socket, and checks that the event loop still turns.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import select
import socket
import ssl
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from protocol.errors import detached

_MOST_ANSWER_BYTES = 64 << 20
"""ZooKeeper's answers are never longer: a peer that announces more is not a ZooKeeper."""
_READ_BYTES = 1 << 16
CONNECTION_ERROR = "socket connection error: "
"""kazoo's prefix for socket errors."""
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLNVAL
_WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR | select.POLLNVAL


class LoopQueue:
    """Calls for the event loop, which runs them in the order of the `put` calls of all threads."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, call: Callable[[], object]) -> None:
        """Run `call` on the event loop; does nothing if the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)


class LoopPulse:
    """Records when the event loop last turned. A session must not outlive the loop that acts in its name: a stuck
    broker would keep its leaderships, and one that was stopped for long would act on leaderships that it has lost.
    """

    def __init__(self, loop: AbstractEventLoop, longest_gap_s: float, on_gap: Callable[[], None]) -> None:
        """`on_gap` is called on the loop when it turns again after more than `longest_gap_s`."""
        self._loop = loop
        self._longest_gap_s = longest_gap_s
        self.interval_s = longest_gap_s / 8
        self._on_gap = on_gap
        self._last_turn_s = time.monotonic()
        self._timer = loop.call_later(self.interval_s, self._turn)

    def has_stopped(self) -> bool:
        """Whether the loop has not turned for too long. For kazoo's thread."""
        return time.monotonic() - self._last_turn_s > self._longest_gap_s

    def _turn(self) -> None:
        if self.has_stopped():
            self._on_gap()
            return
        self._last_turn_s = time.monotonic()
        self._timer = self._loop.call_later(self.interval_s, self._turn)

    def stop(self) -> None:
        """Stop watching the loop."""
        self._timer.cancel()


class _ZookeeperSocket(socket.socket):
    """A connection that reads an answer in small pieces: kazoo asks for as many bytes as the other side announces."""

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read at most `size` bytes. Raises OSError if `size` is too large for an answer."""
        return super().recv(_piece(size), flags)


class TlsSocket(ssl.SSLSocket):
    """Like `_ZookeeperSocket`, over TLS. kazoo reads when the socket is readable, and blocks until an answer arrives;
    but a TLS record may contain no data, or several answers.
    """

    _arrived: bytes | OSError = b""

    def has_data(self) -> bool:
        """Whether `recv` returns data or the end at once; for a non-blocking socket."""
        if not self._arrived:
            try:
                self._arrived = super().recv(_READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError as error:
                self._arrived = detached(error)
        # At the end of the stream this is empty: the next read finds the end again.
        return True

    def recv(self, size: int = _READ_BYTES, flags: int = 0) -> bytes:
        """Read at most `size` bytes. Raises OSError if `size` is too large for an answer."""
        size, arrived = _piece(size), self._arrived
        if isinstance(arrived, OSError):
            raise detached(arrived)
        if not arrived:
            return super().recv(size, flags)
        self._arrived = arrived[size:]
        return arrived[:size]


def new_nonce() -> str:
    """128 random bits as text."""
    return secrets.token_hex(16)


def _piece(size: int) -> int:
    if size > _MOST_ANSWER_BYTES:
        raise OSError(errno.EPROTO, "what answers there is not a ZooKeeper")
    return min(size, _READ_BYTES)


class EventLoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's interface to threads, sockets and callbacks. kazoo's thread calls `look` at least every `look_interval_s`
    seconds.
    """

    name = "event_loop_handler"

    def __init__(self, queue: LoopQueue, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        """With `tls`, sockets are of the class `TlsSocket`."""
        super().__init__()
        self._tls = tls
        self.callback_queue = self.completion_queue = queue
        self._connect_timeout_s = connect_timeout_s
        self.look: Callable[[], None] = _see_nothing
        self.look_interval_s = 1.0

    def start(self) -> None:
        """Start without worker threads."""
        self._running = True

    def stop(self) -> None:
        """Stop; this handler runs without worker threads."""
        self._running = False

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Like `select.select`, for any number of open files."""
        poller = select.poll()
        for each in readers:
            poller.register(each, select.POLLIN)
        for each in writers:
            poller.register(each, select.POLLOUT)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.look()
            with_data = [each for each in readers if isinstance(each, TlsSocket) and each.has_data()]
            wait_s = self.look_interval_s if deadline is None else max(deadline - time.monotonic(), 0.0)
            found = dict(poller.poll(0 if with_data else min(wait_s, self.look_interval_s) * 1000))
            plain = [each for each in readers if not isinstance(each, TlsSocket)]
            readable = with_data + [each for each in plain if found.get(each.fileno(), 0) & _READABLE]
            writable = [each for each in writers if found.get(each.fileno(), 0) & _WRITABLE]
            if readable or writable or (deadline is not None and time.monotonic() >= deadline):
                return readable, writable, []

    def create_connection(self, address: tuple[str, int], hostname: str = "", **_options: object) -> socket.socket:
        """Connect to a server; with TLS, check that it is `hostname` if so configured. Raises OSError."""
        connected = socket.create_connection(address, self._connect_timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                return self._tls.wrap_socket(connected, server_hostname=hostname)
            except BaseException:
                connected.close()
                raise
        return _ZookeeperSocket(connected.family, connected.type, connected.proto, connected.detach())


def _see_nothing() -> None:
    """The default `look`: does nothing."""


class LastReason(logging.Logger):
    """kazoo's log: prints nothing, and remembers the last connection error."""

    def __init__(self) -> None:
        super().__init__("kazoo", logging.WARNING)
        self.reason = ""

    def handle(self, record: logging.LogRecord) -> None:
        """Keep the message, without kazoo's prefix."""
        message = record.getMessage()
        if message.startswith("Transition to"):
            return
        error = record.exc_info[1] if record.exc_info else None
        text = message if error is None else f"{message}: {error!r}"
        for prefix in ("AUTH_FAILED closing: ", "Connection dropped: ", "Connection time-out: ", CONNECTION_ERROR):
            text = text.removeprefix(prefix)
        self.reason = text
