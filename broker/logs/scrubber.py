"""The paced reading of sealed segments in search of flipped bits (log.scrub.*)."""

from __future__ import annotations

from broker.environment.contract import Clock, Executor
from broker.logs.disk_tasks import run_disk_tasks
from broker.supervisor import Supervisor
from storage.log_manager import LogManager
from storage.recovery.scrub import Scrub

ROUND_MS = 1_000
FIRST_PASS_MS = 600_000
"""The first pass begins so long after the start, or log.scrub.interval.ms if that is shorter."""
TASK_BYTES = 1 << 20
"""Read by one task: some milliseconds of a thread."""


class Scrubber:
    """A round every second, of as many bytes as log.scrub.max.bytes.per.second allows."""

    def __init__(
        self, log_manager: LogManager, clock: Clock, executor: Executor, *, interval_ms: int, bytes_per_second: int
    ) -> None:
        """`interval_ms` from the beginning of one pass to that of the next; negative: there are none."""
        self._log_manager = log_manager
        self._clock = clock
        self._executor = executor
        self._interval_ms = interval_ms
        self._bytes_per_second = bytes_per_second
        self._next_pass_s = clock.monotonic_s() + min(interval_ms, FIRST_PASS_MS) / 1000
        self._debt_bytes = 0
        """Read beyond what earlier rounds were allowed."""
        self.scrub = Scrub()

    def schedule(self, supervisor: Supervisor) -> None:
        """Begin the rounds."""
        if self._interval_ms >= 0:
            supervisor.every(ROUND_MS, "log-scrub", self.round)

    async def round(self) -> None:
        """Read a second's share of the pass that is under way, or begin the next when it is time."""
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
