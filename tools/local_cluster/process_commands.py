"""The command lines of the processes of a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from odradek.command_list import server_root
from tools.support.common import ToolError
from tools.zookeeper.zookeeper_jars import ZookeeperMissingError, server_command


class ProcessCommand(NamedTuple):
    """A command line, with the variables that its environment has beside this process's."""

    words: Sequence[str]
    environment: dict[str, str]


def broker_command(properties: Path) -> ProcessCommand:
    """A broker. It logs beside its configuration, into a daemon's files, which are rotated; what it says otherwise is
    little.
    """
    command = server_module("broker", str(properties))
    logs = {"ODRADEK_DAEMON": "files", "LOG_DIR": str(properties.parent)}
    return command._replace(environment={**command.environment, **logs})


def tree_command(properties: Path) -> ProcessCommand:
    """The embedded tree, served in the foreground as a ZooKeeper."""
    return server_module("broker.zookeeper.tree_process", str(properties))


def server_module(module: str, *arguments: str) -> ProcessCommand:
    """A module of the server, by this interpreter, so that nothing is prepared or compiled when it starts."""
    root = str(server_root())
    path = [root, *(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in {"", root})]
    return ProcessCommand([sys.executable, "-P", "-m", module, *arguments], {"PYTHONPATH": os.pathsep.join(path)})


def zookeeper_command(properties: Path) -> ProcessCommand:
    """A real ZooKeeper in the foreground. Raises ToolError, saying what is missing, when none can be started here."""
    try:
        return ProcessCommand(server_command(properties), {})
    except ZookeeperMissingError as error:
        raise ToolError(
            f"{error}; or leave --coordination away, or use --zookeeper HOST:PORT for one that runs"
        ) from None
