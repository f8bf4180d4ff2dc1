"""Reads and writes of the coordination tree, except fenced transactions (Kafka class `KafkaZkClient`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping

from broker.zookeeper.topic_reader import DamagedNodes, TopicReader, each_of
from cluster import znodes
from cluster.controller.start_up import KEEP_EVERYTHING
from cluster.controller.transactions import ControllerEpoch
from cluster.metadata_image import BrokerImage, ConfigResource
from cluster.quotas.alterations import removal
from cluster.quotas.entities import EntityType
from cluster.security.sanitizer import desanitized
from environment.contract import Clock
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from zookeeper.coordination import (
    BadVersionError,
    ConnectionLossError,
    Coordination,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    Watch,
)

CONFIG_ENTITIES: Mapping[int, str] = {
    ConfigResourceType.TOPIC: "topics",
    ConfigResourceType.BROKER: "brokers",
    EntityType.USER: "users",
    EntityType.CLIENT: "clients",
    EntityType.IP: "ips",
}
PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
UNKNOWN_CONTROLLER = -1
_NOTICE_LIFETIME_MS = 15 * 60 * 1000
CONFIG_CHANGE_PREFIX = "config_change_"

logger = logging.getLogger("kafka.zk.KafkaZkClient")


class ClusterError(Exception):
    """The cluster cannot be joined; the message gives the reason."""


class KafkaZkClient:
    """Reads and writes of single znodes, in Kafka's layout. Raises CoordinationError."""

    def __init__(self, coordination: Coordination, clock: Clock, damaged: DamagedNodes | None = None) -> None:
        """`damaged` holds the nodes reported in earlier sessions."""
        self._coordination = coordination
        self._clock = clock
        self.damaged = DamagedNodes() if damaged is None else damaged
        self.topics = TopicReader(coordination, self.damaged)

    async def exists(self, path: str) -> bool:
        """Whether the node exists."""
        return await self._coordination.exists(path) is not None

    async def create_missing(self, paths: Iterable[str]) -> None:
        """Create the missing nodes in one transaction. Another broker may do the same concurrently."""
        wanted = list(paths)
        while True:
            found = await each_of(wanted, self.exists)
            missing = [path for path, is_there in zip(wanted, found, strict=True) if not is_there]
            if not missing:
                return
            try:
                await self._coordination.multi([Create(path) for path in missing])
            except MultiError as error:
                if not isinstance(error.__cause__, NodeExistsError):
                    raise

    # -- joining the cluster -------------------------------------------------------------------------------------------

    async def cluster_id(self) -> str | None:
        """The cluster's id, or None before it has one."""
        if not await self.exists(znodes.CLUSTER_ID):
            return None
        return znodes.decode_cluster_id((await self._coordination.get(znodes.CLUSTER_ID))[0])

    async def create_cluster_id(self, cluster_id: str) -> str:
        """Set the cluster's id. Returns the actual one, which another broker may just have set."""
        await self.create_missing([znodes.CLUSTER])
        try:
            await self._coordination.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id))
        except NodeExistsError:
            return znodes.decode_cluster_id((await self._coordination.get(znodes.CLUSTER_ID))[0])
        return cluster_id

    async def generate_broker_id(self, reserved_max_id: int) -> int:
        """A new unique id above `reserved_max_id` (Kafka's generateBrokerId)."""
        stat = await self._coordination.set(znodes.BROKER_SEQUENCE, b"")
        return reserved_max_id + stat.version

    async def register_broker(self, registration: znodes.BrokerRegistration) -> int:
        """Register the broker for the lifetime of this session. Returns its epoch. Raises NodeExistsError."""
        path, data = znodes.broker_path(registration.broker_id), registration.encode()
        while True:
            try:
                return (await self._coordination.create(path, data, ephemeral=True))[1].czxid
            except (ConnectionLossError, NodeExistsError) as error:
                # An earlier attempt with unknown outcome may have succeeded.
                stat = await self._coordination.exists(path)
                if stat is not None and stat.ephemeral_owner == self._coordination.session_id:
                    return stat.czxid
                if isinstance(error, NodeExistsError):
                    raise

    async def update_broker(self, registration: znodes.BrokerRegistration) -> None:
        """Replace this broker's registration; its epoch stays. Raises NoNodeError when it is not registered."""
        await self._coordination.set(znodes.broker_path(registration.broker_id), registration.encode())

    async def registration(self, broker_id: int, watch: Watch) -> znodes.BrokerRegistration | None:
        """The registration of a broker, or None; `watch` fires when it changes. Raises ZnodeFormatError."""
        data = await self._data_of(znodes.broker_path(broker_id), watch)
        return None if data is None else znodes.BrokerRegistration.decode(broker_id, data)

    async def delete_node_of(self, path: str, owners: Iterable[int]) -> bool:
        """Delete an ephemeral node if one of these sessions owns it. Returns whether it is gone."""
        stat = await self._coordination.exists(path)
        if stat is not None:
            if stat.ephemeral_owner not in owners:
                return False
            with contextlib.suppress(NoNodeError, BadVersionError):
                await self._coordination.delete(path, stat.version)
        return await self._coordination.exists(path) is None

    async def live_brokers(self, watch: Watch) -> dict[int, BrokerImage]:
        """The registered brokers, by id. `watch` fires when one is added, leaves or registers other endpoints."""
        ids = (await self._coordination.children(znodes.BROKER_IDS, watch))[0]

        async def registration(name: str) -> BrokerImage | None:
            try:
                data, stat = await self._coordination.get(path := znodes.broker_path(int(name)), watch)
                broker = BrokerImage.of(znodes.BrokerRegistration.decode(int(name), data), stat.czxid)
            except NoNodeError:
                return None
            except ValueError as error:
                self.damaged.report(znodes.ZnodeFormatError(f"{znodes.BROKER_IDS}/{name}", error), "it is not a broker")
                return None
            except znodes.ZnodeFormatError as error:
                self.damaged.report(error, "the broker is treated as absent")
                return None
            self.damaged.is_readable(path)
            return broker

        found = [each for each in await each_of(ids, registration) if each is not None]
        return {each.broker_id: each for each in sorted(found, key=lambda each: each.broker_id)}

    # -- the controller ------------------------------------------------------------------------------------------------

    async def controller_id(self, watch: Watch | None = None) -> int | None:
        """The id of the controller, or None if the cluster lacks one, or UNKNOWN_CONTROLLER if the node cannot be read.
        `watch` fires when that changes.
        """
        if await self._coordination.exists(znodes.CONTROLLER, watch) is None:
            return None
        try:
            controller_id = znodes.decode_controller((await self._coordination.get(znodes.CONTROLLER))[0])
        except NoNodeError:
            return None
        except znodes.ZnodeFormatError as error:
            self.damaged.report(error, "no other controller is elected")
            return UNKNOWN_CONTROLLER
        self.damaged.is_readable(znodes.CONTROLLER)
        return controller_id

    async def register_controller(self, broker_id: int) -> ControllerEpoch | None:
        """Claim the controller node and increment its epoch in one transaction (Kafka's
        registerControllerAndIncrementControllerEpoch). Returns None when another broker is the controller.
        """
        while True:
            if not await self.exists(znodes.CONTROLLER_EPOCH):
                first = znodes.encode_controller_epoch(znodes.INITIAL_CONTROLLER_EPOCH)
                with contextlib.suppress(NodeExistsError):
                    await self._coordination.create(znodes.CONTROLLER_EPOCH, first)
            data, stat = await self._coordination.get(znodes.CONTROLLER_EPOCH)
            term = ControllerEpoch(znodes.decode_controller_epoch(data) + 1, stat.version + 1)
            claim = znodes.encode_controller(broker_id, self._clock.now_ms())
            try:
                await self._coordination.multi(
                    [
                        Create(znodes.CONTROLLER, claim, ephemeral=True),
                        SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(term.epoch), stat.version),
                    ]
                )
            except (MultiError, ConnectionLossError) as error:
                owner = await self._coordination.exists(znodes.CONTROLLER)
                if owner is not None and owner.ephemeral_owner != self._coordination.session_id:
                    return None
                if owner is None or not await self._is_in_force(term):
                    logger.info("Broker %d tries again to become the controller: %s", broker_id, error)
                    await self.delete_node_of(znodes.CONTROLLER, [self._coordination.session_id])
                    continue
            with contextlib.suppress(NodeExistsError):
                if not await self.exists(znodes.FEATURE):
                    await self._coordination.create(znodes.FEATURE, znodes.encode_feature())
            return term

    async def controller_epoch(self) -> int:
        """The newest controller's epoch. Raises ZnodeFormatError."""
        try:
            return znodes.decode_controller_epoch((await self._coordination.get(znodes.CONTROLLER_EPOCH))[0])
        except NoNodeError:
            return znodes.INITIAL_CONTROLLER_EPOCH

    async def _is_in_force(self, term: ControllerEpoch) -> bool:
        data, stat = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        return (znodes.decode_controller_epoch(data), stat.version) == (term.epoch, term.znode_version)

    async def report_log_dir_event(self, broker_id: int) -> None:
        """Notify the controller that a broker cannot use some of its replicas."""
        path = f"{znodes.LOG_DIR_EVENTS}/log_dir_event_"
        await self._coordination.create(path, znodes.encode_log_dir_event(broker_id), sequential=True)

    async def log_dir_events(self, watch: Watch) -> dict[str, int | None]:
        """The broker of each log directory event by path, or None if the event cannot be decoded. `watch` fires for new
        events.
        """
        names = (await self._coordination.children(znodes.LOG_DIR_EVENTS, watch))[0]
        paths = [f"{znodes.LOG_DIR_EVENTS}/{name}" for name in names]

        async def broker_of(path: str) -> int | None:
            try:
                return znodes.decode_log_dir_event(path, (await self._coordination.get(path))[0])
            except (NoNodeError, znodes.ZnodeFormatError) as error:
                logger.error("An event of a log directory is not understood: %s", error)
                return None

        return dict(zip(paths, await each_of(paths, broker_of), strict=True))

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topic_names(self, watch: Watch | None = None) -> list[str]:
        """All topics of the tree, including those being deleted. `watch` fires when one is added or removed."""
        return (await self._coordination.children(znodes.BROKER_TOPICS, watch))[0]

    async def topic_deletions(self, watch: Watch | None = None) -> list[str]:
        """The topics that are marked for deletion. `watch` fires when that changes."""
        return (await self._coordination.children(znodes.DELETE_TOPICS, watch))[0]

    async def requested_reassignments(self, watch: Watch) -> dict[TopicPartition, tuple[int, ...]]:
        """The requested replicas of partitions; empty if the node is not decodable. `watch` fires when that changes."""
        data = await self._data_of(znodes.REASSIGN_PARTITIONS, watch)
        try:
            return {} if data is None else znodes.decode_reassignments(data)
        except znodes.ZnodeFormatError as error:
            logger.warning("Ignoring partitions reassignment due to invalid json: %s", error)
            return {}

    async def requested_elections(self, watch: Watch) -> list[TopicPartition] | None:
        """The partitions with a requested preferred leader election, or None without a request. `watch` fires when that
        changes.
        """
        data = await self._data_of(znodes.PREFERRED_ELECTION, watch)
        try:
            return None if data is None else znodes.decode_preferred_election(data)
        except znodes.ZnodeFormatError as error:
            logger.warning("No preferred replica is elected: %s", error)
            return []

    async def _data_of(self, path: str, watch: Watch) -> bytes | None:
        """The data of a node, or None if it does not exist. In both cases, `watch` fires at the next change."""
        if await self._coordination.exists(path, watch) is None:
            return None
        try:
            return (await self._coordination.get(path))[0] or b""
        except NoNodeError:
            return None

    # -- configurations and producer ids -------------------------------------------------------------------------------

    async def read_configs(self) -> dict[ConfigResource, Mapping[str, str]]:
        """The configurations of all topics, brokers, users, clients and addresses ("" for the defaults of all)."""
        configs: dict[ConfigResource, Mapping[str, str]] = {}
        for resource_type, entity_type in CONFIG_ENTITIES.items():
            names = (await self._coordination.children(f"/config/{entity_type}"))[0]
            if resource_type == EntityType.USER:
                names += [name for found in await each_of(names, self._clients_of) for name in found]
            resources = [(int(resource_type), "" if name == znodes.DEFAULT_ENTITY else name) for name in names]
            configs |= zip(resources, await each_of(resources, self.read_config), strict=True)
        return configs

    async def _clients_of(self, user: str) -> list[str]:
        """The client ids of a user that have separate quotas."""
        path = f"/config/users/{user}"
        try:
            if not (await self._coordination.get(path))[1].num_children:
                return []
            return [f"{user}/clients/{name}" for name in (await self._coordination.children(f"{path}/clients"))[0]]
        except NoNodeError:
            return []

    async def read_config(self, resource: ConfigResource) -> dict[str, str]:
        """The overrides of one resource; empty if none exist or the node cannot be read. For a topic whose node cannot
        be read, overrides that delete nothing.
        """
        path = _config_path_of(resource)
        try:
            config = znodes.decode_config(path, (await self._coordination.get(path))[0])
        except NoNodeError:
            config = {}
        except znodes.ZnodeFormatError as error:
            is_topic = resource[0] == ConfigResourceType.TOPIC
            kept = "; retention deletes nothing" if is_topic else ""
            self.damaged.report(error, f"what it sets has its default{kept}")
            return dict(KEEP_EVERYTHING) if is_topic else {}
        self.damaged.is_readable(path)
        return config

    async def users(self) -> list[str]:
        """All users with a configuration node."""
        names = (await self._coordination.children("/config/users"))[0]
        return sorted(desanitized(name) for name in names if name != znodes.DEFAULT_ENTITY)

    async def config_changes(self, watch: Watch, behind: str) -> list[tuple[str, ConfigResource | None]]:
        """The notices after `behind`, in order, each with its resource, or None for a resource that brokers ignore.
        `watch` fires for new notices.
        """
        names = (await self._coordination.children(znodes.CONFIG_CHANGES, watch))[0]
        names = [name for name in names if name.startswith(CONFIG_CHANGE_PREFIX) and name > behind]
        return list(zip(names, await each_of(names, self._resource_of_change), strict=True))

    async def _resource_of_change(self, name: str) -> ConfigResource | None:
        path = f"{znodes.CONFIG_CHANGES}/{name}"
        try:
            data, _ = await self._coordination.get(path)
            entity_type, _, entity = znodes.decode_config_change(path, data).partition("/")
        except NoNodeError:
            return None
        except znodes.ZnodeFormatError as error:
            logger.error("A notice of a configuration is not understood: %s", error)
            return None
        for resource_type, known in CONFIG_ENTITIES.items():
            if entity_type == known:
                return resource_type, "" if entity == znodes.DEFAULT_ENTITY else entity
        return None

    async def config_operations(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> list[Operation]:
        """The operations that replace configurations and leave notices for other brokers."""
        operations: list[Operation] = []
        made: set[str] = set()
        for resource, config in configs.items():
            path, data = _config_path_of(resource), znodes.encode_config(config)
            entity = path.removeprefix("/config/")
            is_empty = resource[0] < 0 and not config
            removed = await removal(self._coordination, path, _parents_of(resource)) if is_empty else None
            if removed is not None:
                operations += removed
            elif path in made or await self.exists(path):
                operations.append(SetData(path, data))
            else:
                for parent in _parents_of(resource):
                    if parent not in made and not await self.exists(parent):
                        operations.append(Create(parent))
                        made.add(parent)
                operations.append(Create(path, data))
                made.add(path)
            notice = f"{znodes.CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}"
            operations.append(Create(notice, znodes.encode_config_change(entity), sequential=True))
        return operations

    async def expired_notices(self, parent: str) -> list[Operation]:
        """The operations that remove notices older than 15 minutes. In Kafka their readers do so."""
        names, _ = await self._coordination.children(parent)
        oldest_ms = self._clock.now_ms() - _NOTICE_LIFETIME_MS
        expired: list[Operation] = []
        for name in names:
            path = f"{parent}/{name}"
            stat = await self._coordination.exists(path)
            if stat is None or stat.ctime_ms >= oldest_ms:
                break
            expired.append(Delete(path))
        return expired

    async def allocate_producer_ids(self, broker_id: int) -> znodes.ProducerIdBlock:
        """A new unique block of producer ids (Kafka's ZkProducerIdManager).

        Raises ApiError UNKNOWN_SERVER_ERROR when the ids are exhausted or the last block cannot be read.
        """
        while True:
            data, stat = await self._coordination.get(znodes.PRODUCER_ID_BLOCK)
            try:
                last = znodes.ProducerIdBlock.decode(data).last if data else -1
            except znodes.ZnodeFormatError as error:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
            if last > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
                raise ApiError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"Have exhausted all producerIds: the last block ends at {last}"
                )
            block = znodes.ProducerIdBlock(broker_id, last + 1, last + PRODUCER_ID_BLOCK_SIZE)
            try:
                await self._coordination.set(znodes.PRODUCER_ID_BLOCK, block.encode(), stat.version)
            except BadVersionError:  # another broker has taken that block
                continue
            return block


def _config_path_of(resource: ConfigResource) -> str:
    resource_type, name = resource
    return znodes.config_path(CONFIG_ENTITIES[resource_type], name or znodes.DEFAULT_ENTITY)


def _parents_of(resource: ConfigResource) -> list[str]:
    """The ancestors of a node that are not created when a broker starts."""
    resource_type, name = resource
    user, slash, _ = name.partition("/")
    path = znodes.config_path(CONFIG_ENTITIES[resource_type], user)
    return [path, f"{path}/clients"] if slash else []
