"""Limits of the operating system for a process: memory and threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from environment.system import ThreadExecutor, _memory_limits_of_cgroups, available_memory

MEGABYTE = 1 << 20
PRINT_MEMORY = "from environment.system import available_memory; print(available_memory())"


@pytest.mark.parametrize("option", ["-d", "-v"])
def test_memory_is_what_limits_of_the_process_leave(option: str) -> None:
    limited = f'ulimit {option} {512 * MEGABYTE >> 10}; exec "$@"'
    command = ["sh", "-c", limited, "sh", sys.executable, "-c", PRINT_MEMORY]
    assert int(subprocess.run(command, check=True, capture_output=True).stdout) == 512 * MEGABYTE
    assert (available_memory() or 0) > 512 * MEGABYTE


def test_the_limits_of_all_cgroups_above_count(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/old/one\n1:cpu:/other\n0::/system.slice/odradek.service\n")
    files = {*_memory_limits_of_cgroups("/c", str(membership))}
    assert {"/c/memory.max", "/c/system.slice/memory.max", "/c/system.slice/odradek.service/memory.max"} <= files
    assert {"/c/memory/memory.limit_in_bytes", "/c/memory/old/one/memory.limit_in_bytes"} <= files
    assert not any("other" in each for each in files)


def test_work_goes_on_with_the_threads_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not suffice for the stack of another thread."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        executor = ThreadExecutor(2)
        goes_on = threading.Event()
        first = asyncio.ensure_future(executor.run(goes_on.wait))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        second = asyncio.ensure_future(executor.run(lambda: "done"))
        goes_on.set()
        assert await first
        assert await second == "done"
        monkeypatch.undo()
        executor.close()

    asyncio.run(scenario())
