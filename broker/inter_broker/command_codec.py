"""LeaderAndIsr and StopReplica, and their answers, to and from Kafka's messages.

Encodes the versions below and decodes all versions. A LeaderAndIsr does not carry offline replicas.

A command may cover ten thousand partitions, so all conversions work in `slices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from cluster.controller.commands import (
    NO_EPOCH,
    Answer,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
)
from cluster.eligible_leaders import EligibleLeaders
from cluster.metadata_image import PartitionImage
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_commands import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from protocol.topic_partition import TopicPartition, validate_topic_name
from protocol.uuids import ZERO_UUID, Uuid
from protocol.wire.encoded_items import ItemEncoder

# Requests between brokers use fixed versions instead of negotiated ones: those of inter.broker.protocol.version=3.9
# (Kafka class `MetadataVersion`).
LEADER_AND_ISR_VERSION: Final = 7
STOP_REPLICA_VERSION: Final = 4
UPDATE_METADATA_VERSION: Final = 8
ALTER_PARTITION_VERSION: Final = 3
ALTER_PARTITION_WITHOUT_TOPIC_IDS_VERSION: Final = 1
"""For topics created before Kafka 2.8, which lack topic ids."""
CONTROLLED_SHUTDOWN_VERSION: Final = 3
ALLOCATE_PRODUCER_IDS_VERSION: Final = 0
CREATE_TOPICS_VERSION: Final = 7
WRITE_TXN_MARKERS_VERSION: Final = 1
ADD_PARTITIONS_TO_TXN_VERSION: Final = 5

UNKNOWN, INCREMENTAL, FULL = 0, 1, 2
"""Types of a LeaderAndIsr; 0 means unknown (Kafka class `AbstractControlRequest.Type`)."""

MOST_PARTITIONS: Final = 200_000
"""Maximum partitions of one topic: the recommended maximum for a whole ZooKeeper-based cluster."""

_LeaderState = LeaderAndIsrRequest.LeaderAndIsrPartitionState
_LeaderTopic = LeaderAndIsrRequest.LeaderAndIsrTopicState
_StopState = StopReplicaRequest.StopReplicaPartitionState
_StopTopic = StopReplicaRequest.StopReplicaTopicState
_LeaderError = LeaderAndIsrResponse.LeaderAndIsrPartitionError
_LeaderTopicError = LeaderAndIsrResponse.LeaderAndIsrTopicError
_StopError = StopReplicaResponse.StopReplicaPartitionError

FIRST_LEADER_AND_ISR_ANSWERED_BY_TOPIC_ID: Final = 5
FIRST_STOP_REPLICA_WITH_TOPICS: Final = 1
FIRST_STOP_REPLICA_WITH_LEADER_EPOCHS: Final = 3


class _State(Protocol):
    topic_name: str


State = TypeVar("State", bound=_State)


class _Topic(Protocol[State]):
    topic_name: str
    topic_id: Uuid
    partition_states: list[State]


def partition_states(ungrouped: Iterable[State], topics: Iterable[_Topic[State]]) -> Iterator[tuple[str, Uuid, State]]:
    """The partitions of a command, each with its topic's name and id. Older versions list them without topics."""
    for state in ungrouped:
        yield state.topic_name, ZERO_UUID, state
    for topic in topics:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state


async def check_topics(topics: Iterable[TopicStates], slices: Slices) -> None:
    """Raise INVALID_REQUEST for names and partition numbers that no topic can have: they become directory names and the
    sizes of in-memory structures.
    """
    for topic in topics:
        try:
            validate_topic_name(topic.topic)
        except ApiError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, error.message) from error
        async for image in in_slices(topic.partitions, slices):
            if not 0 <= image.partition < MOST_PARTITIONS:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic.topic} has no partition {image.partition}")


def check_answer(error_code: int, what: str) -> None:
    """Raise the top-level error of an answer, if any."""
    if error_code:
        raise ApiError(ErrorCode.of(error_code), f"{what} was refused")


# -- LeaderAndIsr ------------------------------------------------------------------------------------------------------


