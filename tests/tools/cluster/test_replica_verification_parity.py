"""kafka-replica-verification: Kafka's and ours have the same results in a cluster of Apache Kafka and in one of
Odradek.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.records.batch import build_values_batch
from tests.kit.apache_kafka import zookeeper
from tests.kit.controller.reassigning import metadata_of
from tests.kit.jars import java, kafka_classpath
from tests.kit.waiting import eventually
from tests.parity.cluster.clusters import BROKERS, Cluster
from tests.tools.tool_pair import JVM, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

ALIKE, OTHER_VALUE, OTHER_BATCHES = "alike", "other-value", "other-batches"
COUNT = 4
"""The number of records of each topic, one per batch."""
REPLICAS = [1, 2, 0]
DAMAGED = 2

Tool = Callable[[Path], Sequence[str]]


def kafkas_tool(directory: Path) -> Sequence[str]:
    log4j = directory / "log4j.properties"
    log4j.write_text(
        "log4j.rootLogger=ERROR, stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stderr.Target=System.err\nlog4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.stderr.layout.ConversionPattern=%m%n\n"
    )
    options = [*JVM, "-cp", kafka_classpath(), f"-Dlog4j.configuration=file:{log4j}"]
    return java(*options, "org.apache.kafka.tools.ReplicaVerificationTool")


def our_tool(_directory: Path) -> Sequence[str]:
    return (sys.executable, "-P", "-m", "tools.replica_verification")


class Checking:
    """One run of a tool. A context manager that ends it."""

    def __init__(self, tool: Tool, cluster: Cluster, output: Path, *args: str) -> None:
        self._output = output
        addresses = ",".join(cluster.target.addresses)
        arguments = ["--broker-list", addresses, "--time", "-2", "--report-interval-ms", "100", "--max-wait-ms", "200"]
        output.parent.mkdir(exist_ok=True, parents=True)
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*tool(output.parent), *arguments, *args],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[str]:
        """Its output so far, without the times and the intermediate lags."""
        said = re.sub(r"(?m)^\d{4}-\d\d-\d\d[ T][\d:,.]+: ", "", self._output.read_text())
        # Among equal lags Kafka's tool picks any.
        said = re.sub(r"(?<=max lag is 0 for partition )\S+", "", said)
        return list(dict.fromkeys(line for line in said.splitlines() if not re.match("max lag is [^0]", line)))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """Apache Kafka's and ours, with a damaged replica of two topics."""
    directory = tmp_path_factory.mktemp("clusters")
    with zookeeper(directory / "zookeeper") as address, contextlib.ExitStack() as stack:
        both = {
            "apache": Cluster.of_apache(directory / "apache", f"{address}/apache"),
            "odradek": Cluster.of_odradek(directory / "odradek", f"{address}/odradek"),
        }
        for cluster in both.values():
            stack.callback(cluster.stop)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(prepare, both.values()))
        yield both


def prepare(cluster: Cluster) -> None:
    """Start the cluster, fill its topics, and damage a replica."""
    cluster.start()
    addresses = ",".join(cluster.target.addresses)
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    topics = [NewTopic(name, 1, replica_assignment=[REPLICAS]) for name in (ALIKE, OTHER_VALUE, OTHER_BATCHES)]
    for created in admin.create_topics(topics).values():
        created.result()
    producer = Producer({"bootstrap.servers": addresses, "acks": "all", "log_level": 0})
    for name in (ALIKE, OTHER_VALUE, OTHER_BATCHES):
        for number in range(COUNT):
            producer.produce(name, b"%d" % number, timestamp=1_700_000_000_000)
            assert producer.flush(60) == 0
    cluster.brokers[DAMAGED].stop()
    same = [build_values_batch([b"%d" % each], 1_700_000_000_000, base_offset=each) for each in range(COUNT)]
    other = build_values_batch([b"x"], 1_700_000_000_000, base_offset=1)
    pair = build_values_batch([b"1", b"2"], 1_700_000_000_000, base_offset=1)
    for name, batches in ((OTHER_VALUE, [same[0], other, *same[2:]]), (OTHER_BATCHES, [same[0], pair, same[3]])):
        [segment] = Path(cluster.target.data_directories[DAMAGED], f"{name}-0").glob("*.log")
        segment.write_bytes(b"".join(batches))
    cluster.brokers[DAMAGED].start()
    cluster.await_brokers(*BROKERS)
    for address in cluster.target.addresses:
        eventually(
            "all are in sync",
            lambda at=address: [len(each.partitions[0].isrs) for each in metadata_of(at).topics.values()],  # type: ignore[misc]
            lambda isrs: isrs == [len(BROKERS)] * 3,
            not_yet=(KafkaException, KeyError),
        )


def both_tools_on(cluster: Cluster, directory: Path) -> dict[str, list[object]]:
    """The output of each tool in this cluster, and the exit code of those that exit."""
    said: dict[str, list[object]] = {}
    for who, tool in (("Kafka's", kafkas_tool), ("ours", our_tool)):
        outputs = directory / who
        found = said[who] = []
        for topics, end in ((f"{ALIKE},{OTHER_VALUE}", "max lag is 0"), (OTHER_BATCHES, "doesn't match")):
            with Checking(tool, cluster, outputs / topics, "--topics-include", topics) as checking:
                found.append(eventually(f"{who}: {end}", checking.lines, lambda lines: end in repr(lines)))  # noqa: B023
                if who == "ours" and topics == OTHER_BATCHES:
                    # Kafka's should exit with this code as well, but waits for its own threads forever.
                    assert checking.process.wait(60) == 1
        with Checking(tool, cluster, outputs / "missing", "--topics-include", "missing") as checking:
            found.append((checking.process.wait(120), checking.lines()))
    return said


def test_both_tools_find_the_same_in_both_clusters(clusters: dict[str, Cluster], tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        names = list(clusters)
        found = threads.map(lambda name: both_tools_on(clusters[name], tmp_path / name), names)
        said = {(name, who): lines for name, each in zip(names, found, strict=True) for who, lines in each.items()}
    expected = said["apache", "Kafka's"]
    assert f"partition {OTHER_VALUE}-0 has unmatched checksum at offset 1" in repr(expected[0])
    assert "doesn't match" in repr(expected[1])
    assert {who: lines for who, lines in said.items() if lines != expected} == {}, expected
