"""Processes that outlive the command which started them, known by their id and the time of their start.

The operating system gives the id of a process that has ended to another one. The start time tells them apart, so that
no signal ever reaches a process that is not the cluster's.
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
"""Of /proc/PID/stat behind the name: the start in clock ticks since boot (field 22 of proc(5))."""


class ProcessId(NamedTuple):
    """A process: `started` is a text that no other process with this id has."""

    pid: int
    started: str


class Condition(enum.Enum):
    """How a process is."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Observed(NamedTuple):
    """A process at one moment, with its resident memory."""

    condition: Condition
    memory_bytes: int


class _Entry(NamedTuple):
    """A process as the operating system tells it: state letter, start, resident memory."""

    state: str
    started: str
    memory_bytes: int


_GONE = Observed(Condition.DEAD, 0)


def spawn(command: Sequence[str], output: Path, environment: Mapping[str, str]) -> ProcessId:
    """Start a process in a session of its own, which goes on when the terminal is closed; output is appended.

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
    # Nobody waits for this child: the command ends before it does.
    process.returncode = 0
    return ProcessId(process.pid, "ended at once" if entry is None else entry.started)


def observe(process: ProcessId | None) -> Observed:
    """How a process is now. One that was never started, and one whose id belongs to another process, is dead."""
    entry = None if process is None else _look_up(process.pid)
    if process is None or entry is None or entry.started != process.started or entry.state in {"Z", "X"}:
        return _GONE
    return Observed(Condition.PAUSED if entry.state in {"T", "t"} else Condition.RUNNING, entry.memory_bytes)


def send_signal(process: ProcessId | None, number: signal.Signals) -> bool:
    """Signal a process; gives whether it was there. Raises PermissionError for another user's."""
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
    """A descriptor that stands for the process which has this id now, whatever becomes of the id; None where the
    system has no such thing. Raises ProcessLookupError.
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
    while observe(process).condition is not Condition.DEAD:  # noqa: ASYNC110  nobody tells when it ends
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
    """Another text after each boot: ticks since boot may come again."""
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()


def _from_ps(pid: int) -> _Entry | None:
    """As the BSDs and macOS tell it."""
    said = subprocess.run(
        ["ps", "-o", "state=,rss=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=2)
    if len(said) < 3:
        return None
    state, memory_kib, started = said
    return _Entry(state[0], started.strip(), int(memory_kib) * 1024)
