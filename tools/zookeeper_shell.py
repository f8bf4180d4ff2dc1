"""zookeeper-shell: run ZooKeeper's own shell (Kafka's `zookeeper-shell.sh`)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from config.properties import load_properties
from config.zookeeper_connection import TLS_CONFIG_OPTION, zookeepers_properties
from tools.zookeeper.zookeeper_jars import ZookeeperMissingError, shell_command


def main(argv: list[str]) -> None:
    """Become ZooKeeper's shell, or print one line on standard error and exit with code 1."""
    if not argv or argv[0] in {"-h", "--help"}:
        name = os.environ.get("ODRADEK_COMMAND", "zookeeper-shell")
        sys.exit(f"USAGE: {name} zookeeper_host:port[/path] [{TLS_CONFIG_OPTION} file] [command [args...]]")
    configuration: list[str] = []
    if TLS_CONFIG_OPTION in argv:
        at = argv.index(TLS_CONFIG_OPTION)
        if at == len(argv) - 1:
            sys.exit(f"Error: no filename provided with option {TLS_CONFIG_OPTION}")
        configuration = ["-client-configuration", client_configuration(argv[at + 1])]
        argv = argv[:at] + argv[at + 2 :]
    try:
        command = shell_command([*configuration, "-server", *argv])
    except ZookeeperMissingError as error:
        sys.exit(str(error))
    os.execv(command[0], command)  # noqa: S606 - the java program that was found


def client_configuration(file: str) -> str:
    """The path of a file for ZooKeeper's client with the TLS settings of Kafka's `file`. The file contains passwords:
    it is anonymous, and lives as long as this process, even across exec.
    """
    try:
        properties = zookeepers_properties(load_properties(Path(file).read_bytes()))
    except OSError as error:
        sys.exit(f"cannot read {file}: {error.strerror}")
    with tempfile.TemporaryFile() as content:
        for key, value in properties.items():
            content.write(f"{key}={_escaped(value)}\n".encode())
        content.flush()
        content.seek(0)
        descriptor = os.dup(content.fileno())
    os.set_inheritable(descriptor, True)
    return f"/dev/fd/{descriptor}"


def _escaped(value: str) -> str:
    """A value escaped for a file of Java properties."""
    units = value.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


if __name__ == "__main__":
    main(sys.argv[1:])
