"""Brokers die and pause while transactions run over partitions on all of them: every transaction counts as a whole,
once and in order, or not at all.

Real processes, whose ZooKeeper is the embedded tree; librdkafka produces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from cluster.coordinators.partitioning import coordinator_partition
from protocol.topic_partition import TRANSACTION_STATE
from tests.compat.steady_load import PARTITIONS, create_topics
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_served_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "accounts"
ID = "transfers"
MORE = 20
PATIENCE_S = 60.0


class Transfers(threading.Thread):
    """Writes the same number to every partition in each transaction, and commits two of three."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        settings: dict[str, str | int] = {
            "bootstrap.servers": address,
            "transactional.id": ID,
            "linger.ms": 0,
            "socket.timeout.ms": 3000,  # a coordinator that is paused is given up well before the transaction is
        }
        self._producer = Producer(settings)
        self._stopping = threading.Event()
        self.committed: list[int] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._retry(lambda: self._producer.init_transactions(PATIENCE_S))
            number = 0
            while not self._stopping.is_set():
                number += 1
                if self._transfer(number, commit=number % 3 != 0):
                    self.committed.append(number)
        except BaseException as error:  # noqa: BLE001  the test is to see it
            self.failure = error

    def _transfer(self, number: int, *, commit: bool) -> bool:
        """One transaction; whether it is committed."""
        self._producer.begin_transaction()
        for partition in range(PARTITIONS):
            self._producer.produce(TOPIC, str(number).encode(), partition=partition)
        try:
            if commit:
                self._retry(lambda: self._producer.commit_transaction(PATIENCE_S))
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._retry(lambda: self._producer.abort_transaction(PATIENCE_S))
        return False

    def _retry(self, call: Callable[[], None]) -> None:
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}, new_server=new_served_tree) as running:
        create_topics(running.address, {TOPIC: {}}, replication_factor=3)
        yield running


def numbers_in(address: str, partition: int, *, committed: bool = True) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    numbers = []
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error, value = message.error(), message.value()
            if error is None and value is not None:
                numbers.append(int(value))
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                return numbers
    finally:
        consumer.close()


def goes_on(transfers: Transfers) -> None:
    goal = len(transfers.committed) + MORE
    eventually(
        "transactions",
        lambda: (transfers.failure, goal - len(transfers.committed)),
        lambda state: state[0] is not None or state[1] <= 0,
    )
    assert transfers.failure is None, transfers.failure


def test_brokers_die_and_pause_amid_transactions(cluster: BrokerCluster) -> None:
    transfers = Transfers(cluster.address)
    transfers.start()
    try:
        goes_on(transfers)
        coordinator = cluster.leader(TRANSACTION_STATE, coordinator_partition(ID, 4))
        cluster.brokers[coordinator].kill()
        goes_on(transfers)
        cluster.brokers[coordinator].start()
        cluster.await_full_isr(TRANSACTION_STATE)
        cluster.await_full_isr(TOPIC)
        for number, broker in cluster.brokers.items():
            with cluster.paused(number):
                cluster.await_brokers(set(cluster.brokers) - {number})
                goes_on(transfers)
            cluster.await_brokers(set(cluster.brokers))
            cluster.await_full_isr(TOPIC)
            broker.kill()
            goes_on(transfers)
            broker.start()
            cluster.await_full_isr(TOPIC)
    finally:
        transfers.stop()
    for partition in range(PARTITIONS):
        eventually(
            f"all committed numbers in partition {partition}",
            lambda partition=partition: numbers_in(cluster.address, partition),  # type: ignore[misc]
            lambda seen: seen == transfers.committed,
        )
    assert cluster.traceback() is None
