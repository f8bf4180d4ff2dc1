"""A loaded cluster of Apache Kafka 3.9.1 hands its partitions and the controller to Odradek, and takes them back.

Two brokers of each are on one real ZooKeeper. In each round all replicas, including those of the group coordinators,
move to Odradek, then the controller does; one broker there is killed and restarted; then the same in reverse. Two
idempotent producers and a group that commits run throughout. Acknowledged records are never lost, duplicated or
reordered, and no partition stalls for longer than the session timeout plus a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from kazoo.client import KazooClient

from protocol.topic_partition import CONSUMER_OFFSETS
from tests.chaos.cluster_load import TimedSender
from tests.compat.steady_load import PARTITIONS, Committer, create_topics, judge
from tests.kit.apache_kafka import JavaServer, await_controller
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.controller.reassigning import Replicas, await_replicas, elect_controller, metadata_of, reassign
from tests.kit.due import turn
from tests.kit.waiting import eventually
from tests.kit.zookeeper import real_zookeeper

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(2400)]

ROUNDS = int(os.environ.get("ODRADEK_HANDOVERS", "10"))
TOPIC = "t"
APACHE, ODRADEK = (0, 1), (7, 8)
"""The ids of the brokers on either side."""
SESSION_S = 6
LONGEST_STALL_S = float(os.environ.get("ODRADEK_LONGEST_STALL_S", SESSION_S + 1))
TICK_MS = 200
"""ZooKeeper rounds session timeouts up to this."""


class ApacheBroker:
    """An Apache Kafka broker, to be started, killed and restarted."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        properties = directory / "server.properties"
        # The last broker to stop cannot hand over to any other.
        own = {"listeners": f"PLAINTEXT://{self.address}", "log.dirs": str(directory / "data")}
        all_settings = {**settings, **own, "controlled.shutdown.enable": "false"}
        directory.mkdir()
        properties.write_text("".join(f"{key}={value}\n" for key, value in all_settings.items()))
        self._server = JavaServer("kafka.Kafka", properties, port)

    def start(self) -> None:
        """Start, and return once it knows its controller."""
        self._server.start()
        await_controller(self.address)

    def kill(self) -> None:
        """SIGKILL."""
        self._server.end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        self._server.end()


class MixedCluster:
    """Both sides on one ZooKeeper; Apache Kafka's brokers start first."""

    def __init__(self, directory: Path, zookeeper_address: str) -> None:
        def settings(broker_id: int) -> dict[str, str]:
            return {
                "broker.id": str(broker_id),
                "zookeeper.connect": zookeeper_address,
                "zookeeper.session.timeout.ms": str(SESSION_S * 1000),
                "offsets.topic.replication.factor": "2",
                "offsets.topic.num.partitions": str(PARTITIONS),
                "group.initial.rebalance.delay.ms": "0",
            }

        self.apache = {each: ApacheBroker(directory / f"apache-{each}", settings(each)) for each in APACHE}
        self.odradek = {each: BrokerProcess(directory / f"odradek-{each}", settings(each)) for each in ODRADEK}
        self.brokers: dict[int, ApacheBroker | BrokerProcess] = {**self.apache, **self.odradek}
        self.address = ",".join(each.address for each in self.brokers.values())
        self._zookeeper = KazooClient(zookeeper_address)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the cluster for a block, then stop Odradek's brokers cleanly: they have no leaderships left."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._zookeeper.close)
            stack.callback(self._zookeeper.stop)
            for broker in self.brokers.values():
                stack.callback(broker.kill)
            self._zookeeper.start()
            for broker in self.brokers.values():
                broker.start()
            yield
            assert [each.stop() for each in self.odradek.values()] == [0, 0]
            for apache in self.apache.values():
                apache.stop()

    def hand_over(self, to: tuple[int, int]) -> int:
        """Move all replicas, then the controller, to one side; each of its brokers leads some. Returns the
        controller.
        """
        wanted = replicas_on(to)
        reassign(self.address, wanted)
        await_replicas(self.address, wanted)
        elect_controller(self._zookeeper, to)
        return self._await_controller(to)

    def _await_controller(self, among: tuple[int, int]) -> int:
        """Wait until all brokers name the same controller, one of these."""

        def named() -> set[int]:
            return {metadata_of(each.address).controller_id for each in self.brokers.values()}

        found = eventually(
            "the controller",
            named,
            lambda seen: len(seen) == 1 and seen <= set(among),
            not_yet=(KafkaException,),
        )
        return min(found)

    def survive(self, killed: int, side: tuple[int, int], senders: list[TimedSender]) -> None:
        """Kill a broker; the other one of its side leads everything until it is back in sync."""
        (survivor,) = set(side) - {killed}
        self.brokers[killed].kill()
        eventually(
            f"no leader but {survivor}",
            lambda: {
                each.leader for each in metadata_of(self.brokers[survivor].address).topics[TOPIC].partitions.values()
            },
            lambda found: found == {survivor},
            not_yet=(KafkaException, KeyError),
        )
        all_partitions_go_on(senders)
        self.brokers[killed].start()
        await_replicas(self.address, replicas_on(side))


