"""kafka-cluster: run a cluster on this machine, or show the id of one (Kafka class `ClusterTool`).

Kafka's tool knows `cluster-id` and `unregister`; the other actions are Odradek's (`tools.local_cluster`).
"""

from __future__ import annotations

import argparse
import sys

from tools.local_cluster import cluster_actions
from tools.support.arguments import ArgumentParser
from tools.support.common import make_client, read_properties, run_work


def make_parser() -> ArgumentParser:
    """The parser of Kafka's actions."""
    parser = ArgumentParser("kafka-cluster", "Show the id of a cluster.")
    parser.epilog = (
        f"On this machine: odradek cluster {'|'.join(cluster_actions.ACTIONS)}; --help after one tells more."
    )
    parser.add_argument("action", choices=("cluster-id", "unregister"), help="what to do")
    servers = parser.add_mutually_exclusive_group(required=True)
    servers.add_argument("--bootstrap-server", "-b", metavar="BOOTSTRAP_SERVER", help="the brokers to connect to")
    servers.add_argument("--bootstrap-controller", "-C", metavar="BOOTSTRAP_CONTROLLER", help="of KRaft only")
    parser.add_argument("--config", "-c", metavar="CONFIG", help="a file with properties for the client")
    parser.add_argument("--id", "-i", type=int, metavar="ID", help="the broker to unregister, of KRaft only")
    return parser


def make_parsers() -> list[argparse.ArgumentParser]:
    """The parsers of all actions."""
    return [make_parser(), cluster_actions.make_parser()]


async def work(arguments: argparse.Namespace) -> int:
    """Print the cluster id, or an error for `unregister`, which needs KRaft."""
    if arguments.bootstrap_controller is not None:
        print("The cluster has no KRaft controllers to connect to; use --bootstrap-server.", file=sys.stderr)
        return 1
    properties = read_properties(arguments.config) if arguments.config else {}
    async with make_client(arguments.bootstrap_server, properties) as client:
        found = await client.describe_topics([])
    if arguments.action == "unregister":
        print("The target cluster does not support the broker unregistration API.")
    elif found.cluster_id is None:
        print("No cluster ID found. The Kafka version is probably too old.")
    else:
        print(f"Cluster ID: {found.cluster_id}")
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    if argv and argv[0] in cluster_actions.ACTIONS:
        return cluster_actions.main(argv)
    parser = make_parser()
    if not argv:
        parser.print_usage(sys.stderr)
        print("kafka-cluster: error: too few arguments", file=sys.stderr)
        return 1
    arguments = parser.read(argv)
    return arguments if isinstance(arguments, int) else run_work(lambda: work(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
