"""Ports of this machine."""

from __future__ import annotations

import asyncio
import socket

from tools.local_cluster.cluster_directory import HOST
from tools.support.common import ToolError

_LAST = 65_535


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def require_free(port: int, whose: str) -> None:
    """Raise ToolError when something listens on the port."""
    if not is_free(port):
        raise ToolError(f"port {port}, which is for {whose}, is in use; stop what listens there, or use --base-port")


def free_from(port: int) -> int:
    """The first free port from this one on. Raises ToolError when there is none."""
    for candidate in range(port, _LAST + 1):
        if is_free(candidate):
            return candidate
    raise ToolError(f"no port from {port} on is free")


async def accepts(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout=1)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
