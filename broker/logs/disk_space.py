"""Watches the disks of the log directories: how much clients may write, and what they are told when it is nothing.

See `storage.directory.disk_reserve` for the rule. Here are the rounds, the log lines, and the refusal of new
partitions.
"""

from __future__ import annotations

import logging

from broker.environment.contract import Executor
from broker.logs.disk_tasks import run_disk_tasks
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import is_internal
from storage.directory.log_directory import LogDirectory
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.log.LogManager")

CHECK_MS = 1_000
"""How often the disks are asked. In between the appends are counted."""


class DiskSpaceWatch:
    """Owner of the reserve's state while the broker runs."""

    def __init__(self, log_manager: LogManager, executor: Executor, reserve_bytes: int) -> None:
        """Make clients leave the reserve of every disk free (log.dir.reserve.bytes)."""
        self._log_manager = log_manager
        self._executor = executor
        log_manager.directories.keep_reserve(reserve_bytes, _say)

    async def check(self) -> None:
        """Ask every disk."""
        await run_disk_tasks(self._executor, *self._log_manager.directories.space_tasks())

    def refuse_new_partitions(self, topic: str) -> None:
        """Refuse new partitions of `topic` where there is no space; internal topics may use the reserve.

        Raises ApiError POLICY_VIOLATION when every directory that works has reached it, or still knows an earlier topic
        of that name as its disk is too full to forget it.
        """
        online = [directory for directory in self._log_manager.directories if directory.failure is None]
        stale = [path for path in (directory.stale_checkpoint(topic) for directory in online) if path is not None]
        if stale and len(stale) == len(online):
            text = f"The disk is too full for {', '.join(stale)}, which still know the deleted topic {topic}."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        if is_internal(topic) or not online or not all(directory.is_reserve_reached for directory in online):
            return
        reasons = "; ".join(directory.reserve.describe() for directory in online if directory.reserve is not None)
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"No log directory has space for new partitions. {reasons}.")


def _say(directory: LogDirectory) -> None:
    if directory.is_reserve_reached and directory.reserve is not None:
        logger.warning("%s: clients cannot write there until space returns", directory.reserve.describe())
    else:
        logger.info("Log directory %s has %d bytes left: clients write again", directory.path, directory.usable_bytes)
