"""Every scenario, played to three brokers of Apache Kafka and of Odradek: the same answers except for
`known_differences`.

Both clusters start once. After the scenarios for three brokers, broker 2 of each is stopped for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import pytest

from tests.kit.apache_kafka import zookeeper
from tests.parity.cluster.clusters import BROKERS, Cluster, ClusterTarget
from tests.parity.cluster.subject import STOPPED, ClusterSubject, cluster_scenarios, stopped_scenarios
from tests.parity.known_differences import report
from tests.parity.subject import played
from tests.parity.transcript import Plain

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

T = TypeVar("T")


class Pair(NamedTuple):
    """Both clusters, Kafka's first. `on_both` runs something on both at the same time."""

    clusters: tuple[Cluster, Cluster]
    threads: ThreadPoolExecutor

    def on_both(self, action: Callable[[Cluster], T]) -> list[T]:
        return list(self.threads.map(action, self.clusters))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both clusters, running."""
    directory = tmp_path_factory.mktemp("clusters")
    with zookeeper(directory / "zookeeper") as address, ThreadPoolExecutor(2) as threads:
        clusters = (
            Cluster.of_apache(directory / "apache", f"{address}/apache"),
            Cluster.of_odradek(directory / "odradek", f"{address}/odradek"),
        )
        running = Pair(clusters, threads)
        try:
            running.on_both(Cluster.start)
            yield running
        finally:
            running.on_both(Cluster.stop)


@pytest.mark.parametrize("name", list(cluster_scenarios()))
def test_three_brokers_answer_as_those_of_apache_kafka(name: str, pair: Pair) -> None:
    expected, actual = pair.on_both(lambda cluster: play(name, cluster.target))
    assert not (said := report(name, expected, actual)), said


def play(name: str, target: ClusterTarget) -> dict[str, Plain]:
    """Play a scenario for three brokers; returns its transcript."""
    return played(ClusterSubject(target, name), cluster_scenarios()[name])


class Begun:
    """The scenarios with a stopped broker, on one cluster: each has reached that point, and may continue."""

    def __init__(self, cluster: Cluster) -> None:
        self._parts: dict[str, tuple[ClusterSubject, Generator[None]]] = {}
        for name, scenario in stopped_scenarios().items():
            subject = ClusterSubject(cluster.target, name)
            part = scenario(subject)
            next(part)
            self._parts[name] = subject, part
        cluster.brokers[STOPPED].stop()
        live = [number for number in BROKERS if number != STOPPED]
        cluster.await_brokers(*live)
        for subject, _ in self._parts.values():
            subject.live = live

    def finish(self, name: str) -> dict[str, Plain]:
        """Play the rest of a scenario; returns its transcript."""
        subject, part = self._parts[name]
        assert next(part, "done") == "done"
        return subject.transcript

    def close(self) -> None:
        """Close all scenarios."""
        for subject, _ in self._parts.values():
            subject.close()


@pytest.fixture(scope="module")
def begun(pair: Pair) -> Iterator[list[Begun]]:
    """The scenarios begun on both clusters. Use after the scenarios for three brokers."""
    both = pair.on_both(Begun)
    yield both
    for each in both:
        each.close()


@pytest.mark.parametrize("name", list(stopped_scenarios()))
def test_two_brokers_of_three_answer_as_those_of_apache_kafka(name: str, pair: Pair, begun: list[Begun]) -> None:
    expected, actual = pair.threads.map(lambda each: each.finish(name), begun)
    assert not (said := report(name, expected, actual)), said


def test_there_are_enough_scenarios() -> None:
    assert len(cluster_scenarios()) + len(stopped_scenarios()) >= 60
