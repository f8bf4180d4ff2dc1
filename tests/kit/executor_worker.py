"""Compaction in the broker's process: a `CleanerWorker` that runs on an executor."""

from __future__ import annotations

from broker.logs.cleaner_process import do_clean
from environment.contract import Executor
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.io.file_system import FileSystem


class ExecutorWorker:
    """Runs tasks on an executor and an in-memory file system, which another process could not reach."""

    def __init__(self, file_system: FileSystem, executor: Executor) -> None:
        self._file_system = file_system
        self._executor = executor

    async def clean(self, task: CleanTask, bytes_per_second: float) -> CleanResult:
        # Through JSON as with a process, so that tests find fields that do not survive it.
        sent = CleanTask.from_json(task.to_json())
        result: CleanResult = await self._executor.run(do_clean, self._file_system, sent, _unthrottled)
        return CleanResult.from_json(result.to_json())

    def change_rate(self, bytes_per_second: float) -> None:
        """Do nothing: time stands still here."""

    def abort(self) -> None:
        """Do nothing: its work is short."""

    async def close(self) -> None:
        """Do nothing: tasks end by themselves."""


def _unthrottled(_size: int) -> None:
    """Never wait."""
