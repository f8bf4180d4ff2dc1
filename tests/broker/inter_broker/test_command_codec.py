"""Commands and answers survive encoding, in every version that can express them."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.inter_broker import command_codec as codec
from broker.inter_broker.command_codec import LEADER_AND_ISR_VERSION, STOP_REPLICA_VERSION, UPDATE_METADATA_VERSION
from broker.inter_broker.metadata_codec import update_metadata_command, update_metadata_request
from cluster.controller.commands import NO_EPOCH, LeaderAndIsr, StoppedReplica, StopReplica, TopicStates, UpdateMetadata
from cluster.metadata_image import BrokerImage
from cluster.znodes import Endpoint
from environment.slices import Slices
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_commands import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID
from protocol.wire.schema import Message
from tests.broker.inter_broker.commands import (
    STOP_REPLICAS,
    answer_of,
    image,
    leader_and_isrs,
    update_metadatas,
)
from tests.kit.environment import CountedSlices, ManualClock, uuid_of

M = TypeVar("M", bound=Message)

ID, OTHER_ID = uuid_of(11), uuid_of(12)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MANY = settings(max_examples=200, deadline=None, database=None, derandomize=True)


def slices() -> Slices:
    """Slices of a stopped clock: they never end."""
    return Slices(ManualClock())


def over_the_wire(message: M, version: int) -> M:
    """The message as the other side decodes it."""
    return type(message).decode(message.to_bytes(version), version)


@MANY
@given(leader_and_isrs())
def test_leader_and_isr_arrives_as_it_was_sent(command: LeaderAndIsr) -> None:
    async def send() -> LeaderAndIsr:
        request = over_the_wire(await codec.leader_and_isr_request(command, slices()), LEADER_AND_ISR_VERSION)
        return await codec.leader_and_isr_command(request, slices())

    assert asyncio.run(send()) == command


@MANY
@given(STOP_REPLICAS)
def test_stop_replica_arrives_as_it_was_sent(command: StopReplica) -> None:
    async def send() -> StopReplica:
        request = over_the_wire(await codec.stop_replica_request(command, slices()), STOP_REPLICA_VERSION)
        return await codec.stop_replica_command(request, STOP_REPLICA_VERSION, slices())

    arrived = asyncio.run(send())
    assert set(arrived.partitions) == set(command.partitions)
    assert arrived.replace(partitions=()) == command.replace(partitions=())


@MANY
@given(update_metadatas())
def test_update_metadata_arrives_as_it_was_sent(command: UpdateMetadata) -> None:
    async def send() -> UpdateMetadata:
        request = over_the_wire(await update_metadata_request(command, slices()), UPDATE_METADATA_VERSION)
        return await update_metadata_command(request, UPDATE_METADATA_VERSION, slices())

    assert asyncio.run(send()) == command


@MANY
@given(st.data(), leader_and_isrs(), st.sampled_from(ErrorCode))
def test_an_answer_to_leader_and_isr_arrives(data: st.DataObject, command: LeaderAndIsr, refusal: ErrorCode) -> None:
    answer = answer_of(command, st.sampled_from(ErrorCode), data.draw)
    response = asyncio.run(codec.leader_and_isr_response(answer, command, 7, slices()))
    assert asyncio.run(codec.leader_and_isr_answer(over_the_wire(response, 7), command, slices())) == answer
    if refusal is not ErrorCode.NONE:
        refused = asyncio.run(codec.leader_and_isr_refusal(ApiError(refusal), command, 7, slices()))
        with pytest.raises(ApiError) as raised:
            asyncio.run(codec.leader_and_isr_answer(over_the_wire(refused, 7), command, slices()))
        assert raised.value.error_code is refusal


@MANY
@given(st.data(), STOP_REPLICAS)
def test_an_answer_to_stop_replica_arrives(data: st.DataObject, command: StopReplica) -> None:
    answer = answer_of(command, st.sampled_from(ErrorCode), data.draw)
    response = asyncio.run(codec.stop_replica_response(answer, slices()))
    assert asyncio.run(codec.stop_replica_answer(over_the_wire(response, 4), slices())) == answer


def test_new_replicas_and_others_of_one_topic_are_one_topic_on_the_wire() -> None:
    topics = (TopicStates("t", ID, (image(0),), is_new=True), TopicStates("t", ID, (image(1),)))
    request = asyncio.run(codec.leader_and_isr_request(LeaderAndIsr(1, 7, 50, topics=topics), slices()))
    (topic,) = over_the_wire(request, 7).topic_states
    assert [(each.partition_index, each.is_new) for each in topic.partition_states] == [(0, True), (1, False)]


def test_ten_thousand_partitions_leave_the_loop_to_others() -> None:
    states = tuple(image(number) for number in range(10_000))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send() -> LeaderAndIsr:
        others = asyncio.create_task(count_turns())
        counted = Slices(CountedSlices(500))
        sent = LeaderAndIsr(1, 7, 50, topics=(TopicStates("t", ID, states),))
        request = await codec.leader_and_isr_request(sent, counted)
        assert turns >= 15
        yields = sum(1 for _ in LeaderAndIsrRequest.decoder_in_slices(7)(request.to_bytes(7), 0, lambda: True))
        assert yields > len(states)
        command = await codec.leader_and_isr_command(over_the_wire(request, 7), counted)
        assert turns >= 30
        others.cancel()
        return command

    assert asyncio.run(send()).topics[0].partitions == states


def test_encoding_the_same_message_twice_gives_the_same_bytes() -> None:
    """A command is resent after a lost connection."""
    states = tuple(image(number) for number in range(1000))
    command = LeaderAndIsr(1, 7, 50, topics=(TopicStates("t", ID, states),))
    request = asyncio.run(codec.leader_and_isr_request(command, slices()))
    assert request.to_bytes(7) == request.to_bytes(7)


# -- versions of older controllers


@pytest.mark.parametrize("version", range(8))
def test_leader_and_isr_is_understood_in_every_version(version: int) -> None:
    def state(partition: int) -> LeaderAndIsrRequest.LeaderAndIsrPartitionState:
        return LeaderAndIsrRequest.LeaderAndIsrPartitionState(
            topic_name="t", partition_index=partition, controller_epoch=7, leader=1, leader_epoch=5, isr=[1, 2],
            partition_epoch=3, replicas=[1, 2], is_new=partition == 1,
        )  # fmt: skip

    grouped = LeaderAndIsrRequest.LeaderAndIsrTopicState(
        topic_name="t", topic_id=ID, partition_states=[state(0), state(1)]
    )
    request = LeaderAndIsrRequest(
        controller_id=9,
        controller_epoch=7,
        broker_epoch=50,
        type=codec.FULL if version >= 5 else 0,
        ungrouped_partition_states=[state(0), state(1)] if version < 2 else [],
        topic_states=[] if version < 2 else [grouped],
        live_leaders=[LeaderAndIsrRequest.LeaderAndIsrLiveLeader(broker_id=1, host_name="h", port=1)],
    )
    command = asyncio.run(codec.leader_and_isr_command(over_the_wire(request, version), slices()))
    topic_id = ID if version >= 5 else ZERO_UUID
    if version < 1:
        states: tuple[TopicStates, ...] = (TopicStates("t", topic_id, (image(0), image(1))),)
    else:
        states = (TopicStates("t", topic_id, (image(0),)), TopicStates("t", topic_id, (image(1),), is_new=True))
    assert command == LeaderAndIsr(9, 7, 50 if version >= 2 else NO_EPOCH, topics=states, is_full=version >= 5)


@pytest.mark.parametrize("version", range(8))
def test_leader_and_isr_is_answered_by_name_and_later_by_topic_id(version: int) -> None:
    command = LeaderAndIsr(9, 7, 50, topics=(TopicStates("t", ID, (image(0), image(1))),))
    error = LeaderAndIsrResponse.LeaderAndIsrPartitionError
    for answered, error_code in (
        (codec.leader_and_isr_response({T0: ErrorCode.NONE, T1: ErrorCode.NONE}, command, version, slices()), 0),
        (codec.leader_and_isr_refusal(ApiError(ErrorCode.STALE_CONTROLLER_EPOCH), command, version, slices()), 11),
    ):
        read = over_the_wire(asyncio.run(answered), version)
        assert read.error_code == error_code
        if version < 5:
            assert read.partition_errors == [
                error(topic_name="t", partition_index=number, error_code=error_code) for number in (0, 1)
            ]
        else:
            errors = [error(partition_index=number, error_code=error_code) for number in (0, 1)]
            assert read.topics == [LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=ID, partition_errors=errors)]


@pytest.mark.parametrize("version", range(5))
def test_stop_replica_is_understood_in_every_version(version: int) -> None:
    message = StopReplicaRequest
    state = message.StopReplicaPartitionState(partition_index=1, leader_epoch=5, delete_partition=True)
    request = message(
        controller_id=9,
        controller_epoch=7,
        broker_epoch=50,
        delete_partitions=version < 3,
        ungrouped_partitions=[message.StopReplicaPartitionV0(topic_name="t", partition_index=1)]
        if version == 0
        else [],
        topics=[message.StopReplicaTopicV1(name="t", partition_indexes=[1])] if version in {1, 2} else [],
        topic_states=[message.StopReplicaTopicState(topic_name="t", partition_states=[state])] if version > 2 else [],
    )
    command = asyncio.run(codec.stop_replica_command(over_the_wire(request, version), version, slices()))
    stopped = StoppedReplica(T1, 5 if version >= 3 else NO_EPOCH, delete_partition=True)
    assert command == StopReplica(9, 7, 50 if version >= 1 else NO_EPOCH, partitions=(stopped,))


@pytest.mark.parametrize("version", range(5))
def test_stop_replica_is_answered_in_every_version(version: int) -> None:
    response = asyncio.run(codec.stop_replica_response({T1: ErrorCode.FENCED_LEADER_EPOCH}, slices()))
    assert asyncio.run(codec.stop_replica_answer(over_the_wire(response, version), slices())) == {
        T1: ErrorCode.FENCED_LEADER_EPOCH
    }
    refused = over_the_wire(StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, partition_errors=[]), version)
    with pytest.raises(ApiError, match="StopReplica was refused"):
        asyncio.run(codec.stop_replica_answer(refused, slices()))


@pytest.mark.parametrize("version", range(9))
def test_update_metadata_is_understood_in_every_version(version: int) -> None:
    message = UpdateMetadataRequest
    states = [
        message.UpdateMetadataPartitionState(
            topic_name=topic, partition_index=0, controller_epoch=7, leader=leader, leader_epoch=5, isr=[1, 2],
            zk_version=3, replicas=[1, 2], offline_replicas=[2],
        )
        for topic, leader in (("t", 1), ("gone", -2))
    ]  # fmt: skip
    grouped = [
        message.UpdateMetadataTopicState(topic_name=state.topic_name, topic_id=topic_id, partition_states=[state])
        for state, topic_id in zip(states, (ID, OTHER_ID), strict=True)
    ]
    endpoint = message.UpdateMetadataEndpoint(port=9093, host="b", listener="INSIDE", security_protocol=1)
    broker = message.UpdateMetadataBroker(
        id=1, v0_host="a", v0_port=9092, endpoints=[endpoint] if version else [], rack="r"
    )
    request = message(
        controller_id=9,
        controller_epoch=7,
        broker_epoch=50,
        ungrouped_partition_states=states if version < 5 else [],
        topic_states=[] if version < 5 else grouped,
        live_brokers=[broker],
    )
    command = asyncio.run(update_metadata_command(over_the_wire(request, version), version, slices()))
    if version == 0:
        endpoints = {"PLAINTEXT": Endpoint("PLAINTEXT", "a", 9092, "PLAINTEXT")}
    else:
        name = "INSIDE" if version >= 3 else "SSL"
        endpoints = {name: Endpoint(name, "b", 9093, "SSL")}
    state = image(0).replace(offline_replicas=(2,) if version >= 4 else ())
    assert command == UpdateMetadata(
        9,
        7,
        50 if version >= 5 else NO_EPOCH,
        live_brokers={1: BrokerImage(1, NO_EPOCH, endpoints, "r" if version >= 2 else None)},
        topics=(TopicStates("t", ID if version >= 7 else ZERO_UUID, (state,)),),
        deleted_topics=(TopicStates("gone", OTHER_ID if version >= 7 else ZERO_UUID, (state.replace(leader=-2),)),),
        marks_full=False,
    )


def test_a_security_protocol_that_does_not_exist_is_refused() -> None:
    message = UpdateMetadataRequest
    endpoint = message.UpdateMetadataEndpoint(port=1, host="h", listener="X", security_protocol=4)
    broker = message.UpdateMetadataBroker(id=1, endpoints=[endpoint])
    request = message(controller_id=9, controller_epoch=7, live_brokers=[broker])
    with pytest.raises(ApiError, match="security protocol 4"):
        asyncio.run(update_metadata_command(request, 8, slices()))


@pytest.mark.parametrize(("name", "partition"), [("..", 0), ("a/b", 0), ("", 0), ("t", -1), ("t", 200_000)])
def test_topics_that_cannot_be_are_refused(name: str, partition: int) -> None:
    topics = (TopicStates(name, ID, (image(partition),)),)
    roles = asyncio.run(codec.leader_and_isr_request(LeaderAndIsr(1, 7, 50, topics=topics), slices()))
    metadata = asyncio.run(update_metadata_request(UpdateMetadata(1, 7, 50, topics=topics), slices()))
    for command in (
        codec.leader_and_isr_command(over_the_wire(roles, 7), slices()),
        update_metadata_command(over_the_wire(metadata, 8), 8, slices()),
    ):
        with pytest.raises(ApiError) as raised:
            asyncio.run(command)
        assert raised.value.error_code is ErrorCode.INVALID_REQUEST
