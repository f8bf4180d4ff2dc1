"""What follows when a log directory fails (Kafka: `ReplicaManager.handleLogDirFailure`).

Its replicas answer KAFKA_STORAGE_ERROR, the cluster is told that they have no leader here, and the others go on.
Without any directory left the broker stops.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from broker.controller_service import ControllerService
from broker.replica_manager import ReplicaManager
from cluster.coordination.contract import CoordinationError
from protocol.errors import ApiError
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.server.ReplicaManager")


class DirectoryFailures:
    """Hears of failures on any thread, and acts on the event loop. `failed` is set when the broker must not go on."""

    def __init__(self, failed: asyncio.Event) -> None:
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._log_manager: LogManager | None = None
        self._replicas: ReplicaManager | None = None
        self._controller: ControllerService | None = None
        self._reactions: set[asyncio.Task[Any]] = set()

    def report(self, path: str, reason: str) -> None:
        """A directory has failed. May be called on any thread."""
        logger.error("Stopping serving logs in dir %s: %s", path, reason)
        self._loop.call_soon_threadsafe(self._react, path)

    def watch(self, log_manager: LogManager) -> None:
        """From now on the broker stops when no directory is left."""
        self._log_manager = log_manager

    async def serve(self, replicas: ReplicaManager, controller: ControllerService) -> None:
        """From now on replicas are taken offline with their directory; those that are already, now."""
        self._replicas, self._controller = replicas, controller
        await self._tell_controller()

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._reactions:
            await asyncio.wait(self._reactions)

    def _react(self, path: str) -> None:
        if self._log_manager is not None and all(each.failure for each in self._log_manager.directories):
            paths = ", ".join(each.path for each in self._log_manager.directories)
            logger.critical("Shutdown broker because all log dirs in %s have failed", paths)
            self._failed.set()
        if self._replicas is None:  # the start is not there yet, and looks for itself
            return
        self._replicas.directory_failed(path)
        task = asyncio.create_task(self._tell_controller(), name="log-directory-failure")
        self._reactions.add(task)
        task.add_done_callback(self._reactions.discard)

    async def _tell_controller(self) -> None:
        if self._replicas is None or self._controller is None:
            return
        try:
            await self._controller.take_offline(self._replicas.offline_replicas())
        except (ApiError, CoordinationError) as error:
            logger.error("The cluster could not be told of replicas that are offline: %s", error)
