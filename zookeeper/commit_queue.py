"""One queue on the event loop for all operations on a durable tree, with group commit.

While the disk is idle, a read is answered at once. While a frame is being written, everything waits behind it: readers
see only durable state, and all waiting transactions share the next frame. A large transaction is applied in slices, and
everything waits behind it as well. The tree belongs to the event loop, but nothing may touch it during
`DurableTree.flush`.

Events and outcomes come out in execution order: the events of a transaction before its own outcome, and after the
outcomes of earlier requests. Both are delivered by direct calls, so that the data written to one connection keeps that
order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from environment.contract import Clock, Executor
from environment.sliced import Sliced
from environment.slices import Slices
from protocol.errors import detached
from protocol.value import Value
from zookeeper.coordination import ConnectionLossError, CoordinationError, NoSpaceError, Watch, WatchEvent
from zookeeper.durable_tree import DurableTree
from zookeeper.watch_table import WatchTable, fire
from zookeeper.znode_tree import Applied, Transaction, ZnodeTree

logger = logging.getLogger("odradek.coordination")


class CommitResult(Value, frozen=False):
    """The result or error of one action, and the last zxid that it could see."""

    result: Any = None
    error: Exception | None = None
    zxid: int = 0


class _Waiting(Value, frozen=False):
    """One queued action: the work for its turn, and the callback for its outcome after the flush."""

    action: Callable[[], Any]
    done: Callable[[CommitResult], None]
    outcome: CommitResult
    fired: list[tuple[Watch, WatchEvent]]

    def tell(self) -> None:
        """Deliver the events, then the outcome. A receiver's bug does not affect other receivers."""
        try:
            fire(self.fired)
        except Exception:
            logger.exception("A watch failed")
        try:
            self.done(self.outcome)
        except Exception:
            logger.exception("The outcome of a change could not be given")


class CommitQueue:
    """`on_failure` is called once if the journal fails: after that every action fails, and the process should stop."""

    def __init__(
        self, tree: DurableTree, executor: Executor, clock: Clock, on_failure: Callable[[OSError], None]
    ) -> None:
        self.watches = WatchTable()
        """For use by the actions."""
        self._durable = tree
        self._executor = executor
        self._clock = clock
        self._on_failure = on_failure
        self._waiting: list[_Waiting] = []
        self._fired: list[tuple[Watch, WatchEvent]] = []
        self._committer: asyncio.Task[None] | None = None
        self._slices = Slices(clock)
        self._failure: OSError | None = None

    # -- for actions, at their turn ------------------------------------------------------------------------------------

    @property
    def tree(self) -> ZnodeTree:
        """The tree, for reading."""
        return self._durable.tree

    def should_yield(self) -> bool:
        """Whether work in slices should pause."""
        return self._slices.should_yield()

    def apply(self, transaction: Transaction) -> Sliced[Applied]:
        """Change the tree, and fire the watches on the changed nodes."""
        applied = yield from self._durable.apply_in_slices(transaction, self._clock.now_ms(), self.should_yield)
        self._fired.extend(self.watches.take(applied.events))
        return applied

    def fire(self, watch: Watch, event: WatchEvent) -> None:
        """Fire a watch for an earlier change."""
        self._fired.append((watch, event))

    # -- for callers ---------------------------------------------------------------------------------------------------

    def read(self, action: Callable[[], Any], done: Callable[[CommitResult], None]) -> None:
        """Run `action`, which must not change anything, and pass its outcome to `done`: at once, if nothing waits."""
        if self._committer is not None or self._failure is not None:
            self.write(action, done)
            return
        waiting = _Waiting(action, done, CommitResult(), [])
        try:
            waiting.outcome.result = action()
        except CoordinationError as error:
            waiting.outcome.error = detached(error)
        except Exception as error:  # noqa: BLE001 - every error belongs to the caller
            waiting.outcome.error = error
        self._take_down(waiting)
        waiting.tell()

    def write(self, action: Callable[[], Any], done: Callable[[CommitResult], None]) -> None:
        """Run `action`, which returns its result or work in slices that does, and pass its outcome to `done` once that
        is durable.
        """
        waiting = _Waiting(action, done, CommitResult(), [])
        if self._failure is not None:
            waiting.outcome.error = _lost(self._failure)
            waiting.tell()
            return
        self._waiting.append(waiting)
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit(), name="coordination-commit")

    async def close(self) -> None:
        """Finish the queued actions and close the journal."""
        while self._committer is not None:
            await asyncio.shield(self._committer)
        if self._failure is None:
            await self._executor.run(self._durable.close)

    # -- committing ----------------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        try:
            while self._waiting and self._failure is None:
                await self._commit_batch()
        finally:
            self._committer = None

    async def _commit_batch(self) -> None:
        batch, self._waiting = self._waiting, []
        self._slices = Slices(self._clock)
        for waiting in batch:
            await self._take_turn(waiting)
            if self.should_yield():
                await self._slices.pause()
        if self._durable.dirty:
            try:
                await self._executor.run(self._durable.flush)
            except NoSpaceError as error:
                # The batch was rolled back. Watchers of its seeming changes may read once too often.
                for waiting in batch:
                    waiting.outcome.error = detached(error)
            except Exception as error:  # noqa: BLE001 - after a bug, too, the state of the journal is unknown
                self._fail(error if isinstance(error, OSError) else OSError(repr(error)), batch)
                return
        for waiting in batch:
            waiting.tell()

    async def _take_turn(self, waiting: _Waiting) -> None:
        try:
            result = waiting.action()
            if isinstance(result, Generator):
                result = await self._slices.finish(result)
            waiting.outcome.result = result
        except CoordinationError as error:
            waiting.outcome.error = detached(error)
        except Exception as error:  # noqa: BLE001 - every error belongs to the caller, not to the commit loop
            waiting.outcome.error = error
        self._take_down(waiting)

    def _take_down(self, waiting: _Waiting) -> None:
        waiting.outcome.zxid = self.tree.last_zxid
        waiting.fired, self._fired = self._fired, waiting.fired

    def _fail(self, error: OSError, batch: list[_Waiting]) -> None:
        self._failure = detached(error)
        waiting_too, self._waiting = self._waiting, []
        for waiting in batch + waiting_too:
            waiting.fired.clear()
            waiting.outcome.error = _lost(error)
            waiting.tell()
        self._on_failure(error)


def _lost(failure: OSError) -> ConnectionLossError:
    error = ConnectionLossError(f"the coordination journal failed: {failure}")
    error.__cause__ = failure
    return error