def all_partitions_go_on(senders: list[TimedSender]) -> None:
    """Return once each sender has a new acknowledgement for each partition: the stall of a move is over."""
    known = [len(sender.acknowledged) for sender in senders]

    def partitions() -> list[set[int]]:
        return [
            {number for number, _, _ in sender.acknowledged[before:]}
            for sender, before in zip(senders, known, strict=True)
        ]

    eventually("acknowledgements", partitions, lambda found: found == [set(range(PARTITIONS))] * len(senders))


def replicas_on(side: tuple[int, int]) -> Replicas:
    """The replicas of each partition on both brokers; the preferred leaders alternate."""
    both = (side, side[::-1])
    return {(topic, number): both[number % 2] for topic in (TOPIC, CONSUMER_OFFSETS) for number in range(PARTITIONS)}


def one_way(
    cluster: MixedCluster, side: tuple[int, int], senders: list[TimedSender], *, kills_controller: bool
) -> float:
    """Move everything to one side, and kill one of its brokers. Returns the longest stall of a producer, in seconds."""
    for sender in senders:
        sender.longest_gap_s = 0.0
    controller = cluster.hand_over(to=side)
    all_partitions_go_on(senders)
    # Each of them leads a partition of the topic, and one of the coordinators.
    (other,) = set(side) - {controller}
    cluster.survive(controller if kills_controller else other, side, senders)
    return max(sender.longest_gap_s for sender in senders)


@turn(0, of=2)
def test_partitions_and_the_controller_go_to_odradek_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest_stall_s = 0.0
    with real_zookeeper(tmp_path / "zookeeper", tick_time_ms=TICK_MS) as zookeeper:
        cluster = MixedCluster(tmp_path, zookeeper.address)
        with cluster.running():
            create_topics(cluster.address, {TOPIC: {}}, replication_factor=2)
            senders = [TimedSender(f"once{number}", cluster.address, TOPIC, idempotent=True) for number in range(2)]
            committer = Committer(cluster.address, TOPIC)
            for thread in (*senders, committer):
                thread.start()
            try:
                eventually("a commit", lambda: committer.acknowledged)
                for number in range(1, ROUNDS + 1):
                    stalls_s = [
                        one_way(cluster, side, senders, kills_controller=number % 2 == 1) for side in (ODRADEK, APACHE)
                    ]
                    longest_stall_s = max(longest_stall_s, *stalls_s)
                    acknowledged = sum(len(sender.acknowledged) for sender in senders)
                    stalls = "stalls {:.2f} s with Odradek, {:.2f} s with Apache Kafka".format(*stalls_s)
                    with capsys.disabled():
                        print(f"round {number}: acknowledged records {acknowledged}, {stalls}")
            finally:
                for each in (*senders, committer):
                    each.stop()
            verdict = judge(cluster.address, senders)
            summary = f"rounds {ROUNDS}, {verdict}; commits {committer.acknowledged}"
            with capsys.disabled():
                print(f"{summary}; longest stall {longest_stall_s:.2f} s")
            assert (verdict.lost, verdict.doubled) == (0, 0), verdict
            assert verdict.acknowledged == sum(sum(sender.sent) for sender in senders)
            committer.check()
            assert longest_stall_s <= LONGEST_STALL_S
    for broker in cluster.odradek.values():
        assert "Traceback" not in broker.output.read_text()
