"""LeaderAndIsr, StopReplica and UpdateMetadata: the commands of a controller that is another broker.

A single broker gets none, so that the codecs are imported with the first.
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
    """Has this broker obey, through the channel that its own controller would use. What is of an older controller, for
    an older registration of this broker or overtaken by a newer command changes nothing: STALE_CONTROLLER_EPOCH,
    STALE_BROKER_EPOCH.
    """

    def __init__(self, channel: BrokerChannel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock

    @api(ApiKey.LEADER_AND_ISR, versions=(0, 7), in_order=True, whole="a command is obeyed or refused")
    async def leader_and_isr(self, context: RequestContext, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Take roles. The answer says of each partition whether its role was taken, also of a refused command."""
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
        """Let go of replicas. As in Kafka, a refusal names no partitions."""
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
        """Tell clients of this from now on."""
        from broker.inter_broker.metadata_codec import update_metadata_command

        try:
            command = await update_metadata_command(request, context.api_version, Slices(self._clock))
            await self._channel.update_metadata(command.replace(number=context.correlation_id))
        except ApiError as error:
            return UpdateMetadataResponse(error_code=error.error_code)
        return UpdateMetadataResponse(error_code=ErrorCode.NONE)
