"""Requests of up to 100 MB that one client may send while others wait for answers; for the benchmark and the soak.

Each is encoded from a request with one element, whose bytes are then repeated: encoding a million elements takes half a
second.
"""

from __future__ import annotations

import string
import struct
from collections.abc import Callable
from itertools import islice, product
from typing import Final

from protocol.messages.fetch import FetchRequest
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.groups import JoinGroupRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.topics import CreateTopicsRequest
from protocol.records.batch import Record, build_batch
from protocol.records.checksum import crc32c
from protocol.records.record_format import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES
from protocol.wire.schema import Request
from tests.kit.wire_requests import framed, produce_batch, request_bytes

MOST_ELEMENTS: Final = 999_000
"""Kafka 4.4 refuses messages of more than 1,000,000 elements; the topic around the partitions counts, too."""
NAMES: Final = 500_000
MARK: Final = "mark"
"""A placeholder for the number of an element: as a name, or as the bytes of an integer."""
MARK_NUMBER: Final = int.from_bytes(MARK.encode(), "big")
_DIGITS: Final = (string.digits + string.ascii_letters).encode()
UNKNOWN_TOPIC: Final = "no-such-topic"
GROUP: Final = "heavy"
_LAST_OFFSET_DELTA_AT, _COUNT_AT = ATTRIBUTES_AT + 2, HEADER_BYTES - 4


def repeated(make: Callable[[int], Request], version: int, count: int, *, alike: bool = False) -> bytes:
    """Encode a framed request with `count` elements.

    `make(n)` builds it with n elements that each contain a MARK once. Every MARK is replaced by four other characters,
    unless the elements are `alike`. `version` must not be flexible.
    """
    one, two = (request_bytes(make(number), version, client_id="heavy") for number in (1, 2))
    count_ends = next(at for at, (first, second) in enumerate(zip(one, two, strict=False)) if first != second) + 1
    ends = count_ends + len(two) - len(one)
    element = one[count_ends:ends]
    if alike:
        elements = element * count
    else:
        before, after = element.split(MARK.encode())
        numbers = map(bytes, islice(product(_DIGITS, repeat=len(MARK)), count))
        elements = before + (after + before).join(numbers) + after
    return framed(one[: count_ends - 4] + struct.pack(">i", count) + elements + one[ends:])


def fetch_unknown(count: int = MOST_ELEMENTS) -> bytes:
    """Fetch of partitions that do not exist."""
    partition = FetchRequest.FetchPartition(partition=MARK_NUMBER, fetch_offset=0, partition_max_bytes=1 << 20)

    def make(number: int) -> Request:
        topic = FetchRequest.FetchTopic(topic=UNKNOWN_TOPIC, partitions=[partition] * number)
        return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic])

    return repeated(make, 11, count)


def metadata_of_unknown(count: int = NAMES) -> bytes:
    """Metadata of topics that do not exist, with names of 40 characters."""
    return repeated(_metadata_of(MARK.rjust(40, "x")), 8, count)


def metadata_of_one(count: int = MOST_ELEMENTS) -> bytes:
    """Metadata of one topic that does not exist, named repeatedly."""
    return repeated(_metadata_of(f"topic-{MARK}"), 8, count, alike=True)


def _metadata_of(name: str) -> Callable[[int], Request]:
    topic = MetadataRequest.MetadataRequestTopic(name=name)
    return lambda number: MetadataRequest(topics=[topic] * number, allow_auto_topic_creation=False)


def list_offsets_of_unknown(count: int = MOST_ELEMENTS) -> bytes:
    """ListOffsets of partitions that do not exist."""
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=MARK_NUMBER, timestamp=-1)

    def make(number: int) -> Request:
        topic = ListOffsetsRequest.ListOffsetsTopic(name=UNKNOWN_TOPIC, partitions=[partition] * number)
        return ListOffsetsRequest(replica_id=-1, topics=[topic])

    return repeated(make, 5, count)


def epochs_of_unknown(count: int = MOST_ELEMENTS) -> bytes:
    """OffsetForLeaderEpoch of partitions that do not exist."""
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=MARK_NUMBER, leader_epoch=0)

    def make(number: int) -> Request:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=UNKNOWN_TOPIC, partitions=[partition] * number)
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])

    return repeated(make, 3, count)


def offset_fetch(count: int = MOST_ELEMENTS) -> bytes:
    """OffsetFetch of partitions without committed offsets."""

    def make(number: int) -> Request:
        asked = OffsetFetchRequest.OffsetFetchRequestTopic(name=UNKNOWN_TOPIC, partition_indexes=[MARK_NUMBER] * number)
        return OffsetFetchRequest(group_id=GROUP, topics=[asked])

    return repeated(make, 5, count)


def produce_nothing(count: int = NAMES) -> bytes:
    """Produce without records to partitions that do not exist."""
    data = ProduceRequest.PartitionProduceData(index=MARK_NUMBER, records=b"")

    def make(number: int) -> Request:
        topic = ProduceRequest.TopicProduceData(name=UNKNOWN_TOPIC, partition_data=[data] * number)
        return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])

    return repeated(make, 7, count)


def join_group(count: int = NAMES, *, metadata: bytes = b"", group_number: int = 0) -> bytes:
    """JoinGroup of a member with this many protocols; `group_number` picks the group."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=MARK, metadata=metadata)

    def make(number: int) -> Request:
        return JoinGroupRequest(
            group_id=f"{GROUP}-{group_number}",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol] * number,
        )

    return repeated(make, 3, count)


def create_bad_names(count: int = 100_000) -> bytes:
    """CreateTopics with invalid names."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=f"not a name: {MARK}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )

    def make(number: int) -> Request:
        return CreateTopicsRequest(topics=[wanted] * number, timeout_ms=10_000)

    return repeated(make, 4, count)


def produce_declared(topic: str, count: int = (1 << 31) - 1) -> bytes:
    """Produce a batch that has one record and declares `count` of them, with a correct checksum."""
    batch = bytearray(build_batch([Record(0, 1_700_000_000_000, None, b"x")]))
    struct.pack_into(">i", batch, _LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">i", batch, _COUNT_AT, count)
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return framed(request_bytes(produce_batch(topic, bytes(batch)), 7, client_id="heavy"))


def half_frame(size: int = 100_000_000, share: float = 0.8) -> bytes:
    """The beginning of a frame that declares `size` bytes."""
    return struct.pack(">i", size) + bytes(int(size * share))
