"""Consumers read from followers, and learn which replica is near (KIP-392)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition
from tests.broker.replication.nodes import ID, DirectConnection, Nodes, on_nodes
from tests.kit.waiting import eventually_on_loop

RACKS = {1: "a", 2: "b", 3: "b"}
CONSUMER, DEBUGGING = -1, -2


async def ask(
    nodes: Nodes,
    broker_id: int,
    *,
    offset: int = 0,
    rack: str = "",
    version: int = 12,
    replica_id: int = CONSUMER,
    leader_epoch: int = -1,
    max_wait_ms: int = 0,
) -> FetchResponse.PartitionData:
    """A broker's answer for t-0."""
    asked = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=leader_epoch
    )
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=[FetchRequest.FetchTopic(topic="t", topic_id=ID, partitions=[asked])],
        rack_id=rack,
    )
    response = await DirectConnection(nodes, 9, broker_id).ask(request, FetchResponse, version)
    return response.responses[0].partitions[0]


async def latest(nodes: Nodes, broker_id: int, replica_id: int) -> tuple[int, int]:
    """The error code and the latest offset that a broker returns."""
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=replica_id, topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])]
    )
    response = await DirectConnection(nodes, 9, broker_id).ask(request, ListOffsetsResponse, 7)
    [listed] = response.topics[0].partitions
    return listed.error_code, listed.offset


def values(data: FetchResponse.PartitionData) -> Sequence[bytes | None]:
    return [record.value for batch in read_batches(memoryview(data.records or b"")) for record in batch.records()]


async def produce(nodes: Nodes, *records: bytes) -> None:
    """Append, and wait until every replica has the records and knows that they are committed."""
    for value in records:
        assert await nodes.acknowledged(1, nodes.append(1, value)) is ErrorCode.NONE
    end = nodes[1].partition().high_watermark
    await eventually_on_loop(
        "all know the high watermark", lambda: all(nodes[each].partition().high_watermark == end for each in (2, 3))
    )


@on_nodes()
async def test_a_follower_serves_what_it_knows_to_be_committed(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await produce(nodes, b"a", b"b")
    data = await ask(nodes, 2, rack="b", leader_epoch=0)
    assert (data.error_code, data.high_watermark, data.log_start_offset) == (0, 2, 0)
    assert data.preferred_read_replica == -1
    assert values(data) == [b"a", b"b"]
    nodes.cut = {(2, 1), (3, 1)}
    nodes.append(1, b"c")
    assert values(await ask(nodes, 2)) == [b"a", b"b"]


@on_nodes(wait_max_ms=60_000, racks=RACKS)
async def test_a_record_above_a_followers_high_watermark_is_there_but_not_seen(nodes: Nodes) -> None:
    """Offsets above the high watermark return nothing yet; those beyond the log are out of range."""
    await nodes.tell(is_new=True)
    await produce(nodes, b"a")
    nodes.cut = {(3, 1)}
    nodes.append(1, b"b")
    await eventually_on_loop("broker 2 has it", lambda: nodes[2].partition().log.log_end_offset == 2)
    assert nodes[2].partition().high_watermark == 1
    for offset in (1, 2):
        data = await ask(nodes, 2, offset=offset)
        assert (data.error_code, values(data)) == (0, [])
    assert (await ask(nodes, 2, offset=3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await ask(nodes, 2, replica_id=DEBUGGING)).records != (await ask(nodes, 2)).records


@on_nodes()
async def test_a_replica_without_a_leader_serves_nobody(nodes: Nodes) -> None:
    """It may have lost its end, and would answer that a consumer's offset is out of range."""
    await nodes.tell(is_new=True)
    await produce(nodes, b"a")
    nodes[1].replicas.hosted.resign_all()
    nodes.elect(-1)
    await nodes.tell(2)
    for broker_id in (1, 2):
        for offset in (0, 2):
            assert (await ask(nodes, broker_id, offset=offset)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@on_nodes()
async def test_older_consumers_are_sent_to_the_leader(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await produce(nodes, b"a")
    assert (await ask(nodes, 2, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert values(await ask(nodes, 2, version=11)) == [b"a"]
    assert (await ask(nodes, 2, version=4, replica_id=DEBUGGING)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("epoch", "error"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_follower_checks_the_leader_epoch(epoch: int, error: ErrorCode) -> None:
    @on_nodes()
    async def scenario(nodes: Nodes) -> None:
        nodes.states = {0: nodes.states[0].replace(leader_epoch=3)}
        await nodes.tell(is_new=True)
        for version in (9, 12):
            assert (await ask(nodes, 2, leader_epoch=epoch, version=version)).error_code == error

    scenario()


@on_nodes()
async def test_a_broker_without_a_replica_sends_clients_to_look_for_one(nodes: Nodes) -> None:
    nodes.states = {0: nodes.states[0].replace(replicas=(1, 2), isr=(1, 2))}
    await nodes.tell(1, 2, is_new=True)
    assert (await ask(nodes, 3)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await latest(nodes, 3, CONSUMER) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    with pytest.raises(ApiError) as refused:
        nodes[3].replicas.partition(TopicPartition("missing", 0))
    assert refused.value.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_nodes()
async def test_only_the_tool_that_compares_replicas_lists_offsets_of_a_follower(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await produce(nodes, b"a", b"b")
    assert await latest(nodes, 2, CONSUMER) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert await latest(nodes, 2, DEBUGGING) == (ErrorCode.NONE, 2)


@on_nodes(racks=RACKS)
async def test_a_consumer_is_sent_to_the_replica_in_its_rack(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await produce(nodes, b"a")
    for rack in ("a", "b", "c", ""):
        data = await ask(nodes, 1, rack=rack, max_wait_ms=60_000)
        # The one in rack b that caught up last.
        assert data.preferred_read_replica in ({2, 3} if rack == "b" else {-1}), rack
        assert values(data) == ([] if rack == "b" else [b"a"])
        assert data.high_watermark == 1
    assert (await ask(nodes, 1, rack="b", offset=1, max_wait_ms=60_000)).preferred_read_replica >= 0, "no wait"
    assert (await ask(nodes, 1, rack="b", offset=5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "nobody has it"
    assert (await ask(nodes, 1, rack="b", version=10)).preferred_read_replica == -1


@on_nodes(racks=RACKS)
async def test_a_replica_that_is_not_in_sync_is_not_preferred(nodes: Nodes) -> None:
    nodes.cut = {(2, 1), (3, 1)}
    nodes.states = {0: nodes.states[0].replace(isr=(1, 2))}
    await nodes.tell(is_new=True)
    nodes.append(1, b"a", acks=1)
    assert (await ask(nodes, 1, rack="b")).preferred_read_replica == -1, "nobody else has told where it is"
    nodes.cut = {(3, 1)}
    await eventually_on_loop("broker 2 has it", lambda: nodes[1].partition().high_watermark == 1)
    assert (await ask(nodes, 1, rack="b")).preferred_read_replica == 2


@on_nodes(wait_max_ms=60_000, racks=RACKS)
async def test_followers_hear_of_the_high_watermark_at_once_when_consumers_read_from_them(nodes: Nodes) -> None:
    """Otherwise they would learn it only with the next record, or at the end of a wait."""
    await nodes.tell(is_new=True)
    await produce(nodes, b"a")
    reading = ask(nodes, 3, offset=1, max_wait_ms=60_000)
    await produce(nodes, b"b")
    assert values(await reading) == [b"b"]
