"""compression.type and its levels (KIP-390): which batches are stored unchanged, and which are recompressed."""

from __future__ import annotations

import struct

from protocol.messages.fetch import FetchResponse
from protocol.records.batch import RecordBatch, read_batches
from protocol.records.compression import CompressionType
from tests.parity.scenarios.fetch import fetch
from tests.parity.scenarios.produce import LENGTH_AT, with_crc
from tests.parity.scenarios.retention import alter
from tests.parity.subject import Subject, batch, produce_request, scenario

VALUES = (b"a" * 300, b"b" * 300, b"c" * 300)
CODECS = {"uncompressed": CompressionType.NONE} | {
    codec.name.lower(): codec for codec in CompressionType if codec is not CompressionType.NONE
}
LEVELS = {"gzip": ("1", "9", "-1"), "lz4": ("1", "17"), "zstd": ("1", "22", "-5")}
RECORDS_AT = 61
OFFSETS_AND_EPOCH = 16
"""How many bytes of a batch every broker rewrites."""


def stored(b: Subject, topic: str) -> list[RecordBatch]:
    """The batches of a topic's first partition."""
    answer: FetchResponse = b.quietly(fetch(b, topic, version=12), 12)
    return list(read_batches(memoryview(answer.responses[0].partitions[0].records or b"")))


def note_stored(b: Subject, topic: str, sent: bytes) -> None:
    """Note the newest batch: its codec, whether it equals the sent one, and its records."""
    newest = stored(b, topic)[-1]
    raw = bytes(newest.buffer)
    b.note(
        f"stored in {topic}",
        {
            "codec": CompressionType(newest.attributes & 7).name,
            "as sent": raw[OFFSETS_AND_EPOCH:] == sent[OFFSETS_AND_EPOCH:],
            "rows": [
                [record.offset, record.timestamp, record.key, record.value, str(record.headers)]
                for record in newest.records()
            ],
            "count": newest.count,
            "max timestamp": newest.max_timestamp,
            "sequence": [newest.producer_id, newest.producer_epoch, newest.base_sequence],
        },
    )


def produced(b: Subject, topic: str, codec: CompressionType, **options: int) -> None:
    """Produce a batch and note the result."""
    sent = batch(*VALUES, keys=True, compression=codec, **options)
    b.ask(produce_request(topic, sent), 9)
    note_stored(b, topic, sent)


@scenario
def every_codec_into_every_codec(b: Subject) -> None:
    for name in CODECS:
        topic = b.topic(name, configs={"compression.type": name})
        for codec in CompressionType:
            produced(b, topic, codec)


@scenario
def the_producers_own(b: Subject) -> None:
    topic = b.topic(configs={"compression.type": "producer"})
    for codec in CompressionType:
        produced(b, topic, codec)


@scenario
def every_level(b: Subject) -> None:
    for name, levels in LEVELS.items():
        topic = b.topic(name, configs={"compression.type": name})
        for level in levels:
            alter(b, topic, f"compression.{name}.level", level)
            produced(b, topic, CompressionType.NONE)


@scenario
def another_level_alone_is_no_reason(b: Subject) -> None:
    for name, levels in LEVELS.items():
        topic = b.topic(name, configs={"compression.type": name, f"compression.{name}.level": levels[1]})
        produced(b, topic, CODECS[name])


@scenario
def idempotent_batches_keep_their_sequence(b: Subject) -> None:
    topic = b.topic(configs={"compression.type": "lz4"})
    produced(b, topic, CompressionType.GZIP, producer_id=77, producer_epoch=3, base_sequence=0)
    produced(b, topic, CompressionType.GZIP, producer_id=77, producer_epoch=3, base_sequence=0)


@scenario
def with_log_append_time(b: Subject) -> None:
    topic = b.topic(configs={"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"})
    for codec in (CompressionType.NONE, CompressionType.ZSTD):
        b.ask(produce_request(topic, batch(*VALUES, compression=codec)), 9)
    b.note("codecs", [each.attributes & 7 for each in stored(b, topic)])


@scenario
def into_a_compacted_topic(b: Subject) -> None:
    topic = b.topic(configs={"compression.type": "snappy", "cleanup.policy": "compact"})
    produced(b, topic, CompressionType.GZIP)


@scenario
def zstd_with_frames_to_skip(b: Subject) -> None:
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"index"
    whole = batch(*VALUES, compression=CompressionType.ZSTD)
    topic = b.topic(configs={"compression.type": "uncompressed"})
    for before, after in ((skippable, b""), (b"", skippable), (skippable * 2, skippable)):
        sent = bytearray(whole[:RECORDS_AT] + before + whole[RECORDS_AT:] + after)
        struct.pack_into(">i", sent, LENGTH_AT, len(sent) - LENGTH_AT - 4)
        b.ask(produce_request(topic, with_crc(sent)), 9)
    b.note("counts", [each.count for each in stored(b, topic)])


@scenario
def what_grows_too_large(b: Subject) -> None:
    topic = b.topic(configs={"compression.type": "uncompressed", "max.message.bytes": "500"})
    b.ask(produce_request(topic, batch(*VALUES, compression=CompressionType.GZIP)), 9)


@scenario
def bad_levels(b: Subject) -> None:
    from tests.parity.scenarios.topics import create, new

    for key, value in (
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.gzip.level", "-2"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("compression.zstd.level", "-131073"),
        ("compression.type", "bzip2"),
        ("compression.snappy.level", "1"),
    ):
        create(b, new(b.name(), configs={key: value}))
