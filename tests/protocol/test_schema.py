"""Declarations and the code compiled from them."""

from __future__ import annotations

import struct
import tracemalloc
from typing import ClassVar

import pytest

from protocol.api_keys import NEVER_FLEXIBLE
from protocol.errors import ApiError, DecodeError, EncodeError, ErrorCode
from protocol.messages.fetch import FetchResponse
from protocol.messages.groups import JoinGroupResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest
from protocol.wire.encode_compiler import varint
from protocol.wire.schema import (
    Message,
    Request,
    Struct,
    boolean,
    bytes_,
    decode_versioned,
    encode_versioned,
    field,
    fields_of,
    float64,
    int8,
    int16,
    int32,
    int64,
    nullable_bytes,
    nullable_string,
    records,
    string,
    uint16,
    uint32,
    uuid,
)
from protocol.wire.wire_types import MAX_ARRAY, MAX_ELEMENTS, MAX_TAGS, SMALL_ELEMENTS, NotSmall
from tests.kit.environment import uuid_of


class Sample(Message, versions="1-4", flexible="3+"):
    """One field of each type."""

    class Leaf(Struct):
        """At the bottom."""

        number: int16
        text: string = field("2+", default="leaf", ignorable=True)

    class Branch(Struct):
        """In between."""

        leaves: list[Sample.Leaf]
        leaf: Sample.Leaf | None = field("3+", default=None)

    flag: boolean
    tiny: int8
    medium: int32
    large: int64
    unsigned: uint16
    unsigned_large: uint32
    ratio: float64
    identity: uuid
    name: string
    nickname: nullable_string = None
    raw: bytes_
    maybe_raw: nullable_bytes
    batch: records
    numbers: list[int32]
    names: list[string] | None = field(nullable="2+")
    identities: list[uuid]
    branches: list[Branch]
    late: int32 = field("4+", default=-1)
    late_list: list[int32] = field("4+", default=[])
    tagged: nullable_string = field("3+", tag=0, default=None, ignorable=True)
    tagged_leaf: Leaf | None = field("3+", tag=2, default=None, ignorable=True)
    tagged_numbers: list[int64] = field("4+", tag=1, default=[], ignorable=True)


def sample(**changes: object) -> Sample:
    values = {
        "flag": True, "tiny": -1, "medium": 2**31 - 1, "large": -(2**63), "unsigned": 65535,
        "unsigned_large": 2**32 - 1, "ratio": -0.5, "identity": uuid_of(77), "name": "näme", "raw": b"\x00\x01",
        "maybe_raw": None, "batch": b"r" * 10, "numbers": [1, -1], "names": ["a", ""], "identities": [uuid_of(1)],
        "branches": [Sample.Branch(leaves=[Sample.Leaf(number=3)])],
    }  # fmt: skip
    return Sample(**(values | changes))  # type: ignore[arg-type]


def test_versions_of_a_message() -> None:
    assert (Sample.min_version, Sample.max_version, Sample.flexible_version) == (1, 4, 3)


def test_structs_are_slotted_mutable_and_compared_by_value() -> None:
    one, other = Sample.Leaf(number=1), Sample.Leaf(number=1)
    assert one == other
    assert one != Sample.Leaf(number=2)
    assert one != "leaf"
    other.number = 5
    assert one != other
    assert repr(one) == "Sample.Leaf(number=1, text='leaf')"
    with pytest.raises(AttributeError):
        one.nmuber = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        hash(one)


