"""Produce: acknowledgements, valid and invalid batches, idempotent producers."""

from __future__ import annotations

import struct

from protocol.messages.produce import ProduceRequest
from protocol.records.batch import Record, build_batch
from protocol.records.compression import CompressionType
from tests.parity.subject import PATIENCE_S, TIMESTAMP, Subject, batch, produce_request, scenario

CRC_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, COUNT_AT, MAGIC_AT, LENGTH_AT = 17, 21, 23, 57, 16, 8


def with_crc(data: bytearray) -> bytes:
    """`data` with a corrected checksum after a change."""
    from crc32c import crc32c

    struct.pack_into(">I", data, CRC_AT, crc32c(memoryview(data)[ATTRIBUTES_AT:]))
    return bytes(data)


def changed(offset: int, layout: str, value: int, *, fix_crc: bool = True) -> bytes:
    """A batch of one record with one header field overwritten."""
    data = bytearray(batch(b"v"))
    struct.pack_into(layout, data, offset, value)
    return with_crc(data) if fix_crc else bytes(data)


@scenario
def one_batch_in_every_version(b: Subject) -> None:
    topic = b.topic()
    for version in range(3, 12):
        b.ask(produce_request(topic, batch(b"a", b"b")), version)


@scenario
def versions_before_3(b: Subject) -> None:
    topic = b.topic()
    for version in range(3):
        b.ask(produce_request(topic, batch(b"a")), version)


@scenario
def leader_only(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"a"), acks=1), 11)


@scenario
def no_acknowledgement(b: Subject) -> None:
    topic = b.topic()
    b.connection.send(produce_request(topic, batch(b"a"), acks=0), 11)
    # It gets no answer, so the next answer is that of the next request.
    b.ask(produce_request(topic, batch(b"b"), acks=1), 11)


@scenario
def no_acknowledgement_and_an_error(b: Subject) -> None:
    with b.another() as connection:
        connection.send(produce_request(b.name("missing"), batch(b"a"), acks=0), 11)
        b.note("closed", connection.is_closed(PATIENCE_S))


@scenario
def bad_acks(b: Subject) -> None:
    topic = b.topic()
    for acks in (2, -2, 7):
        b.ask(produce_request(topic, batch(b"a"), acks=acks), 11)


@scenario
def missing_topic(b: Subject) -> None:
    b.ask(produce_request(b.name("missing"), batch(b"a")), 11)
    b.ask(produce_request(b.name("missing"), batch(b"a")), 3)


@scenario
def missing_partition(b: Subject) -> None:
    topic = b.topic()
    for partition in (1, -1):
        b.ask(produce_request(topic, batch(b"a"), partition=partition), 11)


@scenario
def several_topics_and_partitions(b: Subject) -> None:
    topics = [b.topic("a", 2), b.topic("b"), b.name("missing")]
    data = [
        ProduceRequest.TopicProduceData(
            name=topic,
            partition_data=[
                ProduceRequest.PartitionProduceData(index=index, records=batch(b"v%d" % index)) for index in (0, 1)
            ],
        )
        for topic in topics
    ]
    b.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 11)


@scenario
def no_topics(b: Subject) -> None:
    b.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[]), 11)


@scenario
def no_partitions(b: Subject) -> None:
    data = [ProduceRequest.TopicProduceData(name=b.topic(), partition_data=[])]
    b.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 11)


@scenario
def same_partition_twice(b: Subject) -> None:
    topic = b.topic()
    twice = [ProduceRequest.PartitionProduceData(index=0, records=batch(b"v%d" % index)) for index in range(2)]
    data = [ProduceRequest.TopicProduceData(name=topic, partition_data=twice)]
    b.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 11)


@scenario
def empty_records(b: Subject) -> None:
    # Null records are omitted: Kafka 3.9.1 fails on them and sends no answer.
    b.ask(produce_request(b.topic(), b""), 11)


@scenario
def two_batches_in_one_partition(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"a") + batch(b"b")), 11)


@scenario
def cut_batches(b: Subject) -> None:
    topic, data = b.topic(), batch(b"some value")
    for size in (1, 11, 12, 16, 17, 60, 61, len(data) - 1):
        b.ask(produce_request(topic, data[:size]), 11)


@scenario
def bytes_behind_a_batch(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"a") + b"\0\0\0"), 11)


@scenario
def wrong_checksum(b: Subject) -> None:
    b.ask(produce_request(b.topic(), changed(CRC_AT, ">I", 0xDEADBEEF, fix_crc=False)), 11)
    b.ask(produce_request(b.name("t"), changed(CRC_AT, ">I", 0xDEADBEEF, fix_crc=False)), 3)


@scenario
def old_magic(b: Subject) -> None:
    topic = b.topic()
    for magic in (0, 1):
        b.ask(produce_request(topic, changed(MAGIC_AT, ">b", magic)), 11)


@scenario
def unknown_magic(b: Subject) -> None:
    topic = b.topic()
    for magic in (3, -1):
        b.ask(produce_request(topic, changed(MAGIC_AT, ">b", magic)), 11)


