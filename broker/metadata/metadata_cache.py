"""The metadata for clients (Kafka class `ZkMetadataCache`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from cluster.controller.commands import CommandFence, TopicStates, UpdateMetadata
from cluster.metadata_image import ConfigResource, MetadataImage, PartitionImage, TopicImage
from cluster.znodes import NO_LEADER

logger = logging.getLogger("kafka.server.ReplicaManager")

NO_LEADER_EPOCH: Final = -1

ImageListener = Callable[[MetadataImage, MetadataImage], None]


class MetadataCache:
    """Owns the current MetadataImage. UpdateMetadata commands and changes of configurations replace it."""

    def __init__(self, fence: CommandFence, image: MetadataImage | None = None) -> None:
        self._fence = fence
        self._image = MetadataImage() if image is None else image
        self._listeners: list[ImageListener] = []
        self._has_topics = asyncio.Event()
        self._is_silent = False
        """Whether the current controller does not mark full updates (see `UpdateMetadata.marks_full`)."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as this broker knows it."""
        return self._image

    @property
    def has_all_topics(self) -> bool:
        """Whether this broker has received the complete list of topics. Until then, a topic missing from the image may
        exist.
        """
        return self._has_topics.is_set()

    async def wait_for_topics(self, patience_s: float) -> None:
        """Return once this broker has received all topics, or after `patience_s`."""
        was_silent = self._is_silent
        try:
            await asyncio.wait_for(self._has_topics.wait(), patience_s)
        except TimeoutError:
            # The controller had enough time to send topics; assume that none exist.
            if was_silent and self._is_silent:
                self._has_topics.set()

    def add_listener(self, listener: ImageListener) -> None:
        """Call `listener(old, new)` after every change. Listeners are called in the order they were added. A deleted
        topic is in `old` even if this broker never heard of it before.
        """
        self._listeners.append(listener)

    def update_metadata(self, command: UpdateMetadata) -> None:
        """Apply a controller's command. Raises STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH without changing
        anything.
        """
        self._fence.admit(command)
        # Add unknown deleted topics first: listeners must also drop state left from an earlier run of this broker.
        unknown = tuple(each for each in command.deleted_topics if each.topic not in self._image.topics)
        if unknown:
            self._image = self._image.with_topics(self._changed(unknown))
        image = self._image.replace(
            controller_id=command.controller_id,
            controller_epoch=command.controller_epoch,
            brokers=dict(command.live_brokers),
        )
        deleted = [each.topic for each in command.deleted_topics]
        if command.is_full:
            named = {each.topic for each in command.topics}
            deleted += [name for name in image.topics if name not in named]
        if deleted or command.topics:
            image = image.with_topics(self._changed(command.topics), deleted)
        self._replace(image)
        # A new controller first sends itself and the live brokers, and sends the topics after the roles.
        if command.is_full or (command.topics and not command.marks_full):
            self._has_topics.set()
        self._is_silent = not command.marks_full

    def _changed(self, states: tuple[TopicStates, ...]) -> Iterator[TopicImage]:
        for each in states:
            known = self._image.topics.get(each.topic)
            if known is None or known.topic_id != each.topic_id:
                known = TopicImage(each.topic, each.topic_id, ())
            yield known.with_partitions([*_unknown_before(each.partitions, len(known.partitions)), *each.partitions])

    def update_configs(self, changed: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Replace configurations of topics and brokers; empty ones are removed."""
        image = self._image.with_configs(changed)
        if image is not self._image:
            self._replace(image)

    def _replace(self, image: MetadataImage) -> None:
        old, self._image = self._image, image
        for listener in self._listeners:
            try:
                listener(old, image)
            except Exception:
                logger.exception("A listener failed to apply the new metadata")


def _unknown_before(partitions: Iterable[PartitionImage], known: int) -> list[PartitionImage]:
    """Placeholders for partitions that the controller skipped because their state is unknown: those from `known` up to
    the highest partition received.
    """
    named = {each.partition for each in partitions}
    return [
        PartitionImage(number, NO_LEADER, NO_LEADER_EPOCH, (), (), 0, 0)
        for number in range(known, max(named, default=-1))
        if number not in named
    ]
