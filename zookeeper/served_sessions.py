"""The sessions of network clients: their timeouts and current connections.

A session ages only while the server's event loop turns. A server that was stopped for a while, or whose machine slept,
does not expire sessions that could not reach it. After a restart every session gets its whole timeout. So a session may
live longer than its timeout, but never shorter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from environment.sliced import Sliced
from protocol.value import Value
from zookeeper.commit_queue import CommitQueue, CommitResult
from zookeeper.wire_format import ConnectRequest
from zookeeper.znode_tree import Applied, CloseSession, CreateSession, Resumable

if TYPE_CHECKING:
    from zookeeper.served_connection import ServedConnection

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
"""A session may outlive its timeout by this much."""


class ServedSession(Value, frozen=False, eq=False):
    """A session. `silent_s` is how long it has been silent while this process ran."""

    session_id: int
    timeout_ms: int
    password: bytes
    connection: ServedConnection | None = None
    silent_s: float = 0.0
    has_ended: bool = False
    """Its end is being written to disk, or failed for lack of space and is retried."""
    is_being_closed: bool = False


class ServedSessions:
    """All sessions of the tree. `new_password` returns 16 random bytes."""

    def __init__(
        self,
        queue: CommitQueue,
        new_password: Callable[[], bytes],
        least_timeout_ms: int,
        most_timeout_ms: int,
    ) -> None:
        self._queue = queue
        self._new_password = new_password
        self._least_timeout_ms = least_timeout_ms
        self._most_timeout_ms = most_timeout_ms
        self._sessions = {
            session_id: ServedSession(session_id, resumable.timeout_ms, resumable.password)
            for session_id, resumable in queue.tree.resumable.items()
        }
        self._timer: asyncio.TimerHandle | None = None
        self._looked_s = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self) -> None:
        """Start to expire silent sessions."""
        loop = asyncio.get_running_loop()
        self._looked_s = loop.time()
        self._timer = loop.call_later(_LOOK_S, self._look)

    def stop(self) -> None:
        """Stop expiring sessions; the remaining ones live on in the tree."""
        if self._timer is not None:
            self._timer.cancel()

    def negotiated_ms(self, asked_ms: int) -> int:
        """The granted timeout for a requested one."""
        return min(max(asked_ms, self._least_timeout_ms), self._most_timeout_ms)

    def begin(self, asked_ms: int, done: Callable[[ServedSession | None], None]) -> None:
        """Create a session. `done` receives it once it is durable, or None on failure."""
        resumable = Resumable(self.negotiated_ms(asked_ms), self._new_password())

        def act() -> Sliced[int]:
            session_id = self._queue.tree.next_session_id
            yield from self._queue.apply(CreateSession(session_id, resumable))
            return session_id

        def began(outcome: CommitResult) -> None:
            if outcome.error is not None:
                logger.warning("No session could be begun: %s", outcome.error)
                done(None)
                return
            session = ServedSession(outcome.result, resumable.timeout_ms, resumable.password)
            self._sessions[session.session_id] = session
            done(session)

        self._queue.write(act, began)

    def resume(self, request: ConnectRequest) -> ServedSession | None:
        """Resume a session, closing its earlier connection. Returns None if it has ended or the password is wrong."""
        session = self._sessions.get(request.session_id)
        if session is None or session.has_ended or session.password != request.password:
            return None
        if session.connection is not None:
            session.connection.close()
        session.timeout_ms = self.negotiated_ms(request.timeout_ms)
        session.silent_s = 0.0
        return session

    def leave(self, session: ServedSession, connection: ServedConnection) -> None:
        """A connection is lost: its watches are dropped, and the session waits for another one."""
        if session.connection is connection:
            session.connection = None
            self._queue.watches.drop_session(session.session_id)

    def end(self, session: ServedSession, done: Callable[[CommitResult], None]) -> None:
        """End a session, with its ephemeral nodes."""
        session.has_ended = session.is_being_closed = True

        def act() -> Sliced[Applied]:
            return self._queue.apply(CloseSession(session.session_id))

        def ended(outcome: CommitResult) -> None:
            session.is_being_closed = False
            if outcome.error is None:
                del self._sessions[session.session_id]
            done(outcome)

        self._queue.write(act, ended)

    def expire(self, session_id: int) -> None:
        """End a session, if there is one, as if it had been silent for its timeout."""
        session = self._sessions.get(session_id)
        if session is not None and not session.is_being_closed:
            self._expire(session)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        # Received data waits for the loop as well: during a longer gap, a session may only seem silent.
        passed_s = min(now_s - self._looked_s, 2 * _LOOK_S)
        self._looked_s = now_s
        for session in list(self._sessions.values()):
            session.silent_s += passed_s
            if session.silent_s * 1000 > session.timeout_ms and not session.is_being_closed:
                self._expire(session)
        self._timer = loop.call_later(_LOOK_S, self._look)

    def _expire(self, session: ServedSession) -> None:
        if not session.has_ended:
            logger.info(
                "Session 0x%x has expired: nothing was heard of it for %d ms", session.session_id, session.timeout_ms
            )
        if session.connection is not None:
            session.connection.close()
        self.end(session, _say_why_not)


def _say_why_not(outcome: CommitResult) -> None:
    if outcome.error is not None:
        logger.warning("A session could not be ended: %s", outcome.error)
