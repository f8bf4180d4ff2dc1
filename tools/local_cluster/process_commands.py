"""The command lines of the processes of a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from odradek.command_list import server_root
from tools.support.common import ToolError

_ZOOKEEPER_SCRIPT = "zookeeper-server-start.sh"


class ProcessCommand(NamedTuple):
    """A command line, with the variables that its environment has beside this process's."""

    words: Sequence[str]
    environment: dict[str, str]


def broker_command(properties: Path) -> ProcessCommand:
    """A broker in the foreground, by this interpreter, so that nothing is prepared or compiled when it starts."""
    root = str(server_root())
    path = [root, *(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in {"", root})]
    return ProcessCommand(
        [sys.executable, "-P", "-m", "broker", str(properties)], {"PYTHONPATH": os.pathsep.join(path)}
    )


def zookeeper_command(properties: Path) -> ProcessCommand:
    """A real ZooKeeper in the foreground. Raises ToolError when this installation cannot start one."""
    script = server_root() / "bin" / _ZOOKEEPER_SCRIPT
    if not script.exists():
        raise ToolError(f"{script} is missing; use --zookeeper HOST:PORT for a ZooKeeper that runs already")
    return ProcessCommand(["sh", str(script), str(properties)], {"ODRADEK_PYTHON": sys.executable})