@scenario
def counts_that_lie(b: Subject) -> None:
    topic = b.topic()
    for count in (0, -1, 2, 100):
        b.ask(produce_request(topic, changed(COUNT_AT, ">i", count)), 11)


@scenario
def more_records_than_the_bytes_can_hold(b: Subject) -> None:
    """Header and offsets agree, but the bytes cannot hold that many records."""
    topic = b.topic()
    records = [Record(0, TIMESTAMP, None, b"v" * 100, []) for _ in range(50)]
    for compression in CompressionType:
        for count in (100_000_000, 2**31 - 1):
            data = bytearray(build_batch(records, compression=compression))
            struct.pack_into(">i", data, COUNT_AT, count)
            struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, count - 1)
            b.ask(produce_request(topic, with_crc(data)), 11)


@scenario
def last_offset_delta_that_lies(b: Subject) -> None:
    topic = b.topic()
    for delta in (-1, 1, 100):
        b.ask(produce_request(topic, changed(LAST_OFFSET_DELTA_AT, ">i", delta)), 11)


@scenario
def lengths_that_lie(b: Subject) -> None:
    topic, honest = b.topic(), len(batch(b"v")) - 12
    for length in (0, -1, 48, honest - 1, honest + 1, 2**31 - 1):
        b.ask(produce_request(topic, changed(LENGTH_AT, ">i", length)), 11)


@scenario
def control_batches_from_clients(b: Subject) -> None:
    identity = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    b.ask(produce_request(b.topic(), batch(b"\0\0\0\0", is_control=True, is_transactional=True, **identity)), 11)


@scenario
def transactional_batch_without_a_transaction(b: Subject) -> None:
    identity = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    b.ask(produce_request(b.topic(), batch(b"a", is_transactional=True, **identity)), 11)


@scenario
def log_append_time_from_clients(b: Subject) -> None:
    topic = b.topic()
    b.ask(produce_request(topic, batch(b"a", log_append_time_ms=TIMESTAMP)), 11)


@scenario
def unknown_attribute_bits(b: Subject) -> None:
    topic = b.topic()
    for attributes in (0x80, 0x100, 0x4000):
        b.ask(produce_request(topic, changed(ATTRIBUTES_AT, ">h", attributes)), 11)


@scenario
def unknown_codec(b: Subject) -> None:
    topic = b.topic()
    for codec in (5, 6, 7):
        b.ask(produce_request(topic, changed(ATTRIBUTES_AT, ">h", codec)), 11)


@scenario
def every_codec(b: Subject) -> None:
    topic = b.topic()
    for codec in CompressionType:
        b.ask(produce_request(topic, batch(b"a" * 100, b"b" * 100, compression=codec)), 11)


@scenario
def zstd_before_version_7(b: Subject) -> None:
    topic = b.topic()
    for version in (3, 6, 7):
        b.ask(produce_request(topic, batch(b"a", compression=CompressionType.ZSTD)), version)


@scenario
def too_large(b: Subject) -> None:
    topic = b.topic(configs={"max.message.bytes": "1000"})
    size = len(batch(b""))
    for total in (999, 1000, 1001):
        # The value's length prefix grows by a byte meanwhile; the sizes are still exact.
        value = b"x" * (total - size - 2)
        b.note("bytes", len(batch(value)))
        b.ask(produce_request(topic, batch(value)), 11)


@scenario
def larger_than_the_broker_takes(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"x" * 1_100_000)), 11)


@scenario
def larger_than_a_segment(b: Subject) -> None:
    b.ask(produce_request(b.topic(configs={"segment.bytes": "1000"}), batch(b"x" * 2000)), 11)


@scenario
def topic_with_log_append_time(b: Subject) -> None:
    topic = b.topic(configs={"message.timestamp.type": "LogAppendTime"})
    b.ask(produce_request(topic, batch(b"a", b"b")), 11)


@scenario
def timestamps_out_of_bounds(b: Subject) -> None:
    topic = b.topic(configs={"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"})
    b.ask(produce_request(topic, batch(b"a", b"b")), 11)
    b.ask(produce_request(topic, batch(b"a", base_timestamp=4_000_000_000_000)), 11)
    b.ask(produce_request(topic, batch(b"a", base_timestamp=-1)), 11)


@scenario
def no_timestamp(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"a", base_timestamp=-1)), 11)


@scenario
def compacted_topic_needs_keys(b: Subject) -> None:
    topic = b.topic(configs={"cleanup.policy": "compact"})
    b.ask(produce_request(topic, batch(b"a", b"b")), 11)
    b.ask(produce_request(topic, batch(b"a", keys=True)), 11)


@scenario
def compacted_topic_one_key_missing(b: Subject) -> None:
    records = [Record(0, TIMESTAMP, b"k", b"a", []), Record(1, TIMESTAMP, None, b"b", [])]
    b.ask(produce_request(b.topic(configs={"cleanup.policy": "compact"}), build_batch(records)), 11)


