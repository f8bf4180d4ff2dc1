"""A coordination service on a separate machine: the pure znode tree behind the contract, with sessions that expire,
connections that are lost before or after a write took effect, and watches that fire late.

A session's replies and watches come in one queue, as the contract promises: a watch fires before the reply to any later
read. The service outlives the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from random import Random
from typing import TypeVar

from broker.broker_environment import Environment
from config.broker_config import BrokerConfig
from tests.simulation.loop import CURRENT, SimLoop
from zookeeper.coordination import (
    ANY_VERSION,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    Operation,
    OperationResult,
    SessionExpiredError,
    SessionState,
    SetData,
    Watch,
    WatchEvent,
    ZnodeStat,
)
from zookeeper.watch_table import WatchTable
from zookeeper.znode_tree import CloseSession, CreateSession, Multi, Transaction, ZnodeTree

T = TypeVar("T")


class SimEnsemble:
    """The service. `loss_chance` is the probability that a call gets no answer; its session survives."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        now_ms: Callable[[], int],
        session_timeout_s: float,
        *,
        is_shared: bool = False,
    ) -> None:
        """`is_shared`: several brokers use it."""
        self.is_shared = is_shared
        self.loop = loop
        self.rng = rng
        self.tree = ZnodeTree()
        self.session_timeout_s = session_timeout_s
        self.loss_chance = 0.0
        self.lost_calls_take_effect: bool | None = None
        """Whether lost calls take effect; None lets the seed decide for each call."""
        self.most_delay_s = 0.005
        self.sessions: dict[int, SimCoordination] = {}
        self.cuts: dict[str, bool] = {}
        """Hosts that get no answers, and whether their requests arrive."""
        self.listeners: list[Callable[[Sequence[WatchEvent]], None]] = []
        """Called with the changes of each transaction, immediately."""
        self._now_ms = now_ms
        self._silent: dict[SimCoordination, None] = {}

    async def open(
        self, environment: Environment, config: BrokerConfig, on_failure: Callable[[OSError], None]
    ) -> SimEnsemble:
        """The environment's OpenEnsemble."""
        return self

    def session(self) -> SimCoordination:
        return SimCoordination(self)

    async def close(self) -> None:
        """Do nothing: the service continues."""

    def apply(self, transaction: Transaction) -> list[OperationResult]:
        """Change the tree, and schedule the watch events."""
        applied = self.tree.apply(transaction, self.tree.last_zxid + 1, self._now_ms())
        for session in self.sessions.values():
            for watch, event in session.watches.take(applied.events):
                session.send(partial(watch, event))
        for listener in self.listeners:
            listener(applied.events)
        return applied.results

    def operate(self, *operations: Operation) -> None:
        """Run an operator's zookeeper-shell commands in a separate session."""
        session_id = self.tree.next_session_id
        self.apply(CreateSession(session_id))
        self.apply(Multi(session_id, operations))
        self.apply(CloseSession(session_id))

    def expire(self, session: SimCoordination) -> None:
        """Expire a session: remove its nodes and watches, and notify its owner if it is alive."""
        if session.session_id not in self.sessions:
            return
        del self.sessions[session.session_id]
        for watch, event in session.watches.take_all():
            session.send(partial(watch, event))
        self.apply(CloseSession(session.session_id))
        session.send(session.expired)

    def answer_all(self) -> None:
        """Stop losing calls."""
        self.loss_chance = 0.0

    def cut(self, host: str, *, requests_arrive: bool) -> None:
        """Cut a host off from the service until `heal`. Its sessions expire if that takes too long."""
        self.cuts[host] = requests_arrive
        for session in self.sessions.values():
            if session.process.name == host:
                session.lose_contact()

    def heal(self, host: str | None = None) -> None:
        """Let a host reach the service again, or all of them."""
        hosts = list(self.cuts) if host is None else [host]
        for each in hosts:
            self.cuts.pop(each, None)
        for session in list(self._silent):
            if session.process.name in hosts:
                del self._silent[session]
                session.regain_contact()

    def keep_silent(self, session: SimCoordination) -> None:
        """Note that the session has undelivered messages for when its host can be reached again."""
        self._silent[session] = None

    def check_sessions(self) -> None:
        """Expire the sessions that have timed out; to be called regularly."""
        now = self.loop.time()
        for session in list(self.sessions.values()):
            if session.process.alive and not session.process.paused and session.process.name not in self.cuts:
                session.heard_of = now
            elif now - session.heard_of > self.session_timeout_s:
                self.expire(session)
        self.loop.kernel_at(now + self.session_timeout_s / 5, self.check_sessions)


