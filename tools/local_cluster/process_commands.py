"""The command lines of a cluster's processes, and the configurations that `odradek cluster start` writes for them."""

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
    """A command line, with additional environment variables."""

    words: Sequence[str]
    environment: dict[str, str]


def broker_command(properties: Path) -> ProcessCommand:
    """A broker. It writes rotated log files, as a daemon does, next to its configuration, and little other output."""
    command = server_module("broker", str(properties))
    logs = {"ODRADEK_DAEMON": "files", "LOG_DIR": str(properties.parent)}
    return command._replace(environment={**command.environment, **logs})


def tree_command(properties: Path) -> ProcessCommand:
    """The embedded tree, served in the foreground as a ZooKeeper."""
    return server_module("zookeeper.tree_process", str(properties))


def users_command(properties: Path, users: Path) -> ProcessCommand:
    """Creates SCRAM users before the first broker starts; `properties` is that broker's configuration."""
    return server_module("broker.security.first_users", str(properties), str(users))


async def run(command: ProcessCommand) -> tuple[int, str]:
    """Run a command to its end; returns the exit code and its standard error."""
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
    """A module of the server, run by this interpreter, so that its start prepares and compiles nothing."""
    root = str(server_root())
    path = [root, *(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in {"", root})]
    return ProcessCommand([sys.executable, "-P", "-m", module, *arguments], {"PYTHONPATH": os.pathsep.join(path)})


def zookeeper_command(properties: Path) -> ProcessCommand:
    """A real ZooKeeper in the foreground. Raises ToolError naming what is missing if none can be started."""
    try:
        return ProcessCommand(server_command(properties), {})
    except ZookeeperMissingError as error:
        raise ToolError(
            f"{error}; or leave --coordination away, or use --zookeeper HOST:PORT for one that runs"
        ) from None


SESSION_TIMEOUT_MS = 6_000
"""Kafka's default of 18 s is for networks between machines; here a person waits for the failover."""
_MOST_REPLICAS = 3


def broker_properties(directory: ClusterDirectory, state: ClusterState, broker: LocalBroker) -> dict[str, str]:
    """The configuration of one broker; the cluster's settings override the defaults chosen here.

    Topics have as many replicas as the brokers allow, but at most three, and acks=all waits for two of three. All
    brokers use this host as their rack, so that replicas are spread over hosts that share a ZooKeeper. Raises ToolError
    for a setting that would disable the security, and OSError if the passwords cannot be read.
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
        # When all brokers stop, the last one cannot hand over its leadership, so it should not retry for long.
        "controlled.shutdown.retry.backoff.ms": "500",
    }
    if state.security.mechanism and "authorizer.class.name" in state.settings:
        chosen["super.users"] = SUPER_USERS
    security = ClusterSecrets(directory, state.security).broker_properties(broker.broker_id)
    for key in security.keys() & state.settings.keys():
        raise ToolError(f"--set {key}: {state.security.title} chooses it")
    return {**chosen, **security, **state.settings}


def zookeeper_properties(directory: ClusterDirectory, port: int) -> Mapping[str, str]:
    """The configuration of a ZooKeeper that serves only this machine."""
    return {
        "dataDir": str(directory.part(ZOOKEEPER) / "data"),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        # A session times out after 2 to 20 ticks, and the check may be a tick late.
        "tickTime": "1000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
    }
