"""Faults specific to clusters: between brokers, of their sessions with the shared tree, of leaders."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from cluster import znodes
from cluster.znodes import NO_LEADER
from tests.simulation import history
from tests.simulation.clients import Clients
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.cluster.moves import Moves
from tests.simulation.world import Machine, World
from zookeeper.coordination import Delete

if TYPE_CHECKING:
    from tests.simulation.faults import Nemesis

_OUT_OF_ISR_WITHIN_S = 40.0


class ClusterFaults:
    """`kinds` maps the fault names of plans to methods; each returns whether it could do something."""

    def __init__(self, world: World, clients: Clients, nemesis: Nemesis, invariants: Invariants, rng: Random) -> None:
        self.kinds: dict[str, Callable[[], bool]] = {
            "power cut": self._cut_power,
            "power cut of all": self._cut_power_of_all,
            "kill of a leader": self._kill_leader,
            "kill of the controller": self._kill_controller,
            "kill of all": self._kill_all,
            "torn log": self._tear_log,
            "pause of a leader": self._pause_leader,
            "pause of the controller": self._pause_controller,
            "partition of brokers": self._partition,
            "one-way cut of brokers": self._cut_one_way,
            "isolation": self._isolate,
            "coordination cut": self._cut_coordination,
            "deposition": self._depose_controller,
            "reassignment": lambda: self.moves.begin(self.moves.reassign),
            "preferred election": lambda: self.moves.begin(self.moves.elect_preferred),
            "records deletion": lambda: self.moves.begin(self.moves.delete_records),
        }
        self.moves = Moves(world, clients, invariants)
        self._world = world
        self._clients = clients
        self._nemesis = nemesis
        self._invariants = invariants
        self._ensemble = invariants.ensemble
        self._rng = rng
        self._machines = clients.machines

    # -- whom it meets -------------------------------------------------------------------------------------------------

    def _leaders(self) -> list[Machine]:
        """The machines of brokers that lead partitions, once for each partition."""
        leaders = [known.state.leader for known in self._invariants.partitions.values()]
        return [self._machines[each] for each in leaders if each != NO_LEADER]

    def _controller(self) -> Machine | None:
        tree = self._ensemble.tree
        if tree.exists(znodes.CONTROLLER) is None:
            return None
        return self._machines[znodes.decode_controller(tree.get(znodes.CONTROLLER)[0])]

    def _two(self) -> tuple[str, str]:
        one, other = self._rng.sample(self._machines, 2)
        return one.name, other.name

    # -- processes and machines ----------------------------------------------------------------------------------------

    def _kill_leader(self) -> bool:
        leaders = [each for each in self._leaders() if each.is_up]
        return bool(leaders) and self._nemesis.kill(self._rng.choice(leaders))

    def _kill_controller(self) -> bool:
        controller = self._controller()
        return controller is not None and controller.is_up and self._nemesis.kill(controller)

    def _kill_all(self) -> bool:
        for machine in self._machines:
            self._nemesis.kill(machine)
        return True

    def _tear_log(self) -> bool:
        """Kill all brokers for longer than their sessions. One leader finds committed but unflushed records damaged;
        all others in sync have them (trap M22).
        """
        invariants = self._invariants
        led = [
            (self._machines[known.state.leader], topic_partition)
            for topic_partition, known in invariants.partitions.items()
            if known.state.leader != NO_LEADER
            and len(known.state.isr) > 1
            and not topic_partition.topic.startswith("__")
        ]
        if invariants.tainted or not led:
            return False
        self._kill_all()
        for session in list(self._ensemble.sessions.values()):
            self._ensemble.expire(session)
        machine, topic_partition = self._rng.choice(led)
        if self._nemesis.disks[machine].tear(topic_partition):
            invariants.tainted[machine.broker_id, topic_partition] = None
        return True

    def _pause(self, machine: Machine) -> bool:
        """Stop a broker for longer than its session timeout, or almost that long."""
        machine.pause(self._ensemble.session_timeout_s * self._rng.choice([0.7, 1.3, 2.5]))
        return True

    def _pause_leader(self) -> bool:
        leaders = [each for each in self._leaders() if each.is_up]
        return bool(leaders) and self._pause(self._rng.choice(leaders))

    def _pause_controller(self) -> bool:
        controller = self._controller()
        return controller is not None and controller.is_up and self._pause(controller)

    def _depose_controller(self) -> bool:
        """Delete the controller's node, as operators do to force an election. At times the controller is too busy to
        notice at once, with work queued before the event.
        """
        controller, rng = self._controller(), self._rng
        if controller is None or not controller.is_up:
            return False
        if rng.random() < 0.7:
            controller.pause(self._ensemble.session_timeout_s * rng.uniform(0.2, 0.8))
        if rng.random() < 0.5:
            self._nemesis.kill(rng.choice([each for each in self._machines if each is not controller]))

        def delete() -> None:
            if self._ensemble.tree.exists(znodes.CONTROLLER) is not None:
                self._world.trace.note("coordination", "loses the node of the controller")
                self._ensemble.operate(Delete(znodes.CONTROLLER))

        self._nemesis.later(0.0, 0.2, delete)
        return True

    # -- power ---------------------------------------------------------------------------------------------------------

    def _cut_power(self) -> bool:
        return self.cut_power(self._nemesis.some_machine())

    def cut_power(self, machine: Machine) -> bool:
        """Cut the power of one machine. A topic with unflushed replicas keeps its committed records only if another
        live ISR member can lead: otherwise the power stays on, unless the plan allows it.
        """
        if not self._clients.plan.groups_lossless and not self._others_have_all(machine):
            return False
        self._taint(machine)
        return self._nemesis.cut_power(machine, may_lose=False)

    async def wait(self) -> None:
        """Wait, without faults, while a broker that lost records is in an ISR: it could be elected."""
        invariants = self._invariants
        if not await self._world.until(lambda: not invariants.tainted, _OUT_OF_ISR_WITHIN_S):
            text = f"replicas stay in the ISR without all that is committed: {list(invariants.tainted)}"
            self._clients.feed(history.Trouble(self._world.loop.time(), "C12", text))
            invariants.tainted.clear()

    def _others_have_all(self, machine: Machine) -> bool:
        """Whether the broker can die without loss: all others are healthy, and each of its partitions is or will be led
        by one that has lost nothing.
        """
        links = self._world.network.links
        if self._invariants.tainted or links.cuts or self._ensemble.cuts or self._ensemble.loss_chance:
            return False
        others = [each for each in self._machines if each is not machine]
        if not all(self._is_well(each) for each in others):
            return False
        for each in others:
            each.disk.inject = lambda _operation, _path: None
        states = [known.state for known in self._invariants.partitions.values()]
        return all(machine.broker_id not in state.isr or len(state.isr) > 1 for state in states)

    def _is_well(self, machine: Machine) -> bool:
        is_registered = self._ensemble.tree.exists(znodes.broker_path(machine.broker_id)) is not None
        process = machine.process
        has_disk = machine.met_disk_error is not process and machine.disk.capacity_bytes is None
        return machine.is_serving and is_registered and has_disk and process is not None and not process.paused

    def _taint(self, machine: Machine) -> None:
        if self._clients.plan.groups_lossless:
            return
        lossless = {topic.name for topic in self._clients.plan.all_topics if topic.lossless}
        topics = {each.topic: None for each in self._invariants.partitions}
        self._invariants.lose_power(machine.broker_id, (each for each in topics if each not in lossless))

    def _cut_power_of_all(self) -> bool:
        """Cut the power of all machines: flushed records must survive."""
        if not self._clients.plan.groups_lossless:
            return False
        for machine in self._machines:
            self._nemesis.cut_power(machine, may_lose=False)
        return True

    # -- the network ---------------------------------------------------------------------------------------------------

    def _partition(self) -> bool:
        one, other = self._two()
        return self._nemesis.cut((one, other), (other, one))

    def _cut_one_way(self) -> bool:
        return self._nemesis.cut(self._two())

    def _isolate(self) -> bool:
        """Cut a broker off from all other brokers, and at times also from clients and the tree."""
        machine = self._nemesis.some_machine()
        hosts = [each.name for each in self._machines if each is not machine]
        if self._rng.random() < 0.5:
            hosts += self._clients.processes
        if self._rng.random() < 0.5:
            self._cut_off_tree(machine)
        pairs = [pair for host in hosts for pair in ((machine.name, host), (host, machine.name))]
        return self._nemesis.cut(*pairs)

    def _cut_coordination(self) -> bool:
        return self._cut_off_tree(self._nemesis.some_machine())

    def _cut_off_tree(self, machine: Machine) -> bool:
        name = machine.name
        if name in self._ensemble.cuts:
            return False
        arrive = self._rng.random() < 0.5
        self._world.trace.note(
            "coordination", f"is cut off from {name}, whose requests {'' if arrive else 'do not '}come"
        )
        self._ensemble.cut(name, requests_arrive=arrive)

        def heal() -> None:
            self._world.trace.note("coordination", f"is reached by {name} again")
            self._ensemble.heal(name)

        longest_s = self._ensemble.session_timeout_s * self._rng.choice([0.5, 1.5, 3.0])
        self._nemesis.later(0.05, longest_s, heal)
        return True
