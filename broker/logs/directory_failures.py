"""The consequences of a failed log directory (Kafka: `ReplicaManager.handleLogDirFailure`).

Its replicas answer KAFKA_STORAGE_ERROR, and the controller asks which replicas are affected; the other directories keep
working. Once every directory has failed, the broker stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.controller.cluster_membership import PAUSE_AFTER_BUG_S, RETRY_S
from protocol.errors import ApiError
from storage.directory.log_directory import LogDirectory
from zookeeper.coordination import ConnectionLossError, CoordinationError

logger = logging.getLogger("kafka.server.ReplicaManager")


class DirectoryFailures:
    """Accepts failure reports on any thread and acts on the event loop. `failed` is set when the broker must stop."""

    def __init__(self, failed: asyncio.Event) -> None:
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._directories: Sequence[LogDirectory] = ()
        self._take_offline: Callable[[str], None] | None = None
        self._notify_controller: Callable[[], Awaitable[None]] | None = None
        self._early: dict[str, None] = {}
        """Paths of directories and logs that failed before `serve`."""
        self._reactions: dict[asyncio.Task[None], None] = {}
        self._is_closing = False

    def report(self, path: str, reason: str) -> None:
        """Report that a directory, or only the log at `path`, has failed. Any thread may call it."""
        logger.error("Stopping serving logs in dir %s: %s", path, reason)
        self._loop.call_soon_threadsafe(self._react, path)

    def watch(self, directories: Sequence[LogDirectory]) -> None:
        """From now on, stop the broker once all of `directories` have failed."""
        self._directories = directories

    async def serve(
        self, take_offline: Callable[[str], None], notify_controller: Callable[[], Awaitable[None]]
    ) -> None:
        """Call `take_offline(path)`, then `notify_controller()`, for each directory or log that fails, and at once for
        those that have failed already.
        """
        self._take_offline, self._notify_controller = take_offline, notify_controller
        self._early |= {each.path: None for each in self._directories if each.failure is not None}
        for path in self._early:
            take_offline(path)
        if self._early:
            await self._notify()

    async def close(self) -> None:
        """Wait for running work, but not for a connection to the tree."""
        self._is_closing = True
        while self._reactions:
            await asyncio.wait(self._reactions)

    def _react(self, path: str) -> None:
        if self._directories and all(each.failure for each in self._directories):
            paths = ", ".join(each.path for each in self._directories)
            logger.critical("Shutdown broker because all log dirs in %s have failed", paths)
            self._failed.set()
        if self._take_offline is None:
            self._early[path] = None
            return
        self._take_offline(path)
        self.replicas_changed()

    def replicas_changed(self) -> None:
        """Make the controller ask for the usable replicas, which have changed. At startup it asks anyway."""
        if self._notify_controller is None:
            return
        task = asyncio.create_task(self._notify(), name="log-directory-failure")
        self._reactions[task] = None
        task.add_done_callback(self._reactions.pop)

    async def _notify(self) -> None:
        """Without a connection to the tree the notification is retried, as in Kafka. After a session expires, the
        controller asks in the next one anyway.
        """
        assert self._notify_controller is not None
        while True:
            try:
                await self._notify_controller()
            except ConnectionLossError as error:
                if self._is_closing:
                    return
                logger.warning("The controller does not know of the offline replicas yet: %s", error)
                await asyncio.sleep(RETRY_S)
            except (ApiError, CoordinationError) as error:
                logger.error("Could not report offline replicas to the controller: %s", error)
                return
            except Exception:  # a bug, but these partitions would stay leaderless until the next session
                if self._is_closing:
                    return
                logger.exception("The controller does not know of the offline replicas yet")
                await asyncio.sleep(PAUSE_AFTER_BUG_S)
            else:
                return
