"""coordination: serve a tree as a ZooKeeper without Java, or copy one broker's tree into a ZooKeeper."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tools.local_cluster.process_commands import server_module


def make_parser() -> argparse.ArgumentParser:
    """The actions and their options."""
    parser = argparse.ArgumentParser(
        prog="odradek coordination",
        description="Where a cluster keeps what its brokers agree on.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser(
        "serve",
        help="serve a tree as a ZooKeeper, without Java, until Ctrl-C or SIGTERM",
        description="Serve a tree as one ZooKeeper, for brokers and ZooKeeper's tools. It needs no Java, and is not "
        "replicated.",
        allow_abbrev=False,
    )
    serve.add_argument("properties", help="a zookeeper.properties: dataDir, clientPort, clientPortAddress, tickTime")
    copy = actions.add_parser(
        "copy",
        help="copy the tree of a stopped single broker into a ZooKeeper, or into a served tree",
        description="Copy the tree of a stopped single broker, so that it can grow into a cluster with its data.",
        allow_abbrev=False,
    )
    copy.add_argument("--from", required=True, metavar="DIR", dest="source", help="the broker's first log directory")
    copy.add_argument("--to", required=True, metavar="HOST:PORT[/CHROOT]", dest="target", help="empty so far")
    copy.add_argument("--zk-tls-config-file", metavar="FILE", help="a file with the properties zookeeper.ssl.*")
    return parser


def main(argv: Sequence[str]) -> None:
    """Become the process that does the work."""
    arguments = make_parser().parse_args(argv or ["--help"])
    if arguments.action == "serve":
        command = server_module("zookeeper.tree_process", arguments.properties)
    else:
        tls = [arguments.zk_tls_config_file] if arguments.zk_tls_config_file else []
        command = server_module("broker.zookeeper.tree_copier", arguments.source, arguments.target, *tls)
    os.execve(command.words[0], list(command.words), {**os.environ, **command.environment})  # noqa: S606 - this interpreter


if __name__ == "__main__":
    main(sys.argv[1:])
