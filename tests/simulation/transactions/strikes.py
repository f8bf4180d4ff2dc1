"""Faults at the moment when the most of a transaction is in flight: when a producer asks for its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from broker.coordinators.coordinator_service import coordinator_partition
from cluster import znodes
from cluster.znodes import NO_LEADER, PartitionState
from protocol.topic_partition import TRANSACTION_STATE, TopicPartition
from tests.simulation import history
from tests.simulation.clients import Clients
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.endpoint import Endpoint
from tests.simulation.world import PORT, Machine
from zookeeper.coordination import NoNodeError

MOST: Final = 8
_PAUSE_S: Final = 6.0
"""Pause between two strikes, so that transactions make progress."""
_LASTS_S: Final = 3.0


class Strikes:
    """The strikes of a seed: none after its faults have ended, none while a broker that lost records may lead."""

    def __init__(self, clients: Clients, invariants: Invariants, chance: float) -> None:
        """`chance` is the probability of a strike at the end of a transaction."""
        self.last_s = -_LASTS_S
        """When the last strike began."""
        self._world = clients.world
        self._clients = clients
        self._invariants = invariants
        self._ensemble = invariants.ensemble
        self._tree = invariants.ensemble.tree
        self._chance = chance
        self._rng = Random(f"strikes {clients.world.seed}")
        self._left = MOST
        self._kinds = (self._leave_coordinator_without_followers, self._hold_markers, self._leave_leader_alone)

    @property
    def is_on(self) -> bool:
        """Whether a strike began a short while ago."""
        return self._world.loop.time() - self.last_s < _LASTS_S

    def before_end(self, transactional_id: str, partitions: list[TopicPartition]) -> None:
        """Called before a producer ends a transaction that may have records in these partitions."""
        now = self._world.loop.time()
        if not self._left or now - self.last_s < _PAUSE_S or not self._may_strike():
            return
        if self._rng.random() >= self._chance:
            return
        count = int(self._clients.plan.broker["transaction.state.log.num.partitions"])
        coordinator = self.leader(TopicPartition(TRANSACTION_STATE, coordinator_partition(transactional_id, count)))
        if coordinator is not None and self._rng.choice(self._kinds)(coordinator, partitions):
            self._left -= 1
            self.last_s = now
            self._clients.feed(history.Disturbed(now, "strike"))

    def leader(self, partition: TopicPartition) -> Machine | None:
        """The machine of its leader, if it is running."""
        try:
            data = self._tree.get(znodes.partition_state_path(*partition))[0]
        except NoNodeError:
            return None
        leader = PartitionState.decode(*partition, data).leader
        if leader == NO_LEADER or not self._clients.machines[leader].is_serving:
            return None
        return self._clients.machines[leader]

    def _may_strike(self) -> bool:
        return self._world.loop.time() < self._clients.plan.active_s and not self._invariants.tainted

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def _leave_coordinator_without_followers(self, coordinator: Machine, _: list[TopicPartition]) -> bool:
        """Keep the decision out of every other log and kill its broker: it must not have been acknowledged."""
        self._note(f"keeps followers from {coordinator.name}, which coordinates")
        heal = self._keep_away(coordinator, [])
        self._later(0.05, 0.8, partial(self._fall, coordinator, heal))
        return True

    def _hold_markers(self, coordinator: Machine, _: list[TopicPartition]) -> bool:
        """Delay the markers, so that a coordinator deposed meanwhile may send them, or they arrive during the next
        transaction.
        """
        self._note(f"holds what {coordinator.name}, which coordinates, has to ask other brokers")
        release = self._hold(coordinator)
        if self._rng.random() < 0.6:
            self._later(0.02, 0.5, partial(self._depose, coordinator))
        self._world.kernel_later(self._rng.uniform(0.3, 4.0), release)
        return True

    def _leave_leader_alone(self, coordinator: Machine, partitions: list[TopicPartition]) -> bool:
        """Let a marker reach the log of a leader but not its followers' logs; then kill the leader."""
        leaders = {each: self.leader(each) for each in partitions}
        others = [each for each in leaders.values() if each is not None and each is not coordinator]
        if not others:
            return False
        leader = self._rng.choice(others)
        self._note(f"keeps followers from {leader.name}, which has to take a marker")
        heal = self._keep_away(leader, [coordinator])

        def fall() -> None:
            self._fall(leader, heal)
            if self._rng.random() < 0.7:
                self._world.kernel_later(self._rng.uniform(0.5, 2.0), self._hold(coordinator))

        self._later(0.05, 0.8, fall)
        return True

    # -- means ---------------------------------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self._world.trace.note("strike", text)

    def _later(self, least_s: float, most_s: float, what: Callable[[], None]) -> None:
        self._world.kernel_later(self._rng.uniform(least_s, most_s), what)

    def _keep_away(self, leader: Machine, welcome: list[Machine]) -> Callable[[], None]:
        """Block all traffic from other brokers to a leader, until the returned function is called."""
        network = self._world.network
        followers = [each.name for each in self._clients.machines if each not in (leader, *welcome)]
        cut = [(each, leader.name) for each in followers if not network.links.is_cut(each, leader.name)]
        for source, target in cut:
            network.cut(source, target)

        def heal() -> None:
            for source, target in cut:
                network.heal(source, target)

        return heal

    def _hold(self, machine: Machine) -> Callable[[], None]:
        """Hold back a broker's requests to others, until the returned function is called."""
        names = {each.name: None for each in self._clients.machines}
        held = [each for each in self._world.network.connections(machine.name) if _is_request_to(each, names)]
        for end in held:
            end.held = True

        def release() -> None:
            for end in held:
                end.held = False
                end.send_stalled()

        return release

    def _fall(self, machine: Machine, heal: Callable[[], None]) -> None:
        """Kill a broker and expire its session, so that others take over."""
        if self._may_strike() and machine.is_up:
            machine.kill()
            self._depose(machine)
            self._later(0.5, 6.0, machine.start)
        heal()

    def _depose(self, machine: Machine) -> None:
        """Expire the sessions of a broker: others take over, and it learns that later, if it is alive."""
        if self._may_strike():
            for session in list(self._ensemble.sessions.values()):
                if session.process.name == machine.name:
                    self._note(f"ends the session of {machine.name}")
                    self._ensemble.expire(session)


def _is_request_to(end: Endpoint, hosts: dict[str, None]) -> bool:
    host, port = end.get_extra_info("peername")
    return port == PORT and host in hosts and host != end.host
