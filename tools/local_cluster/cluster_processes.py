"""Processes that outlive the command that started them, identified by pid and start time.

The operating system reuses the pid of a process that has ended. The start time distinguishes the two, so that no signal
ever reaches a process outside the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_POLL_S = 0.02
_PROC = Path("/proc")
_STARTED_FIELD = 19
"""Index of the start time in /proc/PID/stat, after the name: clock ticks since boot (field 22 of proc(5))."""


class ProcessId(NamedTuple):
    """A process: `started` distinguishes it from others with the same pid."""

    pid: int
    started: str


class Condition(enum.Enum):
    """The condition of a process."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Observed(NamedTuple):
    """The condition of a process, and its resident memory."""

    condition: Condition
    memory_bytes: int


class _Entry(NamedTuple):
    """A process as the operating system reports it: state letter, start, resident memory."""

    state: str
    started: str
    memory_bytes: int


_GONE = Observed(Condition.DEAD, 0)


def spawn(command: Sequence[str], output: Path, environment: Mapping[str, str]) -> ProcessId:
    """Start a process in a new session, so that it survives the terminal; its output is appended.

    Raises OSError.
    """
    with output.open("ab") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    entry = _look_up(process.pid)
    # Skip waiting for this child: the command ends before it does.
    process.returncode = 0
    return ProcessId(process.pid, "ended at once" if entry is None else entry.started)


def observe(process: ProcessId | None) -> Observed:
    """The current condition of a process. One that never started, or whose pid was reused, is dead."""
    entry = None if process is None else _look_up(process.pid)
    if process is None or entry is None or entry.started != process.started or entry.state in {"Z", "X"}:
        return _GONE
    return Observed(Condition.PAUSED if entry.state in {"T", "t"} else Condition.RUNNING, entry.memory_bytes)


def send_signal(process: ProcessId | None, number: signal.Signals) -> bool:
    """Signal a process; returns whether it exists. Raises PermissionError for another user's process."""
    if process is None or observe(process).condition is Condition.DEAD:
        return False
    with contextlib.suppress(ProcessLookupError), _held(process.pid) as descriptor:
        if observe(process).condition is Condition.DEAD:
            return False
        if sys.platform == "linux" and descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(process.pid, number)
        return True
    return False


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int | None]:
    """A descriptor of the current process with this pid (pidfd), stable even if the pid is reused. It is None on
    systems without pidfds. Raises ProcessLookupError.
    """
    if sys.platform != "linux":
        yield None
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def wait_for_end(process: ProcessId | None) -> None:
    """Return when the process is dead."""
    while observe(process).condition is not Condition.DEAD:  # noqa: ASYNC110  the system sends no event
        await asyncio.sleep(_POLL_S)


def _look_up(pid: int) -> _Entry | None:
    return _from_proc(pid) if (_PROC / "self" / "stat").exists() else _from_ps(pid)


def _from_proc(pid: int) -> _Entry | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    memory_bytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return _Entry(fields[0], f"{_boot_id()}/{fields[_STARTED_FIELD]}", memory_bytes)


@cache
def _boot_id() -> str:
    """A text that changes with each boot: the same ticks since boot may occur again."""
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()


def _from_ps(pid: int) -> _Entry | None:
    """The process as the BSDs and macOS report it."""
    said = subprocess.run(
        ["ps", "-o", "state=,rss=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=2)
    if len(said) < 3:
        return None
    state, memory_kib, started = said
    return _Entry(state[0], started.strip(), int(memory_kib) * 1024)
