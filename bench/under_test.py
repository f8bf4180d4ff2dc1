"""How fast brokers under test are (`odradek.Broker`, `odradek.Cluster`): `bench/run-under-test`, or
`python -m bench.under_test`.

Apache Kafka has nothing like it, so these rows have limits and no ratios. Each figure is the median of its samples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import odradek
from odradek.processes import Launcher

FIRST_RECORD = """
import time
began = time.perf_counter()
import odradek
from confluent_kafka import Producer
imported = time.perf_counter()
with odradek.Broker() as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    producer.produce("t", b"v")
    assert producer.flush(30) == 0
    print((time.perf_counter() - imported) * 1000)
"""
FIRST_OF_THREE = """
import time
import odradek
from confluent_kafka import Producer
began = time.perf_counter()
with odradek.Cluster(brokers=3) as cluster:
    cluster.create_topic("t", replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0})
    producer.produce("t", b"v")
    assert producer.flush(30) == 0
    print((time.perf_counter() - began) * 1000)
"""
GROUP = """
import sys, time
import odradek
from confluent_kafka import Consumer
with odradek.Broker() as broker:
    broker.create_topic("t").produce(["v"])
    settings = {**broker.client_config("confluent"), "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    began = time.perf_counter()
    consumer.subscribe(["t"])
    assert consumer.poll(30) is not None
    print((time.perf_counter() - began) * 1000)
    consumer.close()
"""
TRIVIAL = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_trivial(kafka, number):
    assert kafka.topics() == []
"""
TOPICS, PARTITIONS, MEGABYTES = 100, 3, 100


def printed(program: str) -> float:
    """The number that a program prints."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def reset_ms(*, keep_address: bool = False) -> float:
    """A reset with a hundred topics of three partitions, while the next broker waits, as in the fixture."""
    with odradek.Broker(keep_address=keep_address) as broker:
        for number in range(TOPICS):
            broker.create_topic(f"t{number}", PARTITIONS)
        broker.prepare_reset()
        time.sleep(0.1)  # a test would run
        began = time.perf_counter()
        broker.reset()
        return (time.perf_counter() - began) * 1000


def fill(kafka: odradek.Broker | odradek.Cluster) -> None:
    """A hundred topics of three partitions, with a hundred megabytes together."""
    value = os.urandom(MEGABYTES * 1_000_000 // (TOPICS * PARTITIONS))
    for number in range(TOPICS):
        kafka.create_topic(f"t{number}", PARTITIONS)
        for partition in range(PARTITIONS):
            kafka.produce(f"t{number}", value, partition=partition)


def snapshot_ms() -> float:
    """The first snapshot of a broker with data."""
    with odradek.Broker() as broker:
        fill(broker)
        began = time.perf_counter()
        broker.snapshot()
        return (time.perf_counter() - began) * 1000


def restore_ms() -> float:
    """A restore, while the next broker waits."""
    with odradek.Broker() as broker:
        fill(broker)
        snapshot = broker.snapshot()
        broker.produce("t0", b"v")
        time.sleep(0.5)  # a test would run
        began = time.perf_counter()
        broker.restore(snapshot)
        return (time.perf_counter() - began) * 1000


def start_ms() -> float:
    """A broker more in a process that has started one."""
    Launcher.shared()
    began = time.perf_counter()
    with odradek.Broker():
        return (time.perf_counter() - began) * 1000


def starts_s(count: int = 1000, at_once: int = 8) -> float:
    """So many starts in a row, each of which serves; raises OdradekError if one fails."""

    def start(_: int) -> None:
        with odradek.Broker() as broker:
            assert broker.topics() == []

    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(start, range(count)))
    return time.perf_counter() - began


def trivial_tests_s(count: int = 1000) -> float:
    """A session of pytest with so many tests that use a broker each."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "test_trivial.py").write_text(TRIVIAL.format(count=count), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "odradek.pytest_plugin", "-p", "no:cacheprovider", "."]
        began = time.perf_counter()
        subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began


def cluster_ms(*, restores: bool) -> float:
    """A snapshot of three brokers with data, or a restore while the next brokers wait."""
    with odradek.Cluster(brokers=3) as cluster:
        fill(cluster)
        began = time.perf_counter()
        snapshot = cluster.snapshot()
        if restores:
            time.sleep(5)  # a test would run
            began = time.perf_counter()
            cluster.restore(snapshot)
        return (time.perf_counter() - began) * 1000


class Row(NamedTuple):
    """A figure with its limit."""

    title: str
    unit: str
    limit: float
    samples: int
    measure: Callable[[], float]


ROWS = [
    Row("first use to the first acknowledged record", "ms", 300, 5, lambda: printed(FIRST_RECORD)),
    Row("one broker more", "ms", 100, 20, start_ms),
    Row(f"reset with {TOPICS} topics of {PARTITIONS} partitions", "ms", 20, 5, reset_ms),
    Row("the same with keep_address", "ms", 20, 5, lambda: reset_ms(keep_address=True)),
    Row(f"snapshot of as many with {MEGABYTES} MB", "ms", 50, 5, snapshot_ms),
    Row("restore of it", "ms", 50, 5, restore_ms),
    Row("a group of one from its join to its first record", "ms", 100, 5, lambda: printed(GROUP)),
    Row("three brokers to the first acks=all record", "ms", 1000, 5, lambda: printed(FIRST_OF_THREE)),
    Row("snapshot of a cluster of three with as much", "ms", 50, 3, lambda: cluster_ms(restores=False)),
    Row("restore of it", "ms", 50, 3, lambda: cluster_ms(restores=True)),
    Row("1,000 starts, eight at once", "s", 60, 1, starts_s),
    Row("1,000 trivial tests", "s", 30, 1, trivial_tests_s),
]


def main() -> int:
    """Print the rows; returns 1 if a figure is above its limit."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    missed = 0
    for row in ROWS:
        figure = statistics.median(row.measure() for _ in range(row.samples))
        missed += figure > row.limit
        verdict = "ok" if figure <= row.limit else "MISSED"
        print(f"{row.title:55} {figure:8.1f} {row.unit:2}  <= {row.limit:g}  {verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
