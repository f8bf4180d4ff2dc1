"""A cleaner thread's worker process, and the kinds of cleaning failures. Only that process imports the cleaning code
(`cleaner_process`); the broker does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from asyncio.subprocess import Process
from enum import Enum
from typing import Any

from storage.compaction.clean_task import CleanResult, CleanTask


class FailureKind(Enum):
    """The cause of a failed cleaning, which decides what happens to the partition."""

    RECORDS = "records"
    """The log cannot be read: the partition is marked uncleanable until the broker restarts."""
    DISK = "disk"
    """An OSError: a full disk is retried, any other error takes the log directory offline."""
    ABORTED = "aborted"
    """The log changed meanwhile; the cleaning is retried."""
    BUG = "bug"
    """Any other failure: the partition is marked uncleanable, too."""


class WorkerFailure(Exception):
    """The task failed, but the worker lives on. `errno` is that of an OSError. `corrupt_range` locates the damage in a
    segment: its base offset and the byte position in its `.log` file.
    """

    def __init__(
        self, message: str, kind: FailureKind, errno: int | None = None, corrupt_range: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.errno = errno
        self.corrupt_range = corrupt_range


IDLE_S = 60.0
"""Idle time after which a worker ends: its memory is worth more than the time of a new start."""

_ROOT = os.path.realpath(f"{__file__}/../../..")
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from broker.logs import compiled
compiled.use()
from broker.logs.cleaner_process import main
main()
"""
_LONGEST_LINE = 1 << 26
_LEAVING_S = 5.0


class WorkerDiedError(Exception):
    """The process ended during a task; the message says how."""


class ProcessWorker:
    """Runs tasks in a process, which starts with the first task and ends after `idle_s` without one."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._process: Process | None = None
        self._is_closed = False
        self._ending: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        # A rate or abort that comes before the process has started is sent with the task.
        self._rate = 0.0
        self._is_aborted = False

    @property
    def pid(self) -> int | None:
        """The process id, or None while no process runs."""
        return None if self._process is None else self._process.pid

    async def clean(self, task: CleanTask, bytes_per_second: float) -> CleanResult:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        self._rate, self._is_aborted = bytes_per_second, False
        was_there = self._process is not None
        try:
            answer = await self._ask(task)
        except WorkerDiedError:
            if not was_there:
                raise
            answer = await self._ask(task)  # the process may have ended before the task was sent
        self._ending = asyncio.get_running_loop().call_later(self._idle_s, self._leave)
        if "result" in answer:
            return CleanResult.from_json(answer["result"])
        corrupt_range = answer["corrupt_range"]
        raise WorkerFailure(
            answer["error"],
            FailureKind(answer["kind"]),
            answer["errno"],
            None if corrupt_range is None else tuple(corrupt_range),
        )

    async def _ask(self, task: CleanTask) -> dict[str, Any]:
        process = await self._started()
        assert process.stdout is not None
        try:
            self._send({"bytes_per_second": _finite(self._rate), "task": task.to_json()})
            if self._is_aborted:
                self._send({"abort": True})
            line = await process.stdout.readline()
        except (OSError, ValueError, RuntimeError) as error:  # uvloop raises RuntimeError for a closed pipe
            raise await self._died(process) from error
        if not line.endswith(b"\n"):
            raise await self._died(process)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def change_rate(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._send_message({"bytes_per_second": _finite(bytes_per_second)})

    def abort(self) -> None:
        self._is_aborted = True
        self._send_message({"abort": True})

    def _send_message(self, message: dict[str, Any]) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._send(message)

    async def close(self) -> None:
        self._is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        process, self._process = self._process, None
        if process is not None:
            await _end(process, patience_s=0)
        await asyncio.gather(*self._leaving)

    async def _started(self) -> Process:
        if self._is_closed:
            raise WorkerDiedError("it was closed")
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-c",
                _START,
                _ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
            )
        return self._process

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _died(self, process: Process) -> WorkerDiedError:
        if self._process is process:
            self._process = None
        code = await _end(process, _LEAVING_S)
        return WorkerDiedError(f"killed by signal {-code}" if code < 0 else f"exit code {code}")

    def _leave(self) -> None:
        process, self._process, self._ending = self._process, None, None
        if process is not None:
            task = asyncio.get_running_loop().create_task(_release(process), name="cleaner-leaves")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


async def _release(process: Process) -> None:
    await _end(process, patience_s=_LEAVING_S)


async def _end(process: Process, patience_s: float) -> int:
    """Close the input, wait `patience_s`, kill. Returns the exit code."""
    if process.stdin is not None:
        process.stdin.close()
    if patience_s:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), patience_s)
    if process.returncode is None:
        # Not `process.kill`: it polls the process and so takes the exit code from asyncio, which then reports 255.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return await process.wait()


def _finite(bytes_per_second: float) -> float:
    """Replace infinity, which JSON cannot express."""
    return bytes_per_second if math.isfinite(bytes_per_second) else sys.float_info.max
