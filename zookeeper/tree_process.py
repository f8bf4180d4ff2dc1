"""`python -m zookeeper.tree_process zookeeper.properties`: serve the embedded tree to others, in the foreground.

It reads the same file as ZooKeeper's own server, and replaces it where one server is enough.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from config.definitions import ConfigError
from config.properties import load_properties
from environment.logging_setup import configure_logging
from environment.process_signals import handle_signals, open_standard_streams
from environment.system import (
    SystemClock,
    SystemRandom,
    TcpNetwork,
    ThreadExecutor,
    kafka_options,
    raise_open_file_limit,
    read_text,
    room_for_connections,
    run_loop,
)
from protocol.errors import detached
from security.jaas import system_properties, zookeeper_users
from storage.directory.meta_properties import LogDirError
from storage.io.os_file_system import OsFileSystem
from zookeeper.durable_tree import JournalError
from zookeeper.tree_server import TreeServerConfig, open_tree_server

logger = logging.getLogger("odradek.coordination")

_BACKLOG = 50


def main(argv: list[str]) -> int:
    """Serve until a stop signal. Returns exit code 0 after the signal, 1 when it cannot start or continue."""
    open_standard_streams()
    configure_logging(None)
    if len(argv) != 1:
        logger.critical("One argument is needed: the path of zookeeper.properties")
        return 1
    try:
        config = TreeServerConfig.parse(load_properties(Path(argv[0]).read_bytes()))
        passwords = zookeeper_users(system_properties(kafka_options()), read_text)
    except (ConfigError, OSError) as error:
        logger.critical("The tree cannot be served: %s: %s", argv[0], error)
        return 1
    raise_open_file_limit()
    return run_loop(lambda: serve(config, passwords))


async def serve(config: TreeServerConfig, passwords: Mapping[str, str] | None) -> int:
    """Serve until a stop signal. Returns the exit code. `passwords` holds the SASL passwords by user."""
    file_system = OsFileSystem()
    stop = asyncio.Event()
    failures: list[OSError] = []

    def fail(error: OSError) -> None:
        logger.critical("The journal failed: %s", error)
        failures.append(detached(error))
        stop.set()

    handle_signals(stop.set)
    try:
        server = await open_tree_server(
            config,
            network=TcpNetwork(_BACKLOG),
            file_system=file_system,
            executor=ThreadExecutor(1),
            clock=SystemClock(),
            random=SystemRandom(),
            passwords=passwords,
            most_connections=room_for_connections(file_system.max_open_files),
            on_failure=fail,
        )
        await server.start()
    except (JournalError, LogDirError, OSError) as error:
        logger.critical("The tree cannot be served on port %d from %s: %s", config.port, config.directory, error)
        return 1
    logger.info("The tree in %s is served on port %d", config.directory, config.port)
    await stop.wait()
    await server.close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
