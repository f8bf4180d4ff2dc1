"""Commands over the wire to a whole broker: stale ones change nothing, the others are executed."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.controller.commands import NO_EPOCH
from protocol.errors import ErrorCode
from protocol.messages.cluster_commands import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from protocol.messages.metadata import MetadataResponse
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request
from tests.kit.in_process import InProcessBroker, Wire, play
from tests.kit.wire_requests import fetch, metadata, new_topic, produce, values_in

ME, OTHER = 0, 5
CURRENT, NEXT = 1, 2
"""Controller epochs: the broker's own controller has the first."""
T0 = TopicPartition("t", 0)

State = LeaderAndIsrRequest.LeaderAndIsrPartitionState
StopState = StopReplicaRequest.StopReplicaPartitionState
MetadataState = UpdateMetadataRequest.UpdateMetadataPartitionState


def everything(broker: InProcessBroker) -> dict[str, Any]:
    """Everything that a command can change."""
    serving = broker.server.serving
    hosted = serving.logs.replicas.hosted
    return {
        "roles": {
            each.topic_partition: (each.image, each.is_leader, each.high_watermark, each.log.log_end_offset)
            for each in hosted.partitions.values()
        },
        "image": serving.coordination.metadata.image,
        "fence": (serving.coordination.fence.controller_epoch, serving.coordination.fence.broker_epoch),
        "files": sorted(each.name for each in broker.file_system.list_dir("/data")),
    }


def commands(broker: InProcessBroker, controller_epoch: int, broker_epoch: int) -> list[tuple[Request, int]]:
    """One of each: resign from the topic `t`, delete its replica, forget it."""
    image = broker.server.serving.coordination.metadata.image
    topic_id = image.topics["t"].topic_id
    state = State(
        partition_index=0, controller_epoch=controller_epoch, leader=OTHER, leader_epoch=9, isr=[OTHER],
        partition_epoch=9, replicas=[ME, OTHER],
    )  # fmt: skip
    stopped = StopState(partition_index=0, leader_epoch=9, delete_partition=True)
    gone = MetadataState(
        partition_index=0, controller_epoch=controller_epoch, leader=-2, leader_epoch=9, isr=[], zk_version=0,
        replicas=[ME],
    )  # fmt: skip
    sender: dict[str, int] = {
        "controller_id": OTHER,
        "controller_epoch": controller_epoch,
        "broker_epoch": broker_epoch,
    }
    lead = LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
    stop = StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[stopped])
    forget = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=[gone])
    return [
        (LeaderAndIsrRequest(**sender, type=1, topic_states=[lead], live_leaders=[]), 7),
        (StopReplicaRequest(**sender, topic_states=[stop]), 4),
        (UpdateMetadataRequest(**sender, topic_states=[forget], live_brokers=[]), 8),
    ]


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch", "error_code"),
    [(CURRENT - 1, NO_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH), (NEXT, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_a_command_of_the_past_changes_nothing(controller_epoch: int, broker_epoch: int, error_code: ErrorCode) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        await wire.ask(produce("t", [b"one"]), 9)
        before = everything(broker)
        for request, version in commands(broker, controller_epoch, broker_epoch):
            response: Any = await wire.ask(request, version)
            assert response.error_code == error_code
            assert everything(broker) == before
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"one"]

    play(scenario)


def test_a_newer_controller_is_obeyed() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t"), 7)
        hosted = broker.server.serving.logs.replicas.hosted
        lead, stop, forget = commands(broker, NEXT, broker.server.serving.coordination.fence.broker_epoch)
        led = await wire.ask(*lead)
        assert isinstance(led, LeaderAndIsrResponse)
        assert led.error_code == ErrorCode.NONE
        assert led.topics[0].partition_errors[0].error_code == ErrorCode.NONE
        assert not hosted.partitions[T0].is_leader
        forgotten = await wire.ask(*forget)
        assert forgotten == UpdateMetadataResponse(error_code=ErrorCode.NONE)
        described = await wire.ask(metadata("t"), 12)
        assert isinstance(described, MetadataResponse)
        assert described.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stopped = await wire.ask(*stop)
        assert isinstance(stopped, StopReplicaResponse)
        assert (stopped.error_code, [each.error_code for each in stopped.partition_errors]) == (0, [0])
        assert T0 not in hosted.partitions
        assert "t-0" not in everything(broker)["files"]
        # The broker's own controller is deposed.
        late, version = lead
        assert isinstance(late, LeaderAndIsrRequest)
        late.controller_epoch = CURRENT
        response: Any = await wire.ask(late, version)
        assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH

    play(scenario)
