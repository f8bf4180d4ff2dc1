"""Produced records are read back unchanged, whatever the codec and the acknowledgements."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.records.batch import Record as WireRecord
from protocol.records.batch import build_batch, read_batches
from protocol.records.compression import CompressionType
from tests.compat.driver_process import (
    CLIENTS,
    T0,
    ClientError,
    Driver,
    Record,
)
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient

CODECS = {
    "none": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}
MESSAGE_MAX_BYTES = 1_048_588

pytestmark = pytest.mark.parametrize("client", CLIENTS)


WANT_KEY_OR_VALUE = {"kafka-python", "aiokafka"}
"""Clients that refuse a record without key and value."""


def sample(client: str) -> list[Record]:
    """Records of every shape that the client supports, repetitive enough that no codec is skipped for lack of gain."""
    shapes = [
        Record(b"value", b"key"),
        Record(b"", b""),
        Record(None, b"a tombstone's key"),
        Record(b"no key", None),
        Record(None, None),
        Record("naïve ☃".encode(), b"\x00\xff", (("first", b"1"), ("first", b"again"), ("ünïcode", b"\x00"))),
        Record(b"header values", b"key", (("empty", b""), ("", b"nameless"))),
    ]
    if client in WANT_KEY_OR_VALUE:
        shapes.remove(Record(None, None))
    shapes += [Record(b"a value that repeats itself " * 20, b"key %d" % number) for number in range(40)]
    return [record._replace(timestamp_ms=T0 + number * 10) for number, record in enumerate(shapes)]


def stored_codecs(broker: BrokerProcess, topic: str) -> set[CompressionType]:
    """The codecs of the batches of partition 0."""
    host, _, port = broker.address.partition(":")
    with WireClient(host, int(port)) as connection:
        partition = FetchRequest.FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=10_000_000, current_leader_epoch=-1
        )
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
        )
        response = connection.ask(request, 11)
    records = response.responses[0].partitions[0].records
    return {batch.compression for batch in read_batches(memoryview(records))}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_round_trip(driver: Driver, broker: BrokerProcess, topic: str, codec: str, acks: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    records = sample(driver.client)
    answers = driver.produce(topic, records, codec, acks)
    if acks != "0":
        assert answers == [[0, offset] for offset in range(len(records))]
    position, consumed = driver.consume(topic, len(records))
    assert position == 0
    assert consumed == [record._replace(offset=offset) for offset, record in enumerate(records)]
    # librdkafka sends a small batch uncompressed if compression gains nothing.
    stored = stored_codecs(broker, topic)
    assert CODECS[codec] in stored
    assert stored <= {CODECS[codec], CompressionType.NONE}


@pytest.mark.parametrize("codec", CODECS)
def test_the_broker_compresses(driver: Driver, broker: BrokerProcess, topic: str, codec: str) -> None:
    name = "uncompressed" if codec == "none" else codec
    driver.admin("create_topic", topic=topic, partitions=1, configs={"compression.type": name})
    records = [Record(b"%05d" % number * 40, timestamp_ms=T0) for number in range(1000)]
    driver.produce(topic, records, "gzip" if codec == "none" else "none")
    _, consumed = driver.consume(topic, len(records))
    assert [record.value for record in consumed] == [record.value for record in records]
    assert stored_codecs(broker, topic) == {CODECS[codec]}


def test_partitions_are_the_client_s_choice(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=3, configs={})
    records = [Record(b"%d" % number, partition=number % 3) for number in range(30)]
    assert sorted(driver.produce(topic, records)) == [[p, offset] for p in range(3) for offset in range(10)]
    for partition in range(3):
        _, consumed = driver.consume(topic, 10, partition=partition)
        assert [record.value for record in consumed] == [b"%d" % (3 * n + partition) for n in range(10)]


def value_for_batch_of(size: int) -> bytes:
    """The value of a record that alone fills a batch of `size` bytes."""
    value = bytes(size - 100)
    batch = build_batch([WireRecord(offset=0, timestamp=T0, key=None, value=value, headers=[])])
    return bytes(len(value) + size - len(batch))


def test_a_batch_of_message_max_bytes(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    largest = Record(value_for_batch_of(MESSAGE_MAX_BYTES), timestamp_ms=T0)
    assert driver.produce(topic, [largest]) == [[0, 0]]
    too_large = Record(value_for_batch_of(MESSAGE_MAX_BYTES + 1), timestamp_ms=T0)
    with pytest.raises(ClientError) as raised:
        driver.produce(topic, [too_large])
    assert raised.value.error is ErrorCode.MESSAGE_TOO_LARGE
    # It was not written at all, and the partition still works.
    assert driver.produce(topic, [Record(b"after", timestamp_ms=T0)]) == [[0, 1]]
    _, consumed = driver.consume(topic, 2)
    assert [record.value for record in consumed] == [largest.value, b"after"]


def test_a_topic_has_a_limit_of_its_own(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={"max.message.bytes": "1000"})
    driver.produce(topic, [Record(value_for_batch_of(1000), timestamp_ms=T0)])
    with pytest.raises(ClientError) as raised:
        driver.produce(topic, [Record(value_for_batch_of(1001), timestamp_ms=T0)])
    assert raised.value.error is ErrorCode.MESSAGE_TOO_LARGE


def test_seeking(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    records = [Record(b"%d" % number, timestamp_ms=T0 + number * 1000) for number in range(100)]
    # In two batches, one of them compressed, so that the record must be found inside of one.
    driver.produce(topic, records[:50], "gzip")
    driver.produce(topic, records[50:])
    assert driver.consume(topic, 0)[0] == 0
    assert driver.consume(topic, 0, "latest")[0] == 100
    for at, timestamp_ms in ((0, T0), (7, T0 + 6001), (49, T0 + 49_000), (50, T0 + 49_500), (99, T0 + 98_001)):
        position, consumed = driver.consume(topic, 1, "timestamp", timestamp_ms=timestamp_ms)
        assert (position, consumed[0].value) == (at, b"%d" % at)
    # Later than every record: the end.
    assert driver.consume(topic, 0, "timestamp", timestamp_ms=T0 + 99_001)[0] == 100
    assert driver.consume(topic, 2, 42)[1] == [records[42]._replace(offset=42), records[43]._replace(offset=43)]


def test_producing_creates_the_topic(driver: Driver, topic: str) -> None:
    assert driver.produce(topic, [Record(b"first")]) == [[0, 0]]
    assert driver.consume(topic, 1)[1][0].value == b"first"


def test_subscribing_creates_the_topic(driver: Driver, topic: str) -> None:
    if driver.client == "librdkafka":
        pytest.skip("librdkafka 2.16 does not ask for creation when it joins a group (nor does Kafka create then)")
    member = driver.join(topic, f"group-of-{topic}", topic)
    eventually("a partition", member.state, lambda state: state.assignment == [f"{topic}-0"])
    member.leave()
