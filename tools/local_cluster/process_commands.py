"""The command lines of the processes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
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


def users_command(properties: Path, users: Path) -> ProcessCommand:
    """Makes users of SCRAM before the first broker, of which this is the configuration, starts."""
    return server_module("broker.security.first_users", str(properties), str(users))


async def run(command: ProcessCommand) -> tuple[int, str]:
    """Run a command to its end; gives the exit code and what it said on standard error."""
    process = await asyncio.create_subprocess_exec(
        *command.words, env={**os.environ, **command.environment}, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    try:
        _, said = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace").strip()


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
