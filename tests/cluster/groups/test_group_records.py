"""Records of __consumer_offsets: their bytes, and the state after replaying them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.coordinator_service import coordinator_partition, java_string_hash
from cluster.groups.group import subscribed_topics
from cluster.groups.group_table import DurableGroups
from cluster.groups.records import CommittedOffset, CoordinatorRecord, GroupRecord, OffsetRecord, decode_record
from protocol.errors import DecodeError, EncodeError
from protocol.messages.group_records import GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import encode_versioned

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.builds(CommittedOffset, INT64, st.just(-1), TEXT, INT64, st.integers(0, 2**63 - 1)) | st.builds(
    CommittedOffset, INT64, INT32, TEXT, INT64
)
MEMBERS = st.builds(
    GroupMetadataValue.MemberMetadata,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout=INT32,
    session_timeout=INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupMetadataValue,
    protocol_type=TEXT,
    generation=INT32,
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    current_state_timestamp=INT64,
    members=st.lists(MEMBERS, max_size=3),
)
RECORDS = st.builds(OffsetRecord, TEXT, st.builds(TopicPartition, TEXT, INT32), st.none() | OFFSETS) | st.builds(
    GroupRecord, TEXT, st.none() | GROUPS
)


@given(RECORDS)
def test_what_is_written_is_what_is_read(record: CoordinatorRecord) -> None:
    assert decode_record(*record.encode()) == record


def test_the_layout_is_kafkas() -> None:
    offset = OffsetRecord("g", TopicPartition("t", 1), CommittedOffset(5, 2, "m", 1000))
    assert offset.encode() == (
        b"\0\1\0\1g\0\1t\0\0\0\1",
        b"\0\3" + struct.pack(">qi", 5, 2) + b"\0\1m" + struct.pack(">q", 1000),
    )
    expiring = OffsetRecord("g", TopicPartition("t", 1), CommittedOffset(5, -1, "", 1000, 2000))
    assert expiring.encode()[1] == b"\0\1" + struct.pack(">q", 5) + b"\0\0" + struct.pack(">qq", 1000, 2000)
    assert GroupRecord("g", None).encode() == (b"\0\2\0\1g", None)


@pytest.mark.parametrize(("group", "topic"), [("g" * 2**15, "t"), ("g", "t" * 2**15)])
def test_a_key_that_is_too_long_cannot_be_written(group: str, topic: str) -> None:
    with pytest.raises(EncodeError):
        OffsetRecord(group, TopicPartition(topic, 0), None).encode()


def test_older_versions_are_read() -> None:
    key = encode_versioned(OffsetCommitKey(group="g", topic="t", partition=0), 0)
    value = encode_versioned(OffsetCommitValue(offset=1, metadata="", commit_timestamp=2), 0)
    assert decode_record(key, value) == OffsetRecord("g", TopicPartition("t", 0), CommittedOffset(1, -1, "", 2))


def test_records_of_other_coordinators_are_not_ours() -> None:
    assert decode_record(b"\0\3\0\1g", b"\0\0") is None


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\2", b"\0\2\0\5g", b"\0\1\0\1g\0\1t"])
def test_a_key_that_is_cut_off_is_told(key: bytes | None) -> None:
    with pytest.raises(DecodeError):
        decode_record(key, None)


def test_a_tombstone_without_anything_leaves_nothing() -> None:
    groups = DurableGroups()
    groups.replay(OffsetRecord("g", TopicPartition("t", 0), None), 0)
    groups.replay(GroupRecord("g", None), 1)
    assert groups.groups == {}


@pytest.mark.parametrize(
    ("key", "partition"), [("hello", 22), ("my-group", 12), ("polygenelubricants", 0), ("g\U0001f600", 32), ("", 0)]
)
def test_the_coordinators_partition_is_kafkas(key: str, partition: int) -> None:
    assert coordinator_partition(key, 50) == partition


def test_the_hash_is_javas() -> None:
    assert java_string_hash("polygenelubricants") == -(2**31)
    assert java_string_hash("hello") == 99162322


def test_topics_of_subscriptions() -> None:
    def subscription(version: int, *topics: bytes, rest: bytes = b"\xff\xff\xff\xff") -> bytes:
        names = b"".join(struct.pack(">h", len(topic)) + topic for topic in topics)
        return struct.pack(">hi", version, len(topics)) + names + rest

    assert subscribed_topics([subscription(0, b"a", b"b"), subscription(3, b"c", rest=b"newer fields")]) == {
        "a",
        "b",
        "c",
    }
    assert subscribed_topics([]) == frozenset()
    for broken in (
        b"",
        b"\0\0",
        b"\0\0\0\0\0\1",
        b"\0\0\0\0\0\1\0\5a",
        subscription(-1),
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
    ):
        assert subscribed_topics([subscription(0, b"a"), broken]) is None


@given(st.lists(st.binary(max_size=30), max_size=3))
def test_any_metadata_is_survived(subscriptions: list[bytes]) -> None:
    subscribed_topics(subscriptions)
