"""Embedded coordination on the event loop: sessions and watches over one DurableTree, with group commit.

Transactions and reads stand in one queue. While the disk is idle a read is answered at once; while a frame is being
written everything waits behind it, so nothing is seen that is not durable, and all waiting transactions share the next
frame. A large transaction is applied in slices, and everything waits behind it as well. The tree belongs to the event
loop, except during `DurableTree.flush`, when nobody touches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from broker.environment.contract import Clock, Environment, Executor
from cluster.zookeeper.coordination import (
    ANY_VERSION,
    ConnectionLossError,
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
from cluster.zookeeper.durable_tree import DurableTree
from cluster.zookeeper.watch_table import WatchTable
from cluster.zookeeper.znode_tree import Applied, CloseSession, CreateSession, Multi, Slices, Transaction
from config.broker_config import BrokerConfig
from protocol.value import Value

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MAX_TRANSACTION_BYTES = 64 << 20


class _Waiting(Value, frozen=False):
    """One call in the queue: what to do at its turn, and whom to tell after the flush."""

    action: Callable[[], Any]
    """Gives the result, or work in slices that does."""
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None

    async def take_turn(self) -> None:
        try:
            result = self.action()
            if isinstance(result, Generator):
                result = await _with_pauses(result)
            self.result = result
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller, not to the commit loop
            self.error = error

    def tell(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


async def _with_pauses(work: Slices[T]) -> T:
    """Do `work`, and give the event loop a turn at each of its pauses."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


