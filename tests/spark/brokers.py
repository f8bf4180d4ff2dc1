"""The brokers of the end-to-end tests: Odradek, or Apache Kafka 3.9.1 with `ODRADEK_SPARK_BROKER=apache-kafka`.

Tests use the fixture `bootstrap`, or `broker` if they kill it, and unique topic names, since others may exist.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.kit.due import turn

Broker = BrokerProcess | ApacheKafka
ODRADEK = "odradek"
APACHE_KAFKA = "apache-kafka"
KINDS: dict[str, type[Broker]] = {ODRADEK: BrokerProcess, APACHE_KAFKA: ApacheKafka}
CHOSEN = os.environ.get("ODRADEK_SPARK_BROKER", ODRADEK)
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def on_apache_kafka_too(number: int) -> pytest.MarkDecorator:
    """For three tests, numbered from 0, that `bin/test --all` runs on Odradek, and in turn on Apache Kafka.

    Some of the other tests take minutes, so they run on Apache Kafka only on request.
    """
    kafka = pytest.param(APACHE_KAFKA, marks=[pytest.mark.slow, pytest.mark.java, turn(number, of=3)])
    return pytest.mark.parametrize("broker_kind", [ODRADEK, kafka] if CHOSEN == ODRADEK else [CHOSEN], indirect=True)


class Brokers:
    """Brokers that tests share: each is started on request, and restarted if a test has left it dead."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[tuple[str, str], Broker] = {}

    def running(self, kind: str, name: str) -> Broker:
        """The broker `name` of this kind; each is a separate cluster."""
        assert kind in KINDS, f"ODRADEK_SPARK_BROKER={kind}: must be one of {', '.join(KINDS)}"
        if (kind, name) not in self._made:
            self._made[kind, name] = KINDS[kind](self._directory / f"{kind}-{name}", SETTINGS)
        broker = self._made[kind, name]
        if not broker.is_running:
            broker.start()
        return broker

    def stop(self) -> None:
        """Stop all."""
        for broker in self._made.values():
            broker.stop()
