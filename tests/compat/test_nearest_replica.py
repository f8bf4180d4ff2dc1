"""librdkafka on a cluster of processes: a consumer with a rack reads from the replica in it (KIP-392), and a throttled
replica moves no faster than allowed (KIP-73).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from config.broker_keys import FOLLOWER_RATE, LEADER_RATE
from config.topic_config import FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS
from tests.compat.steady_load import IMPATIENT
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import free_port
from tests.kit.controller.reassigning import await_replicas, reassign
from tests.kit.scraping import scrape
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LEADER, NEAR, FAR = 1, 2, 3
RACK = "b"
VALUE_BYTES = 1000
MOVED_RECORDS = 4_000
BYTES_PER_SECOND = 1_000_000
NOMINAL_S = MOVED_RECORDS * VALUE_BYTES / BYTES_PER_SECOND


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """The port of the broker in the consumers' rack."""
    return free_port()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[BrokerCluster]:
    own_settings = {number: {"broker.rack": rack} for number, rack in ((LEADER, "a"), (NEAR, RACK), (FAR, "c"))}
    own_settings[NEAR]["metrics.listener"] = f"127.0.0.1:{metrics_port}"
    settings = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "replica.lag.time.max.ms": "1500",
        "auto.leader.rebalance.enable": "false",
    }
    with BrokerCluster(tmp_path_factory.mktemp("cluster"), settings=settings, own_settings=own_settings) as running:
        yield running
        assert running.traceback() is None


def create(cluster: BrokerCluster, topic: str, *replicas: int) -> None:
    """A topic of one partition."""
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[list(replicas)])])[topic].result(60)
    cluster.await_full_isr(topic)


def produce(cluster: BrokerCluster, topic: str, numbers: range, value: bytes = b"") -> None:
    """Produce records with these numbers as keys, acknowledged by all in-sync replicas."""
    producer = Producer({"bootstrap.servers": cluster.address, "enable.idempotence": True, "linger.ms": 5, **IMPATIENT})
    for number in numbers:
        producer.produce(topic, value, key=b"%d" % number)
    assert producer.flush(60) == 0


class Reader(threading.Thread):
    """A consumer in the rack, which reads a topic from its start. `keys` are the keys read, `source` is the broker that
    it fetches from.
    """

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self.keys: list[int] = []
        self.source = -1
        self._topic = topic
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.address,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "client.rack": RACK,
                "statistics.interval.ms": 100,
                "stats_cb": self._heed,
                **IMPATIENT,
            }
        )
        # Without a group: a member that a busy machine throws out begins again at its last commit.
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def _heed(self, statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(self._topic, {}).get("partitions", {})
        self.source = partitions.get("0", {}).get("broker", -1)

    def run(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            key = message.key()
            if message.error() is None and key is not None:
                self.keys.append(int(key))
        self._consumer.close()

    def close(self) -> None:
        """End it."""
        self._ending.set()
        self.join(60)


@contextlib.contextmanager
def reading(cluster: BrokerCluster, topic: str) -> Iterator[Reader]:
    """Run a consumer for the duration of a block."""
    reader = Reader(cluster, topic)
    reader.start()
    try:
        yield reader
    finally:
        reader.close()


def await_source(reader: Reader, wanted: int) -> None:
    eventually("the broker that is asked", lambda: reader.source, lambda found: found == wanted)


def await_keys(reader: Reader, count: int) -> None:
    """Wait for this many records: the numbers from 0 on, in order, each once."""
    eventually("the records", lambda: len(reader.keys), lambda found: found >= count)
    assert reader.keys == list(range(count))


def test_a_consumer_reads_in_its_rack_and_goes_on_without_that_replica(
    cluster: BrokerCluster, metrics_port: int
) -> None:
    topic = "near"
    create(cluster, topic, LEADER, NEAR, FAR)
    with reading(cluster, topic) as reader:
        produce(cluster, topic, range(200), b"v" * VALUE_BYTES)
        await_keys(reader, 200)
        await_source(reader, NEAR)
        produce(cluster, topic, range(200, 400), b"v" * VALUE_BYTES)
        await_keys(reader, 400)
        # It leads nothing and no follower fetches from it, so all its traffic went to the consumer.
        sent = scrape(metrics_port)["kafka_server_brokertopicmetrics_bytesout_total", (("topic", topic),)]
        assert sent >= 200 * VALUE_BYTES

        with cluster.paused(NEAR):
            eventually("NEAR is not in sync", lambda: NEAR not in cluster.partition(topic, 0).isrs)
            produce(cluster, topic, range(400, 600))
            await_keys(reader, 600)
        cluster.await_full_isr(topic)

        cluster.brokers[NEAR].kill()
        produce(cluster, topic, range(600, 800))
        await_keys(reader, 800)
        cluster.brokers[NEAR].start()
        cluster.await_full_isr(topic)
        produce(cluster, topic, range(800, 1000))
        await_keys(reader, 1000)
        await_source(reader, NEAR)


def throttle(cluster: BrokerCluster, topic: str) -> None:
    """Throttle a move from LEADER to FAR like kafka-reassign-partitions."""
    rate = str(BYTES_PER_SECOND)
    configure(
        cluster, "topic", topic, {LEADER_THROTTLED_REPLICAS: f"0:{LEADER}", FOLLOWER_THROTTLED_REPLICAS: f"0:{FAR}"}
    )
    configure(cluster, "broker", str(LEADER), {LEADER_RATE: rate})
    configure(cluster, "broker", str(FAR), {FOLLOWER_RATE: rate})


def configure(cluster: BrokerCluster, kind: str, name: str, values: dict[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.incremental_alter_configs([resource])[resource].result(60)


def move(cluster: BrokerCluster, topic: str) -> float:
    """Move the topic from LEADER to FAR; returns the duration in seconds."""
    wanted = {(topic, 0): [FAR]}
    began_s = time.monotonic()
    reassign(cluster.address, wanted)
    await_replicas(cluster.brokers[FAR].address, wanted)
    return time.monotonic() - began_s


def test_a_throttled_replica_moves_as_fast_as_it_may(cluster: BrokerCluster) -> None:
    for topic in ("free", "throttled"):
        create(cluster, topic, LEADER)
        produce(cluster, topic, range(MOVED_RECORDS), b"v" * VALUE_BYTES)
    free_s = move(cluster, "free")
    throttle(cluster, "throttled")
    throttled_s = move(cluster, "throttled")
    assert NOMINAL_S / 2 <= throttled_s <= NOMINAL_S * 2
    assert free_s < throttled_s / 2
