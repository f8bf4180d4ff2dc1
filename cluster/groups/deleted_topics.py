"""Removes committed offsets of deleted topics. Kafka's GroupMetadataManager tries to write that only once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from typing import Final

from cluster.coordinators.deadlines import Deadline
from cluster.coordinators.results import Append, Appends, ClockReading
from cluster.groups.group import DEAD, Group
from cluster.groups.group_table import DurableGroup, GroupTable
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")

OnCompleted = Callable[[ErrorCode], None]
CleanUp = Callable[[Group, Collection[TopicPartition], OnCompleted], Appends]

_RETRY_MS: Final = 1000
_GROUPS_AT_ONCE: Final = 1000


class DeletedTopics:
    """Groups' offsets in deleted topics. Tombstones are retried until they are committed, or until another broker
    coordinates. Then the remaining offsets stay forever, as in Kafka: a new coordinator cannot tell them from those of
    topics that it has not learned of yet.

    The topic may be recreated under the same name, so only earlier commits are removed. `clean_up` writes the
    tombstones of a group.
    """

    def __init__(self, table: GroupTable, clean_up: CleanUp) -> None:
        self._table = table
        self._clean_up = clean_up
        self._left: dict[str, dict[TopicPartition, int]] = {}
        """Per group, partitions whose offset must be removed if its commit has a lower number than the value."""
        self._being_written: set[str] = set()
        """Groups whose tombstones are being written."""
        self._retry = Deadline(table.deadlines, self._try_again)

    def forget(self, now: ClockReading, group_id: str, topics: Collection[str], first_kept: int) -> Appends:
        """Forget topics that were deleted when the number of the next commit was `first_kept`."""
        group = self._table.groups.get(group_id)
        if group is None:
            return ()
        durable = self._durable(group_id)
        known = durable.offsets.keys() | _pending_partitions(group, durable)
        deleted = {each: first_kept for each in known if each.topic in topics}
        if not deleted:
            return ()
        self._left.setdefault(group_id, {}).update(deleted)
        return self.write_tombstones(now, group_id, is_first=True)

    def close(self) -> None:
        """Another broker is the coordinator now. Breaks all reference cycles with the shard, so that it is freed at
        once.
        """
        self._left.clear()
        self._retry.clear()
        self._clean_up = _write_nothing

    def write_tombstones(self, now: ClockReading, group_id: str, *, is_first: bool = False) -> Appends:
        """Write the group's remaining tombstones, except where a commit is pending."""
        left, group = self._left.get(group_id), self._table.groups.get(group_id)
        if left is None or group is None:
            self._left.pop(group_id, None)  # the group is gone, with its offsets
            return ()
        if self._retry.due_ms is None:
            self._retry.set(now.monotonic_ms + _RETRY_MS)
        if group_id in self._being_written or group.state is DEAD:
            return ()
        durable = self._durable(group_id)
        pending = _pending_partitions(group, durable)  # may include commits to the new topic
        deleted: dict[TopicPartition, int] = {}
        for topic_partition, first_kept in list(left.items()):
            standing = durable.offsets.get(topic_partition)
            if topic_partition in pending:
                continue
            if standing is None or standing.number >= first_kept:
                del left[topic_partition]
            else:
                deleted[topic_partition] = first_kept
        if not left:
            del self._left[group_id]
        if not deleted:
            return ()
        self._being_written.add(group_id)
        return self._clean_up(group, deleted, partial(self._tombstones_written, group_id, deleted, is_first))

    def _tombstones_written(
        self, group_id: str, deleted: dict[TopicPartition, int], is_first: bool, error_code: ErrorCode
    ) -> None:
        self._being_written.remove(group_id)
        if error_code is not ErrorCode.NONE:
            if is_first:
                text = "Failed to write the end of offsets in %s: %s; it is tried again"
                logger.warning(text, group_id, error_code.name)
            return
        left = self._left.get(group_id, {})
        for topic_partition, first_kept in deleted.items():
            if left.get(topic_partition) == first_kept:
                del left[topic_partition]
        if not left:
            self._left.pop(group_id, None)

    def _try_again(self, now: ClockReading) -> Appends:
        appends: list[Append] = []
        for group_id in list(islice(self._left, _GROUPS_AT_ONCE)):
            self._left[group_id] = self._left.pop(group_id)  # move to the end, so that all groups get their turn
            appends += self.write_tombstones(now, group_id)
        if self._left:
            self._retry.set(now.monotonic_ms + _RETRY_MS)
        return appends

    def _durable(self, group_id: str) -> DurableGroup:
        return self._table.durable.get(group_id) or DurableGroup()


def _write_nothing(_: Group, _deleted: Collection[TopicPartition], _completed: OnCompleted) -> Appends:
    return ()


def _pending_partitions(group: Group, durable: DurableGroup) -> set[TopicPartition]:
    """Partitions with commits that are being written, or wait for the end of their transaction."""
    return set(group.pending_commits).union(*durable.pending.values())
