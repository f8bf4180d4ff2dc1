"""The controller's channel to another broker (Kafka class `RequestSendThread`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Final, TypeVar

from broker.inter_broker.command_codec import (
    LEADER_AND_ISR_VERSION,
    STOP_REPLICA_VERSION,
    UPDATE_METADATA_VERSION,
    check_answer,
    leader_and_isr_answer,
    leader_and_isr_request,
    stop_replica_answer,
    stop_replica_request,
)
from broker.inter_broker.inter_broker_client import InterBrokerClient
from broker.inter_broker.metadata_codec import update_metadata_request
from client.environment import Network
from client.errors import DisconnectedError
from cluster.controller.commands import Answer, LeaderAndIsr, StopReplica, UpdateMetadata
from cluster.metadata_image import BrokerImage
from environment.contract import Clock
from environment.slices import Slices
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_commands import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse
from protocol.wire.frames import ReceiveBuffer
from protocol.wire.schema import Request, Response

logger = logging.getLogger("kafka.controller.RequestSendThread")

RETRY_BACKOFF_MS: Final = 100
"""As in Kafka."""

R = TypeVar("R", bound=Response)


class ChannelClosedError(ApiError):
    """The channel was closed before the broker answered; the command may have taken effect."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, f"the channel to broker {broker_id} was closed")


class RemoteChannel:
    """A BrokerChannel over the network. Sends one command at a time, in the order of the calls, and retries it until
    the broker answers or `close` is called. Retries are safe: the broker ignores repeated and outdated commands
    (`CommandFence`).
    """

    def __init__(
        self, broker_id: int, client: InterBrokerClient, clock: Clock, *, retry_backoff_ms: int = RETRY_BACKOFF_MS
    ) -> None:
        """The channel owns `client` and closes it."""
        self._broker_id = broker_id
        self._client = client
        self._clock = clock
        self._retry_backoff_s = retry_backoff_ms / 1000
        self._turn = asyncio.Lock()
        self._closed = asyncio.Event()

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        """See BrokerChannel. Raises ChannelClosedError."""
        slices = Slices(self._clock)
        make = partial(leader_and_isr_request, command, slices)
        response = await self._send(make, LeaderAndIsrResponse, LEADER_AND_ISR_VERSION)
        return await leader_and_isr_answer(response, command, slices)

    async def stop_replica(self, command: StopReplica) -> Answer:
        """See BrokerChannel. Raises ChannelClosedError."""
        slices = Slices(self._clock)
        make = partial(stop_replica_request, command, slices)
        response = await self._send(make, StopReplicaResponse, STOP_REPLICA_VERSION)
        return await stop_replica_answer(response, slices)

    async def update_metadata(self, command: UpdateMetadata) -> None:
        """See BrokerChannel. Raises ChannelClosedError."""
        make = partial(update_metadata_request, command, Slices(self._clock))
        response = await self._send(make, UpdateMetadataResponse, UPDATE_METADATA_VERSION)
        check_answer(response.error_code, "UpdateMetadata")

    def close(self) -> None:
        """Stop sending. Pending calls raise ChannelClosedError."""
        self._closed.set()
        self._client.close()

    async def _send(self, make: Callable[[], Awaitable[Request]], response_type: type[R], version: int) -> R:
        async with self._turn:
            request = await make()
            attempt = 0
            while not self._closed.is_set():
                try:
                    return await self._client.ask(request, response_type, version)
                except DisconnectedError as error:
                    attempt += 1
                    if attempt == 1:
                        logger.warning(
                            "%s to broker %d is tried again: %s", type(request).__name__, self._broker_id, error
                        )
                await self._back_off()
            raise ChannelClosedError(self._broker_id)

    async def _back_off(self) -> None:
        try:
            async with asyncio.timeout(self._retry_backoff_s):
                await self._closed.wait()
        except TimeoutError:
            pass


def remote_channels(
    network: Network, clock: Clock, listener_name: str, own_broker_id: int, request_timeout_ms: int
) -> Callable[[BrokerImage], RemoteChannel]:
    """Return a function that creates the channel to a broker, through the listener for traffic between brokers.

    A broker without that listener cannot be reached: its commands wait until the channel is closed. All channels share
    one sequence of correlation ids, so a broker that gets a new channel after a change of its endpoints can still tell
    which command came first.
    """
    receive_buffer, numbers = ReceiveBuffer(), count(1)

    def make(broker: BrokerImage) -> RemoteChannel:
        address = broker.address(listener_name)
        client = InterBrokerClient(
            network,
            lambda: address,
            str(own_broker_id),
            request_timeout_ms,
            receive_buffer=receive_buffer,
            numbers=numbers,
        )
        return RemoteChannel(broker.broker_id, client, clock)

    return make
