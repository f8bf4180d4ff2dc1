"""kazoo's client bound to one session: it never begins a second one, and keeps its watches when a connection is lost.

kazoo drops all watches when its connection is lost, and begins a new session by itself when the old one has expired.
Here the watches are set again as ZooKeeper's own client does (SetWatches), before anything else is sent; ZooKeeper
fires those whose nodes have changed meanwhile. After the end of the session nothing more is sent.

Methods with a leading underscore run in kazoo's thread.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionLoss
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import SASL, CloseInstance, Connect, Exists, int_struct, long_struct, write_string
from kazoo.protocol.states import KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from broker.zookeeper.kazoo_handler import CONNECTION_ERROR, EventLoopHandler, LastReason, new_nonce
from config.definitions import ConfigError
from security.jaas import DigestLogin, ZookeeperLogin
from zookeeper.digest_md5 import ChallengeError, DigestMd5Client

if TYPE_CHECKING:
    from security.kerberos_login import Initiator, KerberosLogin

_SET_WATCHES_BYTES: Final = 128 << 10
"""Maximum bytes of paths in one SetWatches, as in ZooKeeper's own client."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 0.5


class _SetWatches:
    """Watches of a session that reconnects. ZooKeeper fires those whose nodes changed after `zxid`."""

    type = 101

    def __init__(self, zxid: int, data: Sequence[str], absent: Sequence[str], children: Sequence[str]) -> None:
        self._zxid = zxid
        self._paths = (data, absent, children)

    def serialize(self) -> bytes:
        parts = [long_struct.pack(self._zxid)]
        for paths in self._paths:
            parts.append(int_struct.pack(len(paths)))
            parts.extend(map(write_string, paths))
        return b"".join(parts)

    @staticmethod
    def deserialize(_data: bytes, _offset: int) -> None:
        """The answer is empty."""


