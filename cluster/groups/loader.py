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
"""Behind the version and the length of the group's id."""

_Values = dict[bytes | None, bytes]
"""Log offset (`_LOG_OFFSET`) and value of a record in one piece, by its key. A dictionary of nothing but bytes is one
that the garbage collector never looks at; one of tuples it walked again and again, for 200 ms with a million of them.
"""

_LOG_OFFSET: Final = struct.Struct(">q")


class GroupLoader:
    """Takes the log chunk by chunk with `take`; `finish` gives the groups.

    Most values in a log are superseded by later ones. So values are kept as bytes, the last one of each key, and only
    those that are left in the end are decoded. Memory is bounded by what is live, and one chunk.

    An offset in a transaction counts once the transaction is committed, unless a plain commit of the same partition
    stands behind it in the log (KIP-98).

    Uses nothing that anybody else uses, so it may run on any thread.
    """

    def __init__(self) -> None:
        self._offsets: dict[bytes, _Values] = {}
        """By the part of the key that names the group, then by the rest. One dictionary of all would grow by copying
        all that it has while nothing else runs: 30 ms with a million records.
        """
        self._names: dict[bytes, bytes] = {}
        """The rests of keys, each to be kept once."""
        self._others: _Values = {}
        """Records of groups, and those that cannot be read."""
        self._pending: dict[int, _Values] = {}
        self._group_ids: dict[bytes, str] = {}
        self._partitions: dict[bytes, TopicPartition] = {}
        self._texts: dict[str, str] = {}

    def take(self, batches: memoryview) -> int | None:
        """Take the complete batches that `batches` begins with; gives the offset behind them, or None without any.

        Raises ApiError for a batch whose records cannot be read.
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
        """The dictionary for a key, and what it is called there."""
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
        """The groups. A record that cannot be read is logged and left out. The loader is empty afterwards."""
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
        """Apply what is left; keys are what is behind `group`, if that is given."""
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
        """As `decode_key`. Groups name the same partitions: there is one object for each, found by its bytes."""
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
