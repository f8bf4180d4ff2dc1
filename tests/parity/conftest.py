"""One Apache Kafka and one Odradek for all scenarios, with the same configuration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.parity.subject import Target

SETTINGS = {
    "group.max.size": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # The records of the scenarios are years old.
    "log.retention.ms": "-1",
    # Enforce the limits of topics at once.
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    # Empty groups must not expire during a scenario.
    "offsets.retention.check.interval.ms": "86400000",
}


@pytest.fixture(scope="package")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Apache Kafka, running."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"), SETTINGS)
    kafka.start()
    yield Target(kafka.address, str(kafka.data_directory))
    kafka.stop()


@pytest.fixture(scope="package")
def odradek(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """This broker, running."""
    directory = tmp_path_factory.mktemp("odradek")
    broker = BrokerProcess(directory, SETTINGS)
    broker.start()
    yield Target(broker.address, str(directory / "data"))
    broker.stop()
