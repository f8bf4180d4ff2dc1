"""Injects faults one after the other, at times and places chosen by the seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from tests.kit.memory_disk import PowerCut
from tests.kit.memory_file_system import Fault
from tests.simulation import history
from tests.simulation.clients import Clients, Feed
from tests.simulation.cluster.cluster_faults import ClusterFaults
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.disk_faults import DiskFaults
from tests.simulation.world import Machine, World


class Nemesis:
    """The faults of a seed; `counts` has the number of each kind."""

    def __init__(self, world: World, clients: Clients, feed: Feed, invariants: Invariants | None = None) -> None:
        """`invariants` are those of a cluster of several brokers."""
        self.counts: Counter[str] = Counter()
        self._world = world
        self._machines = clients.machines
        self._clients = clients
        self._feed = feed
        self._rng = Random(f"faults {world.seed}")
        self._is_over = False
        self.disks = {
            machine: DiskFaults(world, machine, self._rng, self.later, partial(self._lose_power, machine))
            for machine in self._machines
        }
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill": lambda: self.kill(self.some_machine()),
            "kill in a disk call": self._kill_in_a_disk_call,
            "power cut": lambda: self.cut_power(self.some_machine()),
            "pause": self._pause,
            "clean stop": self._stop,
            "partition": self._partition,
            "one-way cut": self._cut_one_way,
            "reset": self._reset,
            "hold": self._hold,
            "slow disk": self._slow_disk,
            "clock jump": self._jump,
            "session expiry": self._expire_session,
            "coordination loss": self._lose_coordination,
            "client kill": self._kill_client,
            "client pause": self._pause_client,
            "topic deletion": self._renew_topic,
            "disk error": partial(self._break_disk, DiskFaults.fail),
            "disk full": partial(self._break_disk, DiskFaults.fill),
            "bit flip": self._flip_bit,
        }
        self._cluster = None if invariants is None else ClusterFaults(world, clients, self, invariants, self._rng)
        if self._cluster is not None:
            self._kinds |= self._cluster.kinds

    async def run(self, kinds: list[str], pause_s: float, until_s: float) -> None:
        """Inject faults until that time."""
        loop = self._world.loop
        while kinds:
            await asyncio.sleep(pause_s * self._rng.uniform(0.1, 1.9))
            if self._cluster is not None:
                await self._cluster.wait()
            if loop.time() >= until_s:
                break
            kind = self._rng.choice(kinds)
            if self._kinds[kind]():
                self.counts[kind] += 1
                self._feed(history.Disturbed(loop.time(), kind))

    @property
    def is_busy(self) -> bool:
        """Whether an administrator is working."""
        return self._cluster is not None and self._cluster.moves.is_busy

    async def heal(self) -> None:
        """Undo every fault that can be undone, and start all brokers."""
        self._is_over = True
        for machine in self._machines:
            self.disks[machine].heal()
            machine.slow_down(0.002)
            if machine.ensemble is not None:
                machine.ensemble.answer_all()
                machine.ensemble.heal()
        self._world.network.heal()
        for process in (*(machine.process for machine in self._machines), *self._clients.processes.values()):
            if process is not None and process.paused:
                self._world.loop.resume(process)
        for machine in self._machines:
            if machine.disk_errors and not machine.has_all_directories:
                machine.kill()  # a failed directory stays offline until the broker restarts
            machine.start()
        for name in list(self._clients.processes):
            self._clients.start_again(name)
        self._world.trace.note("nemesis", "is done")

    def later(self, least_s: float, most_s: float, what: Callable[[], None]) -> None:
        """Schedule something after that many seconds."""
        self._world.kernel_later(self._rng.uniform(least_s, most_s), what)

    # -- the brokers ---------------------------------------------------------------------------------------------------

    def some_machine(self) -> Machine:
        """The machine of a broker."""
        return self._machines[0] if len(self._machines) == 1 else self._rng.choice(self._machines)

    def _start_later(self, machine: Machine) -> None:
        self.later(0.02, self._rng.choice([0.1, 1.0, 6.0]), machine.start)

    def kill(self, machine: Machine) -> bool:
        """Kill a broker; it restarts by itself."""
        machine.kill()
        self._start_later(machine)
        return True

    def _kill_in_a_disk_call(self) -> bool:
        """Kill it before, after or during one of the next calls that change the disk."""
        machine = self.some_machine()
        left = self._rng.randint(1, 60)

        def inject(_operation: str, _path: str) -> Fault | None:
            nonlocal left
            left -= 1
            if left == 0 and machine.process is not None and not self._is_over:
                self.kill(machine)
            return None

        machine.disk.inject = inject
        return machine.is_up

    def cut_power(self, machine: Machine, *, may_lose: bool = True) -> bool:
        """Cut the power of a machine; it comes back by itself. `may_lose`: no other broker has all of its data."""
        mode = self._rng.choice(list(PowerCut))
        machine.cut_power(mode)
        if may_lose:
            clients = self._clients
            self._feed(history.MachineCrashed(self._world.loop.time(), clients.cluster, clients.plan.groups_lossless))
        self._start_later(machine)
        return True

    def _lose_power(self, machine: Machine) -> bool:
        return self.cut_power(machine) if self._cluster is None else self._cluster.cut_power(machine)

    def _flip_bit(self) -> bool:
        """Flip a bit of an acknowledged batch on the disk while no process is running: a process would have the data in
        memory.
        """
        machine = self.some_machine()
        self.kill(machine)
        logs = {f"{each.topic}-{each.partition}": self._clients.log_of(each) for each in self._clients.partitions}
        flipped = self.disks[machine].flip_bit(logs)
        if flipped is not None:
            name, first, last = flipped
            damaged = self._clients.damaged.setdefault(logs[name], {})
            damaged.update(dict.fromkeys(range(first, last + 1)))
            self._feed(history.Damaged(self._world.loop.time(), logs[name], first, last))
        return flipped is not None

    def _pause(self) -> bool:
        self.some_machine().pause(self._rng.choice([0.1, 1.0, 5.0, 12.0]) * self._rng.random())
        return True

    def _stop(self) -> bool:
        machine = self.some_machine()
        if not machine.is_serving:
            return False
        machine.stop()
        process = machine.process

        def start() -> None:
            # A process that does not exit is killed, as init systems do.
            if machine.process is process and machine.is_up:
                machine.kill()
            machine.start()

        self.later(5.0, 8.0, start)
        return True

    def _break_disk(self, fault: Callable[[DiskFaults], bool]) -> bool:
        return fault(self.disks[self.some_machine()])

    def _slow_disk(self) -> bool:
        machine = self.some_machine()
        machine.slow_down(self._rng.choice([0.05, 0.5, 2.0]))
        self.later(1.0, 8.0, lambda: machine.slow_down(0.002))
        return True

    def _jump(self) -> bool:
        machine = self.some_machine()
        clock = machine.clock
        clock.skew_ms = self._rng.choice([0, 1, -1, 1_000, -1_000, 60_000, -60_000, 3_600_000, -3_600_000])
        self._world.trace.note(machine.name, f"has its clock set to {clock.skew_ms:+d} ms")
        return True

    # -- the coordination service --------------------------------------------------------------------------------------

    def _expire_session(self) -> bool:
        ensemble = self._machines[0].ensemble
        sessions = [] if ensemble is None else list(ensemble.sessions.values())
        if len(self._machines) > 1 and sessions:
            sessions = [self._rng.choice(sessions)]
        for session in sessions:
            self._world.trace.note("coordination", f"ends session {session.session_id}")
            session.end()
        return bool(sessions)

    def _lose_coordination(self) -> bool:
        """For a while many calls get no answer, whether or not they took effect."""
        ensemble = self._machines[0].ensemble
        if ensemble is None:
            return False
        ensemble.loss_chance = self._rng.choice([0.2, 1.0])
        self._world.trace.note("coordination", f"loses {ensemble.loss_chance:.0%} of the calls")
        self.later(0.5, 5.0, ensemble.answer_all)
        return True

    # -- the network ---------------------------------------------------------------------------------------------------

    def _some_client(self) -> str:
        return self._rng.choice(list(self._clients.processes))

    def cut(self, *pairs: tuple[str, str]) -> bool:
        """Cut these paths, each from one host to another, for a while."""
        network = self._world.network
        for source, target in pairs:
            network.cut(source, target)
            self._world.trace.note("network", f"is cut from {source} to {target}")
        seconds = self._rng.choice([0.5, 3.0, 10.0])

        def heal() -> None:
            for source, target in pairs:
                network.heal(source, target)
            self._world.trace.note("network", f"is whole again between {pairs[0][0]} and {pairs[0][1]}")

        self.later(0.05, seconds, heal)
        return True

    def _partition(self) -> bool:
        client, broker = self._some_client(), self.some_machine().name
        return self.cut((client, broker), (broker, client))

    def _cut_one_way(self) -> bool:
        client, broker = self._some_client(), self.some_machine().name
        return self.cut((client, broker) if self._rng.random() < 0.5 else (broker, client))

    def _reset(self) -> bool:
        """Reset connections that carry data."""
        ends = self._world.network.connections(self.some_machine().name)
        chance = self._rng.choice([0.2, 1.0])
        ends = [each for each in ends if self._rng.random() < chance]
        for end in ends:
            end.reset_both_ends()
        self._world.trace.note("network", f"resets {len(ends)} connections")
        return bool(ends)

    def _hold(self) -> bool:
        """Hold back the data of one connection, while others flow. Returns False without connections."""
        ends = self._world.network.connections(self.some_machine().name)
        if not ends:
            return False
        end = self._rng.choice(ends)
        held = end if self._rng.random() < 0.5 else end.peer
        held.held = True
        self._world.trace.note("network", f"holds a connection of {held.host}")

        def release() -> None:
            held.held = False
            held.send_stalled()

        self.later(0.5, 6.0, release)
        return True

    # -- clients -------------------------------------------------------------------------------------------------------

    def _kill_client(self) -> bool:
        """Kill a reader, a member or a transactional client; another starts a little later."""
        clients = self._clients
        names = [each for each in clients.processes if each.startswith(("tail", "member", "transactional"))]
        name = self._rng.choice(names)
        if not clients.processes[name].alive:
            return False
        clients.kill(name)
        self.later(0.05, 5.0, lambda: clients.start_again(name))
        return True

    def _renew_topic(self) -> bool:
        """Delete a topic and create it again."""
        topics = self._clients.topics
        if not topics.may_renew:
            return False
        topics.is_renewing = True
        self._clients.start("admin", topics.renew)
        return True

    def _pause_client(self) -> bool:
        name = self._some_client()
        process = self._clients.processes[name]
        if not process.alive or process.paused:
            return False
        seconds = self._rng.choice([1.0, 8.0, 15.0]) * self._rng.random()
        self._world.trace.note(name, f"is stopped for {seconds:.3f} s")
        self._world.loop.pause(process)
        self._world.kernel_later(seconds, lambda: self._world.loop.resume(process))
        return True
