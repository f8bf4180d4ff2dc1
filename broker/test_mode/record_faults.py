"""Faults of records: batches that are damaged or changed on their way to a consumer, and batches that arrive twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from broker.network.reply_writer import FileSlice
from broker.test_mode.touched_resources import Keep, TopicName, reduced
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchResponse
from protocol.messages.produce import ProduceRequest
from protocol.records.batch import RecordBatch, read_batches
from protocol.records.record_builder import RecordBatchBuilder, build_batch
from protocol.records.record_codec import Record
from protocol.uuids import ZERO_UUID
from protocol.wire.encode_compiler import EncodedItems

UNKNOWN_SCHEMA_ID: Final = 0x7FFFFFFF
_MAGIC_BYTE: Final = b"\0"
"""Before the four bytes of a schema id, in the values that serializers of a schema registry write."""
_SCHEMA_ID_ENDS_AT: Final = 5


def kept(request: ProduceRequest) -> ProduceRequest:
    """The request with its records copied: it is handled when the memory of its frame may hold another one."""

    def copied(data: ProduceRequest.PartitionProduceData) -> ProduceRequest.PartitionProduceData:
        return data if data.records is None else data.replace(records=memoryview(bytearray(data.records)))

    topics = [
        topic.replace(partition_data=[copied(data) for data in topic.partition_data]) for topic in request.topic_data
    ]
    return request.replace(topic_data=topics)


def second_arrival(request: ProduceRequest, topic_name: TopicName, touches: Keep) -> ProduceRequest | None:
    """The batches of the touched partitions as a producer without idempotence would send them again.

    Returns None if there are none. Batches of transactions are left out: a transaction has each of them once.
    """
    left = reduced(request, topic_name, touches)
    topics = []
    for topic in left.topic_data if left is not None else ():
        parts = [(data, _plain(memoryview(data.records))) for data in topic.partition_data if data.records]
        doubled = [data.replace(records=memoryview(records)) for data, records in parts if records]
        if doubled:
            topics.append(topic.replace(partition_data=doubled))
    return request.replace(topic_data=topics) if topics else None


def _plain(records: memoryview) -> bytearray:
    batches = [batch for batch in read_batches(records) if not batch.is_transactional]
    return bytearray().join(build_batch(batch.records(), compression=batch.compression) for batch in batches)


def changed(response: FetchResponse, topic_name: TopicName, touches: Keep, change: str) -> bool:
    """Change the records of the touched partitions in place. Returns whether there were any to change."""
    change_of: Callable[[bytearray], bytearray | None] = _corrupted if change == "corrupt" else _with_unknown_schema
    found = False
    for topic in response.responses:
        name = topic.topic if topic.topic_id == ZERO_UUID else topic_name(topic.topic_id)
        for data in () if isinstance(topic.partitions, EncodedItems) else topic.partitions:
            if data.error_code == ErrorCode.NONE and data.records and touches(name, data.partition_index):
                after = change_of(bytearray(_bytes_of(data.records)))
                if after is not None:
                    data.records, found = memoryview(after), True
    return found


def _bytes_of(records: object) -> bytes | bytearray | memoryview:
    return records.read(len(records)) if isinstance(records, FileSlice) else cast("memoryview", records)


def _corrupted(data: bytearray) -> bytearray | None:
    """The data with a byte of the first batch flipped, which its CRC covers."""
    first = next(read_batches(memoryview(data)), None)
    if first is None:
        return None
    data[first.size_in_bytes - 1] ^= 0xFF
    return data


def _with_unknown_schema(data: bytearray) -> bytearray | None:
    """The data with another schema id in each value that has one."""
    out, found = bytearray(), False
    for batch in read_batches(memoryview(data)):
        records = [] if batch.is_control else [*batch.records()]
        if any(map(_has_schema, records)):
            out += _rebuilt(batch, [_renumbered(record) if _has_schema(record) else record for record in records])
            found = True
        else:
            out += batch.buffer
    return out if found else None


def _has_schema(record: Record) -> bool:
    value = record.value
    return value is not None and len(value) >= _SCHEMA_ID_ENDS_AT and value[:1] == _MAGIC_BYTE


def _renumbered(record: Record) -> Record:
    assert record.value is not None
    unknown = UNKNOWN_SCHEMA_ID.to_bytes(4, "big")
    return record._replace(value=_MAGIC_BYTE + unknown + record.value[_SCHEMA_ID_ENDS_AT:])


def _rebuilt(batch: RecordBatch, records: list[Record]) -> bytes:
    """A batch with the same offsets, timestamps and producer."""
    builder = RecordBatchBuilder(
        base_offset=batch.base_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        partition_leader_epoch=batch.partition_leader_epoch,
        is_transactional=batch.is_transactional,
    )
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers, record.offset)
    return builder.build()
