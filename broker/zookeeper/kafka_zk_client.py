"""Reads and writes of the coordination tree, beside fenced transactions (Kafka class `KafkaZkClient`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.environment.contract import Clock
from cluster import znodes
from cluster.controller.start_up import ReadTopic
from cluster.controller.transactions import ControllerTerm
from cluster.metadata_image import ConfigResource
from cluster.zookeeper.coordination import (
    Coordination,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    Operation,
    SetData,
)
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode

CONFIG_ENTITIES = {ConfigResourceType.TOPIC: "topics", ConfigResourceType.BROKER: "brokers"}
PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
_CONFIG_CHANGE_LIFETIME_MS = 15 * 60 * 1000


class ClusterError(Exception):
    """The cluster cannot be joined; the message names what is in the way."""


class KafkaZkClient:
    """Reads and writes of single znodes, in Kafka's layout. Raises CoordinationError."""

    def __init__(self, coordination: Coordination, clock: Clock) -> None:
        self._coordination = coordination
        self._clock = clock

    async def exists(self, path: str) -> bool:
        """Whether there is such a node."""
        return await self._coordination.exists(path) is not None

    async def create_missing(self, paths: Iterable[str]) -> None:
        """Make those nodes that are not there, in one transaction. Another broker may do the same meanwhile."""
        wanted = list(paths)
        while missing := [path for path in wanted if not await self.exists(path)]:
            try:
                await self._coordination.multi([Create(path) for path in missing])
            except MultiError as error:
                if not isinstance(error.__cause__, NodeExistsError):
                    raise

    # -- joining the cluster -------------------------------------------------------------------------------------------

    async def cluster_id(self) -> str | None:
        """The cluster's id; None before it has one."""
        if not await self.exists(znodes.CLUSTER_ID):
            return None
        return znodes.decode_cluster_id((await self._coordination.get(znodes.CLUSTER_ID))[0])

    async def create_cluster_id(self, cluster_id: str) -> str:
        """Give the cluster this id, unless another broker has just given it one; gives the id that it has."""
        await self.create_missing([znodes.CLUSTER])
        try:
            await self._coordination.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id))
        except NodeExistsError:
            return znodes.decode_cluster_id((await self._coordination.get(znodes.CLUSTER_ID))[0])
        return cluster_id

    async def generate_broker_id(self, reserved_max_id: int) -> int:
        """An id that no other broker has or will get, above `reserved_max_id` (Kafka's generateBrokerId)."""
        stat = await self._coordination.set(znodes.BROKER_SEQUENCE, b"")
        return reserved_max_id + stat.version

    async def register_broker(self, registration: znodes.BrokerRegistration) -> int:
        """Register the broker for as long as this session lives. Gives its epoch. Raises ClusterError."""
        path = znodes.broker_path(registration.broker_id)
        try:
            _, stat = await self._coordination.create(path, registration.encode(), ephemeral=True)
        except NodeExistsError:
            raise ClusterError(f"A broker is already registered with the id {registration.broker_id}") from None
        return stat.czxid

    async def register_controller(self, broker_id: int) -> ControllerTerm:
        """One transaction for the office and its epoch (Kafka's registerControllerAndIncrementControllerEpoch). Raises
        ClusterError.
        """
        if not await self.exists(znodes.CONTROLLER_EPOCH):
            first = znodes.encode_controller_epoch(znodes.INITIAL_CONTROLLER_EPOCH)
            await self._coordination.create(znodes.CONTROLLER_EPOCH, first)
        data, stat = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        epoch = znodes.decode_controller_epoch(data) + 1
        claim = znodes.encode_controller(broker_id, self._clock.now_ms())
        try:
            await self._coordination.multi(
                [
                    Create(znodes.CONTROLLER, claim, ephemeral=True),
                    SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), stat.version),
                ]
            )
        except MultiError as error:
            raise ClusterError(f"Another broker is the controller already ({error})") from error
        if not await self.exists(znodes.FEATURE):
            await self._coordination.create(znodes.FEATURE, znodes.encode_feature())
        return ControllerTerm(epoch, stat.version + 1)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topic_names(self) -> list[str]:
        """All topics of the tree, including those that are being deleted."""
        return (await self._coordination.children(znodes.BROKER_TOPICS))[0]

    async def topic_deletions(self) -> list[str]:
        """The topics that are marked for deletion."""
        return (await self._coordination.children(znodes.DELETE_TOPICS))[0]

    async def read_topic(self, name: str) -> ReadTopic:
        """A topic with its partitions, as far as a crash let it be created."""
        data, _ = await self._coordination.get(znodes.topic_path(name))
        assignment = znodes.TopicAssignment.decode(name, data)
        has_partitions = await self.exists(znodes.partitions_path(name))
        numbers = (await self._coordination.children(znodes.partitions_path(name)))[0] if has_partitions else []
        states = {}
        for number in sorted(map(int, numbers)):
            data, stat = await self._coordination.get(znodes.partition_state_path(name, number))
            states[number] = (znodes.PartitionState.decode(name, number, data), stat.version)
        return ReadTopic(name, assignment, states, has_partitions)

    # -- configurations and producer ids -------------------------------------------------------------------------------

    async def read_configs(self) -> dict[ConfigResource, Mapping[str, str]]:
        """The configurations of all topics and brokers ("" for the defaults of all)."""
        configs: dict[ConfigResource, Mapping[str, str]] = {}
        for resource_type, entity_type in CONFIG_ENTITIES.items():
            for name in (await self._coordination.children(f"/config/{entity_type}"))[0]:
                path = znodes.config_path(entity_type, name)
                config = znodes.decode_config(path, (await self._coordination.get(path))[0])
                configs[resource_type, "" if name == znodes.DEFAULT_ENTITY else name] = config
        return configs

    async def config_operations(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> list[Operation]:
        """Give the operations that replace configurations and leave notices for other brokers."""
        operations: list[Operation] = []
        for (resource_type, name), config in configs.items():
            entity = f"{CONFIG_ENTITIES[ConfigResourceType(resource_type)]}/{name or znodes.DEFAULT_ENTITY}"
            path, data = f"/config/{entity}", znodes.encode_config(config)
            notice, change = f"{znodes.CONFIG_CHANGES}/config_change_", znodes.encode_config_change(entity)
            operations.append(SetData(path, data) if await self.exists(path) else Create(path, data))
            operations.append(Create(notice, change, sequential=True))
        return operations

    async def expired_config_changes(self) -> list[Operation]:
        """Remove notices older than 15 minutes. In Kafka their readers do so."""
        names, _ = await self._coordination.children(znodes.CONFIG_CHANGES)
        oldest_ms = self._clock.now_ms() - _CONFIG_CHANGE_LIFETIME_MS
        expired: list[Operation] = []
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await self._coordination.exists(path)
            if stat is None or stat.ctime_ms >= oldest_ms:
                break
            expired.append(Delete(path))
        return expired

    async def allocate_producer_ids(self, broker_id: int) -> znodes.ProducerIdBlock:
        """A block of producer ids that nobody else has or will get (Kafka's ZkProducerIdManager).

        Raises ApiError UNKNOWN_SERVER_ERROR when there are no more, ZnodeFormatError when the last block is unknown.
        """
        data, stat = await self._coordination.get(znodes.PRODUCER_ID_BLOCK)
        last = znodes.ProducerIdBlock.decode(data).last if data else -1
        if last > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"Have exhausted all producerIds: the last block ends at {last}"
            )
        block = znodes.ProducerIdBlock(broker_id, last + 1, last + PRODUCER_ID_BLOCK_SIZE)
        await self._coordination.set(znodes.PRODUCER_ID_BLOCK, block.encode(), stat.version)
        return block
