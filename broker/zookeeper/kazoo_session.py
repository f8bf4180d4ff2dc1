"""A session with a real ZooKeeper; implements `zookeeper.coordination.Coordination` over kazoo.

While the connection is lost (SUSPENDED), calls wait for it to come back. A call that was in flight raises
ConnectionLossError, except a read, which is repeated. A session ends (EXPIRED) when ZooKeeper expires it. It also ends
when the event loop has not turned for half of its timeout, because kazoo's thread would keep it alive, and when the
servers were restored to an older state of the cluster, because they would refuse it forever.

A malformed operation of a multi is refused before the others are tried, as by ZooKeeper's own client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from kazoo.client import CLOSED_STATES
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import KeeperState, WatchedEvent

from broker.zookeeper import kazoo_translation as translation
from broker.zookeeper.kazoo_client import SessionClient, SessionEvents
from broker.zookeeper.kazoo_handler import EventLoopHandler, LastReason, LoopPulse, LoopQueue
from broker.zookeeper.kazoo_security import SessionSecurity
from broker.zookeeper.server_status import Refusals
from cluster.znodes import CLUSTER_ID
from config.broker_config import BrokerConfig
from config.zookeeper_connection import ZookeeperAddress
from protocol.errors import detached
from security.jaas import ZookeeperLogin
from zookeeper.coordination import (
    ANY_VERSION,
    BadArgumentsError,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    OperationResult,
    SessionExpiredError,
    SessionState,
    SetData,
    Watch,
    WatchEvent,
    ZnodeStat,
)
from zookeeper.watch_table import WatchTable, fire
from zookeeper.wire_format import UnimplementedError
from zookeeper.znode import validate_path

T = TypeVar("T")


class Call(Generic[T]):
    """One request in flight. kazoo's thread calls `set` or `set_exception`; the rest happens on the event loop."""

    __slots__ = ("_on_error", "_on_reply", "_session", "future", "request")

    def __init__(
        self,
        session: KazooCoordination,
        request: Any,
        on_reply: Callable[[Any], T],
        on_error: Callable[[Exception], CoordinationError],
    ) -> None:
        self.request = request
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._session = session
        self._on_reply = on_reply
        self._on_error = on_error

    def set(self, value: Any = None) -> None:
        """Deliver the answer."""
        self._session.queue.put(partial(self._succeed, value))

    def set_exception(self, error: Exception) -> None:
        """Deliver an error."""
        self._session.queue.put(partial(self._fail, detached(error)))

    def _succeed(self, value: Any) -> None:
        self._session.call_ended(self)
        try:
            result = self._on_reply(value)
        except CoordinationError as error:
            self.end_with(error)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def _fail(self, error: Exception) -> None:
        self._session.call_ended(self)
        self.end_with(self._on_error(error))

    def end_with(self, error: CoordinationError) -> None:
        """Raise `error` in the waiting code."""
        if not self.future.done():
            self.future.set_exception(detached(error))


logger = logging.getLogger("kafka.zookeeper.ZooKeeperClient")


_MOST_REQUEST_BYTES = 1_000_000
"""Below ZooKeeper's default jute.maxbuffer of 1,048,575."""
_OPERATION_BYTES = 64
"""Bytes of an operation besides its path and data: headers, lengths, the access control list; rounded up."""
_CLOSE_TIMEOUT_S = 5.0


