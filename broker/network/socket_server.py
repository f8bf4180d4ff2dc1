"""The listening side: accepts connections on every listener, within the limits, and closes idle ones."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from broker.network.connection import Connection, Dispatch
from broker.network.limits import ConnectionLimits, ConnectionRates, ReceivingTurn
from broker.network.memory import MAX_UNREAD_REPLY_BYTES, ReplyMemory, RequestMemory
from broker.network.reply_writer import SendBuffer
from environment.contract import Clock, Executor, Listener, Network
from protocol.value import Value
from protocol.wire.frames import ReceiveBuffer

logger = logging.getLogger("kafka.network.SocketServer")

STOPPING: Final = "the broker is shutting down"
LONGEST_PERIOD_S: Final = 10.0
"""Twice the longest interval of the idle check; only that check notices bytes that left a full socket."""


class ProtocolFactory(Protocol):
    """Decides who may use a listener."""

    def protocol(self, server: SocketServer, dispatcher: Dispatch, listener_name: str) -> asyncio.BaseProtocol:
        """The asyncio protocol for a new connection."""
        ...


class ListenerBinding(Value):
    """A listener to open. `host` None means every interface; without `security` it accepts plaintext from anyone."""

    listener_name: str
    host: str | None
    port: int
    security: ProtocolFactory | None = None


class SocketServer:
    """Owns the listening sockets and the set of connections."""

    def __init__(
        self,
        network: Network,
        executor: Executor,
        clock: Clock,
        limits: ConnectionLimits,
        request_memory: RequestMemory,
        *,
        max_request_bytes: int,
        max_idle_ms: int,
        max_unread_reply_bytes: int = MAX_UNREAD_REPLY_BYTES,
        on_read_error: Callable[[str, OSError], None] = lambda _path, _error: None,
        rates: ConnectionRates | None = None,
    ) -> None:
        """`on_read_error` is called with the path and the error when a file cannot be read for a reply."""
        self._network = network
        self.executor = executor
        self.clock = clock
        self.limits = limits
        self.rates = ConnectionRates(clock) if rates is None else rates
        self.request_memory = request_memory
        self.reply_memory = ReplyMemory(max_unread_reply_bytes)
        self.receiving_turn = ReceivingTurn()
        self.max_request_bytes = max_request_bytes
        self.max_idle_ms = max_idle_ms
        self.on_read_error = on_read_error
        self.receive_buffer = ReceiveBuffer()
        self.send_buffer = SendBuffer()
        self.connections: dict[Connection, None] = {}
        self.ports: dict[str, int] = {}
        """The bound port of each listener."""
        self._listeners: dict[str, tuple[ListenerBinding, Listener]] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._is_listening = False
        self.dispatcher: Dispatch | None = None
        """Serves the requests of connections that are accepted from now on."""
        self._charge_connection: Callable[[str], int] = lambda _address: 0

    # -- listeners -----------------------------------------------------------------------------------------------------

    async def bind(self, endpoints: Sequence[ListenerBinding]) -> None:
        """Bind every endpoint without listening yet. Raises OSError naming the address; then nothing stays bound."""
        try:
            for endpoint in endpoints:
                self._bind(endpoint)
        except OSError:
            await self.stop_listening()
            raise

    def _bind(self, endpoint: ListenerBinding) -> Listener:
        try:
            listener = self._network.bind(endpoint.host, endpoint.port)
        except OSError as error:
            raise _bind_error(endpoint, error) from error
        self._listeners[endpoint.listener_name] = endpoint, listener
        self.ports[endpoint.listener_name] = listener.port
        return listener

    def listen(self) -> None:
        """Start to queue clients that would otherwise be refused. Raises OSError naming the address."""
        self._is_listening = True
        for endpoint, listener in self._listeners.values():
            _listen(endpoint, listener)

    async def start(self, dispatcher: Dispatch, charge_connection: Callable[[str], int] = lambda _address: 0) -> None:
        """Accept connections on every endpoint. `charge_connection(address)` returns after how many milliseconds to
        close a connection because the rate is exceeded, or 0 to serve it.
        """
        self._charge_connection = charge_connection
        self.dispatcher = dispatcher
        for endpoint, listener in self._listeners.values():
            await listener.start(partial(self._protocol, endpoint))
        self._schedule_idle_check()

    def _protocol(self, endpoint: ListenerBinding) -> asyncio.BaseProtocol:
        assert self.dispatcher is not None, "nobody is accepted before the start"
        if endpoint.security is None:
            return Connection(self, self.dispatcher, endpoint.listener_name)
        return endpoint.security.protocol(self, self.dispatcher, endpoint.listener_name)

    async def check_addresses(self, removed: Iterable[str], added: Sequence[ListenerBinding]) -> None:
        """Raise OSError naming an address that `change` could not bind."""
        going = {self.ports[each] for each in removed}
        for endpoint in added:
            if endpoint.port == 0 or endpoint.port not in going:
                try:
                    await (await self.executor.run(self._network.bind, endpoint.host, endpoint.port)).close()
                except OSError as error:
                    raise _bind_error(endpoint, error) from error

    async def change(self, removed: Iterable[str], added: Sequence[ListenerBinding]) -> None:
        """Close listeners by name and open others, which may have the same names and addresses. New ones reach this
        server's current state: bound, listening or accepting. Connections stay open unless their listener was removed.
        Raises OSError naming the address that is not available; then nothing has changed.
        """
        closed = [self._listeners[each][0].replace(port=self.ports[each]) for each in removed]
        await self._close(each.listener_name for each in closed)
        try:
            await self._open(added)
        except OSError:
            await self._close(each.listener_name for each in added if each.listener_name in self._listeners)
            await self._open(closed)
            raise
        finally:
            for name in [each for each in self.ports if each not in self._listeners]:
                del self.ports[name]
        for connection in list(self.connections):
            if connection.listener_name not in self._listeners:
                connection.close(f"its listener {connection.listener_name} was removed", level=logging.INFO)

    async def _open(self, endpoints: Iterable[ListenerBinding]) -> None:
        for endpoint in endpoints:
            listener = self._bind(endpoint)
            if self._is_listening:
                _listen(endpoint, listener)
            if self.dispatcher is not None:
                await listener.start(partial(self._protocol, endpoint))

    async def _close(self, names: Iterable[str]) -> None:
        for name in list(names):
            _, listener = self._listeners.pop(name)
            await listener.close()

    async def stop_listening(self) -> None:
        """Stop accepting connections."""
        for _, listener in self._listeners.values():
            await listener.close()
        self._listeners.clear()

    # -- connections ---------------------------------------------------------------------------------------------------

    def close_connections(self) -> None:
        """Close all connections, including those being accepted, and stop the idle check."""
        self._is_stopping = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        for connection in list(self.connections):
            connection.close(STOPPING)

    def connection_made(self, connection: Connection) -> None:
        """Count or refuse a new connection."""
        connection.last_active_s = asyncio.get_running_loop().time()
        refusal = STOPPING if self._is_stopping else self.limits.admit(connection)
        if refusal is not None:
            connection.close(refusal, level=logging.INFO)
            return
        self.connections[connection] = None
        throttle_ms = self._charge_connection(connection.client_address)
        if throttle_ms:
            # A client that is refused at once also retries at once. So its connection stays muted until it is closed.
            connection.mute(2 * throttle_ms)
            reason = f"too many connections were made from its address within {throttle_ms} ms"
            asyncio.get_running_loop().call_later(throttle_ms / 1000, connection.close, reason)
        else:
            self.rates.admit(connection)

    def connection_lost(self, connection: Connection) -> None:
        """Called by a connection that has closed."""
        self.connections.pop(connection, None)
        self.limits.release(connection)
        self.rates.release(connection)

    def _schedule_idle_check(self) -> None:
        if self.max_idle_ms > 0:
            period_s = min(self.max_idle_ms / 1000, LONGEST_PERIOD_S)
            self._idle_timer = asyncio.get_running_loop().call_later(period_s / 2, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections without traffic for too long, even if requests or replies wait on them."""
        now_s = asyncio.get_running_loop().time()
        oldest_s = now_s - self.max_idle_ms / 1000
        for connection in list(self.connections):
            if not connection.has_moved_since(oldest_s, now_s):
                connection.close(f"idle for more than connections.max.idle.ms={self.max_idle_ms}")
        self._schedule_idle_check()


def _listen(endpoint: ListenerBinding, listener: Listener) -> None:
    try:
        listener.listen()
    except OSError as error:
        raise _bind_error(endpoint, error) from error


def _bind_error(endpoint: ListenerBinding, error: OSError) -> OSError:
    address = f"{endpoint.host or '0.0.0.0'}:{endpoint.port}"  # noqa: S104
    hint = "; stop the program that listens there, or change listeners" if error.errno == errno.EADDRINUSE else ""
    return OSError(error.errno, f"Socket server failed to bind to {address}: {error.strerror or error}{hint}")
