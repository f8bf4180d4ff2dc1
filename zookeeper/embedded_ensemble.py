"""Embedded coordination: the sessions and watches of one process over a durable tree (`CommitQueue`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from environment.contract import Clock, Executor
from environment.sliced import Sliced
from protocol.errors import detached
from zookeeper.commit_queue import CommitQueue, CommitResult
from zookeeper.coordination import (
    ANY_VERSION,
    CoordinationError,
    Create,
    Delete,
    EventType,
    MultiError,
    NoSpaceError,
    Operation,
    OperationResult,
    SessionExpiredError,
    SessionState,
    SetData,
    Watch,
    WatchEvent,
    ZnodeStat,
)
from zookeeper.durable_tree import DurableTree
from zookeeper.znode_tree import Applied, CloseSession, CreateSession, Multi, ZnodeTree

T = TypeVar("T")

_MAX_TRANSACTION_BYTES = 64 << 20


class EmbeddedEnsemble:
    """The tree that the sessions of one process share. `on_failure` is called once if the journal fails: after that
    every call fails, and the process should stop.
    """

    def __init__(
        self, tree: DurableTree, executor: Executor, clock: Clock, on_failure: Callable[[OSError], None]
    ) -> None:
        self._queue = CommitQueue(tree, executor, clock, on_failure)
        self.is_shared = False
        self._sessions: dict[int, EmbeddedCoordination] = {}

    def session(self) -> EmbeddedCoordination:
        """A session, not yet connected."""
        return EmbeddedCoordination(self)

    async def close(self) -> None:
        """Finish the queued actions and close the journal. Sessions still open end with the process."""
        await self._queue.close()

    async def at_rest(self, action: Callable[[ZnodeTree], T]) -> T:
        """The result of `action`, which reads the tree while neither the tree nor its journal changes."""
        return await self._read(lambda: action(self._queue.tree))

    async def open_session(self) -> int:
        """Begin a session. Returns its id."""

        def begin() -> Sliced[int]:
            session_id = self._queue.tree.next_session_id
            yield from self._queue.apply(CreateSession(session_id))
            return session_id

        return await self._write(begin)

    async def close_session(self, session_id: int) -> None:
        """End a session, with its ephemeral nodes and its watches."""

        def end() -> Sliced[Applied]:
            self._queue.watches.drop_session(session_id)
            self._sessions.pop(session_id, None)
            return self._queue.apply(CloseSession(session_id))

        _: Applied = await self._write(end)

    async def expire(self, session_id: int) -> None:
        """End a session that has been silent for too long, and notify its owner and its watches."""
        session = self._sessions.pop(session_id)
        watches = self._queue.watches.of_session(session_id)
        await self.close_session(session_id)
        for watch, path in watches:
            watch(WatchEvent(EventType.SESSION_EXPIRED, path))
        session.expired()

    def began(self, session: EmbeddedCoordination) -> None:
        """Register a connected session."""
        self._sessions[session.session_id] = session

    async def transact(self, session_id: int, operations: tuple[Operation, ...]) -> list[OperationResult]:
        """Carry out `operations` durably. Raises MultiError."""

        def act() -> Sliced[list[OperationResult]]:
            return (yield from self._queue.apply(Multi(session_id, operations))).results

        return await self._write(act)

    async def create(self, session_id: int, operation: Create) -> tuple[str, ZnodeStat]:
        """Carry out one Create; the returned stat is the one right after it."""

        def act() -> Sliced[tuple[str, ZnodeStat]]:
            applied = yield from self._queue.apply(Multi(session_id, (operation,)))
            path = str(applied.results[0])
            return path, self._queue.tree.get(path)[1]

        return await self._write(act)

    async def get(self, session_id: int, path: str, watch: Watch | None) -> tuple[bytes | None, ZnodeStat]:
        """Data and stat of `path`."""

        def act() -> tuple[bytes | None, ZnodeStat]:
            found = self._queue.tree.get(path)
            if watch is not None:
                self._queue.watches.watch_data(path, watch, session_id)
            return found

        return await self._read(act)

    async def get_each(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        """Data and stat of each of `paths`, or None for a missing node."""
        tree = self._queue.tree
        return await self._read(lambda: [tree.get(path) if tree.exists(path) else None for path in paths])

    async def exists(self, session_id: int, path: str, watch: Watch | None) -> ZnodeStat | None:
        """Stat of `path`, or None."""

        def act() -> ZnodeStat | None:
            found = self._queue.tree.exists(path)
            if watch is not None:
                self._queue.watches.watch_data(path, watch, session_id)
            return found

        return await self._read(act)

    async def children(self, session_id: int, path: str, watch: Watch | None) -> tuple[list[str], ZnodeStat]:
        """Names of the children of `path`, and its stat."""

        def act() -> tuple[list[str], ZnodeStat]:
            found = self._queue.tree.children(path)
            if watch is not None:
                self._queue.watches.watch_children(path, watch, session_id)
            return found

        return await self._read(act)

    async def _read(self, action: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.read(action, partial(_tell, answer))
        return await answer

    async def _write(self, action: Callable[[], Sliced[T]]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.write(action, partial(_tell, answer))
        return await answer


def _tell(answer: asyncio.Future[Any], outcome: CommitResult) -> None:
    if answer.done():
        return  # the caller has been cancelled
    if outcome.error is not None:
        answer.set_exception(outcome.error)
    else:
        answer.set_result(outcome.result)


class EmbeddedCoordination:
    """A session with the embedded tree; implements `zookeeper.coordination.Coordination`."""

    max_transaction_bytes = _MAX_TRANSACTION_BYTES

    def __init__(self, ensemble: EmbeddedEnsemble) -> None:
        self._ensemble = ensemble
        self._session_id = 0
        self._closed = False
        self._listeners: list[Callable[[SessionState], None]] = []

    @property
    def session_id(self) -> int:
        return self._session_id

    async def connect(self) -> None:
        self._session_id = await self._ensemble.open_session()
        self._ensemble.began(self)
        self._announce(SessionState.CONNECTED)

    def expired(self) -> None:
        """The service has ended the session."""
        self._closed = True
        self._announce(SessionState.EXPIRED)

    async def close(self) -> None:
        session_id = self._live_session()
        self._closed = True
        with contextlib.suppress(NoSpaceError):  # the next start ends it
            await self._ensemble.close_session(session_id)
        self._announce(SessionState.EXPIRED)

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.append(listener)

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> tuple[str, ZnodeStat]:
        with _SingleOperation():
            return await self._ensemble.create(self._live_session(), Create(path, data, ephemeral, sequential))

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        return await self._ensemble.get(self._live_session(), path, watch)

    async def get_each(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        self._live_session()
        return await self._ensemble.get_each(paths)

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> ZnodeStat:
        with _SingleOperation():
            (stat,) = await self._ensemble.transact(self._live_session(), (SetData(path, data, version),))
        if not isinstance(stat, ZnodeStat):
            raise TypeError(f"a set of {path} gave {stat!r}")
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        with _SingleOperation():
            await self._ensemble.transact(self._live_session(), (Delete(path, version),))

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeStat | None:
        return await self._ensemble.exists(self._live_session(), path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[list[str], ZnodeStat]:
        return await self._ensemble.children(self._live_session(), path, watch)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        return await self._ensemble.transact(self._live_session(), tuple(operations))

    def _live_session(self) -> int:
        if self._closed or not self._session_id:
            raise SessionExpiredError("the session has ended" if self._closed else "the session has not begun")
        return self._session_id

    def _announce(self, state: SessionState) -> None:
        for listener in self._listeners:
            listener(state)


class _SingleOperation:
    """Makes a transaction of one operation fail with the error of that operation."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, MultiError) and isinstance(error.__cause__, CoordinationError):
            raise detached(error.__cause__) from None
