"""Faults of the processes, the network and the disk of a cluster: each begins, lasts a while and ends."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.soak.watch import FaultTimes
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import BrokerProcess
from tests.kit.network.namespaces import CLIENT, ZOOKEEPER, NetworkNamespaces
from tests.kit.small_disk import fill
from tests.kit.zookeeper import start_zookeeper

FULL_DISK_BROKER = 3
STORM = 3
"""How often a restart storm kills a broker."""
START_PATIENCE_S = 10.0
LAST_LINES = 5
"""How many lines to quote from the log of a broker that exited unexpectedly."""
SUPERVISION_PAUSE_S = 0.2


@dataclass
class World:
    """Everything a fault may touch. `network` and `disk` (where broker 3 keeps its data) are optional."""

    cluster: BrokerCluster
    network: NetworkNamespaces | None
    disk: Path | None
    _held: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def holding(self, number: int) -> Iterator[BrokerProcess]:
        """For the duration of a block, no one else starts the broker."""
        with self._lock:
            self._held.add(number)
        try:
            yield self.cluster.brokers[number]
        finally:
            with self._lock:
                self._held.discard(number)

    def _start_those_that_ended(self) -> Iterator[tuple[int, str]]:
        with self._lock:
            for number, broker in self.cluster.brokers.items():
                if number not in self._held and not broker.is_running:
                    code = broker.wait()
                    last_words = broker.output.read_text().splitlines()[-LAST_LINES:]
                    broker.launch()
                    yield (
                        number,
                        "\n    ".join([f"broker {number} ended with code {code}, and said last:", *last_words]),
                    )

    @contextlib.contextmanager
    def supervised(self, say: Callable[[str], None], times: FaultTimes) -> Iterator[None]:
        """For the duration of a block, restart brokers that exit by themselves. `say` gets their last output and
        `times` records the exit: an earlier fault may have caused it, such as a full disk.
        """
        stopping = threading.Event()

        def supervise() -> None:
            while not stopping.wait(SUPERVISION_PAUSE_S):
                for number, what in self._start_those_that_ended():
                    with times.lasting(_broker(number)):
                        say(what)

        supervisor = threading.Thread(target=supervise, daemon=True)
        supervisor.start()
        try:
            yield
        finally:
            stopping.set()
            supervisor.join()


class Fault(NamedTuple):
    """One fault. Faults with a common victim never overlap; `count` is its weight in the statistics."""

    kind: str
    what: str
    victims: frozenset[str]
    lasts_s: float
    happen: Callable[[], AbstractContextManager[object]]
    count: int = 1
    takes_long: bool = False
    """Whether it takes long to begin."""


def _broker(number: int) -> frozenset[str]:
    return frozenset({f"broker {number}"})


@contextlib.contextmanager
def _dead(world: World, number: int) -> Iterator[None]:
    with world.holding(number) as broker:
        broker.kill()
        yield
        broker.launch()


def _kill(world: World, chance: random.Random) -> Fault:
    number = chance.choice(list(world.cluster.brokers))
    return Fault("kill -9", f"broker {number}", _broker(number), chance.uniform(0, 8), lambda: _dead(world, number))


@contextlib.contextmanager
def _storm(world: World, number: int, pauses_s: list[float]) -> Iterator[None]:
    with _dead(world, number):
        for pause_s in pauses_s:
            world.cluster.brokers[number].launch()
            time.sleep(pause_s)
            world.cluster.brokers[number].kill()
        yield


def _restart_storm(world: World, chance: random.Random) -> Fault:
    number = chance.choice(list(world.cluster.brokers))
    pauses_s = [chance.uniform(0.1, 1.5) for _ in range(STORM - 1)]
    happen = lambda: _storm(world, number, pauses_s)  # noqa: E731
    return Fault("kill -9", f"broker {number}, {STORM} times", _broker(number), 0, happen, STORM)


@contextlib.contextmanager
def _stopped(world: World, number: int) -> Iterator[None]:
    with world.holding(number) as broker:
        # A broker waiting for one that is cut off is killed in the end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.stop()
        yield
        broker.launch()


@contextlib.contextmanager
def _restarted_in_turn(world: World) -> Iterator[None]:
    for number, broker in world.cluster.brokers.items():
        with _stopped(world, number):
            pass
        # The broker cannot start without ZooKeeper, which only comes back later.
        with contextlib.suppress(RuntimeError):
            broker.await_listening(START_PATIENCE_S)
    yield


def _rolling_restart(world: World, _: random.Random) -> Fault:
    brokers = list(world.cluster.brokers)
    victims = frozenset().union(*(_broker(number) for number in brokers))
    return Fault(
        "restart", "each broker in turn", victims, 0, lambda: _restarted_in_turn(world), len(brokers), takes_long=True
    )


def _pause(world: World, chance: random.Random) -> Fault:
    number = chance.choice(list(world.cluster.brokers))
    # Half of them longer than a session.
    lasts_s = chance.uniform(1, 12)
    return Fault("pause", f"broker {number}", _broker(number), lasts_s, lambda: world.cluster.paused(number))


@contextlib.contextmanager
def _cut(network: NetworkNamespaces, pairs: list[tuple[int, int]], *, one_way: bool) -> Iterator[None]:
    for pair in pairs:
        network.cut(*pair, one_way=one_way)
    yield
    for pair in pairs:
        network.heal(*pair)


def _name(host: int) -> str:
    return {CLIENT: "clients", ZOOKEEPER: "ZooKeeper"}.get(host, f"broker {host}")


def _network_cut(world: World, chance: random.Random) -> Fault:
    network = world.network
    assert network is not None
    number = chance.choice(list(world.cluster.brokers))
    others = [host for host in network.hosts if host != number]
    one_way, alone = chance.random() < 0.4, chance.random() < 0.15
    lasts_s = chance.uniform(0.5, 12)
    pairs = [(number, other) for other in (others if alone else [chance.choice(others)])]
    if one_way and chance.random() < 0.5:
        pairs = [(other, number) for _, other in pairs]
    sign = "->" if one_way else "-"
    what = f"{_name(number)} alone" if alone else f"{_name(pairs[0][0])} {sign} {_name(pairs[0][1])}"
    victims = frozenset(f"cut {min(pair)}-{max(pair)}" for pair in pairs)
    return Fault("cut", what, victims, lasts_s, lambda: _cut(network, pairs, one_way=one_way))


@contextlib.contextmanager
def _without_zookeeper(world: World) -> Iterator[None]:
    world.cluster.zookeeper.kill()
    yield
    start_zookeeper(world.cluster.zookeeper)


def _zookeeper_dead(world: World, chance: random.Random) -> Fault:
    lasts_s = chance.uniform(1, 15) if chance.random() < 0.8 else 60.0
    return Fault("dead", "ZooKeeper", frozenset({"ZooKeeper"}), lasts_s, lambda: _without_zookeeper(world))


@contextlib.contextmanager
def _full(world: World, disk: Path) -> Iterator[None]:
    # The broker may exit, and must not be restarted while the disk is full.
    with world.holding(FULL_DISK_BROKER):
        ballast = disk / "ballast"
        fill(ballast)
        yield
        ballast.unlink()


def _full_disk(world: World, chance: random.Random) -> Fault:
    disk = world.disk
    assert disk is not None
    what = f"broker {FULL_DISK_BROKER}"
    return Fault("full disk", what, _broker(FULL_DISK_BROKER), chance.uniform(2, 8), lambda: _full(world, disk))


def draw_fault(world: World, chance: random.Random) -> Fault:
    """A random fault out of all that are possible here."""
    kinds = {_kill: 6, _pause: 5, _restart_storm: 1, _rolling_restart: 1, _zookeeper_dead: 1}
    if world.network is not None:
        kinds[_network_cut] = 10
    if world.disk is not None:
        kinds[_full_disk] = 1
    (kind,) = chance.choices(list(kinds), list(kinds.values()))
    return kind(world, chance)
