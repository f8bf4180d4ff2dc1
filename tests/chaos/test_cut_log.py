"""All brokers of a partition lose power, and one of them the end of its log: acknowledged records survive.

Trap M22 on real processes, files and ZooKeeper. The power cut is a kill -9 of all at once, and a truncated file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import HIGH_WATERMARK_CHECKPOINT
from tests.compat.steady_load import create_topics, read_partition
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

TOPIC, COUNT = "cut", 200
REPLICA = TopicPartition(TOPIC, 0)
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": "200", "min.insync.replicas": "2"}


def data_of(broker: BrokerProcess) -> Path:
    return broker.output.parent / "data"


def checkpointed(broker: BrokerProcess) -> int:
    """The replica's high watermark on the disk; -1 if it has none."""
    lines = (data_of(broker) / HIGH_WATERMARK_CHECKPOINT).read_text().splitlines()[2:]
    found = [int(offset) for topic, partition, offset in map(str.split, lines) if (topic, partition) == (TOPIC, "0")]
    return found[0] if found else -1


def produce(cluster: BrokerCluster) -> None:
    """Send COUNT records, one per batch, and wait until all are acknowledged."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.address, "acks": "all", "linger.ms": 0, "log_level": 3})
    for number in range(COUNT):
        producer.produce(
            TOPIC, b"%d" % number, partition=0, on_delivery=lambda error, _: error and failed.append(error)
        )
        producer.flush()
    assert not failed


def test_the_replica_that_lost_records_does_not_lead(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, settings=SETTINGS) as cluster:
        create_topics(cluster.address, {TOPIC: {}}, replication_factor=3)
        produce(cluster)
        leader = cluster.leader(TOPIC, 0)
        cut = cluster.brokers[leader]
        eventually("the checkpoint", lambda: checkpointed(cut), lambda found: found == COUNT, not_yet=(OSError,))
        for broker in cluster.brokers.values():
            broker.kill()
        (path,) = (data_of(cut) / str(REPLICA)).glob("*.log")
        os.truncate(path, path.stat().st_size // 2)

        cut.start()
        cluster.await_brokers({leader})
        found = eventually(
            "the topic",
            lambda: cluster.metadata(leader).topics[TOPIC].partitions[0],
            not_yet=(KafkaException, KeyError),
        )
        assert (found.leader, sorted(found.isrs)) == (-1, sorted(cluster.brokers))
        for number, broker in cluster.brokers.items():
            if number != leader:
                broker.start()
        cluster.await_full_isr(TOPIC)
        assert [value for _, value in read_partition(cluster.address, TOPIC, 0)] == [
            b"%d" % each for each in range(COUNT)
        ]
        cluster.stop()
        assert len(set(cluster.logs_of(TOPIC, 0).values())) == 1
        assert cluster.traceback() is None
