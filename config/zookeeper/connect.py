"""zookeeper.connect: the servers of an ensemble, and the node below which a cluster keeps its tree."""

from __future__ import annotations

import re
from typing import NamedTuple

from config.definitions import ConfigError

KEY = "zookeeper.connect"
DEFAULT_PORT = 2181

_SERVER = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+)(?::([0-9]{1,5}))?")
_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/,\x00-\x1f\x7f-\x9f]+)+")


class ZookeeperAddress(NamedTuple):
    """Where a cluster's tree is. `chroot` is empty when it begins at the ensemble's root."""

    servers: tuple[tuple[str, int], ...]
    chroot: str

    def __str__(self) -> str:
        """The servers as host:port, separated by commas, and the chroot."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers) + (
            self.chroot
        )


def parse_zookeeper_connect(text: str) -> ZookeeperAddress:
    """Parse as ZooKeeper's ConnectStringParser does: everything from the first slash on is the chroot, which stands
    once, after the last server; the port is 2181 unless given. Raises ConfigError.
    """
    servers, slash, rest = text.strip().partition("/")
    chroot = slash + rest if rest else ""
    if chroot and "," in chroot:
        raise ConfigError(KEY, text, "the chroot stands once, after the last server: host1:2181,host2:2181/chroot")
    if chroot and _CHROOT.fullmatch(chroot) is None:
        raise ConfigError(KEY, text, f"{chroot} is not the path of a node, such as /kafka")
    parsed = tuple(_parse_server(text, server.strip()) for server in servers.split(",") if server.strip())
    if not parsed:
        raise ConfigError(KEY, text, "it names no server; host:port is needed, such as localhost:2181")
    return ZookeeperAddress(parsed, chroot)


def _parse_server(text: str, server: str) -> tuple[str, int]:
    found = _SERVER.fullmatch(server)
    port = int(found[2] or DEFAULT_PORT) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise ConfigError(KEY, text, f"'{server}' is not host:port with a port between 1 and 65535")
    return found[1].strip("[]"), port
