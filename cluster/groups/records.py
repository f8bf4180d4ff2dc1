"""Records of __consumer_offsets in Kafka's formats, readable for Kafka's coordinator and other readers.

Keys: OffsetCommitKey v1 (v0 is read too), GroupMetadataKey v2. Values: OffsetCommitValue v3, or v1 with an expiry from
the client; GroupMetadataValue v3. Null values are tombstones. (Kafka class GroupMetadataManager; the KIP-848 keys 3 to
8 belong to a coordinator that Odradek does not implement.)
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from protocol.errors import DecodeError
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from protocol.records.control_records import EndTxnMarker, encode_end_txn_marker
from protocol.topic_partition import TopicPartition
from protocol.value import Value, field
from protocol.wire.schema import decode_versioned, encode_versioned

NO_TIMESTAMP: Final = -1

_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_OFFSET_VALUE: Final = 3
_OFFSET_VALUE_WITH_EXPIRY: Final = 1
_GROUP_VALUE: Final = 3
_VERSION: Final = struct.Struct(">h")
_KEY_HEAD: Final = struct.Struct(">hh")
_PARTITION: Final = struct.Struct(">i")
_MAX_STRING: Final = 2**15 - 1
_VERSION_3: Final = _VERSION.pack(_OFFSET_VALUE)
_PLAIN_OFFSET: Final = struct.Struct(">hqihq")
_VALUE_VERSIONS: Final = frozenset(
    _VERSION.pack(version) for version in range(min(OffsetCommitValue.max_version, GroupMetadataValue.max_version) + 1)
)


class CommittedOffset(Value, frozen=False):
    """A committed position. Times are wall-clock milliseconds; leader epoch and expiry are -1 if unset.

    `log_offset` is the record's offset in the partition of __consumer_offsets. `number` counts the commits that this
    coordinator has accepted; -1 if an earlier coordinator did.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    log_offset: int = field(default=-1, compare=False)
    number: int = field(default=-1, compare=False)


class OffsetRecord(NamedTuple):
    """The committed offset of one partition in one group; without a value, a tombstone."""

    group_id: str
    topic_partition: TopicPartition
    value: CommittedOffset | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """The record's key and value. Raises EncodeError for a value that cannot be encoded."""
        topic, partition = self.topic_partition
        group, name = self.group_id.encode(), topic.encode()
        if max(len(group), len(name)) > _MAX_STRING:
            key = encode_versioned(OffsetCommitKey(group=self.group_id, topic=topic, partition=partition), _OFFSET_KEY)
        else:
            # Written by hand, as below: a commit of many partitions encodes many of these at once.
            head, size_of_name = _KEY_HEAD.pack(_OFFSET_KEY, len(group)), _VERSION.pack(len(name))
            key = b"".join((head, group, size_of_name, name, _PARTITION.pack(partition)))
        committed = self.value
        if committed is None:
            return key, None
        if not committed.metadata and committed.expire_timestamp_ms == NO_TIMESTAMP:
            return key, _PLAIN_OFFSET.pack(
                _OFFSET_VALUE, committed.offset, committed.leader_epoch, 0, committed.commit_timestamp_ms
            )
        value = OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=committed.expire_timestamp_ms,
        )
        expires = committed.expire_timestamp_ms != NO_TIMESTAMP
        return key, encode_versioned(value, _OFFSET_VALUE_WITH_EXPIRY if expires else _OFFSET_VALUE)


class GroupRecord(Value):
    """A group's generation with its members and assignments; without a value, a tombstone."""

    group_id: str
    value: GroupMetadataValue | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """The record's key and value. Raises EncodeError for a value that cannot be encoded."""
        key = encode_versioned(GroupMetadataKey(group=self.group_id), _GROUP_KEY)
        return key, None if self.value is None else encode_versioned(self.value, _GROUP_VALUE)


class EndTxnRecord(NamedTuple):
    """The end marker of a producer's transaction, which commits or drops its offsets."""

    marker: EndTxnMarker

    def encode(self) -> tuple[bytes, bytes]:
        """The record's key and value."""
        return encode_end_txn_marker(self.marker)


CoordinatorRecord = OffsetRecord | GroupRecord | EndTxnRecord


def decode_record(key: bytes | None, value: bytes | None) -> OffsetRecord | GroupRecord | None:
    """The record with this key and value, or None for an unsupported key version.

    Raises DecodeError, or ApiError UNSUPPORTED_VERSION.
    """
    decoded = decode_key(key)
    if decoded is None:
        return None
    group_id, topic_partition = decoded
    if topic_partition is not None:
        return OffsetRecord(group_id, topic_partition, None if value is None else decode_offset(value))
    return GroupRecord(group_id, None if value is None else decode_group(value))


def decode_key(key: bytes | None) -> tuple[str, TopicPartition | None] | None:
    """Group id, and partition unless the key is a group's own, or None for other key versions.

    Raises DecodeError.
    """
    if key is None or len(key) < _VERSION.size:
        raise DecodeError("record key", -1, "", "a record of __consumer_offsets has no key or a cut-off one")
    (version,) = _VERSION.unpack_from(key)
    if 0 <= version <= _OFFSET_KEY:
        offset_key, _ = decode_versioned(OffsetCommitKey, key)
        return offset_key.group, TopicPartition(offset_key.topic, offset_key.partition)
    if version == _GROUP_KEY:
        return decode_versioned(GroupMetadataKey, key)[0].group, None
    return None


def is_readable(value: bytes) -> bool:
    """Whether `value` has a supported version of OffsetCommitValue or GroupMetadataValue."""
    return value[:2] in _VALUE_VERSIONS


def decode_group(value: bytes) -> GroupMetadataValue:
    """The value of a group's own record. Raises as `decode_record`."""
    return decode_versioned(GroupMetadataValue, value)[0]


def decode_offset(value: bytes, log_offset: int = -1) -> CommittedOffset:
    """The value of an offset. Raises as `decode_record`."""
    if len(value) == _PLAIN_OFFSET.size and value[:2] == _VERSION_3:
        # The fast path for nearly all values: the current version, without metadata. A load decodes millions.
        _, offset, leader_epoch, metadata_size, commit_timestamp = _PLAIN_OFFSET.unpack(value)
        if not metadata_size:
            return CommittedOffset(offset, leader_epoch, "", commit_timestamp, NO_TIMESTAMP, log_offset)
    decoded, _ = decode_versioned(OffsetCommitValue, value)
    return CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.expire_timestamp,
        log_offset,
    )