@scenario
def not_enough_replicas(b: Subject) -> None:
    topic = b.topic(configs={"min.insync.replicas": "2"})
    b.ask(produce_request(topic, batch(b"a")), 11)
    b.ask(produce_request(topic, batch(b"a"), acks=1), 11)


@scenario
def internal_topic(b: Subject) -> None:
    b.coordinator(b.name("g"))
    b.ask(produce_request("__consumer_offsets", batch(b"a", keys=True)), 11)


@scenario
def partition_leader_epoch_of_clients_is_ignored(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"a", partition_leader_epoch=77)), 11)


@scenario
def base_offset_of_clients(b: Subject) -> None:
    b.ask(produce_request(b.topic(), batch(b"a", base_offset=5)), 11)


@scenario
def record_offsets_out_of_order(b: Subject) -> None:
    records = [Record(0, TIMESTAMP, None, b"a", []), Record(1, TIMESTAMP, None, b"b", [])]
    data = bytearray(build_batch(records))
    # The second record's offset delta (zigzag varint): length, attributes, timestamp delta, offset delta.
    second = 61 + 1 + data[61] // 2
    data[second + 3] = 0
    b.ask(produce_request(b.topic(), with_crc(data)), 11)


@scenario
def malformed_record_inside(b: Subject) -> None:
    data = bytearray(batch(b"abc"))
    data[61] += 2
    b.ask(produce_request(b.topic(), with_crc(data)), 11)


@scenario
def malformed_compressed_body(b: Subject) -> None:
    data = bytearray(batch(b"abc" * 50, compression=CompressionType.GZIP))
    data[70] ^= 0xFF
    b.ask(produce_request(b.topic(), with_crc(data)), 11)


@scenario
def headers_are_kept(b: Subject) -> None:
    records = [Record(0, TIMESTAMP, b"k", None, [("h", b"1"), ("h", None), ("", b"")])]
    b.ask(produce_request(b.topic(), build_batch(records)), 11)


# -- idempotent producers ----------------------------------------------------------------------------------------------


@scenario
def sequences(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    for sequence in (0, 1, 2):
        b.ask(produce_request(topic, batch(b"a", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)), 11)


@scenario
def duplicates(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    for sequence in range(0, 14, 2):
        records = batch(b"a", b"b", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)
        b.produce(topic, b"a", b"b", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)
        b.ask(produce_request(topic, records), 11)
    for sequence in (4, 2, 0):
        records = batch(b"a", b"b", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)
        b.ask(produce_request(topic, records), 11)


@scenario
def duplicate_of_part_of_a_batch(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    b.produce(topic, b"a", b"b", b"c", producer_id=pid, producer_epoch=epoch, base_sequence=0)
    b.ask(produce_request(topic, batch(b"b", producer_id=pid, producer_epoch=epoch, base_sequence=1)), 11)


@scenario
def gap_in_sequences(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    b.produce(topic, b"a", producer_id=pid, producer_epoch=epoch, base_sequence=0)
    b.ask(produce_request(topic, batch(b"c", producer_id=pid, producer_epoch=epoch, base_sequence=2)), 11)


@scenario
def first_sequence_of_an_unknown_producer(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    b.ask(produce_request(topic, batch(b"a", producer_id=pid, producer_epoch=epoch, base_sequence=5)), 11)
    b.ask(produce_request(topic, batch(b"b", producer_id=pid, producer_epoch=epoch, base_sequence=6)), 11)


@scenario
def epochs(b: Subject) -> None:
    topic = b.topic()
    pid, _ = b.producer_id()
    for epoch, sequence in ((5, 0), (6, 3), (6, 0), (5, 1), (4, 0)):
        b.ask(produce_request(topic, batch(b"a", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)), 11)


@scenario
def sequence_wraps(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    for sequence in (2**31 - 2, 2**31 - 1, 0):
        b.ask(produce_request(topic, batch(b"a", producer_id=pid, producer_epoch=epoch, base_sequence=sequence)), 11)


@scenario
def sequence_wraps_inside_a_batch(b: Subject) -> None:
    topic = b.topic()
    pid, epoch = b.producer_id()
    identity = {"producer_id": pid, "producer_epoch": epoch}
    b.ask(produce_request(topic, batch(b"a", b"b", b"c", base_sequence=2**31 - 2, **identity)), 11)
    b.ask(produce_request(topic, batch(b"a", base_sequence=1, **identity)), 11)


@scenario
def idempotent_with_acks_1(b: Subject) -> None:
    pid, epoch = b.producer_id()
    records = batch(b"a", producer_id=pid, producer_epoch=epoch, base_sequence=0)
    b.ask(produce_request(b.topic(), records, acks=1), 11)


@scenario
def producer_id_without_epoch_or_sequence(b: Subject) -> None:
    topic = b.topic()
    b.ask(produce_request(topic, batch(b"a", producer_id=5, producer_epoch=-1, base_sequence=0)), 11)
    b.ask(produce_request(topic, batch(b"a", producer_id=5, producer_epoch=0, base_sequence=-1)), 11)
    b.ask(produce_request(topic, batch(b"a", producer_id=-1, producer_epoch=3, base_sequence=4)), 11)
