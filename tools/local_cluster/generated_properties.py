"""The configurations that `odradek cluster start` writes."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from tools.local_cluster.cluster_directory import HOST, ZOOKEEPER, ClusterDirectory, ClusterState, LocalBroker
from tools.local_cluster.security.cluster_secrets import SUPER_USERS, ClusterSecrets
from tools.support.common import ToolError

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
