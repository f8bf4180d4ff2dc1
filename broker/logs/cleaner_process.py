"""The compaction process: `python -m broker.logs.cleaner_process`, started by `broker.logs.cleaner_worker`.

Standard input carries JSON lines, standard output one answer per task:

    {"bytes_per_second": 1000000.0}   from now on (also during a task)
    {"task": "..."}                   a CleanTask's JSON -> {"result": "..."}, a CleanResult's
                                      or {"error": "what went wrong", "kind": "records", "errno": null,
                                      "corrupt_range": [0, 4711]}, see `broker.logs.cleaner_worker`
    {"abort": true}                   the running task, if any, ends with an error of kind "aborted"

The process ends as soon as its input does, even during a task, so it never outlives its broker, not even a killed one.
It may leave a half-written `.cleaned` file, which the next start of the broker removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from broker.logs.cleaner_worker import FailureKind, WorkerFailure
from protocol.errors import ApiError
from storage.compaction.clean_source import CorruptSegmentError, LogCleaningAbortedError
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.compaction.cleaner import clean
from storage.io.file_system import FileSystem, Throttler
from storage.io.os_file_system import OsFileSystem

NICENESS = 10
"""Compaction yields to the broker: it gets a tenth of the processor share of an equally busy process."""


def do_clean(file_system: FileSystem, task: CleanTask, throttle: Callable[[int], None]) -> CleanResult:
    """Call `storage.compaction.cleaner.clean`. Raises WorkerFailure for every error."""
    try:
        return clean(file_system, task, throttle)
    except CorruptSegmentError as error:
        corrupt_range = error.base_offset, error.position
        raise WorkerFailure(str(error), FailureKind.RECORDS, corrupt_range=corrupt_range) from error
    except ApiError as error:
        raise WorkerFailure(str(error), FailureKind.RECORDS) from error
    except LogCleaningAbortedError as error:
        raise WorkerFailure(str(error), FailureKind.ABORTED) from error
    except OSError as error:
        raise WorkerFailure(str(error), FailureKind.DISK, error.errno) from error
    except Exception as error:
        raise WorkerFailure(f"{type(error).__name__}: {error}", FailureKind.BUG) from error


def end_if_alone() -> None:
    """End the process if the other end of the input is closed, even if unread input remains. The reading thread may be
    late, and another broker may soon own the log.
    """
    alone = select.poll()
    alone.register(sys.stdin.fileno(), 0)
    if alone.poll(0):
        os._exit(0)


class Abortion:
    """Whether to abort the running task. Another thread sets it, and the next task clears it."""

    def __init__(self) -> None:
        self.wanted = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Sleep for at most `seconds`. Raises LogCleaningAbortedError."""
        if self.wanted.wait(seconds):
            raise LogCleaningAbortedError("the broker cancelled it")


def answer(file_system: FileSystem, task: str, throttle: Throttler, abortion: Abortion) -> dict[str, Any]:
    """Do one task. Returns the answer line, with the result or the error."""

    def pause(size: int) -> None:
        throttle(size)
        abortion.sleep(0)
        end_if_alone()

    end_if_alone()
    try:
        return {"result": do_clean(file_system, CleanTask.from_json(task), pause).to_json()}
    except WorkerFailure as failure:
        return {
            "error": str(failure),
            "kind": failure.kind.value,
            "errno": failure.errno,
            "corrupt_range": failure.corrupt_range,
        }


def read_lines(lines: TextIO, tasks: queue.SimpleQueue[str], throttle: Throttler, abortion: Abortion) -> None:
    """Dispatch the input lines; end the process at the end of the input."""
    for text in lines:
        message = json.loads(text)
        if "bytes_per_second" in message:
            throttle.bytes_per_second = message["bytes_per_second"]
        if "abort" in message:
            abortion.wanted.set()
        if "task" in message:
            abortion.wanted.clear()
            tasks.put(message["task"])
    os._exit(0)


def main() -> None:
    """Work until the input ends; does not return."""
    # Ignore signals from the terminal: the broker handles them and ends this process.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    abortion = Abortion()
    throttle = Throttler(time.monotonic, abortion.sleep)
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(sys.stdin, tasks, throttle, abortion), name="stdin", daemon=True).start()
    file_system = OsFileSystem()
    while True:
        line = json.dumps(answer(file_system, tasks.get(), throttle, abortion))
        try:
            print(line, flush=True)
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    main()
