"""Work that waits for the disk: tasks on executor threads, monitoring of free space in the log directories (the rule is
in `storage.directory.disk_reserve`), and rate-limited reading of sealed segments (log.scrub.*).
"""

from __future__ import annotations

import logging

from broker.supervisor import Supervisor
from environment.contract import Clock, Executor
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import is_internal
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import DiskTask
from storage.log_manager import LogManager
from storage.recovery.scrub import Scrub


async def run_disk_tasks(executor: Executor, *tasks: DiskTask) -> None:
    """Run and complete the tasks, one after the other. Raises whatever `complete` raises."""
    for task in tasks:
        await executor.run(task.run)
        task.complete()


logger = logging.getLogger("kafka.log.LogManager")

CHECK_MS = 1_000
"""How often free space is queried. In between, appended bytes are subtracted."""


class DiskSpaceWatch:
    """Owns the state of the disk reserve while the broker runs."""

    def __init__(self, log_manager: LogManager, executor: Executor, reserve_bytes: int) -> None:
        """Keep clients from using the reserve of each disk (log.dir.reserve.bytes)."""
        self._log_manager = log_manager
        self._executor = executor
        log_manager.directories.keep_reserve(reserve_bytes, _log_space)

    async def check(self) -> None:
        """Query the free space of every disk."""
        await run_disk_tasks(self._executor, *self._log_manager.directories.space_tasks())

    def refuse_new_partitions(self, topic: str) -> None:
        """Refuse new partitions of `topic` for lack of space; internal topics may use the reserve.

        Raises ApiError POLICY_VIOLATION when all working directories have reached their reserve, or when all still know
        an earlier topic of that name because their disks are too full to forget it.
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


def _log_space(directory: LogDirectory) -> None:
    if directory.is_reserve_reached and directory.reserve is not None:
        logger.warning("%s: clients cannot write there until space returns", directory.reserve.describe())
    else:
        logger.info("Log directory %s has %d bytes left: clients write again", directory.path, directory.usable_bytes)


ROUND_MS = 1_000
FIRST_PASS_MS = 600_000
"""Delay of the first pass after startup, unless log.scrub.interval.ms is shorter."""
TASK_BYTES = 1 << 20
"""Bytes that one task reads; they occupy a thread for some milliseconds."""


class Scrubber:
    """Reads up to log.scrub.max.bytes.per.second in a round every second."""

    def __init__(
        self, log_manager: LogManager, clock: Clock, executor: Executor, *, interval_ms: int, bytes_per_second: int
    ) -> None:
        """`interval_ms` is the time from the start of one pass to the start of the next; a negative value disables
        scrubbing.
        """
        self._log_manager = log_manager
        self._clock = clock
        self._executor = executor
        self._interval_ms = interval_ms
        self._bytes_per_second = bytes_per_second
        self._next_pass_s = clock.monotonic_s() + min(interval_ms, FIRST_PASS_MS) / 1000
        self._debt_bytes = 0
        """Bytes read in excess of the earlier rounds' allowance."""
        self.scrub = Scrub()

    def schedule(self, supervisor: Supervisor) -> None:
        """Start the rounds."""
        if self._interval_ms >= 0:
            supervisor.every(ROUND_MS, "log-scrub", self.round)

    async def round(self) -> None:
        """Read one second's share of the current pass, or start the next pass if it is due."""
        scrub, now_s = self.scrub, self._clock.monotonic_s()
        if not scrub.is_under_way:
            if now_s < self._next_pass_s:
                return
            self._next_pass_s = now_s + self._interval_ms / 1000
            scrub.begin(self._log_manager.logs)
        allowed = self._bytes_per_second - self._debt_bytes
        while allowed > 0:
            size = min(TASK_BYTES, allowed)
            task = scrub.next_task(self._log_manager.logs, size, self._clock.now_ms())
            if task is None:
                break
            await run_disk_tasks(self._executor, task)
            allowed -= max(task.checked_bytes, 1)
        self._debt_bytes = max(-allowed, 0)
