"""Brokers that replicate: their replica managers, fetch handlers and fetchers, joined by calls instead of a network,
and a controller that does as the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from broker.handlers.fetch import FetchHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.metadata.metadata_cache import MetadataCache
from broker.network.client_quotas import ClientQuotas
from broker.network.registry import RequestContext, Waiting
from broker.network.reply_writer import FileSlice
from broker.replication.fetch_session import FetchSessionCache
from broker.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from broker.replication.replica_fetcher_manager import ReplicaFetcherManager
from broker.replication.replica_manager import ReplicaManager
from broker.replication.replication_quota import ReplicationQuotas
from client.errors import DisconnectedError
from cluster.controller.commands import Answer, CommandFence, LeaderAndIsr, StoppedReplica, StopReplica, TopicStates
from cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from cluster.replication.isr import IsrChange
from cluster.replication.partition import ACKS_ALL, Partition
from cluster.replication.reads import RackAwareReplicaSelector
from cluster.znodes import Endpoint
from config.broker_keys import UNLIMITED_RATE
from environment.system import SystemClock
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.wire.schema import Request, Response
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.environment import InlineExecutor, ManualClock, SeededRandom, uuid_of
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import batch_of, values_in

R = TypeVar("R", bound=Response)

ID = uuid_of(11)
BROKERS = (1, 2, 3)
LISTENER = "B"


class DirectConnection:
    """One broker's requests to another, as direct calls. Everything is encoded and decoded, as on the wire."""

    def __init__(self, nodes: Nodes, asker: int, leader_id: int) -> None:
        self._nodes = nodes
        self._asker = asker
        self._leader_id = leader_id
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, request: Request, response_type: type[R], version: int, timeout_ms: int | None = None) -> R:
        link = self._asker, self._leader_id
        if link in self._nodes.cut or self._closed.done():
            raise DisconnectedError("cut")
        self._nodes.asked.append((self._asker, request, version))
        node = self._nodes[self._leader_id]
        request = type(request).decode(memoryview(request.to_bytes(version)), version)
        handle = node.fetches.fetch if isinstance(request, FetchRequest) else node.offsets.list_offsets
        answering = asyncio.ensure_future(
            _answer(handle, RequestContext(version, "follower", "here", LISTENER), request)
        )
        await asyncio.wait((answering, self._closed), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            answering.cancel()
            raise DisconnectedError("closed")
        if link in self._nodes.cut:
            raise DisconnectedError("cut")
        response = answering.result()
        await asyncio.sleep(0)
        answer = response_type.decode(memoryview(response.to_bytes(version)), version)
        return self._nodes.damaged(answer)

    def close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


async def _answer(handle: Callable[..., Any], context: RequestContext, request: Request) -> Response:
    response = handle(context, request)
    if isinstance(response, Waiting):
        response = await response.future
    elif isinstance(response, Awaitable):
        response = await response
    for topic in getattr(response, "responses", ()):
        for data in topic.partitions:
            if isinstance(data.records, FileSlice):
                data.records = memoryview(bytes(data.records.read(len(data.records))))
    assert isinstance(response, Response)
    return response


class Node:
    """One broker."""

    def __init__(self, nodes: Nodes, broker_id: int, disks: MemoryFileSystem, config: LogConfig) -> None:
        self.broker_id = broker_id
        self.disks = disks
        self.config = config
        self.failed: list[str] = []
        self.is_full = False
        self.logs = LogManager(disks, ["/logs"], config, on_directory_failure=self._directory_failed)
        self.logs.directories.lock()
        loads = self.logs.begin_load(0)
        for load in loads:
            load.work()
        self.logs.complete_load(loads)
        fence = CommandFence()
        fence.broker_epoch = 50 + broker_id
        self.metadata = MetadataCache(fence, nodes.image())
        clock, executor = SystemClock(), InlineExecutor()
        self.quotas = ReplicationQuotas(
            broker_id,
            nodes.quota_clock,
            lambda key: nodes.limits.get(key, UNLIMITED_RATE),
            nodes.image(),
            samples=11,
            sample_s=1,
        )
        self.metadata.add_listener(self.quotas.image_changed)
        self.replicas = ReplicaManager(
            broker_id,
            self.logs,
            clock,
            executor,
            self.metadata,
            fence,
            lambda _topic: self.config,
            nodes.lag_ms,
            self.quotas.leader,
            RackAwareReplicaSelector(lambda: self.metadata.image) if nodes.racks else None,
        )
        sessions = FetchSessionCache(100, SeededRandom(broker_id), clock.monotonic_s)
        self.fetches = FetchHandlers(self.replicas, sessions, 1 << 24, ClientQuotas(clock), clock)
        self.offsets = OffsetHandlers(self.replicas, executor, self._keep_log_starts)
        settings = FetcherSettings(broker_id, 1 << 20, 1 << 23, 1, nodes.wait_max_ms, nodes.backoff_ms)

        def new_fetcher(leader_id: int) -> ReplicaFetcher:
            return ReplicaFetcher(
                leader_id,
                lambda: DirectConnection(nodes, broker_id, leader_id),
                settings,
                clock,
                executor,
                self.replicas.group_commit,
                lambda: fence.broker_epoch,
                self.replicas.high_watermark_moved,
                self.quotas.follower,
                self._keep_log_starts,
            )

        self.metadata.add_listener(self.replicas.metadata_changed)
        self.fetchers = ReplicaFetcherManager(new_fetcher, 1)
        self.replicas.hosted.fetch_with(self.fetchers)
        self.replicas.isr_changes.connect(nodes)

    async def _keep_log_starts(self) -> None:
        if self.is_full:  # a checkpoint cannot be written
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        self.logs.checkpoints.write_log_start_offsets()

    def _directory_failed(self, path: str, reason: str) -> None:
        self.failed.append(f"{path}: {reason}")

    def partition(self, number: int = 0) -> Partition:
        return self.replicas.partition(TopicPartition("t", number))

    def values(self, number: int = 0) -> list[bytes | None]:
        return [value for _, value in values_in(self.partition(number).log)]

    async def close(self) -> None:
        await self.fetchers.close()
        await self.replicas.isr_changes.close()


class Nodes:
    """Three brokers with topic t. `states` are the controller's decisions, by partition."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        lag_ms: int = 60_000,
        wait_max_ms: int = 50,
        backoff_ms: int = 5,
        config: LogConfig | None = None,
        racks: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """With `racks`, by broker, consumers are directed to replicas in their rack."""
        self.quota_clock = ManualClock()
        self.limits: dict[str, int] = {}
        """Dynamic limits of all brokers, by key; they take effect with the next `configure`."""
        self.lag_ms = lag_ms
        self.racks = racks
        self.wait_max_ms = wait_max_ms
        self.backoff_ms = backoff_ms
        self.cut: set[tuple[int, int]] = set()
        """(source, target) pairs that cannot communicate."""
        self.damages = 0
        """How many of the next answers with records are damaged in flight."""
        self.asked: list[tuple[int, Request, int]] = []
        """(broker, request, version) of every request."""
        self.states = {each: PartitionImage(each, 1, 0, BROKERS, BROKERS, 0, 1) for each in range(partitions)}
        self.altered: list[IsrChange] = []
        self.refusals: list[ErrorCode] = []
        """The errors of the next ISR changes."""
        self._nodes = {each: Node(self, each, MemoryFileSystem(), config or LogConfig()) for each in BROKERS}

    def damaged(self, answer: R) -> R:
        """The answer as received."""
        for topic in getattr(answer, "responses", ()):
            for data in topic.partitions:
                if data.records and self.damages:
                    self.damages -= 1
                    data.records = memoryview(bytearray(data.records))
                    data.records[-1] ^= 0xFF
        return answer

    def __getitem__(self, broker_id: int) -> Node:
        return self._nodes[broker_id]

    def image(self) -> MetadataImage:
        """The metadata of every broker."""
        topic = TopicImage("t", ID, tuple(self.states.values()))
        endpoint = Endpoint(LISTENER, "127.0.0.1", 1, "PLAINTEXT")
        brokers = {each: BrokerImage(each, 50 + each, {LISTENER: endpoint}, self.racks.get(each)) for each in BROKERS}
        return MetadataImage(brokers=brokers).with_topics([topic])

    def configure(self, **overrides: str) -> None:
        """Configure the topic on every broker at once, with underscores for dots."""
        config = {key.replace("_", "."): value for key, value in overrides.items()}
        for node in self._nodes.values():
            node.metadata.update_configs({(ConfigResourceType.TOPIC, "t"): config})

    async def tell(self, *broker_ids: int, is_new: bool = False, topic_id: Uuid = ID) -> list[Answer]:
        """Send the current roles to brokers (default: all)."""
        states = (TopicStates("t", topic_id, tuple(self.states.values()), is_new),)
        return [
            await self[each].replicas.hosted.become_leader_or_follower(LeaderAndIsr(1, 1, -1, topics=states))
            for each in broker_ids or BROKERS
        ]

    async def stop_replica(self, broker_id: int, number: int = 0, *, delete: bool) -> Answer:
        stopped = StoppedReplica(TopicPartition("t", number), -1, delete)
        return await self[broker_id].replicas.hosted.stop_replicas(StopReplica(1, 1, -1, partitions=(stopped,)))

    def elect(self, leader: int, *numbers: int, isr: tuple[int, ...] | None = None) -> None:
        """Elect a new leader of partitions (default: all)."""
        for number in numbers or tuple(self.states):
            state = self.states[number]
            self.states[number] = state.replace(
                leader=leader,
                leader_epoch=state.leader_epoch + 1,
                partition_epoch=state.partition_epoch + 1,
                isr=isr or state.isr,
            )

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """See `ControllerApi`."""
        await asyncio.sleep(0)
        if broker_epoch != 50 + broker_id:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, "stale")
        self.altered += changes
        return {change.topic_partition: self._decide(change) for change in changes}

    def _decide(self, change: IsrChange) -> PartitionImage | ErrorCode:
        if self.refusals:
            return self.refusals.pop(0)
        number = change.topic_partition.partition
        state = self.states[number]
        if change.leader_epoch != state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.partition_epoch != state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        self.states[number] = state.replace(isr=change.broker_ids, partition_epoch=state.partition_epoch + 1)
        return self.states[number]

    def append(self, broker_id: int, *values: bytes, number: int = 0, acks: int = ACKS_ALL) -> int:
        """Append a batch; returns its last offset."""
        info = self[broker_id].replicas.append(TopicPartition("t", number), batch_of(*values), required_acks=acks)
        return info.last_offset

    async def acknowledged(self, broker_id: int, last_offset: int, number: int = 0) -> ErrorCode:
        """The error code of a produce that waits for acks=all."""
        waiting = self[broker_id].replicas.when_acknowledged(
            [(TopicPartition("t", number), last_offset)], list, required_acks=ACKS_ALL, timeout_ms=30_000
        )
        [error] = await waiting
        return ErrorCode.NONE if error is None else error.error_code

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()


def on_nodes(**options: Any) -> Callable[[Callable[[Nodes], Awaitable[None]]], Callable[[], None]]:
    """Decorate a test with a new set of brokers."""

    def decorate(scenario: Callable[[Nodes], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            nodes = Nodes(**options)
            try:
                await scenario(nodes)
            finally:
                await nodes.close()

        def test() -> None:
            asyncio.run(run())

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__  # type: ignore[attr-defined]
        return test

    return decorate
