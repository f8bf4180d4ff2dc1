"""The embedded tree on an in-memory disk, with a clock and an executor that tests control."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.kit.environment import ManualClock
from tests.kit.memory_file_system import MemoryFileSystem, SimulatedCrash
from zookeeper.coordination import CoordinationError
from zookeeper.durable_tree import DurableTree
from zookeeper.embedded_ensemble import EmbeddedEnsemble

T = TypeVar("T")

DIRECTORY = "/data"


class HeldExecutor:
    """Runs its work one turn of the loop later or, while `held`, after `release`.

    When the disk simulates the death of the process, `crashed` is set and the call never returns.
    """

    def __init__(self) -> None:
        self.held = False
        self.crashed = False
        self.runs = 0
        self._waiting: list[Callable[[], None]] = []

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def act() -> None:
            self.runs += 1
            try:
                result = function(*args)
            except SimulatedCrash:
                self.crashed = True
            except (OSError, CoordinationError) as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        if self.held:
            self._waiting.append(act)
        else:
            loop.call_soon(act)
        return future

    def release(self) -> None:
        """Run the waiting calls, and later ones without holding them."""
        self.held = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def close(self) -> None:
        self.release()


class Machine:
    """One disk and the ensembles opened on it in turn, each as a new process would."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem()
        self.disk.make_dirs(DIRECTORY)
        self.disk.sync_dir("/")
        self.clock = ManualClock()
        self.executor = HeldExecutor()
        self.failures: list[OSError] = []

    def open(self) -> EmbeddedEnsemble:
        """Open the tree, like a new process."""
        tree = DurableTree.open(self.disk, DIRECTORY, self.clock.now_ms())
        return EmbeddedEnsemble(tree, self.executor, self.clock, self.failures.append)


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test in a new event loop, for at most 20 seconds."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while the loop is idle."""

    def __init__(self) -> None:
        super().__init__(selector := selectors.SelectSelector())
        self._now_s = 0.0
        select = selector.select

        def advance(timeout: float | None = None) -> list[Any]:
            self._now_s += timeout or 0
            return select(0)

        selector.select = advance  # type: ignore[method-assign]

    def time(self) -> float:
        return self._now_s


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test that uses no threads in virtual time: waiting takes no real time."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        runner.run(test())  # type: ignore[arg-type]
