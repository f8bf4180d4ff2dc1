"""Kafka's own tool for transactions describes them, and aborts one in a partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.broker_process import BrokerProcess
from tests.tools.tool_pair import Runner, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path)
    running.start()
    admin = AdminClient({"bootstrap.servers": running.address})
    admin.create_topics([NewTopic("t", 1)])["t"].result()
    yield running
    running.stop()


def test_a_transaction_from_its_first_record_to_its_end(broker: BrokerProcess, kafkas: Runner) -> None:
    def told(*arguments: str) -> list[dict[str, str]]:
        """The rows of a table, by its headers."""
        head, *rows = lines_of(kafkas.run("transactions", ["--bootstrap-server", broker.address, *arguments]))
        return [dict(zip(head.split(), row.split(), strict=False)) for row in rows]

    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "payments"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", b"x")
    assert producer.flush(60) == 0
    (listed,) = told("list")
    assert (listed["TransactionalId"], listed["TransactionState"]) == ("payments", "Ongoing")
    (described,) = told("describe", "--transactional-id", "payments")
    assert described["ProducerEpoch"] == "0"
    assert "t-0" in described.values()
    at = ["--topic", "t", "--partition", "0"]
    (writer,) = told("describe-producers", *at)
    assert writer["CurrentTransactionStartOffset"] == "0"
    assert told("find-hanging", "--broker-id", "0", "--max-transaction-timeout", "15") == []
    assert (
        lines_of(
            kafkas.run("transactions", ["--bootstrap-server", broker.address, "abort", *at, "--start-offset", "0"])
        )
        == []
    )
    (writer,) = told("describe-producers", *at)
    assert writer["CurrentTransactionStartOffset"] == "None"
    producer.abort_transaction()
    (listed,) = told("list")
    assert listed["TransactionState"] == "CompleteAbort"
