"""`odradek cluster` as a user runs it, in a directory of the test."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kit.broker_process import ROOT
from tests.kit.waiting import eventually


class ClusterCommand:
    """Runs `odradek cluster` on one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, *words: str, code: int = 0) -> str:
        """The output of one command; fails if its exit code is not `code`."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "odradek", "cluster", *words, "--dir", str(self._directory)],
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def brokers(self, code: int = 0) -> dict[int, list[str]]:
        """The broker rows of the status: state, pid, address, ... by id."""
        rows = re.findall(r"(?m)^(\d+)  +(\S.*)$", self("status", code=code))
        return {int(number): re.split(r"  +", row) for number, row in rows}

    def states(self, code: int = 0) -> dict[int, str]:
        """The state of each broker; `code` is the exit code of the status."""
        return {number: row[0] for number, row in self.brokers(code).items()}

    def await_status(self, pattern: str) -> None:
        """Wait until the status has a line that begins with this."""
        eventually(pattern, lambda: self("status"), lambda said: re.search(rf"(?m)^{pattern}", said) is not None)


@contextlib.contextmanager
def cluster_command(directory: Path) -> Iterator[ClusterCommand]:
    """Run cluster commands for a block; no process survives it."""
    command = ClusterCommand(directory)
    try:
        yield command
    finally:
        for name in ("1", "2", "3", "4", "zookeeper"):
            with contextlib.suppress(AssertionError):
                command("kill", name)