class SimCoordination:
    """One session; implements `zookeeper.coordination.Coordination`."""

    max_transaction_bytes = 1 << 20

    def __init__(self, ensemble: SimEnsemble) -> None:
        self._ensemble = ensemble
        self.session_id = 0
        self.process = CURRENT.get()
        self.heard_of = 0.0
        self.watches = WatchTable()
        self._is_over = False
        self._listeners: list[Callable[[SessionState], None]] = []
        self._context = copy_context()
        self._last_arrival = 0.0
        self._last_call = 0.0
        self._untold: list[Callable[[], None]] = []
        self._is_suspended = False

    # -- the way to the service and back -------------------------------------------------------------------------------

    def send(self, what: Callable[[], None]) -> None:
        """Make the process run `what`, after everything sent before."""
        ensemble = self._ensemble
        if self.process.name in ensemble.cuts:
            self._untold.append(what)
            ensemble.keep_silent(self)
            return
        now = ensemble.loop.time()
        when = self._last_arrival = max(now + ensemble.rng.random() * ensemble.most_delay_s, self._last_arrival)
        ensemble.loop.call_at(when, what, context=self._context)

    def lose_contact(self) -> None:
        """The host is cut off: its client notices a little later."""
        ensemble = self._ensemble
        ensemble.keep_silent(self)
        timeout_s = ensemble.session_timeout_s * (0.3 + 0.4 * ensemble.rng.random())
        ensemble.loop.call_at(ensemble.loop.time() + timeout_s, self._suspend, context=self._context)

    def _suspend(self) -> None:
        if self.process.name in self._ensemble.cuts and not self._is_over and not self._is_suspended:
            self._is_suspended = True
            self._announce(SessionState.SUSPENDED)

    def regain_contact(self) -> None:
        """Deliver everything the host has missed, in order, now that it can be reached again."""
        untold, self._untold = self._untold, []
        if self.session_id in self._ensemble.sessions:
            self.send(self._go_on)
        for each in untold:
            self.send(each)

    def _go_on(self) -> None:
        if self._is_suspended:
            self._is_suspended = False
            self._announce(SessionState.CONNECTED)

    async def _ask(self, act: Callable[[], T]) -> T:
        """Make the service do `act`, in the order of the calls."""
        if self._is_over:
            raise SessionExpiredError("the session has ended")
        ensemble = self._ensemble
        answer: asyncio.Future[T] = ensemble.loop.create_future()
        lost = ensemble.rng.random() < ensemble.loss_chance
        takes_effect = ensemble.rng.random() < 0.5
        if ensemble.lost_calls_take_effect is not None:
            takes_effect = ensemble.lost_calls_take_effect

        def serve() -> None:
            arrives = ensemble.cuts.get(self.process.name)
            if arrives is not None:
                if arrives and (self.session_id in ensemble.sessions or not self.session_id):
                    with suppress(CoordinationError):
                        act()
                self._lose(answer)
                return
            if self.session_id not in ensemble.sessions and self.session_id:
                self.send(partial(_fail, answer, SessionExpiredError("the session has ended")))
                return
            error: CoordinationError | None = None
            result: T | None = None
            if takes_effect or not lost:
                try:
                    result = act()
                except CoordinationError as refusal:
                    error = refusal
            if lost:
                error = ConnectionLossError("the connection was lost")
            self.send(partial(_fail, answer, error) if error is not None else partial(_succeed, answer, result))

        now = ensemble.loop.time()
        when = self._last_call = max(now + ensemble.rng.random() * ensemble.most_delay_s, self._last_call)
        ensemble.loop.kernel_at(when, serve)
        return await answer

    def _lose(self, answer: asyncio.Future[T]) -> None:
        """Let the client stop waiting for an answer after a while."""
        ensemble = self._ensemble
        when = ensemble.loop.time() + ensemble.rng.random() * ensemble.session_timeout_s / 2
        error = ConnectionLossError("the service cannot be reached")
        ensemble.loop.call_at(when, _fail, answer, error, context=self._context)

    async def _transact(self, operations: Sequence[Operation]) -> list[OperationResult]:
        return await self._ask(lambda: self._ensemble.apply(Multi(self.session_id, tuple(operations))))

    async def _single(self, operation: Operation) -> OperationResult:
        try:
            return (await self._transact([operation]))[0]
        except MultiError as error:
            assert isinstance(error.__cause__, CoordinationError)
            raise error.__cause__ from None

    # -- the contract --------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        ensemble = self._ensemble

        def begin() -> int:
            session_id = ensemble.tree.next_session_id
            ensemble.apply(CreateSession(session_id))
            ensemble.sessions[session_id] = self
            self.heard_of = ensemble.loop.time()
            return session_id

        self.session_id = await self._ask(begin)
        self._announce(SessionState.CONNECTED)

    async def close(self) -> None:
        def end() -> None:
            self._ensemble.sessions.pop(self.session_id, None)
            self._ensemble.apply(CloseSession(self.session_id))

        await self._ask(end)
        self.expired()

    def end(self) -> None:
        """End the session at the service."""
        self._ensemble.expire(self)

    def expired(self) -> None:
        """Notify the owner of the end."""
        if not self._is_over:
            self._is_over = True
            self._announce(SessionState.EXPIRED)

    def _announce(self, state: SessionState) -> None:
        for listener in self._listeners:
            listener(state)

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.append(listener)

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> tuple[str, ZnodeStat]:
        def act() -> tuple[str, ZnodeStat]:
            operation = Create(path, data, ephemeral, sequential)
            made = str(self._ensemble.apply(Multi(self.session_id, (operation,)))[0])
            return made, self._ensemble.tree.get(made)[1]

        try:
            return await self._ask(act)
        except MultiError as error:
            assert isinstance(error.__cause__, CoordinationError)
            raise error.__cause__ from None

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        def act() -> tuple[bytes | None, ZnodeStat]:
            found = self._ensemble.tree.get(path)
            if watch is not None:
                self.watches.watch_data(path, watch, self.session_id)
            return found

        return await self._ask(act)

    async def get_each(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        tree = self._ensemble.tree
        return await self._ask(lambda: [tree.get(path) if tree.exists(path) else None for path in paths])

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> ZnodeStat:
        stat = await self._single(SetData(path, data, version))
        assert isinstance(stat, ZnodeStat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._single(Delete(path, version))

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeStat | None:
        def act() -> ZnodeStat | None:
            found = self._ensemble.tree.exists(path)
            if watch is not None:
                self.watches.watch_data(path, watch, self.session_id)
            return found

        return await self._ask(act)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[list[str], ZnodeStat]:
        def act() -> tuple[list[str], ZnodeStat]:
            found = self._ensemble.tree.children(path)
            if watch is not None:
                self.watches.watch_children(path, watch, self.session_id)
            return found

        return await self._ask(act)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        return await self._transact(operations)


def _succeed(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[T], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
