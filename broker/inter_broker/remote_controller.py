"""Access to a controller on another broker (Kafka class `NodeToControllerChannelManager`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from broker.controller.broker_requests import ControllerApi
from broker.inter_broker.command_codec import (
    ALLOCATE_PRODUCER_IDS_VERSION,
    ALTER_PARTITION_VERSION,
    ALTER_PARTITION_WITHOUT_TOPIC_IDS_VERSION,
    CONTROLLED_SHUTDOWN_VERSION,
    CREATE_TOPICS_VERSION,
    check_answer,
)
from broker.inter_broker.inter_broker_client import Address, InterBrokerClient
from broker.metadata.metadata_cache import MetadataCache
from client.errors import DisconnectedError
from cluster.controller.topics import NewTopic, TopicPlan
from cluster.eligible_leaders import EligibleLeaders
from cluster.metadata_image import MetadataImage, PartitionImage
from cluster.replication.isr import IsrChange
from cluster.znodes import ProducerIdBlock
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.cluster_requests import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid

logger = logging.getLogger("kafka.server.NodeToControllerRequestThread")

RETRY_BACKOFF_MS: Final = 100
"""As in Kafka."""

T = TypeVar("T")


def controller_address(image: MetadataImage, listener_name: str) -> Address | None:
    """The controller's address on a listener, or None while unknown."""
    return image.address_of(image.controller_id, listener_name)


class RemoteController:
    """A ControllerApi over the network, without retries. Also raises DisconnectedError; the outcome is then unknown."""

    def __init__(self, client: InterBrokerClient, metadata: MetadataCache, request_timeout_ms: int) -> None:
        """`client` leads to `controller_address`. The caller closes it."""
        self._client = client
        self._metadata = metadata
        self._request_timeout_ms = request_timeout_ms

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """See ControllerApi. The answer lacks replicas and controller epoch; they are taken from this broker's
        metadata.
        """
        has_ids = all(change.topic_id != ZERO_UUID for change in changes)
        version = ALTER_PARTITION_VERSION if has_ids else ALTER_PARTITION_WITHOUT_TOPIC_IDS_VERSION
        request = AlterPartitionRequest(
            broker_id=broker_id, broker_epoch=broker_epoch, topics=_changed_topics(changes, with_ids=has_ids)
        )
        response = await self._client.ask(request, AlterPartitionResponse, version)
        check_answer(response.error_code, "AlterPartition")
        names = {change.topic_id: change.topic_partition.topic for change in changes}
        answer: dict[TopicPartition, PartitionImage | ErrorCode] = {}
        for topic in response.topics:
            name = names.get(topic.topic_id) if has_ids else topic.topic_name
            if name is None:
                continue
            for partition in topic.partitions:
                topic_partition = TopicPartition(name, partition.partition_index)
                answer[topic_partition] = self._altered(topic_partition, partition)
        return answer

    def _altered(
        self, topic_partition: TopicPartition, answered: AlterPartitionResponse.PartitionData
    ) -> PartitionImage | ErrorCode:
        if answered.error_code:
            return ErrorCode.of(answered.error_code)
        known = self._metadata.image.partition(topic_partition)
        return PartitionImage(
            partition=topic_partition.partition,
            leader=answered.leader_id,
            leader_epoch=answered.leader_epoch,
            replicas=known.replicas if known is not None else (),
            isr=tuple(answered.isr),
            partition_epoch=answered.partition_epoch,
            controller_epoch=known.controller_epoch if known is not None else self._metadata.image.controller_epoch,
            leader_recovery_state=answered.leader_recovery_state,
            eligible=EligibleLeaders.for_leader(answered.eligible_leader_replicas),
        )

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        """See ControllerApi. The answer only has the number of partitions, so the plans list empty replicas; their
        configuration is the requested one.
        """
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in new_topics],
            timeout_ms=self._request_timeout_ms,
            validate_only=validate_only,
        )
        response = await self._client.ask(request, CreateTopicsResponse, CREATE_TOPICS_VERSION)
        configs = {topic.name: topic.config for topic in new_topics}
        outcome: dict[str, TopicPlan | ApiError] = {}
        for topic in response.topics:
            if topic.error_code:
                outcome[topic.name] = ApiError(ErrorCode.of(topic.error_code), topic.error_message or "")
            else:
                config = {key: value for key, value in configs.get(topic.name, {}).items() if value is not None}
                outcome[topic.name] = TopicPlan(topic.name, ((),) * max(topic.num_partitions, 0), config)
        return outcome

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        """See ControllerApi."""
        request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        response = await self._client.ask(request, ControlledShutdownResponse, CONTROLLED_SHUTDOWN_VERSION)
        check_answer(response.error_code, "ControlledShutdown")
        return [TopicPartition(each.topic_name, each.partition_index) for each in response.remaining_partitions]

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """See ControllerApi."""
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        response = await self._client.ask(request, AllocateProducerIdsResponse, ALLOCATE_PRODUCER_IDS_VERSION)
        check_answer(response.error_code, "AllocateProducerIds")
        first = response.producer_id_start
        return ProducerIdBlock(broker_id, first, first + response.producer_id_len - 1)


