"""Transactions of real clients: their visibility, offsets committed with the records, zombies, and a broker that is
killed in each step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from protocol.errors import ErrorCode
from tests.compat.conftest import NewDriver
from tests.compat.driver_process import CLIENTS, ClientError, Driver
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually

PATIENCE_S = 60.0


class Producer:
    """A transactional producer in a driver. It always has an open transaction."""

    def __init__(self, driver: Driver, transactional_id: str) -> None:
        self._driver = driver
        self._id = transactional_id
        driver.ask("begin", transactional_id=transactional_id)

    def write(self, topic: str, *values: str) -> None:
        self._driver.ask("write", transactional_id=self._id, topic=topic, values=list(values))

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        self._driver.ask("send_offset", transactional_id=self._id, group=group, topic=topic, offset=offset)

    def end(self, *, commit: bool = True, again: bool = False) -> None:
        self._driver.ask("end", transactional_id=self._id, commit=commit, again=again)


def values_in(address: str, topic: str, *, committed: bool = True) -> list[str]:
    """All values of partition 0, read with that isolation level."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    values: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"the end of {topic} does not come"
            error, value = message.error(), message.value()
            if error is None:
                assert value is not None
                values.append(value.decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                raise AssertionError(error)
    finally:
        consumer.close()


def committed_offset(address: str, group: str, topic: str) -> int:
    """The committed offset of partition 0, once no open transaction could change it."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_others_see_what_was_committed(driver: Driver, broker: BrokerProcess, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    producer = Producer(driver, topic)
    producer.write(topic, "1", "2")
    assert values_in(broker.address, topic) == []
    producer.end(again=True)
    producer.write(topic, "aborted")
    producer.end(commit=False, again=True)
    producer.write(topic, "3")
    producer.end()
    eventually("the markers", lambda: values_in(broker.address, topic), lambda seen: seen == ["1", "2", "3"])
    assert values_in(broker.address, topic, committed=False) == ["1", "2", "aborted", "3"]


@pytest.mark.parametrize("client", CLIENTS)
def test_offsets_are_committed_with_the_records(driver: Driver, broker: BrokerProcess, topic: str) -> None:
    source = f"source-of-{topic}"
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    driver.admin("create_topic", topic=source, partitions=1, configs={})
    producer = Producer(driver, topic)
    producer.write(topic, "out 1")
    producer.send_offset(topic, source, 7)
    producer.end(again=True)
    assert committed_offset(broker.address, topic, source) == 7
    producer.write(topic, "out 2")
    producer.send_offset(topic, source, 9)
    producer.end(commit=False)
    assert committed_offset(broker.address, topic, source) == 7
    assert values_in(broker.address, topic) == ["out 1"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_zombie_is_fenced(
    driver: Driver, new_driver: NewDriver, client: str, broker: BrokerProcess, topic: str
) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    zombie = Producer(new_driver(client), topic)
    zombie.write(topic, "of the zombie")
    successor = Producer(driver, topic)
    successor.write(topic, "new")
    successor.end()
    with pytest.raises(ClientError) as raised:
        zombie.end()
    assert raised.value.error in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, None}
    assert raised.value.error is not None or "enced" in str(raised.value)
    assert values_in(broker.address, topic) == ["new"]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "broker", {"num.partitions": "1"})
    broker.start()
    yield broker
    assert broker.stop() == 0
    said = broker.output.read_text()
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]


@pytest.mark.parametrize("step", ["begun", "written", "offsets sent", "ended"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_broker_that_is_killed_amid_a_transaction(
    own_broker: BrokerProcess, new_driver: NewDriver, commit: bool, step: str
) -> None:
    """Everything answered before the kill still holds, and the producer continues as if nothing had happened."""
    broker = own_broker
    driver = new_driver("librdkafka", broker.address)
    for topic in ("t", "source"):
        driver.admin("create_topic", topic=topic, partitions=1, configs={})
    producer = Producer(driver, "id")

    def restart_after(done: str) -> None:
        if step == done:
            broker.kill()
            broker.start()

    restart_after("begun")
    producer.write("t", "1", "2")
    restart_after("written")
    producer.send_offset("g", "source", 5)
    restart_after("offsets sent")
    producer.end(commit=commit, again=True)
    restart_after("ended")
    expected = ["1", "2"] if commit else []
    eventually("the markers", lambda: values_in(broker.address, "t"), lambda seen: seen == expected)
    assert committed_offset(broker.address, "g", "source") == (5 if commit else -1001)
    producer.write("t", "3")
    producer.end()
    eventually("the next one", lambda: values_in(broker.address, "t"), lambda seen: seen == [*expected, "3"])


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.01])
def test_a_broker_that_is_killed_while_a_transaction_ends(
    own_broker: BrokerProcess, new_driver: NewDriver, delay_s: float
) -> None:
    broker = own_broker
    driver = new_driver("librdkafka", broker.address)
    driver.admin("create_topic", topic="t", partitions=1, configs={})
    producer = Producer(driver, "id")
    producer.write("t", "1", "2")
    ending = threading.Thread(target=producer.end)
    ending.start()
    ending.join(delay_s)
    broker.kill()
    broker.start()
    ending.join(PATIENCE_S)
    assert not ending.is_alive()
    eventually("the markers", lambda: values_in(broker.address, "t"), lambda seen: seen == ["1", "2"])


def test_a_producer_that_dies_is_aborted_in_time(own_broker: BrokerProcess, new_driver: NewDriver) -> None:
    broker = own_broker
    dying = new_driver("librdkafka", broker.address)
    dying.admin("create_topic", topic="t", partitions=1, configs={})
    Producer(dying, "id").write("t", "of the dead")
    dying.kill()
    successor = Producer(new_driver("librdkafka", broker.address), "id")
    successor.write("t", "new")
    successor.end()
    eventually("the markers", lambda: values_in(broker.address, "t"), lambda seen: seen == ["new"])
