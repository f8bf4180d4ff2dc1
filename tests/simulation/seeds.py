"""Runs seeds: one world, a broker or a cluster, clients and faults; then everything is healed and checked."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.simulation import history
from tests.simulation.checker import Checker
from tests.simulation.clients import Clients
from tests.simulation.cluster.cluster_plan import LEAST_ACKNOWLEDGED, LEAST_FAULTS, LEAST_VIRTUAL_S, draw_cluster_plan
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.faults import Nemesis
from tests.simulation.loop import CURRENT, LivelockError
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.transactions.audit import find_ends, read_transactions
from tests.simulation.transactions.workload import Workload
from tests.simulation.world import Machine, World

WRITABLE_WITHIN_S = 30.0
CAUGHT_UP_WITHIN_S = 60.0
IN_SYNC_WITHIN_S = 60.0
_MOST_COLLECTIONS: Final = 20


@dataclass(slots=True)
class Outcome:
    """The result of a seed."""

    seed: int
    hash: str
    violations: list[str]
    virtual_s: float
    callbacks: int
    acknowledged: int
    reads: int
    committed: int
    """Transactions."""
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether a cluster was tested hard enough."""
        return (
            self.virtual_s >= LEAST_VIRTUAL_S
            and self.acknowledged >= LEAST_ACKNOWLEDGED
            and sum(self.faults.values()) >= LEAST_FAULTS
        )