class KazooCoordination:
    """One session, from its beginning to its end; the next session is another object."""

    queue: LoopQueue
    _client: SessionClient
    _pulse: LoopPulse

    def __init__(
        self,
        address: ZookeeperAddress,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        most_in_flight: int,
        security: SessionSecurity,
        *,
        is_probe: bool = False,
    ) -> None:
        """A session that `is_probe` creates nothing, not even the chroot."""
        self._is_probe = is_probe
        self._address = address
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._most_in_flight = most_in_flight
        self._security = security
        self.session_id = 0
        # The chroot prefix adds to each operation; the overhead includes room for a short one.
        prefix_bytes = max(len(address.chroot.encode()) - 16, 0)
        self.max_transaction_bytes = _MOST_REQUEST_BYTES * _OPERATION_BYTES // (_OPERATION_BYTES + prefix_bytes)
        self._reasons = LastReason()
        self._watches = WatchTable()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: deque[Call[Any]] = deque()
        self._in_flight: dict[Call[Any], None] = {}
        self._refusals: dict[str, str] = {}
        self._connected: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        # A server that requires TLS does not answer plaintext commands.
        self._explanation = Refusals(() if security.tls else address.servers, self._data_were_set_back)
        self._is_closing = False
        self._reads_one_by_one = False
        self._end_reason = ""

    # -- the session ---------------------------------------------------------------------------------------------------

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.append(listener)

    async def connect(self) -> None:
        """Begin the session, and create a missing chroot, as Kafka does."""
        loop = asyncio.get_running_loop()
        self.queue = LoopQueue(loop)
        self._connected, self._ended = loop.create_future(), loop.create_future()
        servers = self._address.servers
        handler = EventLoopHandler(self.queue, self._session_timeout_ms / 1000 / len(servers), self._security.tls)
        told = SessionEvents(self._state_changed, self._node_changed, self._was_refused)
        login = self._security.login
        self._client = SessionClient(servers, self._session_timeout_ms, handler, self._reasons, told, login)
        logger.info("Connecting to ZooKeeper at %s", self._address)
        self._client.start_async()
        try:
            async with asyncio.timeout(self._connection_timeout_ms / 1000):
                await self._connected
        except TimeoutError:
            reason = await self._explanation.reason(seen_zxid=0) or self._reasons.reason or "no answer"
            raise ConnectionLossError(
                f"No ZooKeeper answered at {self._servers} within {self._connection_timeout_ms} ms "
                f"(zookeeper.connect, zookeeper.connection.timeout.ms): {reason}"
            ) from None
        finally:
            if not self.session_id:
                self._client.end_session()
                self._ended.set_result(None)
        longest_gap_s = self._client.negotiated_timeout_ms / 2000
        self._pulse = LoopPulse(loop, longest_gap_s, self._loop_was_stuck)
        handler.look_interval_s = self._pulse.interval_s
        handler.look = self._look_at_the_loop
        logger.info("Connected to ZooKeeper at %s, session 0x%x", self._address, self.session_id & (2**64 - 1))
        if not self._is_probe:
            await self._make_chroot()
        self._announce(SessionState.CONNECTED)

    async def close(self) -> None:
        ended = self._live()
        self._is_closing = True
        self._client.end_session()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.shield(ended)
        except TimeoutError:
            logger.warning("ZooKeeper did not confirm the end of the session; it ends when it times out")
            self._end("closed")

    @property
    def _servers(self) -> str:
        return str(self._address._replace(chroot=""))

    def _live(self) -> asyncio.Future[None]:
        """The future of the session's end. Raises SessionExpiredError unless the session is live."""
        if self._ended is None:
            raise SessionExpiredError("the session has not begun")
        if self._ended.done() or self._is_closing:
            raise SessionExpiredError(f"the session has ended: {self._end_reason or 'closed'}")
        return self._ended

    def _state_changed(self, state: str) -> None:
        """Follow kazoo's state, on the event loop."""
        if self._ended is None or self._connected is None or self._ended.done():
            return
        if state in CLOSED_STATES:
            if self._connected.done():
                self._end(state if self._is_closing else f"ZooKeeper ended it ({state})")
            elif state == KeeperState.AUTH_FAILED:
                self._connect_failed(f"No session with ZooKeeper at {self._servers}: {self._reasons.reason}")
        elif not self._connected.done():
            if state == KeeperState.CONNECTED:
                self.session_id = self._client.begun_session_id
                self._connected.set_result(None)
        elif state == KeeperState.CONNECTED:
            self._explanation.stop()
            logger.info("Connected to ZooKeeper at %s again", self._address)
            self._announce(SessionState.CONNECTED)
        else:
            logger.warning("The connection to ZooKeeper at %s is lost: %s", self._address, self._reasons.reason)
            self._explanation.explain(lambda: self._client.last_zxid, self._session_timeout_ms / 1000)
            self._announce(SessionState.SUSPENDED)

    def _was_refused(self, server: str, reason: str) -> None:
        """Fail the first connect once every server has refused; a later one may use another certificate."""
        self._refusals[server] = reason
        if len(self._refusals) == len(self._address.servers):
            self._connect_failed(f"No session with ZooKeeper at {server}: {reason}")

    def _connect_failed(self, message: str) -> None:
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(ConnectionLossError(message))

    async def _data_were_set_back(self) -> None:
        """End the session if a new one finds the cluster in the older data: an operator has restored it for use."""
        probe = KazooCoordination(
            self._address,
            self._session_timeout_ms,
            self._connection_timeout_ms,
            self._most_in_flight,
            self._security,
            is_probe=True,
        )
        try:
            await probe.connect()
            try:
                has_cluster = await probe.exists(CLUSTER_ID) is not None
            finally:
                await probe.close()
        except CoordinationError as error:
            logger.warning("ZooKeeper does not take another session either: %s", error)
            return
        if has_cluster:
            self._client.end_session()
            self._end("ZooKeeper was set back to older data, and refuses it")

    def _look_at_the_loop(self) -> None:
        """In kazoo's thread: end the session of a stuck loop, so that another broker can take over."""
        if self._pulse.has_stopped():
            self._client.end_session()

    def _loop_was_stuck(self) -> None:
        self._client.end_session()
        self._end("the event loop did not turn for half of the session timeout")

    def _end(self, reason: str) -> None:
        if self._ended is None or self._ended.done():
            return
        self._end_reason = reason
        self._ended.set_result(None)
        self._pulse.stop()
        self._explanation.stop()
        if not self._is_closing:
            logger.warning("The session 0x%x has ended: %s", self.session_id & (2**64 - 1), reason)
        while self._waiting:
            self._waiting.popleft().end_with(SessionExpiredError(f"the session has ended: {reason}"))
        for call in list(self._in_flight):
            call.end_with(ConnectionLossError(f"the session has ended before the answer came: {reason}"))
        fired = self._watches.take_all()
        if not self._is_closing:
            fire(fired)
        self._announce(SessionState.EXPIRED)

    def _announce(self, state: SessionState) -> None:
        for listener in self._listeners:
            listener(state)

    async def _make_chroot(self) -> None:
        names = self._address.chroot.split("/")[1:]
        if not names or await self.exists("/") is not None:
            return
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            request = translation.creation(Create(path), path, self._security.acl(path), with_stat=False)
            try:
                await self._ask(request, str, partial(translation.creation_error, path=path))
            except NodeExistsError:
                continue

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> tuple[str, ZnodeStat]:
        operation = Create(path, data, ephemeral, sequential)
        self._check([operation])
        request = translation.creation(operation, self._full(path), self._security.acl(path), with_stat=True)

        def created(answer: tuple[str, Any]) -> tuple[str, ZnodeStat]:
            return self._own(answer[0]), translation.znode_stat(answer[1])

        return await self._ask(request, created, partial(translation.creation_error, path=path))

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        validate_path(path)

        def found(answer: tuple[bytes | None, Any]) -> tuple[bytes | None, ZnodeStat]:
            if watch is not None:
                self._watches.watch_data(path, watch, self.session_id)
            return answer[0], translation.znode_stat(answer[1])

        hook = None if watch is None else self._client.node_changed
        return await self._read(lambda: wire.GetData(self._full(path), hook), found, path)

    async def get_each(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        """Use one request, or one per path if the ensemble is older than ZooKeeper 3.6."""
        for path in paths:
            validate_path(path)

        def found(answers: list[Any]) -> list[tuple[bytes | None, ZnodeStat] | None]:
            for path, answer in zip(paths, answers, strict=True):
                if isinstance(answer, Exception):
                    raise translation.coordination_error(answer, path)
            return answers

        if not self._reads_one_by_one:
            try:
                return await self._read(lambda: translation.MultiRead([*map(self._full, paths)]), found, paths[0])
            except UnimplementedError:
                self._reads_one_by_one = True
        return await asyncio.gather(*map(self._get_or_none, paths))

    async def _get_or_none(self, path: str) -> tuple[bytes | None, ZnodeStat] | None:
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> ZnodeStat:
        self._check([SetData(path, data, version)])
        request = wire.SetData(self._full(path), data, version)
        return await self._ask(request, translation.znode_stat, partial(translation.coordination_error, path=path))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._check([Delete(path, version)])
        request = wire.Delete(self._full(path), version)
        await self._ask(request, bool, partial(translation.coordination_error, path=path))

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeStat | None:
        validate_path(path)

        def found(answer: Any) -> ZnodeStat | None:
            if watch is not None:
                self._watches.watch_data(path, watch, self.session_id)
            return None if answer is None else translation.znode_stat(answer)

        def request() -> Any:
            full = self._full(path)
            return wire.Exists(full, None) if watch is None else self._client.watched_exists(full)

        return await self._read(request, found, path)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[list[str], ZnodeStat]:
        validate_path(path)

        def found(answer: tuple[list[str], Any]) -> tuple[list[str], ZnodeStat]:
            if watch is not None:
                self._watches.watch_children(path, watch, self.session_id)
            return sorted(answer[0]), translation.znode_stat(answer[1])

        hook = None if watch is None else self._client.node_changed
        return await self._read(lambda: wire.GetChildren2(self._full(path), hook), found, path)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        for index, operation in enumerate(operations):
            try:
                self._check([operation])
            except BadArgumentsError as error:
                raise MultiError(index, error) from error
        self._check_size(operations)
        if not operations:
            self._live()
            return []
        request = translation.transaction(operations, self._full, self._security.acl)

        def carried_out(answers: list[Any]) -> list[OperationResult]:
            return translation.transaction_results(answers, operations, self._own)

        paths = f"a transaction of {len(operations)} operations on {operations[0].path} and others"
        return await self._ask(request, carried_out, partial(translation.coordination_error, path=paths))

    def _check(self, operations: Sequence[Operation]) -> None:
        """Raise BadArgumentsError for operations that make ZooKeeper close the connection, or affect the chroot."""
        for operation in operations:
            is_sequential = isinstance(operation, Create) and operation.sequential
            validate_path(f"{operation.path}0" if is_sequential else operation.path)
            if isinstance(operation, Delete) and operation.path == "/":
                raise BadArgumentsError("the root cannot be deleted")
        self._check_size(operations)

    def _check_size(self, operations: Sequence[Operation]) -> None:
        size = 0
        for operation in operations:
            data = operation.data if isinstance(operation, Create | SetData) else None
            size += _OPERATION_BYTES + len(operation.path) + (len(data) if data else 0)
        if size > self.max_transaction_bytes:
            raise BadArgumentsError(
                f"{size} bytes at {operations[0].path} are more than the {self.max_transaction_bytes} that ZooKeeper "
                "takes at a time (jute.maxbuffer)"
            )

    async def _read(self, request: Callable[[], Any], on_reply: Callable[[Any], T], path: str) -> T:
        """Send a read, and repeat it if the connection is lost: a read cannot have taken effect."""
        while True:
            try:
                return await self._ask(request(), on_reply, partial(translation.coordination_error, path=path))
            except ConnectionLossError:
                self._live()

    async def _ask(
        self, request: Any, on_reply: Callable[[Any], T], on_error: Callable[[Exception], CoordinationError]
    ) -> T:
        self._live()
        call = Call(self, request, on_reply, on_error)
        self._waiting.append(call)
        self._send_waiting()
        return await call.future

    def call_ended(self, call: Call[Any]) -> None:
        """Send the next waiting call in the free slot."""
        self._in_flight.pop(call, None)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and len(self._in_flight) < self._most_in_flight:
            call = self._waiting.popleft()
            self._in_flight[call] = None
            self._client.send(call.request, call)

    # -- watches and paths ---------------------------------------------------------------------------------------------

    def _node_changed(self, event: WatchedEvent) -> None:
        """Fire the watches, on the event loop. kazoo calls once per table: the second call finds nothing."""
        kind = translation.event_type(event)
        if kind is not None:
            fire(self._watches.take([WatchEvent(kind, self._own(event.path))]))

    def _full(self, path: str) -> str:
        return self._address.chroot + path if path != "/" else self._address.chroot or "/"

    def _own(self, full_path: str) -> str:
        return full_path.removeprefix(self._address.chroot) or "/"


class KazooEnsemble:
    """The servers of `zookeeper.connect`; implements `broker.broker_environment.Ensemble`."""

    is_shared = True

    def __init__(self, address: ZookeeperAddress, config: BrokerConfig, login: ZookeeperLogin | None = None) -> None:
        """Raises ConfigError when a file that `config` names cannot be used."""
        self._address = address
        self._config = config
        self._security = SessionSecurity.of(config, login)

    def session(self) -> KazooCoordination:
        """A session, not yet connected."""
        return KazooCoordination(
            self._address,
            self._config.zookeeper_session_timeout_ms,
            self._config.zookeeper_connection_timeout_ms,
            self._config.zookeeper_max_in_flight_requests,
            self._security,
        )

    async def close(self) -> None:
        """Does nothing: each session has a separate connection."""
