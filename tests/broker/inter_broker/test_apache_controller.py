"""Apache Kafka's controller and a broker that joins its cluster: the broker decodes its requests to the last byte, and
Kafka answers the broker's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from broker.inter_broker import command_codec as codec
from broker.inter_broker.inter_broker_client import InterBrokerClient
from broker.inter_broker.metadata_codec import update_metadata_command, update_metadata_request
from broker.inter_broker.remote_channel import RemoteChannel, remote_channels
from broker.inter_broker.remote_controller import RemoteController, controller_address
from broker.metadata.metadata_cache import MetadataCache
from client.environment import LoopNetwork
from cluster.controller.commands import (
    EPOCH_DURING_DELETE,
    Command,
    CommandFence,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
    UpdateMetadata,
)
from cluster.controller.topics import NewTopic as CreatedTopic
from cluster.controller.topics import TopicPlan
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.replication.isr import IsrChange
from cluster.znodes import BrokerRegistration, Endpoint
from environment.slices import Slices
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import REQUEST_TYPES
from protocol.messages.cluster_commands import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from protocol.messages.headers import RequestHeader
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request, Response
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.environment import ManualClock, uuid_of
from tests.kit.waiting import eventually_on_loop

pytestmark = [pytest.mark.slow, pytest.mark.java]

APACHE, ME = 0, 7
COMMANDS = {ApiKey.LEADER_AND_ISR: 7, ApiKey.STOP_REPLICA: 4, ApiKey.UPDATE_METADATA: 8}
"""With the versions of inter.broker.protocol.version=3.9."""
LENGTH = struct.Struct(">i")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

C = TypeVar("C", bound=Command)


class Received(NamedTuple):
    """One request: its bytes and their declared types, and the command it contains, if any."""

    api_key: ApiKey
    version: int
    number: int
    """Its correlation id."""
    body: bytes
    request: Request
    command: Command | None = None


class JoiningBroker:
    """Obeys every command, and keeps it; for the first `to_hang_up_on` it closes the connection instead of answering.
    It also keeps requests of followers, and closes their connections.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.to_hang_up_on = 0

    def commands(self, kind: type[C]) -> list[C]:
        """The commands of one kind."""
        return [each.command for each in self.received if isinstance(each.command, kind)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                frame = memoryview(await reader.readexactly(size))
                key, version = struct.unpack_from(">hh", frame)
                api_key = ApiKey(key)
                header, at = RequestHeader.decode_prefix(frame, api_key.request_header_version(version))
                response = await self._obey(api_key, version, header.correlation_id, bytes(frame[at:]))
                body = LENGTH.pack(header.correlation_id) + b"\0" * api_key.response_header_version(version)
                body += response.to_bytes(version)
                writer.write(LENGTH.pack(len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _obey(self, api_key: ApiKey, version: int, number: int, body: bytes) -> Response:
        request, size = REQUEST_TYPES[api_key].decode_prefix(body, version)
        assert size == len(body)
        command: Command
        response: Response
        slices = Slices(ManualClock())
        if api_key not in COMMANDS:
            self.received.append(Received(api_key, version, number, body, request))
            raise ConnectionResetError
        if isinstance(request, LeaderAndIsrRequest):
            command = roles = await codec.leader_and_isr_command(request, slices)
            answer = dict.fromkeys(_named(roles), ErrorCode.NONE)
            response = await codec.leader_and_isr_response(answer, roles, version, slices)
        elif isinstance(request, StopReplicaRequest):
            command = stops = await codec.stop_replica_command(request, version, slices)
            fine = {each.topic_partition: ErrorCode.NONE for each in stops.partitions}
            response = await codec.stop_replica_response(fine, slices)
        else:
            assert isinstance(request, UpdateMetadataRequest)
            command = await update_metadata_command(request, version, slices)
            response = UpdateMetadataResponse(error_code=ErrorCode.NONE)
        self.received.append(Received(api_key, version, number, body, request, command))
        if self.to_hang_up_on:
            self.to_hang_up_on -= 1
            raise ConnectionResetError
        return response


def _named(command: LeaderAndIsr) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, each.partition) for topic in command.topics for each in topic.partitions]


class Cluster(NamedTuple):
    """Apache Kafka's broker 0, which is the controller, and broker 7."""

    apache: ApacheKafka
    admin: AdminClient
    me: JoiningBroker
    broker_epoch: int

    async def until(self, what: str, is_so: Callable[[], object]) -> None:
        """Wait until broker 7 has received it."""
        await eventually_on_loop(what, is_so, pause_s=0.01)


@asynccontextmanager
async def joined(directory: Path) -> AsyncIterator[Cluster]:
    """A cluster that broker 7 has joined."""
    apache, me = ApacheKafka(directory, {"broker.rack": "their-rack"}), JoiningBroker()
    await asyncio.to_thread(apache.start)
    server = await asyncio.start_server(me.serve, "127.0.0.1", 0)
    endpoint = Endpoint("PLAINTEXT", "127.0.0.1", server.sockets[0].getsockname()[1], "PLAINTEXT")
    registration = BrokerRegistration(ME, (endpoint,), "my-rack", timestamp_ms=1_700_000_000_000)
    zookeeper = KazooClient(apache.zookeeper_address)
    try:
        await asyncio.to_thread(zookeeper.start)
        path = f"/brokers/ids/{ME}"
        await asyncio.to_thread(zookeeper.create, path, registration.encode(), ephemeral=True)
        _, stat = await asyncio.to_thread(zookeeper.get, path)
        admin = AdminClient({"bootstrap.servers": apache.address, "log_level": 0})
        yield Cluster(apache, admin, me, stat.czxid)
    finally:
        await asyncio.to_thread(zookeeper.stop)
        await asyncio.to_thread(zookeeper.close)
        server.close()
        await asyncio.to_thread(apache.stop)


async def create_topic(cluster: Cluster) -> None:
    """Create `t`: broker 7 leads partition 0, broker 0 leads partition 1."""
    topic = NewTopic("t", 2, replica_assignment=[[ME, APACHE], [APACHE, ME]])
    await asyncio.to_thread(cluster.admin.create_topics([topic])["t"].result)
    led = {T0, T1}
    await cluster.until(
        "roles", lambda: led <= {each for roles in cluster.me.commands(LeaderAndIsr) for each in _named(roles)}
    )


@pytest.mark.timeout(240)
def test_what_apache_kafkas_controller_sends_is_understood_to_the_last_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with joined(tmp_path) as cluster:
            me = cluster.me
            await cluster.until("live brokers", lambda: me.commands(UpdateMetadata))
            await create_topic(cluster)
            await cluster.until("a follower", lambda: any(each.api_key is ApiKey.FETCH for each in me.received))
            await asyncio.to_thread(cluster.admin.delete_topics(["t"])["t"].result)
            await cluster.until(
                "deletion",
                lambda: any(each.delete_partition for stops in me.commands(StopReplica) for each in stops.partitions),
            )
            await check_what_was_sent(me.received)
            check_what_was_said(cluster)

    asyncio.run(scenario())


@pytest.mark.timeout(240)
def test_apache_kafkas_controller_counts_on_when_it_connects_again(tmp_path: Path) -> None:
    """This lets a broker distinguish a late command from a newer one (`CommandFence`)."""

    async def scenario() -> None:
        async with joined(tmp_path) as cluster:
            me = cluster.me
            await cluster.until("live brokers", lambda: me.commands(UpdateMetadata))
            me.to_hang_up_on = 3
            await create_topic(cluster)
            await cluster.until("copies", lambda: me.to_hang_up_on == 0)
            commands = [each for each in me.received if each.command is not None]
            assert len({each.body for each in commands}) < len(commands), "it sent copies"
            numbers = [each.number for each in commands]
            assert numbers == sorted(set(numbers))

    asyncio.run(scenario())


async def check_what_was_sent(received: list[Received]) -> None:
    """Every request is unchanged after re-encoding, also from the command that it was decoded to."""
    versions = dict({(each.api_key, each.version) for each in received})
    assert versions.items() >= COMMANDS.items()
    assert versions.keys() - COMMANDS.keys() <= {ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.LIST_OFFSETS}
    assert versions[ApiKey.FETCH] == 17
    for each in received:
        assert each.request.to_bytes(each.version) == each.body
        if each.command is None:
            continue
        again: Any
        if isinstance(each.command, LeaderAndIsr):
            again = await codec.leader_and_isr_request(each.command, Slices(ManualClock()))
            assert isinstance(each.request, LeaderAndIsrRequest)
            again.live_leaders = each.request.live_leaders
            again.type = each.request.type  # a controller on ZooKeeper does not set it
        elif isinstance(each.command, StopReplica):
            again = await codec.stop_replica_request(each.command, Slices(ManualClock()))
        else:
            assert isinstance(each.command, UpdateMetadata)
            again = await update_metadata_request(each.command, Slices(ManualClock()))
        assert type(each.request).decode(again.to_bytes(each.version), each.version) == each.request


def check_what_was_said(cluster: Cluster) -> None:
    """Broker 7 must have received the brokers, its roles, and the end of the topic."""
    me = cluster.me
    commands = [each.command for each in me.received if each.command is not None]
    assert {(each.controller_id, each.broker_epoch) for each in commands} == {(APACHE, cluster.broker_epoch)}
    known = me.commands(UpdateMetadata)[-1].live_brokers
    assert sorted(known) == [APACHE, ME]
    assert known[ME].rack == "my-rack"
    assert known[APACHE].endpoints["PLAINTEXT"].port == int(cluster.apache.address.rpartition(":")[2])
    roles = {
        TopicPartition(topic.topic, each.partition): (each.leader, topic.is_new)
        for command in me.commands(LeaderAndIsr)
        for topic in command.topics
        for each in topic.partitions
    }
    assert roles == {T0: (ME, True), T1: (APACHE, True)}
    stopped = [each for command in me.commands(StopReplica) for each in command.partitions if each.delete_partition]
    assert {each.topic_partition for each in stopped} == {T0, T1}
    assert any([topic.topic for topic in each.deleted_topics] == ["t"] for each in me.commands(UpdateMetadata))


@pytest.mark.timeout(240)
def test_apache_kafkas_controller_gives_what_a_broker_asks_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with joined(tmp_path) as cluster:
            await create_topic(cluster)
            metadata = MetadataCache(CommandFence())
            for command in cluster.me.commands(UpdateMetadata):
                metadata.update_metadata(command)
            client = InterBrokerClient(
                LoopNetwork(), lambda: controller_address(metadata.image, "PLAINTEXT"), "7", 60_000
            )
            try:
                await ask_for_everything(cluster, RemoteController(client, metadata, 60_000), metadata)
            finally:
                client.close()

    asyncio.run(scenario())


async def ask_for_everything(cluster: Cluster, controller: RemoteController, metadata: MetadataCache) -> None:
    """Send each request once, and once with a stale broker epoch."""
    epoch = cluster.broker_epoch
    block = await controller.allocate_producer_ids(ME, epoch)
    assert (block.broker_id, block.last - block.first) == (ME, 999)
    topic_id = metadata.image.topics["t"].topic_id

    def isr(partition_epoch: int, *broker_ids: int) -> list[IsrChange]:
        in_sync = tuple((broker_id, -1) for broker_id in broker_ids)
        return [IsrChange(T0, topic_id, 0, partition_epoch, in_sync)]

    for call in (
        controller.allocate_producer_ids(ME, epoch - 1),
        controller.alter_partition(ME, epoch - 1, isr(0, ME)),
        controller.controlled_shutdown(ME, epoch - 1),
    ):
        with pytest.raises(ApiError) as raised:
            await call
        assert raised.value.error_code is ErrorCode.STALE_BROKER_EPOCH
    altered = await controller.alter_partition(ME, epoch, isr(0, ME))
    assert altered == {T0: PartitionImage(0, ME, 0, (ME, APACHE), (ME,), 1, 1)}
    refused = await controller.alter_partition(ME, epoch, isr(0, ME, APACHE))
    assert refused == {T0: ErrorCode.INVALID_UPDATE_VERSION}
    created = await controller.create_topics([CreatedTopic("u", 3, 1)])
    assert created == {"u": TopicPlan("u", ((), (), ()), {})}, str(created["u"])
    again = (await controller.create_topics([CreatedTopic("u", 3, 1)]))["u"]
    assert isinstance(again, ApiError)
    assert again.error_code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert await controller.controlled_shutdown(ME, epoch) == [T0]


@pytest.mark.timeout(240)
def test_an_apache_broker_obeys_what_a_channel_carries(tmp_path: Path) -> None:
    """The topic is not in the tree: the test acts as the controller, with its epoch."""

    async def scenario() -> None:
        apache = ApacheKafka(tmp_path)
        await asyncio.to_thread(apache.start)
        host, _, port = apache.address.rpartition(":")
        endpoint = Endpoint("PLAINTEXT", host, int(port), "PLAINTEXT")
        channel = remote_channels(LoopNetwork(), ManualClock(), "PLAINTEXT", APACHE, 60_000)(
            BrokerImage(APACHE, -1, {"PLAINTEXT": endpoint}, "r")
        )
        try:
            await command_everything(channel, endpoint, AdminClient({"bootstrap.servers": apache.address}))
        finally:
            channel.close()
            await asyncio.to_thread(apache.stop)

    asyncio.run(scenario())


async def command_everything(channel: RemoteChannel, endpoint: Endpoint, admin: AdminClient) -> None:
    """Create and delete a topic of 2,000 partitions."""
    partitions = tuple(PartitionImage(number, APACHE, 0, (APACHE,), (APACHE,), 0, 1) for number in range(2000))
    states = TopicStates("t", uuid_of(11), partitions, is_new=True)
    everything = {TopicPartition("t", number): ErrorCode.NONE for number in range(2000)}
    brokers = {APACHE: BrokerImage(APACHE, -1, {"PLAINTEXT": endpoint}, "r")}
    assert await channel.leader_and_isr(LeaderAndIsr(APACHE, 1, -1, topics=(states,))) == everything
    await channel.update_metadata(UpdateMetadata(APACHE, 1, -1, live_brokers=brokers, topics=(states,)))
    listed = await asyncio.to_thread(admin.list_topics, timeout=30)
    assert {each.leader for each in listed.topics["t"].partitions.values()} == {APACHE}
    assert len(listed.topics["t"].partitions) == 2000
    await channel.update_metadata(UpdateMetadata(APACHE, 1, -1, live_brokers=brokers, deleted_topics=(states,)))
    stopped = tuple(StoppedReplica(each, EPOCH_DURING_DELETE, delete_partition=True) for each in everything)
    assert await channel.stop_replica(StopReplica(APACHE, 1, -1, partitions=stopped)) == everything
    assert "t" not in (await asyncio.to_thread(admin.list_topics, timeout=30)).topics
    for call in (
        channel.leader_and_isr(LeaderAndIsr(APACHE, 0, -1, topics=(states,))),
        channel.stop_replica(StopReplica(APACHE, 0, -1, partitions=stopped)),
        channel.update_metadata(UpdateMetadata(APACHE, 0, -1, live_brokers=brokers)),
    ):
        with pytest.raises(ApiError) as raised:
            await call
        assert raised.value.error_code is ErrorCode.STALE_CONTROLLER_EPOCH