async def leader_and_isr_request(command: LeaderAndIsr, slices: Slices) -> LeaderAndIsrRequest:
    """Encode a command."""
    version = LEADER_AND_ISR_VERSION
    topics = ItemEncoder(_LeaderTopic, LeaderAndIsrRequest, version)
    for (name, topic_id), states in _by_topic(command.topics).items():
        partitions = ItemEncoder(_LeaderState, LeaderAndIsrRequest, version)
        async for is_new, image in in_slices(_with_newness(states), slices):
            partitions.add(_leader_state(image, is_new=is_new))
        topics.add(_LeaderTopic(topic_name=name, topic_id=topic_id, partition_states=partitions.array()))
    return LeaderAndIsrRequest(
        controller_id=command.controller_id,
        controller_epoch=command.controller_epoch,
        broker_epoch=command.broker_epoch,
        type=FULL if command.is_full else INCREMENTAL,
        topic_states=topics.array(),
        live_leaders=[],
    )


def _by_topic(topics: Iterable[TopicStates]) -> dict[tuple[str, Uuid], list[TopicStates]]:
    """Group the states by topic: on the wire each partition carries `is_new`, and each topic appears once."""
    parts: dict[tuple[str, Uuid], list[TopicStates]] = {}
    for topic in topics:
        parts.setdefault((topic.topic, topic.topic_id), []).append(topic)
    return parts


def _with_newness(parts: Iterable[TopicStates]) -> Iterator[tuple[bool, PartitionImage]]:
    for part in parts:
        for image in part.partitions:
            yield part.is_new, image


def _leader_state(image: PartitionImage, *, is_new: bool) -> _LeaderState:
    return _LeaderState(
        partition_index=image.partition,
        controller_epoch=image.controller_epoch,
        leader=image.leader,
        leader_epoch=image.leader_epoch,
        isr=list(image.isr),
        partition_epoch=image.partition_epoch,
        replicas=list(image.replicas),
        adding_replicas=list(image.adding_replicas),
        removing_replicas=list(image.removing_replicas),
        is_new=is_new,
        leader_recovery_state=image.leader_recovery_state,
        eligible_leader_replicas=None if image.eligible is None else list(image.eligible.replicas),
    )


async def leader_and_isr_command(request: LeaderAndIsrRequest, slices: Slices) -> LeaderAndIsr:
    """Decode a command, with the new and the existing replicas of a topic in separate states. Raises as
    `check_topics`.
    """
    images: dict[tuple[str, Uuid, bool], list[PartitionImage]] = {}
    states = partition_states(request.ungrouped_partition_states, request.topic_states)
    async for name, topic_id, state in in_slices(states, slices):
        images.setdefault((name, topic_id, state.is_new), []).append(
            PartitionImage(
                partition=state.partition_index,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                replicas=tuple(state.replicas),
                isr=tuple(state.isr),
                partition_epoch=state.partition_epoch,
                controller_epoch=state.controller_epoch,
                leader_recovery_state=state.leader_recovery_state,
                adding_replicas=tuple(state.adding_replicas),
                removing_replicas=tuple(state.removing_replicas),
                eligible=EligibleLeaders.for_leader(state.eligible_leader_replicas),
            )
        )
    topics = tuple(
        TopicStates(name, topic_id, tuple(states), is_new) for (name, topic_id, is_new), states in images.items()
    )
    await check_topics(topics, slices)
    return LeaderAndIsr(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topics=topics,
        is_full=request.type == FULL,
    )


async def leader_and_isr_response(
    answer: Answer, command: LeaderAndIsr, version: int, slices: Slices
) -> LeaderAndIsrResponse:
    """Encode the answer to `command` for `version`."""
    response = LeaderAndIsrResponse(error_code=ErrorCode.NONE)
    if version < FIRST_LEADER_AND_ISR_ANSWERED_BY_TOPIC_ID:
        async for each, error_code in in_slices(answer.items(), slices):
            response.partition_errors.append(
                _LeaderError(topic_name=each.topic, partition_index=each.partition, error_code=error_code)
            )
        return response
    topic_ids = {topic.topic: topic.topic_id for topic in command.topics}
    by_id: dict[Uuid, list[_LeaderError]] = {}
    async for each, error_code in in_slices(answer.items(), slices):
        error = _LeaderError(partition_index=each.partition, error_code=error_code)
        by_id.setdefault(topic_ids[each.topic], []).append(error)
    response.topics = [
        _LeaderTopicError(topic_id=topic_id, partition_errors=errors) for topic_id, errors in by_id.items()
    ]
    return response


