"""No request holds the event loop: work on thousands of elements is done in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from protocol.config_resources import ConfigResourceType
from protocol.messages.cluster_commands import StopReplicaRequest
from protocol.messages.configs import DescribeConfigsRequest
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.group_admin import DeleteGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from protocol.messages.log_dirs import DescribeLogDirsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from protocol.records.batch import Record, build_batch
from protocol.wire.schema import Request
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.loop_turns import CallsPerTurn
from tests.kit.wire_requests import framed, request_bytes

MANY = 3000
CALLS = 45_000
"""The limit for one turn: some 11 ms of work, a little more than two slices."""

Asked = tuple[Request, int]


def topics_request(names: Sequence[str], partitions: int = 1) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        timeout_ms=60_000,
        topics=[
            topic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
            for name in names
        ],
    )


async def large_topic(wire: Wire) -> None:
    await wire.ask(topics_request(["t"], MANY), 4)


async def committed(wire: Wire) -> None:
    await large_topic(wire)
    await wire.ask(FindCoordinatorRequest(key="g", key_type=0), 1)
    await wire.ask(*commit())


async def produced(wire: Wire) -> None:
    await large_topic(wire)
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"value")])
    data = [ProduceRequest.PartitionProduceData(index=number, records=batch) for number in range(MANY)]
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=data)
    await wire.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 7)


async def nothing(_wire: Wire) -> None:
    """Do nothing: the request needs no preparation."""


def commit() -> Asked:
    topic, partition = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetCommitRequest.OffsetCommitRequestPartition
    partitions = [
        partition(partition_index=number, committed_offset=number, committed_metadata="") for number in range(MANY)
    ]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[topic(name="t", partitions=partitions)],
    )
    return request, 7


def fetch_offsets(version: int) -> Asked:
    if version < 8:
        return OffsetFetchRequest(group_id="g", topics=None), version
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]
    return OffsetFetchRequest(groups=groups), version


def delete_offsets() -> Asked:
    topic, partition = OffsetDeleteRequest.OffsetDeleteRequestTopic, OffsetDeleteRequest.OffsetDeleteRequestPartition
    partitions = [partition(partition_index=number) for number in range(MANY)]
    return OffsetDeleteRequest(group_id="g", topics=[topic(name="t", partitions=partitions)]), 0


def grow() -> Asked:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2 * MANY, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=60_000, validate_only=False), 1


def epochs(topics: int, partitions: int) -> Asked:
    topic, partition = (
        OffsetForLeaderEpochRequest.OffsetForLeaderTopic,
        OffsetForLeaderEpochRequest.OffsetForLeaderPartition,
    )
    request = OffsetForLeaderEpochRequest(
        topics=[
            topic(
                topic="t" if topics == 1 else f"t{number}",
                partitions=[partition(partition=at, leader_epoch=0) for at in range(partitions)],
            )
            for number in range(topics)
        ]
    )
    return request, 3


def fetch() -> Asked:
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(MANY)
    ]
    topics = [FetchRequest.FetchTopic(topic="t", partitions=partitions)]
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), 11


def names() -> Asked:
    topic = MetadataRequest.MetadataRequestTopic
    topics = [topic(name=f"unknown-{number}") for number in range(20_000)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False), 8


def list_unknown() -> Asked:
    partition = ListOffsetsRequest.ListOffsetsPartition
    partitions = [partition(partition_index=number, timestamp=-1) for number in range(20_000)]
    topic = ListOffsetsRequest.ListOffsetsTopic(name="unknown", partitions=partitions)
    return ListOffsetsRequest(replica_id=-1, topics=[topic]), 5


def fetch_offsets_of(count: int) -> Asked:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(count)))
    return OffsetFetchRequest(group_id="g", topics=[topic]), 5


def fetch_unknown() -> Asked:
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(20_000)
    ]
    topics = [FetchRequest.FetchTopic(topic="unknown", partitions=partitions)]
    return FetchRequest(max_wait_ms=10_000, min_bytes=1, topics=topics), 11


def produce_nothing() -> Asked:
    data = [ProduceRequest.PartitionProduceData(index=number, records=None) for number in range(20_000)]
    topic = ProduceRequest.TopicProduceData(name="unknown", partition_data=data)
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 7


def describe() -> Asked:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    kind = int(ConfigResourceType.BROKER)
    resources = [
        resource(resource_type=kind, resource_name=str(number), configuration_keys=None) for number in range(MANY)
    ]
    return DescribeConfigsRequest(resources=resources, include_synonyms=True), 2


LARGE: dict[str, tuple[Callable[[Wire], Awaitable[None]], Callable[[], Asked]]] = {
    "create a topic": (nothing, lambda: (topics_request(["t"], MANY), 4)),
    "create topics": (nothing, lambda: (topics_request([f"t{number}" for number in range(500)]), 4)),
    "create partitions": (large_topic, grow),
    "delete a topic": (large_topic, lambda: (DeleteTopicsRequest(topic_names=["t"], timeout_ms=60_000), 4)),
    "delete a topic with offsets": (committed, lambda: (DeleteTopicsRequest(topic_names=["t"], timeout_ms=60_000), 4)),
    "commit offsets": (committed, commit),
    "fetch offsets": (committed, lambda: fetch_offsets(7)),
    "fetch offsets of groups": (committed, lambda: fetch_offsets(8)),
    "fetch offsets of partitions": (committed, lambda: fetch_offsets_of(20_000)),
    "delete offsets": (committed, delete_offsets),
    "delete a group": (committed, lambda: (DeleteGroupsRequest(groups_names=["g"]), 1)),
    "find coordinators": (
        committed,
        lambda: (FindCoordinatorRequest(key_type=0, coordinator_keys=[f"g{at}" for at in range(MANY)]), 4),
    ),
    "ends of epochs": (large_topic, lambda: epochs(1, MANY)),
    "ends of epochs, topic by topic": (nothing, lambda: epochs(MANY, 1)),
    "describe configurations": (nothing, describe),
    "describe log directories": (large_topic, lambda: (DescribeLogDirsRequest(topics=None), 1)),
    "produce to unknown partitions": (nothing, produce_nothing),
    "fetch": (produced, fetch),
    "fetch unknown partitions": (nothing, fetch_unknown),
    "offsets of unknown partitions": (nothing, list_unknown),
    "metadata of unknown names": (nothing, names),
    "metadata": (large_topic, lambda: (MetadataRequest(topics=None), 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_large_request_is_worked_on_in_slices(name: str) -> None:
    prepare, build = LARGE[name]

    async def scenario() -> None:
        calls = CallsPerTurn()
        broker = InProcessBroker(offsets_topic_num_partitions="1")
        broker.executor, broker.clock = calls.executor, calls.clock
        async with broker:
            wire = broker.connect()
            await prepare(wire)
            data, written = framed(request_bytes(*build())), wire.transport.written
            written.clear()
            async with calls:
                wire.feed(data)
                while not written:
                    await asyncio.sleep(0)
            assert calls.turns > 3
            assert calls.most < CALLS

    asyncio.run(scenario())


def test_a_large_request_is_decoded_no_further_when_the_client_hangs_up() -> None:
    async def scenario() -> None:
        calls = CallsPerTurn()
        broker = InProcessBroker()
        broker.executor, broker.clock = calls.executor, calls.clock
        async with broker:
            wire = broker.connect()
            data = framed(request_bytes(*names()))
            async with calls:
                wire.feed(data)
                for _ in range(3):
                    await asyncio.sleep(0)
                assert calls.turns < 10
                wire.close()
                before = calls.total
                for _ in range(20):
                    await asyncio.sleep(0)
                assert calls.total - before < CALLS  # the slice that was already running

    asyncio.run(scenario())


def test_requests_that_are_decoded_at_once_share_a_slice() -> None:
    """Other clients wait no longer if there are several."""

    async def scenario() -> None:
        calls = CallsPerTurn()
        broker = InProcessBroker()
        broker.executor, broker.clock = calls.executor, calls.clock
        async with broker:
            data = framed(request_bytes(*names()))
            wires = [broker.connect() for _ in range(8)]
            async with calls:
                for wire in wires:
                    wire.feed(data)
                    await asyncio.sleep(0)
                while not all(wire.transport.written for wire in wires):
                    await asyncio.sleep(0)
            assert calls.most < 3 * CALLS

    asyncio.run(scenario())


def test_a_long_request_that_ends_too_early_is_hung_up_on(caplog: pytest.LogCaptureFixture) -> None:
    """Part of it has been decoded when the error is found."""

    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            stopped = StopReplicaRequest.StopReplicaPartitionState
            topic = StopReplicaRequest.StopReplicaTopicState(
                topic_name="t", partition_states=[stopped(partition_index=number) for number in range(MANY)]
            )
            request = StopReplicaRequest(controller_id=1, controller_epoch=1, broker_epoch=-1, topic_states=[topic])
            whole = request_bytes(request, 4)
            wire.feed(framed(whole[:-20]))
            while not wire.is_closed:
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert "StopReplicaRequest v4, field topic_states.partition_states" in caplog.text
    assert "unexpected" not in caplog.text
