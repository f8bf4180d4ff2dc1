"""Cost of a process tree, from /proc: CPU seconds and resident memory. Also runs commands to completion."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT_S = 60


def tree(pid: int) -> list[int]:
    """`pid` and its running descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat, starting with the state; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()


def cpu_s(pid: int) -> float:
    """User and system seconds of the tree, including children that have ended."""
    return sum(sum(map(int, fields[11:15])) for member in tree(pid) if (fields := stat_fields(member))) / TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Resident memory of the tree."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(fields[21]) * page for member in tree(pid) if (fields := stat_fields(member)))


@dataclass(frozen=True)
class Finished:
    """Output of a child, and its CPU seconds (user and system)."""

    output: str
    cpu_s: float


def run(command: Sequence[str], timeout_s: float, environment: dict[str, str] | None = None) -> Finished:
    """Run to completion; raises RuntimeError with the end of the output on failure, TimeoutExpired on a hang."""
    before = os.times()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    after = os.times()
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:8])} ... exited {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Finished(done.stdout, spent)


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to one after the other, and SIGKILL to one that does not end."""
    for process in processes:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_cpu_quiet(pid: int, timeout_s: float = 10) -> None:
    """Wait until the tree uses < 5 % of a core, or time is up: garbage collection after a load is part of its cost."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = cpu_s(pid)
        time.sleep(0.4)
        if cpu_s(pid) - before < 0.02:
            return
