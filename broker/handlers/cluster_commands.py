"""LeaderAndIsr, StopReplica and UpdateMetadata: commands from a controller on another broker.

A single broker never gets any, so the codecs are imported with the first command.
"""

from __future__ import annotations

from broker.controller.broker_requests import BrokerChannel
from broker.environment.contract import Clock
from broker.network.registry import RequestContext, api
from broker.network.slices import Slices
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_commands import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)


class ClusterCommandHandlers:
    """Passes commands to the channel that this broker's own controller would use. A command is ignored if it comes from
    an older controller (STALE_CONTROLLER_EPOCH), is meant for an older registration of this broker
    (STALE_BROKER_EPOCH), or was overtaken by a newer one.
    """

    def __init__(self, channel: BrokerChannel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock

    @api(ApiKey.LEADER_AND_ISR, versions=(0, 7), in_order=True, whole="a command is obeyed or refused")
    async def leader_and_isr(self, context: RequestContext, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Assume roles. The response has a result for each partition, even if the whole command is refused."""
        from broker.inter_broker import command_codec as codec

        version, slices = context.api_version, Slices(self._clock)
        try:
            command = await codec.leader_and_isr_command(request, slices)
        except ApiError as error:
            return LeaderAndIsrResponse(error_code=error.error_code)
        try:
            answer = await self._channel.leader_and_isr(command.replace(number=context.correlation_id))
        except ApiError as error:
            return await codec.leader_and_isr_refusal(error, command, version, slices)
        return await codec.leader_and_isr_response(answer, command, version, slices)

    @api(ApiKey.STOP_REPLICA, versions=(0, 4), in_order=True, whole="a command is obeyed or refused")
    async def stop_replica(self, context: RequestContext, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop replicas. As in Kafka, a refusal does not list partitions."""
        from broker.inter_broker import command_codec as codec

        slices = Slices(self._clock)
        try:
            command = await codec.stop_replica_command(request, context.api_version, slices)
            answer = await self._channel.stop_replica(command.replace(number=context.correlation_id))
            return await codec.stop_replica_response(answer, slices)
        except ApiError as error:
            return StopReplicaResponse(error_code=error.error_code, partition_errors=[])

    @api(ApiKey.UPDATE_METADATA, versions=(0, 8), in_order=True, whole="a command is obeyed or refused")
    async def update_metadata(self, context: RequestContext, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Use this metadata for clients from now on."""
        from broker.inter_broker.metadata_codec import update_metadata_command

        try:
            command = await update_metadata_command(request, context.api_version, Slices(self._clock))
            await self._channel.update_metadata(command.replace(number=context.correlation_id))
        except ApiError as error:
            return UpdateMetadataResponse(error_code=error.error_code)
        return UpdateMetadataResponse(error_code=ErrorCode.NONE)