def test_constructors_take_keywords_and_ask_for_what_has_no_default() -> None:
    with pytest.raises(TypeError, match="number"):
        Sample.Leaf()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nmuber"):
        Sample.Leaf(nmuber=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Sample.Leaf(1)  # type: ignore[misc]


def test_a_default_list_is_never_shared() -> None:
    assert sample().late_list is not sample().late_list


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_round_trip(version: int) -> None:
    value = sample()
    if version >= 3:
        value.branches[0].leaf = Sample.Leaf(number=-7)
        value.tagged = "t"
        value.tagged_leaf = Sample.Leaf(number=9)
    if version == 4:
        value.late, value.late_list, value.tagged_numbers = 5, [1, 2], [2**40]
    if version == 1:
        value.branches[0].leaves[0].text = "leaf"
    assert Sample.decode(value.to_bytes(version), version) == value
    assert Sample.decode(memoryview(value.to_bytes(version)), version) == value


def test_undeclared_versions_are_unsupported() -> None:
    for version in (0, 5, -1):
        with pytest.raises(ApiError, match="v1 to v4 do") as decoding:
            Sample.decode(b"", version)
        with pytest.raises(ApiError) as encoding:
            sample().encode(version)
        assert decoding.value.error_code is encoding.value.error_code is ErrorCode.UNSUPPORTED_VERSION


def test_what_a_version_cannot_carry_is_refused_unless_it_is_ignorable() -> None:
    with pytest.raises(ApiError, match="Sample v3 cannot carry late") as refused:
        sample(late=5).encode(3)
    assert refused.value.error_code is ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(ApiError, match="cannot carry late_list"):
        sample(late_list=[1]).encode(3)
    with pytest.raises(ApiError, match=r"cannot carry branches\.leaf"):
        sample(branches=[Sample.Branch(leaves=[], leaf=Sample.Leaf(number=1))]).encode(2)
    dropped = sample(tagged="x", branches=[Sample.Branch(leaves=[Sample.Leaf(number=1, text="gone")])])
    assert Sample.decode(dropped.to_bytes(1), 1).branches[0].leaves[0].text == "leaf"


@pytest.mark.parametrize(
    ("changes", "version", "message"),
    [
        ({"tiny": 128}, 1, "Sample v1, field flag or tiny or medium"),
        ({"name": None}, 1, "Sample v1, field name: null is not allowed"),
        ({"raw": None}, 3, "Sample v3, field raw: null is not allowed"),
        ({"names": None}, 1, "Sample v1, field names: null is not allowed"),
        ({"name": "x" * 32768}, 3, "field name: string of 32768 bytes; 32767 are allowed"),
        ({"name": "x" * 32768}, 1, "field name: string of 32768 bytes; 32767 are allowed"),
        ({"name": "\ud800"}, 3, "field name: 'utf-8' codec can't encode"),
        ({"name": 5}, 3, "field name"),
        ({"numbers": [2**31]}, 3, "field numbers"),
        ({"numbers": ["x"]}, 3, "field numbers"),
        ({"names": [None]}, 3, "field names: null is not allowed"),
        ({"branches": [3]}, 3, "field branches"),
    ],
)
def test_values_that_do_not_fit(changes: dict[str, object], version: int, message: str) -> None:
    with pytest.raises(EncodeError) as refused:
        sample(**changes).encode(version)
    assert message in str(refused.value)


class Pair(Message, versions="0-1", flexible="1+"):
    """Small enough to write its bytes by hand."""

    class Item(Struct):
        """An element."""

        name: string
        weight: int32

    label: nullable_string
    items: list[Item]
    note: string = field("1+", tag=3, default="")


class Nested(Message, versions="0", flexible="0+"):
    """Arrays inside an array."""

    class Inner(Struct):
        """An element."""

        names: list[string]

    inners: list[Inner]


@pytest.mark.parametrize(
    ("data", "version", "field_name", "reason"),
    [
        ("", 0, "label", "the bytes end too early"),
        ("ff", 0, "label", "the bytes end too early"),
        ("fffe", 0, "label", "negative length -2"),
        ("0005 6162", 0, "label", "length 5 exceeds the 2 bytes left"),
        ("0001 ff 00000000", 0, "label", "not UTF-8: invalid start byte"),
        ("ffff 7fffffff", 0, "items", "array of 2147483647 elements; 1000000 are allowed"),
        ("ffff 00000002 0000 00000000", 0, "items", "2 elements do not fit into the 6 bytes left"),
        ("ffff ffffffff", 0, "items", "null is not allowed"),
        ("ffff 80000000", 0, "items", "negative length -2147483648"),
        ("ffff 00000001 ffff 00000000", 0, "items.name", "null is not allowed"),
        ("ffff 00000001 0002 6161 000000", 0, "items.weight", "the bytes end too early"),
        ("ffff 00000000 00", 0, "", "1 bytes left over"),
        ("", 1, "label", "the bytes end too early"),
        ("80", 1, "label", "the bytes end too early"),
        ("ffffffff", 1, "label", "the bytes end too early"),
        ("ffffffffffff", 1, "label", "varint of more than 5 bytes"),
        ("ffffffff7f 01 00", 1, "label", "string of 34359738366 bytes; 32767 are allowed"),
        ("00 00 00", 1, "items", "null is not allowed"),
        ("00 02 01 00000000", 1, "items", "1 elements do not fit into the 5 bytes left"),
        ("00 01 914e", 1, "tags", "10001 tagged fields; 10000 are allowed"),
        ("00 01 01 05 7f", 1, "tags", "length 127 exceeds the 0 bytes left"),
        ("00 01 01 03 03 02 61 62", 1, "note", "size of tagged field 3 is not that of its value"),
        ("00 01 01 03 01 02 61", 1, "note", "size of tagged field 3 is not that of its value"),
    ],
)
def test_malformed_input_names_field_and_reason(data: str, version: int, field_name: str, reason: str) -> None:
    for buffer in (bytes.fromhex(data), memoryview(bytes.fromhex(data))):
        with pytest.raises(DecodeError) as malformed:
            Pair.decode(buffer, version)
        error = malformed.value
        assert (error.message_name, error.version, error.field, error.reason) == ("Pair", version, field_name, reason)


def test_a_malformed_message_keeps_no_view_of_the_buffer() -> None:
    buffer = bytearray.fromhex("0001 ff 00000000")
    try:
        Pair.decode(memoryview(buffer), 0)
    except DecodeError as error:
        kept = error.with_traceback(None)
    assert kept.reason.startswith("not UTF-8")
    buffer.extend(b"a bytearray with views cannot be resized")


def test_unknown_tagged_fields_are_skipped() -> None:
    data = bytes.fromhex("00 01 03 01 02 aaaa 03 02 02 78 e807 00")
    assert Pair.decode(data, 1) == Pair(label=None, items=[], note="x")


class Asked(Message, versions="0", flexible="0+"):
    max_elements: ClassVar[int] = Request.max_elements

    names: list[string] = field()


def test_an_array_or_tags_over_the_limit_are_refused_before_they_are_read() -> None:
    """As in Kafka 4.4. A request may have as many elements in total as one array."""
    array = varint(MAX_ARRAY + 2) + b"\x01" * (MAX_ARRAY + 1)
    with pytest.raises(DecodeError, match=f"field names: array of {MAX_ARRAY + 1} elements; {MAX_ARRAY} are allowed"):
        Asked.decode(array + b"\x00", 0)
    tags = varint(MAX_TAGS + 1) + b"\x00\x00" * (MAX_TAGS + 1)
    with pytest.raises(DecodeError, match=f"{MAX_TAGS + 1} tagged fields; {MAX_TAGS} are allowed"):
        Asked.decode(b"\x01" + tags, 0)
    with pytest.raises(DecodeError, match=f"more than {MAX_ARRAY} array elements and tagged fields"):
        Asked.decode(varint(MAX_ARRAY + 1) + b"\x01" * MAX_ARRAY + b"\x01\x09\x00", 0)
    assert len(Asked.decode(varint(MAX_ARRAY + 1) + b"\x01" * MAX_ARRAY + b"\x00", 0).names) == MAX_ARRAY


def test_a_decoder_of_small_messages_refuses_the_others() -> None:
    small, large = (varint(count + 1) + b"\x01" * count + b"\x00" for count in (SMALL_ELEMENTS, SMALL_ELEMENTS + 1))
    assert len(Asked.decoder(0)(small, 0, SMALL_ELEMENTS + 1).names) == SMALL_ELEMENTS
    with pytest.raises(NotSmall):
        Asked.decoder(0)(large, 0, SMALL_ELEMENTS + 1)


def test_array_elements_are_bounded_over_the_whole_message() -> None:
    half = MAX_ELEMENTS // 2
    count = varint(half + 1)
    data = b"\x03" + (count + b"\x01" * half + b"\x00") * 2 + b"\x00"
    with pytest.raises(DecodeError, match=f"inners.names: more than {MAX_ELEMENTS} array elements"):
        Nested.decode(data, 0)


def test_decode_prefix_leaves_what_follows() -> None:
    data = Pair(label="a", items=[]).to_bytes(0)
    assert Pair.decode_prefix(data + b"more", 0) == (Pair(label="a", items=[]), len(data))


def test_a_header_is_read_without_copying_the_frame() -> None:
    header = RequestHeader(request_api_key=0, request_api_version=9, correlation_id=1, client_id="c")
    frame = memoryview(header.to_bytes(2) + bytes(10_000_000))
    RequestHeader.decode_prefix(frame, 2)
    tracemalloc.start()
    decoded, size = RequestHeader.decode_prefix(frame, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (decoded, size) == (header, len(header.to_bytes(2)))
    assert peak < 100_000


def test_records_are_slices_of_the_input_and_parts_of_the_output() -> None:
    batch = bytes(5000)
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=0, records=batch),
                    ProduceRequest.PartitionProduceData(index=1, records=b"small"),
                ],
            )
        ],
    )
    parts = request.encode(9)
    assert len(parts) == 3
    assert parts[1] is batch
    frame = memoryview(bytearray(b"".join(parts)))
    decoded = ProduceRequest.decode(frame, 9)
    large, small = (partition.records for partition in decoded.topic_data[0].partition_data)
    assert isinstance(large, memoryview)
    assert large.obj is frame.obj
    assert not large.readonly
    assert small == b"small"


