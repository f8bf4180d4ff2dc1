"""Machines with brokers and clients, and the faults that can be applied to them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

from broker.broker_environment import Environment, open_embedded
from broker.server import KafkaServer, StartupError
from config.broker_config import BrokerConfig
from protocol.uuids import Uuid
from tests.kit.environment import slice_of
from tests.kit.executor_worker import ExecutorWorker
from tests.kit.memory_disk import PowerCut
from tests.simulation import history
from tests.simulation.coordination import SimEnsemble
from tests.simulation.disk import SimDisk
from tests.simulation.executor import SimExecutor
from tests.simulation.loop import CURRENT, Process, SimLoop, context_of
from tests.simulation.network import SimNetwork

EPOCH_MS = 1_700_000_000_000
PORT = 9092
FIRST_SEED_OF_SPLIT_REQUESTS = 3_000_000
"""From this seed on, small requests are decoded, handled and answered in slices, as large ones are elsewhere."""

_SETTINGS = {
    "listeners": f"PLAINTEXT://:{PORT}",
    "log.dirs": "/data",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}


class SimClock:
    """A machine's clocks: the wall clock may be wrong, the monotonic one is the loop's."""

    def __init__(self, loop: SimLoop, rng: Random | None = None, *, splits: bool = False) -> None:
        """With `splits`, requests of a few elements count as large."""
        self._loop = loop
        self._rng = rng or Random(0)
        self._splits = splits
        self.skew_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_s(self) -> float:
        return self._loop.time()

    def begin_slice(self, seconds: float) -> Callable[[], bool]:
        """End the slice after as many items as the seed says: virtual time does not pass in callbacks."""
        return slice_of(self._rng.randrange(1, 9))

    def elements_at_once(self, most: int) -> int:
        """The number that the seed chooses."""
        return min(most, self._rng.randrange(1, 4)) if self._splits else most


class SimRandom:
    """The environment's Random from the seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def randrange(self, stop: int) -> int:
        return self._rng.randrange(stop)

    def uuid(self) -> Uuid:
        # The first bit is not set: the text form never begins with a dash.
        return Uuid.version_4(self._rng.getrandbits(127))


class Trace:
    """The lines of a seed, and a hash that is equal for equal runs."""

    def __init__(self, loop: SimLoop, *, keep: bool = False) -> None:
        self._loop = loop
        self._keep = keep
        self._sum = hashlib.sha256()
        self.network: SimNetwork | None = None
        self.lines: list[str] = []

    def note(self, who: str, what: str) -> None:
        """One more line."""
        self._add(f"{who} {what}")
        if self._keep:
            self.remark(who, what)

    def note_event(self, event: history.Event) -> None:
        """A line for an event of the history."""
        self._add(f"{type(event).__name__} {tuple.__repr__(event)}")
        if self._keep:
            self.remark("-", f"all of {event.log}" if isinstance(event, history.FinalRead) else repr(event))

    def _add(self, what: str) -> None:
        wire = 0 if self.network is None else self.network.links.wire_hash
        self._sum.update(f"{self._loop.time()!r} {what} {self._loop.callbacks} {wire}\n".encode())

    def remark(self, who: str, what: str) -> None:
        """A line for human readers, which is not hashed."""
        if self._keep:
            self.lines.append(f"{self._loop.time():11.6f}  {who:<12} {what}")

    @property
    def hash(self) -> str:
        """The hash of all lines so far."""
        return self._sum.hexdigest()


