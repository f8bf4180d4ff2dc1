"""The launcher's forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORK = """
import gc, os, sys
gc.disable()  # as `odradek.processes` starts the launcher
from pathlib import Path
from broker.test_mode.launcher import _run
directory = Path(sys.argv[1])
unused, report = os.pipe()
if os.fork() == 0:
    _run(directory, report, lambda: (directory / "said").write_text(str(gc.isenabled())) and 0)
os.wait()
"""


def test_a_fork_collects_garbage(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "said").read_text() == "True"
