"""A real server that obeys commands: sockets, dispatcher and handlers are the broker's; it records what arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from broker.handlers.cluster_commands import ClusterCommandHandlers
from broker.network.client_quotas import ClientQuotas
from broker.network.dispatcher import Dispatcher
from broker.network.limits import ConnectionLimits
from broker.network.memory import RequestMemory
from broker.network.registry import HandlerRegistry
from broker.network.socket_server import ListenerBinding, SocketServer
from cluster.controller.commands import Answer, Command, LeaderAndIsr, StopReplica, UpdateMetadata
from environment.system import SystemClock, TcpNetwork, ThreadExecutor
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition


class NotingChannel:
    """Obeys every command, or with `refusal` refuses it."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.refusal: ApiError | None = None

    def _note(self, command: Command) -> None:
        self.commands.append(command)
        if self.refusal is not None:
            raise self.refusal

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        self._note(command)
        return {
            TopicPartition(topic.topic, each.partition): ErrorCode.NONE
            for topic in command.topics
            for each in topic.partitions
        }

    async def stop_replica(self, command: StopReplica) -> Answer:
        self._note(command)
        return {each.topic_partition: ErrorCode.NONE for each in command.partitions}

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self._note(command)


class CommandServer(NamedTuple):
    """The port, and the commands that arrived."""

    port: int
    channel: NotingChannel


@asynccontextmanager
async def served(*handlers: object, port: int = 0) -> AsyncIterator[int]:
    """Run a server with these handlers for the duration of a block; yields its port."""
    executor = ThreadExecutor(1)
    server = SocketServer(
        TcpNetwork(50), executor, SystemClock(), ConnectionLimits(100, 100, {}), RequestMemory(-1),
        max_request_bytes=10_000_000, max_idle_ms=-1,
    )  # fmt: skip
    await server.bind([ListenerBinding("PLAINTEXT", "127.0.0.1", port)])
    clock = SystemClock()
    dispatcher = Dispatcher(HandlerRegistry(handlers), clock, ClientQuotas(clock))
    await server.start(dispatcher)
    try:
        yield server.ports["PLAINTEXT"]
    finally:
        await server.stop_listening()
        server.close_connections()
        await dispatcher.drain()
        executor.close()


@asynccontextmanager
async def command_server(port: int = 0) -> AsyncIterator[CommandServer]:
    """Run an obedient server for the duration of a block."""
    channel = NotingChannel()
    async with served(ClusterCommandHandlers(channel, SystemClock()), port=port) as bound:
        yield CommandServer(bound, channel)
