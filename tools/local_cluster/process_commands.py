"""The command lines of the processes of a cluster, and the configurations that `odradek cluster start` writes for
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from odradek.command_list import server_root
from tools.local_cluster.cluster_directory import HOST, ZOOKEEPER, ClusterDirectory, ClusterState, LocalBroker
from tools.local_cluster.cluster_secrets import SUPER_USERS, ClusterSecrets
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


SESSION_TIMEOUT_MS = 6_000
"""Kafka's default of 18 s is for networks between machines; here somebody waits for the fail-over that he caused."""
_MOST_REPLICAS = 3


def broker_properties(directory: ClusterDirectory, state: ClusterState, broker: LocalBroker) -> dict[str, str]:
    """The configuration of one broker; the cluster's settings win over what is chosen here.

    Topics have as many replicas as brokers allow, three at most, and acks=all waits for two of three. All brokers have
    this host as their rack: where several hosts share a ZooKeeper, replicas are spread over the hosts. Raises ToolError
    for a setting that would undo the security, and with OSError when the passwords cannot be read.
    """
    replicas = min(len(state.brokers), _MOST_REPLICAS)
    in_sync = max(1, replicas - 1)
    chosen = {
        "broker.id": str(broker.broker_id),
        "broker.rack": socket.gethostname(),
        "listeners": f"{state.security.protocol}://{broker.address}",
        "log.dirs": str(directory.part(broker.broker_id) / "data"),
        "zookeeper.connect": state.zookeeper.connect,
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        # A stop of all brokers: the last one has nobody to hand its leadership to, and need not ask for long.
        "controlled.shutdown.retry.backoff.ms": "500",
    }
    if state.security.mechanism and "authorizer.class.name" in state.settings:
        chosen["super.users"] = SUPER_USERS
    security = ClusterSecrets(directory, state.security).broker_properties(broker.broker_id)
    for key in security.keys() & state.settings.keys():
        raise ToolError(f"--set {key}: {state.security.title} chooses it")
    return {**chosen, **security, **state.settings}


def zookeeper_properties(directory: ClusterDirectory, port: int) -> Mapping[str, str]:
    """The configuration of a ZooKeeper for this machine alone."""
    return {
        "dataDir": str(directory.part(ZOOKEEPER) / "data"),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        # Sessions last 2 to 20 ticks, and end up to a tick late.
        "tickTime": "1000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
    }
