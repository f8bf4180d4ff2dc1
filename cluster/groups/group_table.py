"""The groups of one shard: the durable layer, the live one beside it, and the configuration they go by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from cluster.coordinators.deadlines import Deadlines
from cluster.coordinators.results import Append, Appends, Moment
from cluster.groups.durable_groups import DurableGroups
from cluster.groups.group import Group
from cluster.groups.group_config import GroupConfig
from cluster.groups.records import CoordinatorRecord
from protocol.errors import ErrorCode

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")


class GroupTable:
    """`durable` changes by replay alone; `groups` holds the membership of the same groups, and of some without records.

    `new_id()` gives the random part of a member id, `most_record_bytes()` the largest record that the log takes.
    """

    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        durable: DurableGroups | None,
        most_record_bytes: Callable[[], int],
    ) -> None:
        self.config = config
        self.new_id = new_id
        self.most_record_bytes = most_record_bytes
        self.durable = DurableGroups() if durable is None else durable
        self.deadlines = Deadlines()
        self.groups: dict[str, Group] = {}

    def create(self, group_id: str, now: Moment) -> Group:
        """A new, empty group."""
        group = self.groups[group_id] = Group(group_id, self.deadlines, now.now_ms)
        return group

    def restore(self, now: Moment) -> None:
        """Build the live layer after loading."""
        for group_id, durable in self.durable.groups.items():
            if durable.metadata is None:
                self.create(group_id, now)
            else:
                self.groups[group_id] = Group.restored(group_id, durable.metadata, self.deadlines, now.now_ms)


def unattended(records: Sequence[CoordinatorRecord], what: str) -> Append:
    """An append without a waiting client. If it fails, the log says that `what` was not written."""
    return Append(records, partial(_log_failure, what))


def _log_failure(what: str, _: Moment, error_code: ErrorCode) -> Appends:
    if error_code is not ErrorCode.NONE:
        logger.warning("Failed to write %s: %s", what, error_code.name)
    return ()