def collect_garbage() -> None:
    """Release the worlds of finished seeds: silently, because the coroutines of killed processes end with them.

    A closed coroutine may start another in its `finally`, and so keep its world until the next collection.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(_MOST_COLLECTIONS):
                if not gc.collect():
                    return
            raise RuntimeError(f"The world of a seed was still there after {_MOST_COLLECTIONS} collections")
    finally:
        sys.unraisablehook = hook


EXPECTED_ERRORS = ("This broker is no longer a member of the cluster", "No block of producer ids could be allocated")
"""Errors that a broker may log while the coordination service does not answer."""


EXPECTED_CLUSTER_ERRORS = re.compile(
    r"Broker \d+ refused \w+: STALE_(BROKER|CONTROLLER)_EPOCH"
    r"|The internal topic \S+ cannot be created: (REQUEST_TIMED_OUT|NOT_CONTROLLER|INVALID_REPLICATION_FACTOR)"
)
"""Errors that a broker may log when another one restarts or is down, or the controller cannot be reached."""


EXPECTED_DISK_ERRORS = (
    "Stopping serving logs in dir",
    "Shutdown broker because all log dirs",
    "The coordination journal failed; the broker stops",
    "Could not report offline replicas to the controller",
    "Partitions stay without leaders for now: KAFKA_STORAGE_ERROR",
    "Closing connection of",
    "Log cleaner thread",
)
"""Prefixes of errors that a broker may log when its disk fails."""


_UNAVAILABLE = re.compile(
    r" is not available here: KAFKA_STORAGE| cannot be loaded; .*log directory \S+ is offline"
    r"|^Replication of \S+ from broker \d+ failed: KAFKA_STORAGE_ERROR"
    r"|^Old segments of \S+ cannot be deleted: KAFKA_STORAGE_ERROR"
    r"|^The log of \S+ could not be deleted: KAFKA_STORAGE_ERROR"
    r"|^The log \S+, of no existing topic, could not be renamed: KAFKA_STORAGE_ERROR"
)
"""Fragments of the log lines for a log that a disk cannot create, open, read or write."""
_DAMAGE = re.compile(
    r"/\w+/(?P<log>[^/]+)/\d+\.log is corrupt at byte .*: offsets (?P<first>\d+) to (?P<last>\d+) cannot be read$"
)
"""The log line for damaged data."""
_LOSS = re.compile(r"The broker has lost records of (?P<log>\S+) that it had acknowledged$")
"""The line for a producer whose next sequence number the broker refuses. A recreated topic may do so without a loss: it
accepts any number as the producer's first, and then refuses that of a batch sent earlier.
"""
_CUT = re.compile(r"(?P<log>\S+) ends at \d+ here, below its high watermark \d+")
"""The line of a leader with less than was committed."""


class LogWatch(logging.Handler):
    """Turns errors that brokers and clients log into events; a replay traces all their lines."""

    def __init__(self, world: World, checker: Checker, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.ERROR)
        self.was_renewed: Callable[[str], bool] = lambda _topic: False
        """Whether a topic was deleted and recreated."""
        self._world = world
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        if process is not None and not process.alive:
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._world.trace.remark(str(process), f"[{record.levelname}] {record.name}: {text}")
        if record.levelno >= logging.ERROR and not self._is_expected(text):
            self._checker.feed(history.Trouble(self._world.loop.time(), "C15", f"{process} logged {text}"))

    def _is_expected(self, text: str) -> bool:
        """Whether the injected faults explain an error."""
        if text.startswith(EXPECTED_ERRORS) or EXPECTED_CLUSTER_ERRORS.match(text):
            return True
        refused = _LOSS.match(text)
        lost = refused or _CUT.match(text)
        if lost is not None:
            if refused is not None and self.was_renewed(refused["log"].rpartition("-")[0]):
                return True
            return any(machine.power_cuts or lost["log"] in machine.damage for machine in self._world.machines)
        found = _DAMAGE.match(text)
        for machine in self._world.machines:
            if found is not None and found["log"] in machine.damage:
                damaged = machine.damage[found["log"]]
                return all(each in damaged for each in range(int(found["first"]), int(found["last"]) + 1))
            if machine.disk_errors and (text.startswith(EXPECTED_DISK_ERRORS) or _UNAVAILABLE.search(text)):
                return True
        return False


def run_seed(seed: int, *, keep_trace: bool = False, mutant: AbstractContextManager[object] | None = None) -> Outcome:
    """Run a seed of one broker to its end or, with a `mutant`, to the first violation."""
    with nullcontext() if mutant is None else mutant:
        return _run_plan(seed, draw_plan(seed), keep_trace=keep_trace, to_first_violation=mutant is not None)


def run_cluster_seed(
    seed: int, *, keep_trace: bool = False, mutant: AbstractContextManager[object] | None = None
) -> Outcome:
    """Run a seed of a cluster, like `run_seed`."""
    with nullcontext() if mutant is None else mutant:
        return _run_plan(seed, draw_cluster_plan(seed), keep_trace=keep_trace, to_first_violation=mutant is not None)


def _run_plan(seed: int, plan: Plan, *, keep_trace: bool, to_first_violation: bool) -> Outcome:
    was_enabled = gc.isenabled()
    if was_enabled:
        # Exclude all older objects from the collection of the seed's garbage.
        gc.freeze()
        gc.disable()
    world = World(seed, keep_trace=keep_trace)
    checker = Checker()
    root = logging.getLogger()
    watch = LogWatch(world, checker, verbose=keep_trace)
    level, handlers = root.level, root.handlers[:]
    root.handlers[:] = [watch]
    root.setLevel(logging.INFO if keep_trace else logging.ERROR)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    scenario = _Scenario(world, plan, checker, to_first_violation=to_first_violation)
    watch.was_renewed = scenario.was_renewed
    try:
        try:
            with scenario.watching():
                world.run(scenario.run())
        except LivelockError as error:
            checker.feed(history.Trouble(world.loop.time(), "C14", str(error)))
        except RuntimeError:  # the loop was stopped
            if not checker.violations:
                raise
        for text in world.loop.unhandled:
            checker.feed(history.Trouble(world.loop.time(), "C15", f"nobody took care of: {text}"))
        return Outcome(
            seed,
            world.trace.hash,
            [str(each) for each in checker.violations],
            world.loop.time(),
            world.loop.callbacks,
            checker.acknowledged,
            checker.reads,
            checker.committed,
            scenario.nemesis.counts,
            world.trace.lines,
        )
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        del scenario, world, checker, watch
        sys.unraisablehook = hook
        if was_enabled:
            collect_garbage()
            gc.unfreeze()
            gc.enable()


class _Scenario:
    """The events of a seed, in order."""

    def __init__(self, world: World, plan: Plan, checker: Checker, *, to_first_violation: bool) -> None:
        self._to_first_violation = to_first_violation
        self._world = world
        self._plan = plan
        self._checker = checker
        self._machines: list[Machine]
        self._invariants: Invariants | None = None
        if plan.brokers == 1:
            self._machines = [world.add_broker(plan.broker, remote_coordination=plan.coordination == "remote")]
        else:
            self._machines = world.add_cluster(plan.brokers, plan.broker, plan.broker_session_timeout_s)
            ensemble = self._machines[0].ensemble
            assert ensemble is not None
            self._invariants = Invariants(world, ensemble, self._feed)
        self._clients = Clients(world, self._machines, plan, self._feed)
        self._workload: Workload | None = None
        if plan.transactions is not None and self._invariants is not None:
            self._workload = Workload(self._clients, plan.transactions, self._invariants)
        self.nemesis = Nemesis(world, self._clients, self._feed, self._invariants)
        world.network.links.most_delay_s = plan.most_delay_s

    def was_renewed(self, topic: str) -> bool:
        """Whether a topic may have been recreated since the start."""
        return self._clients.topics.was_renewed(topic)

    def _feed(self, event: history.Event) -> None:
        before = len(self._checker.violations)
        self._checker.feed(event)
        self._world.trace.note_event(event)
        for violation in self._checker.violations[before:]:
            self._world.trace.note("VIOLATION", str(violation))
            if self._to_first_violation:
                self._world.loop.stop()

    def watching(self) -> AbstractContextManager[None]:
        """Check each step of a cluster."""
        return nullcontext() if self._invariants is None else self._invariants.watching()

    def _stuck(self, text: str) -> None:
        self._feed(history.Trouble(self._world.loop.time(), "C14", text))

    async def run(self) -> None:
        """Run the whole seed."""
        world, plan, clients = self._world, self._plan, self._clients
        for topic in plan.all_topics:
            for number in range(topic.partitions):
                log = f"{clients.cluster}/{topic.name}-{number}"
                self._feed(history.LogCreated(0.0, log, topic.lossless, transactional=topic not in plan.topics))
        for machine in self._machines:
            machine.start()
        if self._invariants is not None:
            await world.until(self._all_serve, WRITABLE_WITHIN_S)
        clients.start("admin", clients.topics.create_all)
        if not await world.until(lambda: clients.topics.exist, 30.0):
            self._stuck("the topics cannot be created")
            return
        clients.start_producers()
        clients.start("tail", clients.tail)
        if self._invariants is None:
            clients.start("watch", clients.watch)
        for number in range(plan.members):
            clients.start(f"member-{number}", clients.be_member)
        if self._workload is not None:
            self._workload.start()
        await self.nemesis.run(plan.faults, plan.fault_pause_s, plan.active_s)
        await asyncio.sleep(max(plan.active_s - world.loop.time(), 0))
        await self.nemesis.heal()
        clients.is_over = True
        await self._settle()

    def _all_serve(self) -> bool:
        return all(machine.is_serving for machine in self._machines)

    async def _settle(self) -> None:
        """After healing, everything must be delivered, read and at its acknowledged place."""
        world, clients = self._world, self._clients
        if not await world.until(self._all_serve, WRITABLE_WITHIN_S):
            self._stuck("the broker does not serve")
            return
        if not await world.until(lambda: not clients.topics.is_renewing, WRITABLE_WITHIN_S):
            self._stuck("a topic cannot be deleted and created again")
        if not await world.until(lambda: not self.nemesis.is_busy, WRITABLE_WITHIN_S):
            self._stuck("an administrator is not answered")
        if not await world.until(lambda: clients.unsent == 0, WRITABLE_WITHIN_S):
            self._stuck(f"{clients.unsent} records cannot be sent")
        await self._read_all()
        for reader in ("tail", "group") if self._plan.members else ("tail",):
            if not await world.until(lambda reader=reader: not clients.lagging(reader), CAUGHT_UP_WITHIN_S):
                self._stuck(f"{reader} has not read {clients.lagging(reader)} to the end")
        await self._end_transactions()
        await self._be_in_sync()
        await asyncio.sleep(max(self._plan.least_s - world.loop.time(), 0.0))
        for machine in self._machines:
            if not await self._restart(machine):
                return
            await self._be_in_sync()
        await self._read_all()
        await self._read_transactions()

    async def _restart(self, machine: Machine) -> bool:
        """Stop a broker cleanly and restart it; returns whether that was possible."""
        # A start planned by the last fault may happen at once: this is the process that must end.
        process = machine.process
        machine.stop()
        if not await self._world.until(lambda: process is None or not process.alive, WRITABLE_WITHIN_S):
            self._stuck("the broker does not stop")
            return False
        machine.start()
        await self._world.until(lambda: machine.is_serving, WRITABLE_WITHIN_S)
        return True

    async def _be_in_sync(self) -> None:
        """Wait until all replicas are in the ISR and know all that is committed; then ask what a client may know."""
        invariants = self._invariants
        if invariants is None:
            return
        if not await self._world.until(lambda: not invariants.not_in_sync(), IN_SYNC_WITHIN_S):
            self._stuck(f"not in sync: {', '.join(invariants.not_in_sync())}")
        else:
            invariants.compare_aborted()
        self._clients.start("watch", self._clients.look_once)

    async def _end_transactions(self) -> None:
        """Wait until no transaction is open and everything is read."""
        workload = self._workload
        if workload is None:
            return
        if not await self._world.until(lambda: workload.is_idle, CAUGHT_UP_WITHIN_S):
            self._stuck("transactional producers do not come to their ends")
        self._clients.start("transactions-auditor", partial(find_ends, workload))
        if not await self._world.until(lambda: bool(workload.ends), CAUGHT_UP_WITHIN_S):
            self._stuck("a transaction hangs")
        elif not await self._world.until(lambda: not workload.lagging(), CAUGHT_UP_WITHIN_S):
            self._stuck(f"transactional clients lag: {', '.join(workload.lagging())}")
        workload.rests = True
        if not await self._world.until(lambda: workload.is_at_rest, CAUGHT_UP_WITHIN_S):
            self._stuck("the transactional loop does not come to rest")
        await self._read_transactions()

    async def _read_transactions(self) -> None:
        workload = self._workload
        if workload is None:
            return
        workload.was_read = False
        self._clients.start("transactions-auditor", partial(read_transactions, workload))
        if not await self._world.until(lambda: workload.was_read, CAUGHT_UP_WITHIN_S):
            self._stuck("not all transactions can be read")

    async def _read_all(self) -> None:
        clients = self._clients
        clients.everything_read = False
        clients.start("auditor", clients.read_all)
        if not await self._world.until(lambda: clients.everything_read, CAUGHT_UP_WITHIN_S):
            self._stuck("not everything can be read")
