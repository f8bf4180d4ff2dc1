"""The command behind bin/zookeeper-server-start.sh: becomes a ZooKeeper server (Kafka script of that name)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.zookeeper.zookeeper_jars import ZookeeperMissingError, server_command


def main(argv: list[str]) -> None:
    """Become the server, or print one line on standard error and exit with code 1."""
    if len(argv) != 1 or argv[0] in {"-h", "--help"}:
        sys.exit(f"USAGE: {os.environ.get('ODRADEK_COMMAND', 'zookeeper-server-start')} [-daemon] zookeeper.properties")
    properties = Path(argv[0])
    try:
        properties.read_bytes()
        command = server_command(properties, heap="512M")
    except OSError as error:
        sys.exit(f"cannot read {properties}: {error.strerror}")
    except ZookeeperMissingError as error:
        sys.exit(str(error))
    os.execv(command[0], command)  # noqa: S606 - the java program that was found


if __name__ == "__main__":
    main(sys.argv[1:])
