"""kafka-cluster: run a cluster on this machine, or show the id of one (Kafka class `ClusterTool`).

Kafka's tool knows `cluster-id` and `unregister`; the other actions are Odradek's (`tools.local_cluster`).
"""

from __future__ import annotations

import argparse
import sys

from tools.local_cluster import cluster_actions
from tools.support.common import make_client, read_properties, run_work
from tools.support.options import ArgumentParser, default_server, is_own_command


def make_parser() -> ArgumentParser:
    """The actions and their options: Kafka's, then Odradek's."""
    parser = ArgumentParser("kafka-cluster", "Show the id of a cluster, or run a cluster on this machine.")
    actions = parser.add_commands()
    server = default_server(["bootstrap-server"], ["command"])
    for name, what in (("cluster-id", "show the id"), ("unregister", "unregister a broker, with KRaft only")):
        action = actions.add_parser(name, help=what, allow_abbrev=False)
        servers = action.add_mutually_exclusive_group(required=server is None)
        servers.add_argument("--bootstrap-server", "-b", default=server, help="the brokers to connect to")
        servers.add_argument("--bootstrap-controller", "-C", help="of KRaft only")
        action.add_argument("--config", "-c", metavar="FILE", help="a file with properties for the client")
    action.add_argument("--id", "-i", type=int, help="the broker to unregister, of KRaft only")
    cluster_actions.add_to(actions)
    return parser


async def work(arguments: argparse.Namespace) -> int:
    """Print the cluster id, or an error for `unregister`, which needs KRaft."""
    if arguments.bootstrap_controller is not None:
        print("The cluster has no KRaft controllers to connect to; use --bootstrap-server.", file=sys.stderr)
        return 1
    properties = read_properties(arguments.config) if arguments.config else {}
    async with make_client(arguments.bootstrap_server, properties) as client:
        found = await client.describe_topics([])
    if arguments.command == "unregister":
        print("The target cluster does not support the broker unregistration API.")
    elif found.cluster_id is None:
        print("No cluster ID found. The Kafka version is probably too old.")
    else:
        print(f"Cluster ID: {found.cluster_id}")
    return 0


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    parser = make_parser()
    if argv and argv[0] in cluster_actions.ACTIONS:
        return cluster_actions.run(parser.parse_args(argv))
    arguments = parser.read(argv, needs_arguments=not is_own_command())
    return arguments if isinstance(arguments, int) else run_work(lambda: work(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