class _WatchedExists:
    """Exists with a watch. If the watch must be set again, its kind depends on whether the node existed."""

    type = Exists.type

    def __init__(self, path: str, if_absent: Callable[..., None], if_present: Callable[..., None]) -> None:
        self.path = path
        self.watcher = if_absent
        self._if_present = if_present

    def serialize(self) -> bytearray:
        data: bytearray = Exists(self.path, self.watcher).serialize()
        return data

    def deserialize(self, data: bytes, offset: int) -> object:
        """Called if the node exists."""
        self.watcher = self._if_present
        return Exists.deserialize(data, offset)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection; it frees its sockets when its thread ends."""

    _host: str
    _initiator: Initiator | None = None

    def zk_loop(self) -> None:
        try:
            # kazoo logs the error, and notifies its client that the session is closed.
            with contextlib.suppress(Exception):
                super().zk_loop()
        finally:
            self.close()

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._host = host
        try:
            return super()._connect(host, hostip, port)
        except ConnectionDropped as error:
            cause = error.__context__
            # A server that closes the connection without an alert may be starting or stopping.
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                self.client.was_refused(f"{host}:{port}", str(error.args[0]).removeprefix(CONNECTION_ERROR))
            raise

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.client.negotiated_timeout_ms = answer[0].time_out
            login = self.client.login
            if login is not None and answer[0].time_out > 0:
                if isinstance(login, DigestLogin):
                    self._authenticate(timeout, DigestMd5Client(login, new_nonce))
                else:
                    self._authenticate_by_ticket(timeout, login)
        return answer

    def _authenticate(self, timeout: float, mechanism: DigestMd5Client) -> None:
        """Authenticate before anything else is sent. Raises AuthFailedError when either side does not know the
        password.
        """
        try:
            response = mechanism.answer(self._exchange(timeout, b"", 1))
        except ChallengeError as error:
            raise AuthFailedError(str(error)) from error
        if not mechanism.is_proven_by(self._exchange(timeout, response, 2)):
            raise AuthFailedError(f"it refused the user {mechanism.username} of the JAAS file, or the password")

    def _authenticate_by_ticket(self, timeout: float, login: KerberosLogin) -> None:
        """Like `_authenticate`, by Kerberos. Raises ConnectionDropped without a ticket: a retry may have one."""
        from security.gssapi_exchange import gssapi_tokens
        from security.sasl_exchange import ServerError

        try:
            if self._initiator is None:
                self._initiator = new_initiator(login)
            tokens = gssapi_tokens(self._initiator, self._host)
            token = next(tokens)
        except (ServerError, ConfigError) as error:
            raise ConnectionDropped(f"there is no ticket for the server {self._host}: {error}") from error
        try:
            for xid in count(1):
                token = tokens.send(self._exchange(timeout, token, xid, is_refused=_no_user))
        except StopIteration:
            return
        except ServerError as error:
            raise AuthFailedError(str(error)) from error

    def _exchange(self, timeout: float, token: bytes, xid: int, is_refused: Callable[[], bytes] = bytes) -> bytes:
        self._submit(SASL(token), timeout, xid)
        header, answer, offset = self._read_header(timeout)
        if header.err not in {0, AuthFailedError.code}:
            raise AuthFailedError(f"SASL ends with ZooKeeper's error {header.err}")
        # Servers refuse without a token, with or without an error code.
        return is_refused() if header.err else SASL.deserialize(answer, offset)[0] or b""


def _no_user() -> bytes:
    raise AuthFailedError("it refused the user of the JAAS file")


def new_initiator(login: KerberosLogin) -> Initiator:
    """Gets tickets for one session. Raises ConfigError for an unusable keytab or a missing package."""
    from security.kerberos_login import Initiator

    return Initiator(login, new_nonce())


class SessionEvents(NamedTuple):
    """Callbacks on the event loop, in order with the answers."""

    on_state: Callable[[str], None]
    on_event: Callable[[WatchedEvent], None]
    on_refusal: Callable[[str, str], None]
    """Called with a server (host:port) and the reason why it permanently refuses a session."""


class SessionClient(KazooClient):  # type: ignore[misc]
    """One session."""

    def __init__(
        self,
        servers: Iterable[tuple[str, int]],
        session_timeout_ms: int,
        handler: EventLoopHandler,
        reasons: LastReason,
        told: SessionEvents,
        login: ZookeeperLogin | None,
    ) -> None:
        self.negotiated_timeout_ms = session_timeout_ms
        """The session timeout that the ensemble granted within its limits."""
        self._told = told
        self.login = login
        retry = KazooRetry(max_tries=-1, delay=_FIRST_RETRY_S, max_delay=_LONGEST_RETRY_S)
        super().__init__(
            hosts=[f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers],
            timeout=session_timeout_ms / 1000,
            handler=handler,
            logger=reasons,
            connection_retry=retry,
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=reasons)

    # -- for the event loop --------------------------------------------------------------------------------------------

    @property
    def begun_session_id(self) -> int:
        """The session's id, once it has begun."""
        return int(self._session_id or 0)

    def send(self, request: Any, answer: Any) -> None:
        """Send a request, now or after a reconnect; `answer` gets `set` or `set_exception`."""
        self._call(request, answer)

    def watched_exists(self, path: str) -> Any:
        """The request Exists with a watch."""
        return _WatchedExists(path, self.absent_node_changed, self.node_changed)

    def node_changed(self, event: WatchedEvent) -> None:
        """The watch of an existing node, on its data or its children."""
        self._told.on_event(event)

    def absent_node_changed(self, event: WatchedEvent) -> None:
        """The watch of a missing node."""
        self._told.on_event(event)

    def end_session(self) -> None:
        """Close the session after all earlier requests; callable from any thread. `on_state` reports the end."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        self._wake()

    # -- in kazoo's thread ---------------------------------------------------------------------------------------------

    def was_refused(self, server: str, reason: str) -> None:
        """Report a refusal to the event loop."""
        self.handler.completion_queue.put(partial(self._told.on_refusal, server, reason))

    def _wake(self) -> None:
        wake_up = self._connection._write_sock
        if wake_up is not None:
            with contextlib.suppress(OSError):
                wake_up.send(b"\0")

    def _session_callback(self, state: str) -> None:
        before = self._state
        if state == before:
            return
        if state == KeeperState.CONNECTED:
            self._set_watches_again()
        super()._session_callback(state)
        if state in CLOSED_STATES:
            # Otherwise kazoo would begin a new session.
            self._stopped.set()
        if state not in CLOSED_STATES or before not in CLOSED_STATES:
            self.handler.completion_queue.put(partial(self._told.on_state, state))

    def _notify_pending(self, state: str) -> None:
        if state != KeeperState.CONNECTING:
            super()._notify_pending(state)
            return
        # Unsent requests go out on the next connection: their outcome is not in doubt.
        while self._pending:
            _, answer, _ = self._pending.popleft()
            if answer is not None:
                answer.set_exception(ConnectionLoss())

    def _reset_watchers(self) -> None:
        if self._state != KeeperState.CONNECTING:
            self._child_watchers: defaultdict[str, set[Any]] = defaultdict(set)
            self._data_watchers: defaultdict[str, set[Any]] = defaultdict(set)

    def _set_watches_again(self) -> None:
        absent = [path for path, hooks in self._data_watchers.items() if self.absent_node_changed in hooks]
        data = [path for path, hooks in self._data_watchers.items() if self.node_changed in hooks]
        requests = [_SetWatches(self.last_zxid, part, (), ()) for part in _parts(data)]
        requests += [_SetWatches(self.last_zxid, (), part, ()) for part in _parts(absent)]
        requests += [_SetWatches(self.last_zxid, (), (), part) for part in _parts(list(self._child_watchers))]
        for request in requests:
            self._queue.appendleft((request, None))
            self._wake()


def _parts(paths: Sequence[str]) -> list[Sequence[str]]:
    """Split `paths` into parts that each fit into a request."""
    parts: list[Sequence[str]] = []
    first = size = 0
    for at, path in enumerate(paths):
        size += len(path.encode()) + 4
        if size > _SET_WATCHES_BYTES:
            parts.append(paths[first:at])
            first, size = at, len(path.encode()) + 4
    return [*parts, paths[first:]] if paths else []
