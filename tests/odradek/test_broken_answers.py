"""Answers that arrive half or twice, records that are damaged or doubled, and disks that fail, met by real clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Partition

import odradek
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest
from tests.kit.waiting import PATIENCE_S, eventually
from tests.kit.wire_client import WireClient


def produced(client: Producer, topic: str, value: bytes, key: bytes | None = None) -> str | None:
    """Produce one record; returns the name of the error."""
    outcomes: list[str | None] = []
    client.produce(topic, value, key, on_delivery=lambda error, _: outcomes.append(error and error.name()))
    assert client.flush(60) == 0
    return outcomes[0]


def producer(broker: odradek.Broker, **settings: object) -> Producer:
    return Producer({**broker.client_config("confluent"), "linger.ms": 0, "retry.backoff.ms": 10, **settings})


def next_message(broker: odradek.Broker, topic: str, offset: int = 0) -> Message:
    """The first message from an offset on, read by a consumer of its own."""
    client = Consumer({**broker.client_config("confluent"), "group.id": "reader"})
    client.assign([Partition(topic, 0, offset)])
    message = client.poll(60)
    client.close()
    assert message is not None
    assert message.error() is None, message.error()
    return message


def test_half_an_answer_makes_an_idempotent_producer_send_again(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    fault = broker.send_half("Produce", topic="orders")
    assert produced(producer(broker, **{"enable.idempotence": True}), "orders", b"A1") is None
    assert fault.hits == 1
    assert [each.value for each in broker.records("orders")] == [b"A1"]
    assert len(broker.requests(api="Produce")) == 2


def test_an_answer_arrives_twice(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    fault = broker.answer_twice("Metadata")
    wire = WireClient("127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2]))
    wire.send(MetadataRequest(topics=None), 8)
    wire.send(FindCoordinatorRequest(key="billing"), 2)
    first, again, next_one = (wire.receive_frame() for _ in range(3))
    wire.close()
    assert first == again != next_one
    assert fault.hits == 1


def test_a_batch_without_idempotence_is_appended_twice(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    fault = broker.double_batches("orders")
    client = producer(broker, **{"enable.idempotence": True, "compression.type": "gzip"})
    assert [produced(client, "orders", value, b"k") for value in (b"A1", b"A2")] == [None, None]
    assert [(each.key, each.value) for each in broker.records("orders")] == [(b"k", b"A1")] * 2 + [(b"k", b"A2")]
    assert fault.hits == 1


def test_a_batch_of_a_transaction_is_not_doubled(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    fault = broker.double_batches("orders", optional=True)
    client = producer(broker, **{"transactional.id": "shop"})
    client.init_transactions(60)
    client.begin_transaction()
    client.produce("orders", b"A1")
    client.commit_transaction(60)
    records = eventually("the transaction is visible", lambda: broker.records("orders"), bool)
    assert [each.value for each in records] == [b"A1"]
    assert fault.hits == 0


def test_a_flipped_byte_fails_the_checksum(broker: odradek.Broker) -> None:
    broker.create_topic("orders").produce([b"A1"])
    fault = broker.corrupt("orders", partition=0)

    async def consume() -> None:
        consumer = AIOKafkaConsumer(**broker.client_config("aiokafka"), check_crcs=True, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([TopicPartition("orders", 0)])
            consumer.seek(TopicPartition("orders", 0), 0)
            await asyncio.wait_for(consumer.getone(), 60)
        finally:
            await consumer.stop()

    with pytest.raises(CorruptRecordException):
        asyncio.run(consume())
    assert fault.hits == 1
    assert next_message(broker, "orders").value() == b"A1"


def test_a_schema_id_becomes_unknown(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    client = producer(broker, **{"compression.type": "lz4"})
    framed = b"\0" + (7).to_bytes(4, "big") + b"A1"
    client.produce("orders", framed, b"k", timestamp=1000, headers=[("h", b"1")])
    client.produce("orders", b"plain")
    assert client.flush(60) == 0
    fault = broker.unknown_schema("orders")
    message = next_message(broker, "orders")
    assert message.value() == b"\0\x7f\xff\xff\xffA1"
    assert (message.key(), message.timestamp()[1], message.headers()) == (b"k", 1000, [("h", b"1")])
    assert fault.hits == 1
    assert next_message(broker, "orders").value() == framed
    assert next_message(broker, "orders", 1).value() == b"plain"


def test_a_fetch_without_records_is_no_hit(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    broker.corrupt("orders")
    client = Consumer({**broker.client_config("confluent"), "group.id": "reader", "fetch.wait.max.ms": 10})
    client.assign([Partition("orders", 0, 0)])
    client.poll(0.2)
    client.close()
    with pytest.raises(odradek.ExpectationError, match="corrupt"):
        broker.check_faults()


def test_records_of_a_delayed_produce_are_those_that_were_sent(broker: odradek.Broker) -> None:
    """The memory of its frame is used again for other requests meanwhile."""
    broker.create_topic("orders")
    broker.create_topic("noise")
    fault = broker.delay("Produce", 0.5, topic="orders")
    late, noise = producer(broker), producer(broker)
    late.produce("orders", b"A" * 1000)
    late.poll(0)
    while not fault.hits:
        assert produced(noise, "noise", b"B" * 1000) is None
    for _ in range(20):
        assert produced(noise, "noise", b"B" * 1000) is None
    assert late.flush(60) == 0
    assert [each.value for each in broker.records("orders")] == [b"A" * 1000]


def test_a_full_disk_refuses_records_until_it_has_room(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    broker.disk.fill()
    client = producer(broker)
    outcomes: list[object] = []
    client.produce("orders", b"A1", on_delivery=lambda error, _: outcomes.append(error))

    def refused() -> list[str]:
        return [error for each in broker.requests(api="Produce") for error in each["errors"]]

    assert set(eventually("a Produce is refused", refused, bool)) == {"KAFKA_STORAGE_ERROR"}
    assert broker.records("orders") == []
    broker.disk.heal()
    assert client.flush(60) == 0
    assert outcomes == [None]
    assert [each.value for each in broker.records("orders")] == [b"A1"]


def test_a_slow_disk_delays_what_is_flushed(broker: odradek.Broker) -> None:
    broker.create_topic("orders", config={"flush.messages": 1})
    broker.disk.slow(0.3)
    assert broker.disk.described() == {"full": False, "delay_ms": 300, "failing_fsyncs": 0}
    assert produced(producer(broker), "orders", b"A1") is None
    assert broker.requests(api="Produce")[0]["duration_ms"] >= 300


def test_a_failed_fsync_takes_a_directory_offline(tmp_path: Path) -> None:
    directories = ",".join(str(tmp_path / name) for name in "ab")
    with odradek.Broker(config={"log.dirs": directories}) as broker:
        broker.create_topic("orders", config={"flush.messages": 1})
        broker.disk.fail_fsync()
        client = producer(broker, **{"message.timeout.ms": 500})
        assert produced(client, "orders", b"A1") is not None
        assert any("KAFKA_STORAGE_ERROR" in each["errors"] for each in broker.requests(api="Produce"))
        broker.restart()
        assert produced(producer(broker), "orders", b"A2") is None
        assert broker.records("orders")[-1].value == b"A2"


def test_a_connection_limit(broker: odradek.Broker) -> None:
    address = ("127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2]))
    broker.alter_config({"max.connections.per.ip": 1})
    with WireClient(*address), WireClient(*address) as refused:
        assert refused.is_closed(PATIENCE_S)
    broker.alter_config({"max.connections.per.ip": None})
    with WireClient(*address), WireClient(*address) as served:
        served.ask(MetadataRequest(topics=[]), 8)


def test_a_topic_is_configured(broker: odradek.Broker) -> None:
    topic = broker.create_topic("orders")
    broker.alter_config({"max.message.bytes": 100}, topic="orders")
    with pytest.raises(odradek.KafkaError, match="MESSAGE_TOO_LARGE"):
        topic.produce([b"A" * 1000])
    broker.alter_config({"max.message.bytes": None}, topic="orders")
    assert topic.produce([b"A" * 1000]) == 0
    with pytest.raises(odradek.KafkaError, match="INVALID_CONFIG"):
        broker.alter_config({"retention.ms": "soon"}, topic="orders")
    with pytest.raises(odradek.KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        broker.alter_config({"retention.ms": 1}, topic="invoices")


def test_mistakes_name_the_field(broker: odradek.Broker) -> None:
    with pytest.raises(odradek.OdradekError, match="the action double is one of Produce, not of Fetch"):
        broker._fault("Fetch", "double")
    with pytest.raises(odradek.OdradekError, match="delay_ms"):
        broker.disk.slow(-1)
    with pytest.raises(odradek.OdradekError, match="failing_fsyncs"):
        broker.disk.fail_fsync(-1)
