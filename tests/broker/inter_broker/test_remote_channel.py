"""Commands over real connections: in order, repeated after a lost connection, until the channel is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from broker.inter_broker.inter_broker_client import InterBrokerClient
from broker.inter_broker.remote_channel import ChannelClosedError, RemoteChannel, remote_channels
from client.environment import LoopNetwork, P
from cluster.controller.commands import (
    NO_EPOCH,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
    UpdateMetadata,
)
from cluster.metadata_image import BrokerImage
from cluster.znodes import Endpoint
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.broker.inter_broker.command_server import command_server
from tests.broker.inter_broker.commands import image
from tests.client.proxy import proxy
from tests.kit.broker_process import free_port
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import ManualClock, uuid_of
from tests.kit.waiting import eventually_on_loop, turns

ID = uuid_of(11)
T0 = TopicPartition("t", 0)
BROKER = BrokerImage(2, NO_EPOCH, {"PLAINTEXT": Endpoint("PLAINTEXT", "h", 9092, "PLAINTEXT")}, "r")
LEAD = LeaderAndIsr(1, 7, 50, topics=(TopicStates("t", ID, (image(0),), is_new=True),), is_full=True)
STOP = StopReplica(1, 7, 50, partitions=(StoppedReplica(T0, 5, delete_partition=True),))
UPDATE = UpdateMetadata(1, 7, 50, live_brokers={2: BROKER}, topics=(TopicStates("t", ID, (image(0),)),))


class CountingNetwork(LoopNetwork):
    """Counts the connection attempts."""

    tries = 0

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        self.tries += 1
        return await super().connect(protocol_factory, host, port)


def channel_to(port: int, network: LoopNetwork | None = None) -> RemoteChannel:
    client = InterBrokerClient(network or LoopNetwork(), ("127.0.0.1", port), "1", 60_000, numbers=count(1))
    return RemoteChannel(2, client, ManualClock(), retry_backoff_ms=1)


def update(number: int) -> UpdateMetadata:
    return UpdateMetadata(number, 7, 50)


@in_loop
async def test_each_command_is_answered() -> None:
    async with command_server() as there:
        channel = channel_to(there.port)
        assert await channel.leader_and_isr(LEAD) == {T0: ErrorCode.NONE}
        assert await channel.stop_replica(STOP) == {T0: ErrorCode.NONE}
        await channel.update_metadata(UPDATE)
        assert there.channel.commands == [LEAD, STOP, UPDATE]
        channel.close()


@pytest.mark.parametrize("error_code", [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH])
@in_loop
async def test_a_refusal_is_an_answer(error_code: ErrorCode) -> None:
    async with command_server() as there:
        channel = channel_to(there.port)
        there.channel.refusal = ApiError(error_code, "old")
        for call in (channel.leader_and_isr(LEAD), channel.stop_replica(STOP), channel.update_metadata(UPDATE)):
            with pytest.raises(ApiError) as raised:
                await call
            assert raised.value.error_code is error_code
        assert len(there.channel.commands) == 3
        channel.close()


@in_loop
async def test_commands_arrive_in_the_order_of_the_calls() -> None:
    async with command_server() as there:
        channel = channel_to(there.port)
        large = UpdateMetadata(0, 7, 50, topics=(TopicStates("t", ID, tuple(image(each) for each in range(5000))),))
        await asyncio.gather(
            channel.update_metadata(large), *(channel.update_metadata(update(n)) for n in range(1, 20))
        )
        assert [command.controller_id for command in there.channel.commands] == list(range(20))
        channel.close()


@in_loop
async def test_commands_survive_lost_connections_in_their_order() -> None:
    port = free_port()
    async with command_server() as there, proxy(port, f"127.0.0.1:{there.port}") as way:
        channel = channel_to(port)
        calls = [asyncio.ensure_future(channel.update_metadata(update(number))) for number in range(200)]
        for cut_after in (5, 50, 120):
            await eventually_on_loop("commands arrive", lambda at=cut_after: len(there.channel.commands) > at)
            way.cut()
        await asyncio.gather(*calls)
        arrived = [command.controller_id for command in there.channel.commands]
        assert list(dict.fromkeys(arrived)) == list(range(200))
        assert arrived == sorted(arrived)
        numbers = [command.number for command in there.channel.commands]
        assert numbers == sorted(set(numbers)), "a late copy can be told from a newer command"
        channel.close()


@in_loop
async def test_a_command_waits_for_a_broker_that_is_not_there_yet() -> None:
    port = free_port()
    channel = channel_to(port)
    call = asyncio.ensure_future(channel.update_metadata(UPDATE))
    async with command_server(port) as there:
        await call
        assert there.channel.commands == [UPDATE]
    channel.close()


@in_loop
async def test_closing_ends_the_calls_that_are_tried_again_and_those_that_wait_for_them() -> None:
    network = CountingNetwork()
    channel = channel_to(free_port(), network)
    calls = [asyncio.ensure_future(channel.update_metadata(update(number))) for number in range(3)]
    await eventually_on_loop("it is tried again", lambda: network.tries > 3)
    assert not any(call.done() for call in calls)
    channel.close()
    for call in (*calls, channel.stop_replica(STOP)):
        with pytest.raises(ChannelClosedError):
            await call


@in_loop
async def test_closing_ends_a_call_that_waits_for_its_answer() -> None:
    class Deaf(asyncio.Protocol):
        received = 0

        def data_received(self, data: bytes) -> None:
            Deaf.received += len(data)

    server = await asyncio.get_running_loop().create_server(Deaf, "127.0.0.1", 0)
    channel = channel_to(server.sockets[0].getsockname()[1])
    call = asyncio.ensure_future(channel.update_metadata(UPDATE))
    await eventually_on_loop("the command arrives", lambda: Deaf.received)
    channel.close()
    with pytest.raises(ChannelClosedError):
        await call
    server.close()


@in_loop
async def test_a_broker_is_reached_through_the_listener_of_brokers() -> None:
    async with command_server() as there:
        make = remote_channels(LoopNetwork(), ManualClock(), "INSIDE", 1, 60_000)
        outside = Endpoint("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT")
        inside = Endpoint("INSIDE", "127.0.0.1", there.port, "PLAINTEXT")
        channel = make(BrokerImage(2, 50, {"PLAINTEXT": outside, "INSIDE": inside}))
        await channel.update_metadata(UPDATE)
        channel.close()
        channel = make(BrokerImage(2, 50, {"INSIDE": inside}))
        await channel.update_metadata(UPDATE)
        channel.close()
        assert there.channel.commands == [UPDATE, UPDATE]
        first, second = (command.number for command in there.channel.commands)
        assert first < second, "also when the broker has changed its endpoints"
        unreachable = make(BrokerImage(3, 60, {"PLAINTEXT": outside}))
        call = asyncio.ensure_future(unreachable.update_metadata(UPDATE))
        await turns()
        assert not call.done()
        unreachable.close()
        with pytest.raises(ChannelClosedError):
            await call