class EmbeddedEnsemble:
    """The tree that the sessions of one process share. `on_failure` is called once if the journal fails: after that no
    call succeeds any more, and the process should stop."""

    def __init__(
        self, tree: DurableTree, executor: Executor, clock: Clock, on_failure: Callable[[OSError], None]
    ) -> None:
        self._durable = tree
        self._executor = executor
        self._clock = clock
        self._on_failure = on_failure
        self._watches = WatchTable()
        self._queue: list[_Waiting] = []
        self._fired: list[tuple[Watch, WatchEvent]] = []
        self._committer: asyncio.Task[None] | None = None
        self._failure: OSError | None = None
        self.is_shared = False
        self._sessions: dict[int, EmbeddedCoordination] = {}

    def session(self) -> EmbeddedCoordination:
        """A session, not yet connected."""
        return EmbeddedCoordination(self)

    async def close(self) -> None:
        """Finish what is queued and close the journal. Sessions still open end with the process."""
        while self._committer is not None:
            await asyncio.shield(self._committer)
        if self._failure is None:
            await self._executor.run(self._durable.close)

    async def open_session(self) -> int:
        """Begin a session; gives its id."""

        def begin() -> Slices[int]:
            session_id = self._durable.tree.next_session_id
            yield from self._apply(CreateSession(session_id))
            return session_id

        return await self._enqueue(begin)

    async def close_session(self, session_id: int) -> None:
        """End a session, with its ephemeral nodes and its watches."""

        def end() -> Slices[Applied]:
            self._watches.drop_session(session_id)
            self._sessions.pop(session_id, None)
            return self._apply(CloseSession(session_id))

        _: Applied = await self._enqueue(end)

    async def expire(self, session_id: int) -> None:
        """End a session of which nothing was heard for too long: its owner and its watches are told."""
        session = self._sessions.pop(session_id)
        watches = self._watches.of_session(session_id)
        await self.close_session(session_id)
        for watch, path in watches:
            watch(WatchEvent(EventType.SESSION_EXPIRED, path))
        session.expired()

    def began(self, session: EmbeddedCoordination) -> None:
        """Take note of a session that is connected."""
        self._sessions[session.session_id] = session

    async def transact(self, session_id: int, operations: tuple[Operation, ...]) -> list[OperationResult]:
        """Carry out `operations` and make them durable. Raises MultiError."""

        def act() -> Slices[list[OperationResult]]:
            return (yield from self._apply(Multi(session_id, operations))).results

        return await self._enqueue(act)

    async def create(self, session_id: int, operation: Create) -> tuple[str, ZnodeStat]:
        """Carry out one Create; the stat is the one right after it."""

        def act() -> Slices[tuple[str, ZnodeStat]]:
            applied = yield from self._apply(Multi(session_id, (operation,)))
            path = str(applied.results[0])
            return path, self._durable.tree.get(path)[1]

        return await self._enqueue(act)

    async def get(self, session_id: int, path: str, watch: Watch | None) -> tuple[bytes | None, ZnodeStat]:
        """Data and stat of `path`."""

        def act() -> tuple[bytes | None, ZnodeStat]:
            found = self._durable.tree.get(path)
            if watch is not None:
                self._watches.watch_data(path, watch, session_id)
            return found

        return await self._read(act)

    async def exists(self, session_id: int, path: str, watch: Watch | None) -> ZnodeStat | None:
        """Stat of `path`, or None."""

        def act() -> ZnodeStat | None:
            found = self._durable.tree.exists(path)
            if watch is not None:
                self._watches.watch_data(path, watch, session_id)
            return found

        return await self._read(act)

    async def children(self, session_id: int, path: str, watch: Watch | None) -> tuple[list[str], ZnodeStat]:
        """Names of the children of `path`, and its stat."""

        def act() -> tuple[list[str], ZnodeStat]:
            found = self._durable.tree.children(path)
            if watch is not None:
                self._watches.watch_children(path, watch, session_id)
            return found

        return await self._read(act)

    def _apply(self, transaction: Transaction) -> Slices[Applied]:
        applied = yield from self._durable.apply_in_slices(transaction, self._clock.now_ms())
        self._fired.extend(self._watches.take(applied.events))
        return applied

    async def _read(self, act: Callable[[], T]) -> T:
        return act() if self._committer is None and self._failure is None else await self._enqueue(act)

    async def _enqueue(self, action: Callable[[], T | Slices[T]]) -> T:
        if self._failure is not None:
            raise ConnectionLossError(f"the coordination journal failed: {self._failure}") from self._failure
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(action, future))
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit(), name="coordination-commit")
        return await future

    async def _commit(self) -> None:
        try:
            while self._queue and self._failure is None:
                await self._commit_batch()
        finally:
            self._committer = None

    async def _commit_batch(self) -> None:
        batch, self._queue = self._queue, []
        for waiting in batch:
            await waiting.take_turn()
        if self._durable.dirty:
            try:
                await self._executor.run(self._durable.flush)
            except NoSpaceError as error:
                # Nothing of the batch took effect. Who watches what it seemed to change may look once too often.
                for waiting in batch:
                    waiting.error = error
            except OSError as error:
                self._fail(error, batch)
                return
        fired, self._fired = self._fired, []
        for watch, event in fired:
            try:
                watch(event)
            except Exception:
                logger.exception("A watch on %s failed at %s", event.path, event.type.value)
        for waiting in batch:
            waiting.tell()

    def _fail(self, error: OSError, batch: list[_Waiting]) -> None:
        self._failure = error
        for waiting in batch + self._queue:
            waiting.error = ConnectionLossError(f"the coordination journal failed: {error}")
            waiting.tell()
        self._queue.clear()
        self._on_failure(error)


async def open_embedded(
    environment: Environment, config: BrokerConfig, on_failure: Callable[[OSError], None]
) -> EmbeddedEnsemble:
    """Recover the tree kept in the first log directory, or begin a new one; see `DurableTree.open`."""
    clock, executor = environment.clock, environment.executor
    tree = await executor.run(DurableTree.open, environment.file_system, config.log_dirs[0], clock.now_ms())
    return EmbeddedEnsemble(tree, executor, clock, on_failure)


class EmbeddedCoordination:
    """A session with the embedded tree; implements `cluster.zookeeper.coordination.Coordination`."""

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
    """A transaction of one operation fails with that operation's own error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, MultiError) and isinstance(error.__cause__, CoordinationError):
            raise error.__cause__ from None
