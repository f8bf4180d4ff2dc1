"""Builds the groups of a __consumer_offsets partition from its log."""

from __future__ import annotations

import logging
import struct
from typing import Final

from cluster.groups.group_table import DurableGroups
from cluster.groups.records import GroupRecord, decode_group, decode_key, decode_offset, is_readable
from protocol.errors import ApiError, DecodeError
from protocol.records.batch import RecordBatch, read_batches
from protocol.records.control_records import ControlRecordType, control_type
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")

_OLD_OFFSET_KEY: Final = b"\0\0"
_OFFSET_KEY: Final = b"\0\1"

_NAME_AT: Final = 4
"""The offset after the version and the length of the group id."""

_Values = dict[bytes | None, bytes]
"""Log offset (`_LOG_OFFSET`) and value of a record in one bytes object, by key. The garbage collector does not track
dictionaries that contain only bytes. With tuples it repeatedly took 200 ms for a million of them.
"""

_LOG_OFFSET: Final = struct.Struct(">q")


class GroupLoader:
    """Builds the groups from the log: feed it chunks with `take`, then call `finish`.

    Later records supersede most values in a log. So it keeps the last value of each key as bytes, and decodes only the
    survivors in the end. Memory is bounded by the live records plus one chunk.

    An offset in a transaction applies once the transaction is committed, unless the log contains a later plain commit
    of the same partition (KIP-98).

    It shares nothing, so it may run on any thread.
    """

    def __init__(self) -> None:
        self._offsets: dict[bytes, _Values] = {}
        """By the part of the key that names the group, then by the rest. A single dictionary would have to copy all
        entries when it grows, which blocks for 30 ms with a million records.
        """
        self._names: dict[bytes, bytes] = {}
        """The rests of keys, interned."""
        self._others: _Values = {}
        """Records of groups, and unreadable ones."""
        self._pending: dict[int, _Values] = {}
        self._group_ids: dict[bytes, str] = {}
        self._partitions: dict[bytes, TopicPartition] = {}
        self._texts: dict[str, str] = {}

    def take(self, batches: memoryview) -> int | None:
        """Take the complete batches at the start of `batches`. Returns the offset after them, or None without any.

        Raises ApiError for a batch with unreadable records.
        """
        next_offset = None
        for batch in read_batches(batches):
            next_offset = batch.next_offset
            if batch.is_control:
                self._end_transactions(batch)
            elif batch.is_transactional:
                self._take_transactional(batch)
            else:
                self._take_plain(batch)
        return next_offset

    def _take_plain(self, batch: RecordBatch) -> None:
        pack = _LOG_OFFSET.pack
        for offset, _, key, value, _ in batch.records():
            if key is not None and key[:2] == _OLD_OFFSET_KEY:
                key = _OFFSET_KEY + key[2:]  # noqa: PLW2901  both name the same offset
            values, name = self._place_of(key)
            if value is None:
                values.pop(name, None)
                if not values and key is not None and name is not key:
                    del self._offsets[key[: len(key) - len(name or b"")]]
            elif is_readable(value):
                values[name] = pack(offset) + value
            else:
                logger.error("The group record at offset %d has a value of an unknown version and is left out", offset)

    def _place_of(self, key: bytes | None) -> tuple[_Values, bytes | None]:
        """The dictionary for a key, and the key within it."""
        if key is None or len(key) < _NAME_AT or key[:2] != _OFFSET_KEY:
            return self._others, key
        end_of_group = _NAME_AT + (key[2] << 8 | key[3])
        group, name = key[:end_of_group], key[end_of_group:]
        values = self._offsets.get(group)
        if values is None:
            values = self._offsets[group] = {}
        return values, self._names.setdefault(name, name)

    def _take_transactional(self, batch: RecordBatch) -> None:
        pending = self._pending.setdefault(batch.producer_id, {})
        for offset, _, key, value, _ in batch.records():
            if value is None:
                pending.pop(key, None)
            else:
                pending[key] = _LOG_OFFSET.pack(offset) + value

    def _end_transactions(self, batch: RecordBatch) -> None:
        for marker in batch.records():
            pending = self._pending.pop(batch.producer_id, {})
            if control_type(marker) is not ControlRecordType.COMMIT:
                continue
            for key, at_offset in pending.items():
                values, name = self._place_of(key)
                standing = values.get(name)
                if standing is None or standing[: _LOG_OFFSET.size] < at_offset[: _LOG_OFFSET.size]:
                    values[name] = at_offset

    def finish(self) -> DurableGroups:
        """The groups. Unreadable records are logged and skipped. Empties the loader."""
        groups = DurableGroups()
        self._replay(groups, self._others)
        while self._offsets:
            group, values = self._offsets.popitem()
            self._replay(groups, values, group=group)
        for producer_id, values in self._pending.items():
            self._replay(groups, values, producer_id)
        self._pending.clear()
        return groups

    def _replay(
        self, groups: DurableGroups, values: _Values, producer_id: int | None = None, group: bytes | None = None
    ) -> None:
        """Apply the remaining records; with `group`, keys lack that prefix."""
        while values:
            key, at_offset = values.popitem()
            if group is not None and key is not None:
                key = group + key
            (offset,), value = _LOG_OFFSET.unpack_from(at_offset), at_offset[_LOG_OFFSET.size :]
            try:
                names = self._names_of(key)
                if names is None:
                    continue
                group_id, topic_partition = names
                if topic_partition is None:
                    groups.replay(GroupRecord(group_id, decode_group(value)), offset)
                    continue
                committed = decode_offset(value, offset)
            except (DecodeError, ApiError) as error:
                logger.error("The group record at offset %d cannot be read and is left out: %s", offset, error)
                continue
            if committed.metadata:
                committed.metadata = self._texts.setdefault(committed.metadata, committed.metadata)
            groups.replay_offset(group_id, topic_partition, committed, producer_id)

    def _names_of(self, key: bytes | None) -> tuple[str, TopicPartition | None] | None:
        """As `decode_key`, but with interned partitions, since many groups use the same ones."""
        if key is None or key[:2] != _OFFSET_KEY:
            return decode_key(key)
        end_of_group = _NAME_AT + (key[2] << 8 | key[3]) if len(key) >= _NAME_AT else len(key)
        group, partition = key[:end_of_group], key[end_of_group:]
        group_id, topic_partition = self._group_ids.get(group), self._partitions.get(partition)
        if group_id is not None and topic_partition is not None:
            return group_id, topic_partition
        names = decode_key(key)
        if names is not None and names[1] is not None:
            if topic_partition is None:
                topic, index = names[1]
                topic_partition = TopicPartition(self._texts.setdefault(topic, topic), index)
                self._partitions[partition] = topic_partition
            self._group_ids[group] = names[0]
            return names[0], topic_partition
        return names
