"""ListOffsets and similar requests: many partitions in one request, in slices."""

from __future__ import annotations

import asyncio

from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from protocol.wire.wire_types import SMALL_ELEMENTS
from tests.kit.in_process import InProcessBroker
from tests.kit.wire_requests import new_topic, produce

COUNT = SMALL_ELEMENTS + 201


def list_latest(topic: str, count: int) -> ListOffsetsRequest:
    asked = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=at, timestamp=-1, current_leader_epoch=-1)
        for at in range(count)
    ]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=asked)])


def test_many_partitions_are_listed_in_slices() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", COUNT - 1), 7)
            await wire.ask(produce("t", [b"a", b"b"]), 11)
            wire.transport.written.clear()
            wire.send(list_latest("t", COUNT), 7)
            assert not wire.transport.written, "the event loop had no turn"
            listed = await broker.connect().ask(list_latest("t", COUNT), 7)
            assert isinstance(listed, ListOffsetsResponse)
            (topic,) = listed.topics
            offsets = [(each.partition_index, each.error_code, each.offset) for each in topic.partitions]
            unknown = (COUNT - 1, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1)
            assert offsets == [(0, 0, 2), *((at, 0, 0) for at in range(1, COUNT - 1)), unknown]

    asyncio.run(scenario())


def test_ends_of_epochs_of_many_partitions() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", COUNT), 7)
            asked = [
                OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=at, leader_epoch=0)
                for at in range(COUNT)
            ]
            topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=asked)]
            answer = await wire.ask(OffsetForLeaderEpochRequest(topics=topics), 4)
            assert isinstance(answer, OffsetForLeaderEpochResponse)
            assert [(each.partition, each.error_code, each.end_offset) for each in answer.topics[0].partitions] == [
                (at, 0, 0) for at in range(COUNT)
            ]

    asyncio.run(scenario())
