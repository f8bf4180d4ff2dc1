"""Creates topics that clients or this broker need, including internal topics (Kafka class `AutoTopicCreationManager`).
A topic is requested once at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.controller.controller_term import ControllerSettings
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.topics import TopicPlan
from protocol.errors import ApiError, ErrorCode, detached

if TYPE_CHECKING:
    from broker.controller.broker_requests import ControllerApi


logger = logging.getLogger("kafka.server.AutoTopicCreationManager")


class AutoTopicCreation:
    """Requests topics from the controller, with at most one request per topic at a time."""

    def __init__(
        self, controller: ControllerApi, settings: Callable[[], ControllerSettings], metadata: MetadataCache
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._metadata = metadata
        self._in_progress: dict[str, asyncio.Task[ErrorCode]] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether topics are created when clients ask for them (auto.create.topics.enable)."""
        return self._settings().auto_create_topics

    async def create(self, name: str) -> ErrorCode:
        """Create a topic that appeared in a Metadata request. Returns the error code for the client:
        LEADER_NOT_AVAILABLE if the topic now exists. The creation goes on if the client leaves meanwhile.
        """
        if name in self._in_progress:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        task = self._in_progress[name] = asyncio.get_running_loop().create_task(self._create(name))
        task.add_done_callback(partial(self._created, name))
        return await asyncio.shield(task)

    def _created(self, name: str, task: asyncio.Task[ErrorCode]) -> None:
        del self._in_progress[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Topic %s could not be created automatically: %r", name, error)

    async def _create(self, name: str) -> ErrorCode:
        topic = self._settings().new_topic(name)
        try:
            outcome = (await self._controller.create_topics([topic]))[name]
        except ApiError as error:
            outcome = detached(error)
        if isinstance(outcome, TopicPlan) or outcome.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return ErrorCode.LEADER_NOT_AVAILABLE
        logger.warning("Topic %s could not be created automatically: %s", name, outcome)
        return outcome.error_code

    async def ensure_internal_topic(self, name: str) -> None:
        """Create an internal topic unless it exists. Raises ApiError if that fails."""
        if name in self._metadata.image.topics:
            return
        error_code = await self._create(name)
        if error_code is not ErrorCode.LEADER_NOT_AVAILABLE:
            raise ApiError(error_code, f"The internal topic {name} could not be created")


class InternalTopicCreator:
    """`ensure(name)` creates a topic unless it exists."""

    def __init__(self, ensure: Callable[[str], Awaitable[None]]) -> None:
        self._ensure = ensure
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def created(self, name: str, patience_s: float) -> None:
        """Return when the creation has succeeded or failed, or after `patience_s`; it then continues in the
        background.
        """
        task = self._creating.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(name), name=f"create {name}")
            self._creating[name] = task
        await asyncio.wait([task], timeout=patience_s)

    async def _create(self, name: str) -> None:
        try:
            await self._ensure(name)
        except ApiError as error:
            logger.error("The internal topic %s cannot be created: %s", name, error)
        finally:
            del self._creating[name]

    async def close(self) -> None:
        """Cancel all running creations."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
