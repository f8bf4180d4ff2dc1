"""Requests from other brokers to the controller: AlterPartition, ControlledShutdown and AllocateProducerIds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from broker.controller.broker_requests import ControllerApi
from broker.network.registry import RequestContext, api
from broker.security.rights import OnCluster
from cluster.controller.commands import NO_EPOCH
from cluster.metadata_image import MetadataImage, PartitionImage
from cluster.replication.isr import IsrChange
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_requests import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid

_FIRST_VERSION_WITH_TOPIC_IDS = 2
_FIRST_VERSION_WITH_BROKER_EPOCHS = 3

_ChangedTopic = AlterPartitionRequest.TopicData
_AlteredTopic = AlterPartitionResponse.TopicData
_Altered = AlterPartitionResponse.PartitionData


class OwnController(ControllerApi, Protocol):
    """The controller of this broker."""

    async def topic_names(self, topic_ids: Collection[Uuid]) -> Mapping[Uuid, str]:
        """Map those of these ids that exist to their topics' names. Raises ApiError NOT_CONTROLLER."""
        ...


class ClusterRequestHandlers:
    """Passes requests to the local controller. If it is not active, the answer is NOT_CONTROLLER."""

    def __init__(self, controller: OwnController, image: Callable[[], MetadataImage], clock: Clock) -> None:
        """`image` returns the metadata, to look up topic ids."""
        self._clock = clock
        self._controller = controller
        self._image = image

    @api(
        ApiKey.ALTER_PARTITION,
        versions=(0, 3),
        right=OnCluster(AclOperation.CLUSTER_ACTION, refusal=lambda _, code: _unaltered(code)),
        whole="the controller writes many changes at once",
    )
    async def alter_partition(self, context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change in-sync replicas. Returns the new state or the error of each partition."""
        version, image, slices = context.api_version, self._image(), Slices(self._clock)
        try:
            names = await self._names(request.topics, image, version)
            changes: list[IsrChange] = []
            async for topic, name in in_slices(zip(request.topics, names, strict=True), slices):
                found = in_slices(_changes(topic, name, image, version), slices)
                changes.extend([change async for change in found])
            answer = await self._controller.alter_partition(request.broker_id, request.broker_epoch, changes)
        except ApiError as error:
            return _unaltered(error.error_code)
        response = AlterPartitionResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, topics=[])
        async for topic, name in in_slices(zip(request.topics, names, strict=True), slices):
            altered = _AlteredTopic(topic_name=topic.topic_name, topic_id=topic.topic_id, partitions=[])
            response.topics.append(altered)
            async for each in in_slices(topic.partitions, slices):
                state: PartitionImage | ErrorCode = ErrorCode.UNKNOWN_TOPIC_ID
                if name is not None:
                    known = TopicPartition(name, each.partition_index)
                    state = answer.get(known, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                altered.partitions.append(_altered(each.partition_index, state))
        return response

    async def _names(self, topics: Sequence[_ChangedTopic], image: MetadataImage, version: int) -> list[str | None]:
        """The topics' names, or None for those that do not exist. Ids missing from the metadata are looked up in the
        controller: a new one knows all topics before it has sent them to this broker.
        """
        if version < _FIRST_VERSION_WITH_TOPIC_IDS:
            return [topic.topic_name for topic in topics]
        names: Mapping[Uuid, str] = image.topic_names
        if any(topic.topic_id not in names for topic in topics):
            names = await self._controller.topic_names([topic.topic_id for topic in topics])
        return [names.get(topic.topic_id) for topic in topics]

    @api(
        ApiKey.CONTROLLED_SHUTDOWN,
        versions=(0, 3),
        right=OnCluster(AclOperation.CLUSTER_ACTION, refusal=lambda _, code: _not_shut_down(code)),
    )
    async def controlled_shutdown(
        self,
        context: RequestContext,  # noqa: ARG002
        request: ControlledShutdownRequest,
    ) -> ControlledShutdownResponse:
        """Move leadership away from a broker that is shutting down."""
        try:
            remaining = await self._controller.controlled_shutdown(request.broker_id, request.broker_epoch)
        except ApiError as error:
            # Kafka's code when the broker is not the controller.
            moved = error.error_code is ErrorCode.NOT_CONTROLLER
            code = ErrorCode.STALE_CONTROLLER_EPOCH if moved else error.error_code
            return _not_shut_down(code)
        return ControlledShutdownResponse(
            error_code=ErrorCode.NONE,
            remaining_partitions=[
                ControlledShutdownResponse.RemainingPartition(topic_name=topic, partition_index=partition)
                for topic, partition in remaining
            ],
        )

    @api(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        versions=(0, 0),
        right=OnCluster(AclOperation.CLUSTER_ACTION, refusal=lambda _, code: _no_producer_ids(code)),
    )
    async def allocate_producer_ids(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AllocateProducerIdsRequest,
    ) -> AllocateProducerIdsResponse:
        """Allocate a block of producer ids."""
        try:
            block = await self._controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
        except ApiError as error:
            return _no_producer_ids(error.error_code)
        return AllocateProducerIdsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            producer_id_start=block.first,
            producer_id_len=block.last - block.first + 1,
        )


def _unaltered(error_code: ErrorCode) -> AlterPartitionResponse:
    return AlterPartitionResponse(throttle_time_ms=0, error_code=error_code, topics=[])


def _not_shut_down(error_code: ErrorCode) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(error_code=error_code, remaining_partitions=[])


def _no_producer_ids(error_code: ErrorCode) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        throttle_time_ms=0, error_code=error_code, producer_id_start=0, producer_id_len=0
    )


def _changes(topic: _ChangedTopic, name: str | None, image: MetadataImage, version: int) -> Iterator[IsrChange]:
    if name is None:
        return
    topic_id: Uuid = topic.topic_id
    if version < _FIRST_VERSION_WITH_TOPIC_IDS:
        known = image.topics.get(name)
        topic_id = known.topic_id if known is not None else ZERO_UUID
    for each in topic.partitions:
        if version < _FIRST_VERSION_WITH_BROKER_EPOCHS:
            new_isr = tuple((broker_id, NO_EPOCH) for broker_id in each.new_isr)
        else:
            new_isr = tuple((state.broker_id, state.broker_epoch) for state in each.new_isr_with_epochs)
        yield IsrChange(
            topic_partition=TopicPartition(name, each.partition_index),
            topic_id=topic_id,
            leader_epoch=each.leader_epoch,
            partition_epoch=each.partition_epoch,
            new_isr=new_isr,
            leader_recovery_state=each.leader_recovery_state,
        )


def _altered(partition: int, state: PartitionImage | ErrorCode) -> _Altered:
    if isinstance(state, ErrorCode):
        return _Altered(
            partition_index=partition, error_code=state, leader_id=0, leader_epoch=0, isr=[], partition_epoch=0
        )
    return _Altered(
        partition_index=partition,
        error_code=ErrorCode.NONE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=state.leader_recovery_state,
        partition_epoch=state.partition_epoch,
        eligible_leader_replicas=None if state.eligible is None else list(state.eligible.replicas),
    )
