"""Strays: logs on this broker's disks that belong to no existing topic. They are renamed, never used or deleted.

A power cut or a returning disk can bring back deleted logs, and a topic of the same name may exist by then. The
checkpoints must forget a stray before a log of its name is created: after a crash its offsets would apply to the new
log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container

from cluster.controller.commands import LeaderAndIsr
from environment.contract import Clock
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.log.LogManager")


class StrayLogs:
    """Renames the directories of strays."""

    def __init__(self, log_manager: LogManager, clock: Clock) -> None:
        self._log_manager = log_manager
        self._clock = clock
        self._complete_deletions: Callable[[], Awaitable[None]] | None = None
        self._has_unfinished = False
        """Whether a checkpoint may still contain one of them."""

    def complete_deletions_with(self, complete_deletions: Callable[[], Awaitable[None]]) -> None:
        """Set the callback that writes checkpoints without the strays (`LogMaintenance.complete_deletions`)."""
        self._complete_deletions = complete_deletions

    async def complete_deletions(self) -> None:
        """Return when no checkpoint contains the strays any more. A full disk is an exception: no log of their topics
        is created there (`LogManager.get_or_create`).
        """
        if self._has_unfinished and self._complete_deletions is not None:
            await self._complete_deletions()
            self._has_unfinished = False

    def unknown_to(self, command: LeaderAndIsr) -> list[TopicPartition]:
        """The logs that a full command does not mention, or that belong to another topic of the same name."""
        wanted = {
            TopicPartition(topic.topic, state.partition): topic.topic_id
            for topic in command.topics
            for state in topic.partitions
        }
        for path in self._log_manager.resolve_conflicting_logs(wanted.get, self._clock.now_ms()):
            self._has_unfinished = True
            logger.warning("Found a second log, of an earlier topic of the same name; it was renamed to %s", path)
        return [
            topic_partition
            for topic_partition, log in self._log_manager.logs.items()
            if log.directory.failure is None
            and (topic_partition not in wanted or log.topic_id not in (None, wanted[topic_partition]))
        ]

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Rename the directory of such a log. If the disk refuses, the directory stays, and is not used."""
        before = self._log_manager.logs[topic_partition].path
        try:
            path = self._log_manager.set_aside(topic_partition, self._clock.now_ms())
        except ApiError as error:
            logger.error("The log %s, of no existing topic, could not be renamed: %s", before, error)
        else:
            self._has_unfinished = True
            logger.warning("No topic exists for the log %s; it was renamed to %s", before, path)

    def make_room_for(self, command: LeaderAndIsr, held: Container[TopicPartition]) -> None:
        """Rename logs that an earlier topic left under the name of a new topic in this command; `held` are the hosted
        replicas.
        """
        for topic in command.topics:
            if not topic.is_new:
                continue
            for topic_partition in (TopicPartition(topic.topic, state.partition) for state in topic.partitions):
                log = self._log_manager.get(topic_partition)
                if topic_partition in held or log is None or log.directory.failure is not None:
                    continue
                if log.topic_id != topic.known_id:
                    self.set_aside(topic_partition)
