"""zookeeper-shell: look into ZooKeeper with its own shell (Kafka script of that name)."""

from __future__ import annotations

import os
import sys

from tools.zookeeper.zookeeper_jars import ZookeeperMissingError, shell_command


def main(argv: list[str]) -> None:
    """Become ZooKeeper's shell. Where that is not possible, one line on standard error and exit code 1."""
    if not argv or argv[0] in {"-h", "--help"}:
        name = os.environ.get("ODRADEK_COMMAND", "zookeeper-shell")
        sys.exit(f"USAGE: {name} zookeeper_host:port[/path] [command [args...]]")
    if "-zk-tls-config-file" in argv:
        sys.exit("-zk-tls-config-file is not supported: TLS towards ZooKeeper is not implemented yet")
    try:
        command = shell_command(["-server", *argv])
    except ZookeeperMissingError as error:
        sys.exit(str(error))
    os.execv(command[0], command)  # noqa: S606 - it is the program found


if __name__ == "__main__":
    main(sys.argv[1:])