def test_what_is_no_bytes_but_has_a_length_is_passed_through() -> None:
    class FileSlice:
        def __len__(self) -> int:
            return 7

    piece = FileSlice()
    partition = FetchResponse.PartitionData(
        partition_index=0, error_code=0, high_watermark=0, records=piece,  # type: ignore[arg-type]
    )  # fmt: skip
    response = FetchResponse(
        responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])],
    )
    parts = response.encode_after(bytearray(b"head"), 4)
    assert parts[1] is piece
    assert bytes(parts[0])[:4] == b"head"
    assert bytes(parts[0])[-4:] == struct.pack(">i", 7)


def test_null_is_judged_by_version() -> None:
    for version in (0, 1):
        request = MetadataRequest(topics=None)
        if version == 0:
            with pytest.raises(EncodeError, match="topics: null is not allowed"):
                request.encode(version)
            with pytest.raises(DecodeError, match="topics: null is not allowed"):
                MetadataRequest.decode(b"\xff\xff\xff\xff", version)
        else:
            assert MetadataRequest.decode(request.to_bytes(version), version) == request
    response = JoinGroupResponse(error_code=0, protocol_name=None, leader="", member_id="", members=[])
    assert JoinGroupResponse.decode(response.to_bytes(7), 7).protocol_name is None
    with pytest.raises(EncodeError, match="protocol_name: null is not allowed"):
        response.encode(6)


def test_versioned_structs() -> None:
    value = Pair(label="a", items=[])
    data = encode_versioned(value, 1)
    assert data[:2] == b"\x00\x01"
    assert decode_versioned(Pair, data) == (value, 1)
    with pytest.raises(DecodeError, match="Pair v-1, field version: 1 bytes left, 2 needed"):
        decode_versioned(Pair, b"\x00")
    with pytest.raises(ApiError, match="v7 does not exist"):
        decode_versioned(Pair, b"\x00\x07")


def test_faulty_declarations_are_type_errors() -> None:
    class NoDefault(Message, versions="0-1"):
        later: int32 = field("1+")

    class NoWireType(Message, versions="0"):
        number: int

    with pytest.raises(TypeError, match="later is not in every message and needs a default"):
        fields_of(NoDefault)
    with pytest.raises(TypeError, match="is not a type of the wire"):
        fields_of(NoWireType)
    assert NoDefault.flexible_version == NEVER_FLEXIBLE


def test_what_follows_a_request_is_ignored() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    # librdkafka 2.16 requests all topics like this: four bytes for the null array, so that three are left over.
    assert MetadataRequest.decode(bytes.fromhex("00000000 010000"), 12) == request