def _changed_topics(changes: Sequence[IsrChange], *, with_ids: bool) -> list[AlterPartitionRequest.TopicData]:
    """Group the changes by topic, identified by id or by name."""
    topics: dict[Uuid | str, AlterPartitionRequest.TopicData] = {}
    for change in changes:
        name, partition = change.topic_partition
        topic = topics.setdefault(
            change.topic_id if with_ids else name,
            AlterPartitionRequest.TopicData(topic_name=name, topic_id=change.topic_id, partitions=[]),
        )
        data = AlterPartitionRequest.PartitionData(
            partition_index=partition,
            leader_epoch=change.leader_epoch,
            leader_recovery_state=change.leader_recovery_state,
            partition_epoch=change.partition_epoch,
        )
        if with_ids:
            state = AlterPartitionRequest.BrokerState
            data.new_isr_with_epochs = [state(broker_id=each, broker_epoch=epoch) for each, epoch in change.new_isr]
        else:
            data.new_isr = [broker_id for broker_id, _ in change.new_isr]
        topic.partitions.append(data)
    return list(topics.values())


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=partition, broker_ids=list(replicas))
            for partition, replicas in topic.assignment.items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in topic.config.items()
        ],
    )


class ControllerRouter:
    """The ControllerApi of a broker: calls the local controller while it is active, otherwise the remote one.

    Retries while the controller is unknown, moving or unreachable, for at most `retry_timeout_ms`; then raises
    REQUEST_TIMED_OUT. An earlier attempt may have succeeded: a topic may already exist, or a block of producer ids be
    lost.
    """

    def __init__(
        self,
        broker_id: int,
        local: ControllerApi,
        remote: ControllerApi,
        metadata: MetadataCache,
        *,
        retry_timeout_ms: int,
        retry_backoff_ms: int = RETRY_BACKOFF_MS,
    ) -> None:
        self._broker_id = broker_id
        self._local = local
        self._remote = remote
        self._metadata = metadata
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._retry_backoff_s = retry_backoff_ms / 1000

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """See ControllerApi."""
        return await self._ask(lambda controller: controller.alter_partition(broker_id, broker_epoch, changes))

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        """See ControllerApi."""

        async def create(controller: ControllerApi) -> dict[str, TopicPlan | ApiError]:
            outcome = await controller.create_topics(new_topics, validate_only=validate_only)
            for decided in outcome.values():
                if isinstance(decided, ApiError) and decided.error_code is ErrorCode.NOT_CONTROLLER:
                    raise detached(decided)  # all topics have this error
            return outcome

        return await self._ask(create)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        """See ControllerApi."""
        return await self._ask(lambda controller: controller.controlled_shutdown(broker_id, broker_epoch))

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """See ControllerApi."""
        return await self._ask(lambda controller: controller.allocate_producer_ids(broker_id, broker_epoch))

    async def _ask(self, question: Callable[[ControllerApi], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_timeout_s
        while True:
            is_local = self._metadata.image.controller_id == self._broker_id
            try:
                return await question(self._local if is_local else self._remote)
            except DisconnectedError as error:
                reason: Exception = detached(error)
            except ApiError as error:
                if error.error_code is not ErrorCode.NOT_CONTROLLER:
                    raise
                reason = detached(error)
            logger.debug("The controller is asked again: %s", reason)
            if loop.time() + self._retry_backoff_s > deadline:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The controller cannot be reached: {reason}") from reason
            await asyncio.sleep(self._retry_backoff_s)
