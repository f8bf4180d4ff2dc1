"""The groups of one shard: the durable layer, the live one beside it, and the configuration they go by."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cluster.coordinator.deadlines import Deadlines
from cluster.coordinator.durable_groups import DurableGroups
from cluster.coordinator.group import Group
from cluster.coordinator.turn import Append, Turn
from protocol.errors import ErrorCode

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")

INT_MAX: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Kafka's group.* and offsets.* settings, under their names, in the units that the names say."""

    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10_080 * 60_000


class GroupTable:
    """`durable` changes by replay alone; `groups` holds the membership of the same groups, and of some without records.

    `new_id()` gives the random part of a member id.
    """

    def __init__(self, config: GroupConfig, new_id: Callable[[], str], durable: DurableGroups | None = None) -> None:
        self.config = config
        self.new_id = new_id
        self.durable = DurableGroups() if durable is None else durable
        self.deadlines = Deadlines()
        self.groups: dict[str, Group] = {}

    def create(self, group_id: str, turn: Turn) -> Group:
        """A new, empty group."""
        group = self.groups[group_id] = Group(group_id, self.deadlines, turn.now_ms)
        return group

    def complete(self, append: Append, base_offset: int, turn: Turn) -> None:
        """The records of `append` are committed, the first at `base_offset` of the log: replay them and go on."""
        for position, record in enumerate(append.records):
            self.durable.replay(record, base_offset + position)
        append.committed(turn)

    def restore(self, turn: Turn) -> None:
        """Build the live layer after loading."""
        for group_id, durable in self.durable.groups.items():
            if durable.metadata is None:
                self.create(group_id, turn)
            else:
                self.groups[group_id] = Group.restored(group_id, durable.metadata, self.deadlines, turn.now_ms)


def ignore(_: Turn) -> None:
    """What follows from an append that nobody waits for."""


def log_failure(what: str) -> Callable[[Turn, ErrorCode], None]:
    """For appends that nobody waits for: say that `what` was not written."""
    return partial(_log_failure, what)


def _log_failure(what: str, _: Turn, error_code: ErrorCode) -> None:
    logger.warning("Failed to write %s: %s", what, error_code.name)
