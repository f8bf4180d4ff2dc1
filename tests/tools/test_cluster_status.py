"""The status of a cluster: collected from processes and brokers, and shown as text."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path

from client.metadata import Metadata, Node, PartitionMetadata, TopicMetadata
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from tests.kit.broker_process import BrokerProcess, free_port
from tools.local_cluster.cluster_directory import ClusterDirectory, ClusterState, LocalBroker, LocalZooKeeper
from tools.local_cluster.cluster_probe import Probe, ReplicaLog, Replicas
from tools.local_cluster.cluster_processes import Condition, Observed, ProcessId, send_signal, spawn
from tools.local_cluster.cluster_status import (
    MOST_PARTITIONS,
    ClusterStatus,
    Lag,
    gather_status,
    in_units,
    lag_of,
    render,
)
from tools.support.terminal import lines_of

STATE = ClusterState(
    LocalZooKeeper("127.0.0.1:2181", 2181, ProcessId(11, "z")),
    (
        LocalBroker(1, 9092, ProcessId(12, "a")),
        LocalBroker(2, 9093, ProcessId(13, "b")),
        LocalBroker(3, 9094, ProcessId(14, "c")),
    ),
    {},
)
OBSERVED = {
    1: Observed(Condition.RUNNING, 33_400_000),
    2: Observed(Condition.PAUSED, 34_000_000),
    3: Observed(Condition.DEAD, 0),
}


def a_partition(number: int, leader: int, isr: Iterable[int]) -> PartitionMetadata:
    return PartitionMetadata(number, ErrorCode.NONE, leader, 0, (1, 2, 3), tuple(isr), ())


def metadata_of(*partitions: PartitionMetadata, name: str = "flights", is_internal: bool = False) -> Metadata:
    """Brokers 1 and 2 are registered; 1 is the controller."""
    by_number = {each.partition: each for each in partitions}
    topic = TopicMetadata(name, ZERO_UUID, ErrorCode.NONE, is_internal, by_number)
    return Metadata("the-id", 1, {1: Node(1, "h", 9092), 2: Node(2, "h", 9093)}, {name: topic} if partitions else {})


def shown(metadata: Metadata | None, replicas: Replicas | None = None) -> list[str]:
    zookeeper = Observed(Condition.RUNNING, 95_000_000)
    return lines_of(render(ClusterStatus(STATE, zookeeper, OBSERVED, metadata, replicas or {})))


def test_all_that_is_known_is_shown() -> None:
    metadata = metadata_of(a_partition(0, 1, (1, 2, 3)), a_partition(1, 1, (1, 2)), a_partition(2, 3, (3,)))
    flights = TopicPartition("flights", 0)
    replicas = {1: {flights: ReplicaLog(2000, 20)}, 2: {flights: ReplicaLog(600, 6)}}
    assert "\n".join(shown(metadata, replicas)) == (
        "Cluster the-id, ZooKeeper 127.0.0.1:2181 running, pid 11, 95 MB\n"
        "\n"
        "BROKER  STATE    PID  ADDRESS         MEMORY  LEADS  REPLICAS  IN SYNC  BEHIND\n"
        "1       running  12   127.0.0.1:9092  33 MB   2      3         2        0 records, 0 B\n"
        "2       paused   13   127.0.0.1:9093  34 MB   0      3         2        14 records, 1.4 kB\n"
        "3       dead     -    127.0.0.1:9094  -       1      3         2        -\n"
        "\n"
        "Controller: 1. Memory of all brokers: 67 MB.\n"
        "\n"
        "Topics: 1. Partitions: 3, under-replicated 2, without a leader 1.\n"
        "\n"
        "PARTITION  LEADER  REPLICAS  ISR\n"
        "flights-2  none    1,2,3     3\n"
        "flights-1  1       1,2,3     1,2\n"
        "flights-0  1       1,2,3     1,2,3"
    )


def test_no_broker_answers() -> None:
    lines = shown(None)
    assert lines[-1] == "No broker answers."
    assert lines[3].split() == ["1", "running", "12", "127.0.0.1:9092", "33", "MB", "-", "-", "-", "-"]


def test_a_broker_that_runs_and_has_not_joined() -> None:
    metadata = metadata_of()
    alone = Metadata("the-id", -1, {2: metadata.nodes[2]})
    assert "1       not registered  12" in shown(alone)[3]
    assert "Controller: none." in shown(alone)[7]
    assert shown(metadata)[-1] == "No topics."


def test_many_partitions_are_counted() -> None:
    partitions = [a_partition(number, 1, (1, 2, 3)) for number in range(MOST_PARTITIONS + 5)]
    partitions[-1] = a_partition(len(partitions) - 1, 1, (1,))
    lines = shown(metadata_of(*partitions))
    assert lines[12].split() == [f"flights-{len(partitions) - 1}", "1", "1,2,3", "1"], "the one that lags comes first"
    assert lines[-1] == "... and 5 more"


def test_internal_topics_are_shown_when_something_is_wrong() -> None:
    lines = shown(metadata_of(a_partition(0, 1, (1,)), a_partition(1, 1, (1, 2, 3)), name="__x", is_internal=True))
    assert [line.split()[0] for line in lines[11:]] == ["PARTITION", "__x-0", "..."]


def test_what_is_not_known_is_not_behind() -> None:
    metadata = metadata_of(a_partition(0, 1, (1, 2, 3)))
    partition = TopicPartition("flights", 0)
    leader, ahead, unknown = ReplicaLog(5, 3), ReplicaLog(9, 4), ReplicaLog(1, None)
    assert lag_of(metadata, {1: {partition: leader}}, 2) is None
    assert lag_of(metadata, {2: {partition: leader}}, 2) == Lag(0, 0), "the leader does not answer"
    assert lag_of(metadata, {1: {partition: leader}, 2: {}}, 2) == Lag(3, 5)
    assert lag_of(metadata, {1: {partition: leader}, 2: {partition: ahead}}, 2) == Lag(0, 0)
    assert lag_of(metadata, {1: {partition: leader}, 2: {partition: unknown}}, 2) == Lag(0, 4)


def test_sizes() -> None:
    sizes = [0, 999, 1000, 9949, 9950, 33_400_000, 999_499_999, 999_500_000, 5 * 10**15]
    assert [in_units(size) for size in sizes] == [
        *("0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "33 MB", "999 MB", "1.0 GB", "5000 TB")
    ]


def test_a_real_broker_answers(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    broker.start()
    try:

        async def ask() -> tuple[bool, bool, Metadata | None, Replicas]:
            async with Probe(broker.address) as probe:
                joined = await probe.knows([0]), await probe.knows([0, 1])
                return *joined, await probe.metadata(), await probe.replicas([0])

        joined, stranger, metadata, replicas = asyncio.run(ask())
        assert (joined, stranger) == (True, False)
        assert metadata is not None
        assert metadata.controller_id == 0
        assert replicas == {0: {}}
    finally:
        broker.stop()


def test_a_process_that_is_no_broker(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    process = spawn(["sleep", "60"], tmp_path / "output", {})
    try:
        directory.save(ClusterState(LocalZooKeeper("zk:1"), (LocalBroker(1, free_port(), process),), {}))
        status = asyncio.run(gather_status(directory))
    finally:
        send_signal(process, signal.SIGKILL)
    assert status.brokers[1].condition is Condition.RUNNING
    assert status.metadata is None
    assert render(status)[0] == "Cluster -, ZooKeeper zk:1"
