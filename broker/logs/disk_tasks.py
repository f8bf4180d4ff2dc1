"""Doing what storage hands out as tasks: what waits for the disk on the executor's threads, the rest on the event loop,
which owns the logs.
"""

from __future__ import annotations

from broker.environment.contract import Executor
from storage.io.disk_task import DiskTask


async def run_disk_tasks(executor: Executor, *tasks: DiskTask) -> None:
    """Run and complete them, one after the other. Raises what `complete` raises."""
    for task in tasks:
        await executor.run(task.run)
        task.complete()
