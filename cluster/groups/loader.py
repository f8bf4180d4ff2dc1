"""Builds the groups of a __consumer_offsets partition from its log."""

from __future__ import annotations

import logging
import struct
from typing import Final

from cluster.groups.durable_groups import DurableGroups
from cluster.groups.records import GroupRecord, decode_group, decode_key, decode_offset, is_readable
from protocol.errors import ApiError, DecodeError
from protocol.records.batch import RecordBatch, read_batches
from protocol.records.control_records import ControlRecordType, control_type
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")

_OLD_OFFSET_KEY: Final = b"\0\0"
_OFFSET_KEY: Final = b"\0\1"

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
        self._latest: _Values = {}
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
        latest, pack = self._latest, _LOG_OFFSET.pack
        for offset, _, key, value, _ in batch.records():
            if key is not None and key[:2] == _OLD_OFFSET_KEY:
                key = _OFFSET_KEY + key[2:]  # noqa: PLW2901  both name the same offset
            if value is None:
                latest.pop(key, None)
            elif is_readable(value):
                latest[key] = pack(offset) + value
            else:
                logger.error("The group record at offset %d has a value of an unknown version and is left out", offset)

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
                standing = self._latest.get(key)
                if standing is None or standing[: _LOG_OFFSET.size] < at_offset[: _LOG_OFFSET.size]:
                    self._latest[key] = at_offset

    def finish(self) -> DurableGroups:
        """The groups. A record that cannot be read is logged and left out. The loader is empty afterwards."""
        groups = DurableGroups()
        self._replay(groups, self._latest)
        for producer_id, values in self._pending.items():
            self._replay(groups, values, producer_id)
        self._pending.clear()
        return groups

    def _replay(self, groups: DurableGroups, values: _Values, producer_id: int | None = None) -> None:
        while values:
            key, at_offset = values.popitem()
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
        end_of_group = 4 + (key[2] << 8 | key[3]) if len(key) > 3 else len(key)
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