class Machine:
    """A broker's machine: disk and clock stay, processes come and go. `on_life` is called at each start and end."""

    def __init__(
        self, world: World, name: str, broker_id: int, settings: dict[str, str], ensemble: SimEnsemble | None
    ) -> None:
        """`ensemble` keeps the tree; without one the broker keeps it on its disk."""
        self.world = world
        self.name = name
        self.broker_id = broker_id
        self.address = f"{name}:{PORT}"
        self.clock = SimClock(
            world.loop, Random(f"slices {world.seed} {name}"), splits=world.seed >= FIRST_SEED_OF_SPLIT_REQUESTS
        )
        self.disk = SimDisk(self.clock.now_ms)
        self.slowest_io_s = 0.002
        self.settings = {**_SETTINGS, "broker.id": str(broker_id), **settings}
        self.process: Process | None = None
        self.server: KafkaServer | None = None
        self.power_cuts = 0
        self.disk_errors = 0
        """How often the disk was made to fail."""
        self.met_disk_error: Process | None = None
        """The last process that met a disk error. It is ended soon."""
        self.damage: dict[str, dict[int, None]] = {}
        """Offsets whose records the disk was made to lose, by `topic-partition`, including deleted topics."""
        self.lives = 0
        self.is_serving = False
        self.ensemble = ensemble
        self._executor: SimExecutor | None = None
        self.log_dirs = self.settings["log.dirs"].split(",")
        for path in self.log_dirs:
            self.disk.make_dirs(path)

    # -- a life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start another process; returns at once. If it fails, it is restarted a second later."""
        if self.process is not None and self.process.alive:
            return
        world = self.world
        self.lives += 1
        world.network.links.without_power.pop(self.name, None)
        process = self.process = Process(self.name, self.lives)
        world.trace.note(self.name, f"starts, life {self.lives}")
        world.loop.spawn(process, self._live(process))

    async def _live(self, process: Process) -> None:
        world = self.world
        executor = self._executor = SimExecutor(world.loop, world.rng)
        executor.slowest_s = self.slowest_io_s
        environment = Environment(
            clock=self.clock,
            random=SimRandom(world.rng),
            executor=executor,
            network=world.network.of(self.name),
            file_system=self.disk,
            open_ensemble=open_embedded if self.ensemble is None else self.ensemble.open,
            new_cleaner_worker=partial(ExecutorWorker, self.disk, executor),
        )
        server = self.server = KafkaServer(BrokerConfig(self.settings), environment=environment)
        try:
            await server.start()
        except StartupError as error:
            world.trace.note(self.name, f"cannot start: {error}")
            await server.abandon()
            self._end(process)
            world.kernel_later(1.0, self.start)
            return
        self.is_serving = True
        world.trace.note(self.name, "serves")
        await server.failed.wait()
        world.trace.note(self.name, "has failed, and stops")
        await server.shutdown()
        self._end(process)
        world.kernel_later(1.0, self.start)

    def _end(self, process: Process, *, silently: bool = False) -> None:
        """End the process: its callbacks stop, and the next process finds the disk in its current state."""
        world = self.world
        if not process.alive:
            return
        self.is_serving = False
        self.server = None
        world.loop.kill(process)
        world.network.process_died(process, silently=silently)
        world.process_ended(process)
        self.disk = self.disk.next_life()

    # -- what happens to it --------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a process is running, serving or not."""
        return self.process is not None and self.process.alive

    @property
    def has_all_directories(self) -> bool:
        """Whether a broker is serving with all of its log directories."""
        if self.server is None or not self.is_serving:
            return False
        return all(each.failure is None for each in self.server.serving.logs.log_manager.directories)

    def kill(self) -> None:
        """kill -9: written data survives."""
        if self.process is not None and self.process.alive:
            self.world.trace.note(self.name, "is killed")
            self._end(self.process)

    def cut_power(self, mode: PowerCut) -> None:
        """Cut the machine's power. `mode` decides the fate of unfsynced bytes."""
        world = self.world
        if self.process is not None and self.process.alive:
            self._end(self.process, silently=True)
        self.power_cuts += 1
        world.network.links.without_power[self.name] = None
        self.disk.cut_power(mode, world.rng.randrange)
        world.trace.note(self.name, f"loses power ({mode.value})")

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        process = self.process
        if process is None or not process.alive or process.paused:
            return
        self.world.trace.note(self.name, f"is stopped for {seconds:.3f} s")
        self.world.loop.pause(process)

        def resume() -> None:
            self.world.trace.note(self.name, "goes on")
            self.world.loop.resume(process)

        self.world.kernel_later(seconds, resume)

    def stop(self) -> None:
        """SIGTERM: a clean stop, which starts now and takes its time."""
        process, server = self.process, self.server
        if process is None or not process.alive or server is None or not self.is_serving:
            return
        self.is_serving = False
        self.world.trace.note(self.name, "is told to stop")

        async def shut_down() -> None:
            await server.shutdown()
            self.world.trace.note(self.name, "has stopped")
            self._end(process)

        self.world.loop.spawn(process, shut_down())

    def slow_down(self, slowest_io_s: float) -> None:
        """Calls of the disk may take that long from now on."""
        self.slowest_io_s = slowest_io_s
        if self._executor is not None:
            self._executor.slowest_s = slowest_io_s


class World:
    """Everything of one seed. `rng` decides what happens; each part that draws has a separate generator."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.rng = Random(f"world {seed}")
        self.loop = SimLoop(Random(f"loop {seed}"))
        self.network = SimNetwork(self.loop, Random(f"network {seed}"))
        self.trace = Trace(self.loop, keep=keep_trace)
        self.trace.network = self.network
        self.director = Process("world")
        self.machines: list[Machine] = []
        self.on_process_end: list[Callable[[Process], None]] = []

    def add_broker(self, settings: dict[str, str], *, remote_coordination: bool = False) -> Machine:
        """Add a machine, powered off, that forms a separate cluster."""
        number = len(self.machines)
        ensemble = None
        if remote_coordination:
            timeout_s = self.rng.choice([2.0, 6.0])
            ensemble = SimEnsemble(self.loop, Random(f"ensemble {self.seed}"), SimClock(self.loop).now_ms, timeout_s)
            self.loop.kernel_at(0.0, ensemble.check_sessions)
        machine = Machine(self, f"broker-{number}", number, settings, ensemble)
        self.machines.append(machine)
        return machine

    def add_cluster(self, size: int, settings: dict[str, str], session_timeout_s: float) -> list[Machine]:
        """Add this many machines, powered off, whose brokers share one tree on none of them."""
        rng = Random(f"ensemble {self.seed}")
        ensemble = SimEnsemble(self.loop, rng, SimClock(self.loop).now_ms, session_timeout_s, is_shared=True)
        self.loop.kernel_at(0.0, ensemble.check_sessions)
        for number in range(size):
            self.machines.append(Machine(self, f"broker-{number}", number, settings, ensemble))
        return self.machines

    def process_ended(self, process: Process) -> None:
        """Notify the observers, outside all processes."""
        for listener in self.on_process_end:
            listener(process)

    def kernel_later(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule an event for the machines, whatever is running then."""
        context = context_of(self.director)
        self.loop.kernel_at(self.loop.time() + seconds, partial(context.run, what))

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a seed to the end of `scenario`."""
        context_of(self.director).run(self._run, scenario)

    def _run(self, scenario: Coroutine[Any, Any, None]) -> None:
        assert CURRENT.get() is self.director
        try:
            self.loop.run_until_complete(scenario)
        finally:
            self.loop.end()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition of the world; returns whether it became true in time."""
        deadline = self.loop.time() + timeout_s
        while not condition():
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(0.05)
        return True
