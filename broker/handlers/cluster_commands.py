"""LeaderAndIsr, StopReplica and UpdateMetadata: commands from a controller on another broker.

A single broker never gets any, so the codecs are imported with the first command.
"""

from __future__ import annotations

from typing import Final

from broker.controller.broker_requests import BrokerChannel
from broker.network.registry import RequestContext, api
from broker.security.rights import ClientRequest, OnCluster
from environment.contract import Clock
from environment.slices import Slices
from protocol.acl_types import AclOperation
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
from protocol.uuids import Uuid

FIRST_ANSWER_BY_TOPIC_ID: Final = 5

_LeaderError = LeaderAndIsrResponse.LeaderAndIsrPartitionError
_StopError = StopReplicaResponse.StopReplicaPartitionError


def _refuse_roles(asked: ClientRequest[LeaderAndIsrRequest], code: ErrorCode) -> LeaderAndIsrResponse:
    """Every partition gets the error too."""
    request, refusal = asked.request, LeaderAndIsrResponse(error_code=code)
    by_topic: list[tuple[Uuid, list[_LeaderError]]] = [
        (
            topic.topic_id,
            [
                _LeaderError(topic_name=topic.topic_name, partition_index=each.partition_index, error_code=code)
                for each in topic.partition_states
            ],
        )
        for topic in request.topic_states
    ]
    if asked.context.api_version >= FIRST_ANSWER_BY_TOPIC_ID:
        by_id = LeaderAndIsrResponse.LeaderAndIsrTopicError
        refusal.topics = [by_id(topic_id=topic_id, partition_errors=errors) for topic_id, errors in by_topic]
    else:
        ungrouped = [
            _LeaderError(topic_name=each.topic_name, partition_index=each.partition_index, error_code=code)
            for each in request.ungrouped_partition_states
        ]
        refusal.partition_errors = [*ungrouped, *(error for _, errors in by_topic for error in errors)]
    return refusal


def _refuse_to_stop(asked: ClientRequest[StopReplicaRequest], code: ErrorCode) -> StopReplicaResponse:
    """Every partition gets the error too."""
    request = asked.request
    partitions = [
        *((each.topic_name, each.partition_index) for each in request.ungrouped_partitions),
        *((topic.name, index) for topic in request.topics for index in topic.partition_indexes),
        *(
            (topic.topic_name, each.partition_index)
            for topic in request.topic_states
            for each in topic.partition_states
        ),
    ]
    return StopReplicaResponse(
        error_code=code,
        partition_errors=[
            _StopError(topic_name=topic, partition_index=index, error_code=code) for topic, index in partitions
        ],
    )


class ClusterCommandHandlers:
    """Passes commands to the channel that this broker's own controller would use. A command is ignored if it comes from
    an older controller (STALE_CONTROLLER_EPOCH), is meant for an older registration of this broker
    (STALE_BROKER_EPOCH), or was overtaken by a newer one.
    """

    def __init__(self, channel: BrokerChannel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock

    @api(
        ApiKey.LEADER_AND_ISR,
        versions=(0, 7),
        right=OnCluster(AclOperation.CLUSTER_ACTION, refusal=_refuse_roles),
        in_order=True,
        whole="a command is obeyed or refused",
    )
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

    @api(
        ApiKey.STOP_REPLICA,
        versions=(0, 4),
        right=OnCluster(AclOperation.CLUSTER_ACTION, refusal=_refuse_to_stop),
        in_order=True,
        whole="a command is obeyed or refused",
    )
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

    @api(
        ApiKey.UPDATE_METADATA,
        versions=(0, 8),
        right=OnCluster(AclOperation.CLUSTER_ACTION, refusal=lambda _, code: UpdateMetadataResponse(error_code=code)),
        in_order=True,
        whole="a command is obeyed or refused",
    )
    async def update_metadata(self, context: RequestContext, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Use this metadata for clients from now on."""
        from broker.inter_broker.metadata_codec import update_metadata_command

        try:
            command = await update_metadata_command(request, context.api_version, Slices(self._clock))
            await self._channel.update_metadata(command.replace(number=context.correlation_id))
        except ApiError as error:
            return UpdateMetadataResponse(error_code=error.error_code)
        return UpdateMetadataResponse(error_code=ErrorCode.NONE)