async def leader_and_isr_refusal(
    error: ApiError, command: LeaderAndIsr, version: int, slices: Slices
) -> LeaderAndIsrResponse:
    """Encode the refusal of a whole command: every partition gets the error too."""
    refusal = LeaderAndIsrResponse(error_code=error.error_code)
    by_id: dict[Uuid, list[_LeaderError]] = {}
    for topic in command.topics:
        async for image in in_slices(topic.partitions, slices):
            refused = _LeaderError(topic_name=topic.topic, partition_index=image.partition, error_code=error.error_code)
            if version < FIRST_LEADER_AND_ISR_ANSWERED_BY_TOPIC_ID:
                refusal.partition_errors.append(refused)
            else:
                by_id.setdefault(topic.topic_id, []).append(refused)
    refusal.topics = [
        _LeaderTopicError(topic_id=topic_id, partition_errors=errors) for topic_id, errors in by_id.items()
    ]
    return refusal


async def leader_and_isr_answer(response: LeaderAndIsrResponse, command: LeaderAndIsr, slices: Slices) -> Answer:
    """Decode an answer of the newest version, ignoring partitions that were not in the command. Raises ApiError if the
    command was refused.
    """
    check_answer(response.error_code, "LeaderAndIsr")
    names = {topic.topic_id: topic.topic for topic in command.topics}
    return {
        TopicPartition(names[topic.topic_id], each.partition_index): ErrorCode.of(each.error_code)
        for topic in response.topics
        if topic.topic_id in names
        async for each in in_slices(topic.partition_errors, slices)
    }


# -- StopReplica -------------------------------------------------------------------------------------------------------


async def stop_replica_request(command: StopReplica, slices: Slices) -> StopReplicaRequest:
    """Encode a command."""
    by_topic: dict[str, ItemEncoder[_StopState]] = {}
    async for stopped in in_slices(command.partitions, slices):
        topic, partition = stopped.topic_partition
        states = by_topic.get(topic)
        if states is None:
            states = by_topic[topic] = ItemEncoder(_StopState, StopReplicaRequest, STOP_REPLICA_VERSION)
        states.add(
            _StopState(
                partition_index=partition,
                leader_epoch=stopped.leader_epoch,
                delete_partition=stopped.delete_partition,
            )
        )
    return StopReplicaRequest(
        controller_id=command.controller_id,
        controller_epoch=command.controller_epoch,
        broker_epoch=command.broker_epoch,
        topic_states=[
            _StopTopic(topic_name=topic, partition_states=states.array()) for topic, states in by_topic.items()
        ],
    )


async def stop_replica_command(request: StopReplicaRequest, version: int, slices: Slices) -> StopReplica:
    """Decode a command of `version`. Before version 3, leader epochs are not checked."""
    partitions = [stopped async for stopped in in_slices(_stopped_replicas(request, version), slices)]
    return StopReplica(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        partitions=tuple(partitions),
    )


def _stopped_replicas(request: StopReplicaRequest, version: int) -> Iterator[StoppedReplica]:
    if version >= FIRST_STOP_REPLICA_WITH_LEADER_EPOCHS:
        for topic in request.topic_states:
            for state in topic.partition_states:
                topic_partition = TopicPartition(topic.topic_name, state.partition_index)
                yield StoppedReplica(topic_partition, state.leader_epoch, state.delete_partition)
        return
    if version >= FIRST_STOP_REPLICA_WITH_TOPICS:
        named = [TopicPartition(topic.name, each) for topic in request.topics for each in topic.partition_indexes]
    else:
        named = [TopicPartition(each.topic_name, each.partition_index) for each in request.ungrouped_partitions]
    for topic_partition in named:
        yield StoppedReplica(topic_partition, NO_EPOCH, request.delete_partitions)


async def stop_replica_response(answer: Answer, slices: Slices) -> StopReplicaResponse:
    """Encode an answer."""
    errors = [
        _StopError(topic_name=each.topic, partition_index=each.partition, error_code=code)
        async for each, code in in_slices(answer.items(), slices)
    ]
    return StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=errors)


async def stop_replica_answer(response: StopReplicaResponse, slices: Slices) -> Answer:
    """Decode an answer. Raises ApiError if the command was refused."""
    check_answer(response.error_code, "StopReplica")
    return {
        TopicPartition(each.topic_name, each.partition_index): ErrorCode.of(each.error_code)
        async for each in in_slices(response.partition_errors, slices)
    }
