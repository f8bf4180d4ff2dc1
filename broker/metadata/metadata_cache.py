"""The metadata that clients are told (Kafka class `ZkMetadataCache`)."""

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
    """Owner of the current MetadataImage. The controller's UpdateMetadata and changes of configurations replace it."""

    def __init__(self, fence: CommandFence, image: MetadataImage | None = None) -> None:
        self._fence = fence
        self._image = MetadataImage() if image is None else image
        self._listeners: list[ImageListener] = []
        self._told = asyncio.Event()
        self._is_silent = False
        """Whether the controller is one that does not say that it has told of all topics."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as this broker knows it."""
        return self._image

    @property
    def knows_all_topics(self) -> bool:
        """Whether a controller has told this broker of all topics. Until then a topic that is not in the image may
        exist.
        """
        return self._told.is_set()

    async def wait_for_topics(self, patience_s: float) -> None:
        """Return when a controller has told this broker of all topics, or `patience_s` is over."""
        was_silent = self._is_silent
        try:
            await asyncio.wait_for(self._told.wait(), patience_s)
        except TimeoutError:
            # For all that time it could have named a topic: there are none.
            if was_silent and self._is_silent:
                self._told.set()

    def add_listener(self, listener: ImageListener) -> None:
        """`listener(old, new)` is called after every change; listeners in the order in which they were added. A topic
        that is deleted is in `old`, also when this broker had not been told of it.
        """
        self._listeners.append(listener)

    def update_metadata(self, command: UpdateMetadata) -> None:
        """Obey a controller. Raises STALE_CONTROLLER_EPOCH and STALE_BROKER_EPOCH, and then nothing has changed."""
        self._fence.admit(command)
        # Listeners forget what they have of a topic when it goes, also what is from an earlier life of this broker.
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
            told = {each.topic for each in command.topics}
            deleted += [name for name in image.topics if name not in told]
        if deleted or command.topics:
            image = image.with_topics(self._changed(command.topics), deleted)
        self._become(image)
        # A new controller names itself and the live brokers first, and the topics when it has given out the roles.
        if command.is_full or (command.topics and not command.says_if_full):
            self._told.set()
        self._is_silent = not command.says_if_full

    def _changed(self, states: tuple[TopicStates, ...]) -> Iterator[TopicImage]:
        for each in states:
            known = self._image.topics.get(each.topic)
            if known is None or known.topic_id != each.topic_id:
                known = TopicImage(each.topic, each.topic_id, ())
            yield known.with_partitions([*_unknown_before(each.partitions, len(known.partitions)), *each.partitions])

    def update_configs(self, changed: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Configurations of topics and brokers have been replaced; an empty one is dropped."""
        image = self._image.with_configs(changed)
        if image is not self._image:
            self._become(image)

    def _become(self, image: MetadataImage) -> None:
        old, self._image = self._image, image
        for listener in self._listeners:
            try:
                listener(old, image)
            except Exception:
                logger.exception("A listener failed to apply the new metadata")


def _unknown_before(partitions: Iterable[PartitionImage], known: int) -> list[PartitionImage]:
    """Stand-ins for partitions below the highest that a controller did not tell of: those of which it knows no state
    yet. `known` partitions are told of already.
    """
    told = {each.partition for each in partitions}
    return [
        PartitionImage(number, NO_LEADER, NO_LEADER_EPOCH, (), (), 0, 0)
        for number in range(known, max(told, default=-1))
        if number not in told
    ]
