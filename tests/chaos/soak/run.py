"""Rounds of faults under load. Each fault is healed at the end of its round; then the logs are compared with the
acknowledged records.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException

from tests.chaos.cluster_load import TimedSender, check_replicas, goes_on
from tests.chaos.soak.changes import Administrator
from tests.chaos.soak.faults import FULL_DISK_BROKER, Fault, World, draw_fault
from tests.chaos.soak.hostile import TOPIC as HOSTILE_TOPIC
from tests.chaos.soak.hostile import Hostility
from tests.chaos.soak.loads import ClientStream
from tests.chaos.soak.security import Security, SecurityOfficer, grant_alice
from tests.chaos.soak.watch import MOST_GROWTH, FaultTimes, Watch
from tests.chaos.transfers import Transfers
from tests.compat.steady_load import PARTITIONS, Verdict, compare, create_topics
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import LOOPBACK
from tests.kit.network.namespaces import ZOOKEEPER, NamespacesRefusedError, NetworkNamespaces
from tests.kit.small_disk import small_disk
from tests.kit.waiting import eventually

ROUND_S = 40.0
MOST_AT_ONCE = 3
LONGEST_PAUSE_S = 3.0
"""The longest pause between the starts of two faults."""
HEALED_WITHIN_S = 60.0
LONGEST_WAIT_S = 1.0
"""How long the probe may wait for an answer."""
DISK_MB = 320
CLIENTS = ("java-3.9", "aiokafka")
TRANSACTIONS = "transfers"
TOPICS = {
    # Two of three replicas must be in sync.
    "steady": (3, {"min.insync.replicas": "2"}),
    # The leader alone is enough.
    "pair": (2, {"min.insync.replicas": "1"}),
    **{client: (3, {"min.insync.replicas": "2"}) for client in (*CLIENTS, TRANSACTIONS)},
}
"""Replication factor and configuration by topic. A topic named after a client is written by that client alone,
TRANSACTIONS by `Transfers`.
"""
SETTINGS = {"min.insync.replicas": "2", "zookeeper.session.timeout.ms": "6000"}


class SoakSender(TimedSender):
    """A sender of many records in few requests: most of the CPU is for the brokers.

    It has one partition. When a batch of one partition is refused (a full disk) and the following ones are out of
    order, librdkafka bumps its epoch, and resends the unacknowledged records of other partitions, which may have been
    written already (https://github.com/confluentinc/librdkafka/issues/4953).
    """

    most_in_flight = 4000
    records_of_a_batch = 500

    def __init__(self, address: str, topic: str, partition: int) -> None:
        super().__init__(f"{topic}-{partition}", address, topic, idempotent=True)
        self.partitions = (partition,)


Say = Callable[[str], None]
Load = SoakSender | ClientStream | Transfers


@dataclass
class Soak:
    """The findings of a run."""

    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    changes: int = 0
    security_changes: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    longest_gap_s: float = 0.0
    slowest_healing_s: float = 0.0
    floods: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0
    """The longest wait of the probe that no fault explains."""
    memory: str = ""
    violations: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """Record an assertion that fails in a block as a violation."""
        try:
            yield
        except AssertionError as error:
            self.violations.append(f"{where}: {error}")

    @property
    def fault_count(self) -> int:
        """All faults."""
        return sum(self.faults.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        changes = "".join(f", {kind} {count}" for kind, count in sorted(self.security_changes.items()))
        found = self.verdict
        floods = f"floods {self.floods.total()}, longest wait of the probe {self.longest_wait_s:.2f} s{self.memory}; "
        return (
            f"{floods if self.floods else ''}"
            f"faults {self.fault_count} ({kinds}), changes {self.changes}{changes}; acknowledged {found.acknowledged}, "
            f"lost {found.lost}, doubled {found.doubled}, reordered {found.reordered}, refused {len(found.refused)}; "
            f"longest gap {self.longest_gap_s:.1f} s; "
            f"slowest full ISR after healing {self.slowest_healing_s:.1f} s of {self.rounds} rounds"
        )


@contextlib.contextmanager
def _world(directory: Path, say: Say, security: Security | None) -> Iterator[World]:
    """A running cluster, with network cuts and a full disk if the machine allows them."""
    with contextlib.ExitStack() as stack:
        network = disk = None
        try:
            network = stack.enter_context(NetworkNamespaces(3))
        except NamespacesRefusedError as error:
            say(f"no cuts: {error}")
        try:
            disk = stack.enter_context(small_disk(directory, DISK_MB))
        except pytest.skip.Exception as error:
            say(f"no full disk: {error}")
        if security is None:
            cluster = BrokerCluster(directory, settings=SETTINGS, network=network)
        else:
            tree = security.tree(LOOPBACK.ip if network is None else network.host(ZOOKEEPER).ip)
            settings = SETTINGS | security.settings | tree.settings
            cluster = BrokerCluster(directory, settings=settings, network=network, new_server=tree.new_server)
            security.attach(cluster)
        if disk is not None:
            (disk / "data").mkdir()
            (cluster.brokers[FULL_DISK_BROKER].output.parent / "data").symlink_to(disk / "data")
        yield World(stack.enter_context(cluster), network, disk)


class _Active(NamedTuple):
    """An active fault."""

    until_s: float
    fault: Fault
    begun: Future[object]
    stack: contextlib.ExitStack


class _Round:
    """Faults that begin one after the other, some at once, until all have ended."""

    def __init__(self, world: World, chance: random.Random, say: Say, times: FaultTimes) -> None:
        self._world = world
        self._times = times
        self._chance = chance
        self._say = say
        self._active: list[_Active] = []
        self._executor = ThreadPoolExecutor(MOST_AT_ONCE)
        """Runs the starts of faults, so that a slow one does not delay the end of others: a fault that restarts brokers
        across a cut can last as long as the cut.
        """

    def run(self, until_s: float, count: Callable[[Fault], None]) -> None:
        """Run faults; no new one begins after `until_s` of the monotonic clock."""
        try:
            while time.monotonic() < until_s:
                if len(self._active) < MOST_AT_ONCE:
                    self._begin(count)
                pause_until_s = time.monotonic() + self._chance.uniform(0, LONGEST_PAUSE_S)
                while time.monotonic() < pause_until_s:
                    self._end_those_before(time.monotonic())
                    time.sleep(0.1)
        finally:
            self._end_those_before(float("inf"))
            for entry in self._active:
                wait([entry.begun])
            self._end_those_before(float("inf"))
            self._executor.shutdown()

    def _begin(self, count: Callable[[Fault], None]) -> None:
        fault = draw_fault(self._world, self._chance)
        if any(fault.victims & other.fault.victims for other in self._active):
            return
        self._say(f"{fault.kind}: {fault.what} for {fault.lasts_s:.1f} s")
        count(fault)
        stack = contextlib.ExitStack()
        stack.enter_context(self._times.lasting(fault.victims))
        begun = self._executor.submit(stack.enter_context, fault.happen())
        if not fault.takes_long:
            begun.result()
        self._active.append(_Active(time.monotonic() + fault.lasts_s, fault, begun, stack))

    def _end_those_before(self, now_s: float) -> None:
        for entry in [entry for entry in self._active if entry.until_s <= now_s and entry.begun.done()]:
            self._active.remove(entry)
            entry.begun.result()
            entry.stack.close()


def _compare(cluster: BrokerCluster, loads: Sequence[Load], soak: Soak) -> None:
    """Read all records, and count the wrong ones."""
    soak.verdict = Verdict()
    for topic in TOPICS:
        with soak.noting(topic):
            found = Verdict()
            for load in loads:
                if not isinstance(load, SoakSender) and load.topic == topic:
                    found += load.verdict()
            senders = [load for load in loads if isinstance(load, SoakSender) and load.topic == topic]
            if senders:
                found += compare(cluster.address, senders)
            soak.verdict += found
            assert found.is_good, f"{found}, reordered: {found.reordered}, refused: {found.refused[:3]}"


def _heal(cluster: BrokerCluster, loads: Sequence[Load], officer: SecurityOfficer | None, soak: Soak) -> None:
    """Wait until all brokers are up, all replicas in sync, and all producers served."""
    healed_s = time.monotonic()
    with soak.noting(f"round {soak.rounds}"):
        eventually(
            "all brokers",
            lambda: set(cluster.metadata().brokers),
            lambda found: found == set(cluster.brokers),
            not_yet=(KafkaException,),
        )
        for topic in TOPICS:
            cluster.await_full_isr(topic)
        took_s = time.monotonic() - healed_s
        assert took_s < HEALED_WITHIN_S, f"all replicas are in sync after {took_s:.1f} s"
        soak.slowest_healing_s = max(soak.slowest_healing_s, took_s)
        goes_on(loads)
        if officer is not None:
            officer.check()


@contextlib.contextmanager
def _load(
    cluster: BrokerCluster, directory: Path, seed: int, security: Security | None
) -> Iterator[tuple[list[Load], Administrator]]:
    """Run producers and an administrator for the duration of a block, even if it fails. With `security`, librdkafka's
    are secured.
    """
    for topic, (replicas, settings) in TOPICS.items():
        create_topics(cluster.address, {topic: settings}, replication_factor=replicas)
    with contextlib.ExitStack() as stack:
        loads: list[Load] = []
        for topic in TOPICS:
            producers: list[Load]
            if topic in CLIENTS:
                producers = [ClientStream(topic, cluster.address, directory)]
            elif topic == TRANSACTIONS:
                producers = [Transfers(cluster.address, topic, topic)]
            else:
                producers = [SoakSender(cluster.address, topic, partition) for partition in range(PARTITIONS)]
            for load in producers:
                if not isinstance(load, ClientStream):
                    load.security = {} if security is None else security.client("alice")
                    load.start()
                stack.callback(load.stop)
                loads.append(load)
        goes_on(loads)
        administrator = Administrator(cluster, {topic: replicas for topic, (replicas, _) in TOPICS.items()}, seed)
        stack.callback(administrator.stop)
        administrator.start()
        yield loads, administrator


@contextlib.contextmanager
def _hostility(
    cluster: BrokerCluster, security: Security | None, seed: int, say: Say, times: FaultTimes
) -> Iterator[tuple[Hostility, Watch]]:
    """Run a hostile client and the probe for the duration of a block; the probe uses TLS if the cluster is secured."""
    create_topics(cluster.address, {HOSTILE_TOPIC: {}}, replication_factor=len(cluster.brokers))
    addresses = {number: broker.address for number, broker in cluster.brokers.items()}
    secured = {} if security is None else security.addresses
    trusted = None if security is None else security.trusted
    with (
        Watch(cluster, secured or addresses, trusted, times, say) as watch,
        Hostility(list(addresses.values()), list(secured.values()), seed, say) as hostility,
    ):
        yield hostility, watch


def _check_hostility(hostility: Hostility, watch: Watch, soak: Soak, longest_wait_s: float, *, is_last: bool) -> None:
    """Record waits of the probe that no fault explains, and at the end memory that has grown since minute five."""
    soak.floods = Counter(hostility.floods)
    waits = sorted(watch.waits, key=lambda gap: -gap.lasted_s)
    soak.longest_wait_s = waits[0].lasted_s if waits else 0.0
    with soak.noting("waits of the probe"):
        assert hostility.is_running, "the hostile client has ended"
        assert watch.is_running, "the probe has ended"
        found = [f"broker {gap.broker} {gap.lasted_s:.2f} s" for gap in waits if gap.lasted_s > longest_wait_s]
        assert not found, ", ".join(found)
    grown = watch.growth()
    if grown is None:
        return
    settled, last = grown
    soak.memory = f", memory in minute five {settled} MB, in the last one {last} MB"
    # Each minute has different floods: only the end of the run shows whether memory grows.
    if is_last:
        with soak.noting("memory"):
            assert max(last.values()) <= MOST_GROWTH * max(settled.values()), f"{settled} MB, then {last} MB"


@contextlib.contextmanager
def _officer(cluster: BrokerCluster, security: Security | None, seed: int) -> Iterator[SecurityOfficer | None]:
    """Run a SecurityOfficer for the duration of a block; yields None without security."""
    if security is None:
        yield None
        return
    grant_alice(cluster.address)
    officer = SecurityOfficer(cluster, security, seed)
    officer.start()
    try:
        yield officer
    finally:
        officer.stop()


def run_soak(
    directory: Path,
    *,
    minutes: float,
    seed: int,
    say: Say,
    secured: bool = False,
    hostile: bool = False,
    longest_wait_s: float = LONGEST_WAIT_S,
) -> Soak:
    """Run a cluster for `minutes` with its data and logs in `directory`; `say` reports progress. If it is `secured`,
    its brokers and librdkafka's producers speak SASL_SSL, and their security settings change during the run. If it is
    `hostile`, a client floods the brokers, and no probe may wait longer than `longest_wait_s`.

    The faults and their order come from the seed; their exact timing relative to the brokers' work depends on the
    machine.
    """
    chance = random.Random(seed)
    soak = Soak()
    security = Security(directory) if secured else None
    times = FaultTimes()
    with _world(directory, say, security) as world:
        cluster = world.cluster
        with world.supervised(say, times):
            with (
                _officer(cluster, security, seed) as officer,
                _load(cluster, directory, seed, security) as (loads, administrator),
                _hostility(cluster, security, seed, say, times) if hostile else contextlib.nullcontext() as flooding,
            ):
                end_s = time.monotonic() + minutes * 60
                while time.monotonic() < end_s and not soak.violations:
                    soak.rounds += 1
                    until_s = min(time.monotonic() + ROUND_S, end_s)
                    _Round(world, chance, say, times).run(
                        until_s, lambda fault: soak.faults.update({fault.kind: fault.count})
                    )
                    _heal(cluster, loads, officer, soak)
                    if flooding is not None:
                        _check_hostility(*flooding, soak, longest_wait_s, is_last=time.monotonic() >= end_s)
                    soak.changes = administrator.changes
                    if officer is not None:
                        soak.security_changes = Counter(officer.changes)
                    soak.verdict.acknowledged = sum(len(each.acknowledged) for each in loads)
                    soak.longest_gap_s = max(each.longest_gap_s for each in loads if isinstance(each, SoakSender))
                    say(f"round {soak.rounds} ended; {soak}")
            _compare(cluster, loads, soak)
        cluster.stop()
        if soak.violations and world.disk is not None:
            shutil.copytree(world.disk / "data", directory / f"data-of-broker-{FULL_DISK_BROKER}")
        with soak.noting("after the end"):
            for topic, (replicas, _) in TOPICS.items():
                if replicas == len(cluster.brokers):
                    check_replicas(cluster, topic)
    return soak
