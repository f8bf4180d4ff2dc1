"""Configurations in the coordination tree. Any broker may write one; all brokers then read it again (Kafka class
`ZkConfigManager`).

Each change leaves a notice under /config/changes, which every broker watches. The broker that made a change applies it
the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from broker.controller.cluster_membership import PAUSE_AFTER_BUG_S, RETRY_S, ClusterMembership
from broker.metadata.metadata_cache import MetadataCache
from broker.zookeeper.topic_reader import each_of
from cluster import znodes
from cluster.controller.commands import TopicStates
from cluster.controller.transactions import shares
from cluster.metadata_image import BrokerImage, ConfigResource, MetadataImage
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from zookeeper.coordination import (
    ConnectionLossError,
    EventType,
    MultiError,
    NoSpaceError,
    SessionExpiredError,
    WatchEvent,
)

logger = logging.getLogger("kafka.zookeeper.ZooKeeperClient")


class Refreshing:
    """Calls `refresh` when a watch fires, retrying until the tree is reachable. When a session expires, the owner
    refreshes in the next one.
    """

    def __init__(self, name: str, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` may raise CoordinationError; `name` names the tasks."""
        self._name = name
        self._refresh = refresh
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def watch(self, event: WatchEvent) -> None:
        """A watch for the tree."""
        if event.type is not EventType.SESSION_EXPIRED:
            self.begin()

    def begin(self) -> None:
        """Start a refresh in the background."""
        if not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._in_background(), name=self._name)
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _in_background(self) -> None:
        while not self._is_closed:
            try:
                await self.until_done()
            except Exception:  # a bug; without a retry, changes would go unnoticed, as the watch has fired
                logger.exception("%s failed; trying again in %d s", self._name, PAUSE_AFTER_BUG_S)
                await asyncio.sleep(PAUSE_AFTER_BUG_S)
            else:
                return

    async def until_done(self) -> None:
        """Refresh, retrying after connection losses until the session ends."""
        while not self._is_closed:
            try:
                await self._refresh()
            except ConnectionLossError:
                await asyncio.sleep(RETRY_S)
            except SessionExpiredError:
                return
            else:
                return

    async def close(self) -> None:
        """Cancel running refreshes and start no more."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class DynamicConfigs:
    """Copies configurations from the tree to the metadata cache."""

    def __init__(self, membership: ClusterMembership, metadata: MetadataCache) -> None:
        self._membership = membership
        self._metadata = metadata
        self._last_notice = ""
        self._outdated: dict[ConfigResource, None] = {}
        """Resources that may differ between the tree and the cache. A resource is removed before it is read, so that
        one marked during the read is read again.
        """
        self._applying = asyncio.Lock()
        self._refreshing = Refreshing("dynamic-configs", self._apply_notices)
        membership.on_session_change(lambda: None, self._session_began)
        if membership.is_shared:
            metadata.add_listener(self._image_changed)

    async def start(self) -> None:
        """Watch for changes, and apply those made since the configurations were read. Raises CoordinationError."""
        await self._apply_notices()

    async def close(self) -> None:
        """Stop applying changes."""
        await self._refreshing.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str]]
    ) -> Mapping[ConfigResource, ApiError]:
        """Replace the overrides of resources ("" for the defaults of all brokers). The values must be valid. Returns
        errors by resource. The changes are in effect on this broker when this returns.
        """
        topics = self._metadata.image.topics
        errors = {
            (kind, name): ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            for kind, name in changes
            if kind == ConfigResourceType.TOPIC and name not in topics
        }
        known = [resource for resource in changes if resource not in errors]
        zk_client, coordination = self._membership.zk_client, self._membership.coordination
        try:
            for share in list(shares(known, lambda _: 1)):
                await coordination.multi(await zk_client.config_operations({each: changes[each] for each in share}))
                await self._apply_notices()
                del known[: len(share)]
            expired = await zk_client.expired_notices(znodes.CONFIG_CHANGES)
            if expired:
                await coordination.multi(expired)
        except NoSpaceError as error:
            errors.update(dict.fromkeys(known, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))))
        except (ConnectionLossError, SessionExpiredError) as error:
            unknown = ApiError(
                ErrorCode.REQUEST_TIMED_OUT, f"Whether the configuration has changed is not known: {error}"
            )
            errors.update(dict.fromkeys(known, unknown))
        except MultiError as error:  # another broker made the same change or removed the same notices
            busy = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The configuration is being changed elsewhere: {error}")
            errors.update(dict.fromkeys(known, busy))
        return errors

    async def read(self, resource: ConfigResource) -> Mapping[str, str]:
        """Read overrides from the tree; they may be slightly outdated. Raises ApiError REQUEST_TIMED_OUT."""
        try:
            return await self._membership.zk_client.read_config(resource)
        except (ConnectionLossError, SessionExpiredError) as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The configuration is not known: {error}") from error

    # -- applying changes ----------------------------------------------------------------------------------------------

    async def _apply_notices(self) -> None:
        async with self._applying:
            zk_client = self._membership.zk_client
            notices = await zk_client.config_changes(self._refreshing.watch, self._last_notice)
            self._outdated |= {resource: None for _, resource in notices if resource is not None}
            if notices:
                self._last_notice = notices[-1][0]
            outdated, self._outdated = self._outdated, {}
            if outdated:
                try:
                    found = await each_of(outdated, zk_client.read_config)
                except BaseException:
                    self._outdated = outdated | self._outdated
                    raise
                self._metadata.update_configs(dict(zip(outdated, found, strict=True)))

    def _image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Read the configurations of new topics: a creation does not leave a notice."""
        if new.topics is old.topics:
            return
        begun: dict[ConfigResource, None] = {
            (int(ConfigResourceType.TOPIC), name): None
            for name, topic in new.topics.items()
            if name not in old.topics or old.topics[name].topic_id != topic.topic_id
        }
        if begun:
            self._outdated |= begun
            self._refreshing.begin()

    async def read_before(self, topics: Sequence[TopicStates]) -> None:
        """Load the configurations of these topics before their logs are created. As in Kafka, it waits for lost contact
        to the tree, but not longer than the session lasts.
        """
        known = self._metadata.image.topics
        begun: dict[ConfigResource, None] = {
            (int(ConfigResourceType.TOPIC), topic.topic): None
            for topic in topics
            if topic.topic not in known or known[topic.topic].topic_id != topic.topic_id
        }
        self._outdated |= begun
        if topics and self._outdated:
            await self._refreshing.until_done()

    async def _session_began(self, _broker: BrokerImage) -> None:
        await self._apply_notices()
