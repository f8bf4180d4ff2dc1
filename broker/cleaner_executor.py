"""Compaction in this process, for simulations, where another one would be out of reach."""

from __future__ import annotations

from broker.cleaner_job import do_clean
from broker.seams import Executor
from storage.clean_task import CleanResult, CleanTask
from storage.file_system import FileSystem


class ExecutorWorker:
    """Runs tasks on the broker's executor and file system: for simulations, where a process would be out of reach."""

    def __init__(self, file_system: FileSystem, executor: Executor) -> None:
        self._file_system = file_system
        self._executor = executor

    async def clean(self, task: CleanTask, bytes_per_second: float) -> CleanResult:  # noqa: ARG002 - no time passes here
        # Through JSON as in a process, so that a simulation finds what does not survive it.
        sent = CleanTask.from_json(task.to_json())
        result: CleanResult = await self._executor.run(do_clean, self._file_system, sent, _unthrottled)
        return CleanResult.from_json(result.to_json())

    def change_rate(self, bytes_per_second: float) -> None:
        """No time passes here."""

    def abort(self) -> None:
        """What it does is soon done."""

    async def close(self) -> None:
        """Tasks end by themselves."""


def _unthrottled(_size: int) -> None:
    """As many bytes as there are."""
