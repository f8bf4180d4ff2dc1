"""A request to the wrong broker is answered with the leader (KIP-951)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.handlers.produce import ProduceHandlers
from broker.network.registry import RequestContext
from cluster.metadata_image import BrokerImage
from cluster.znodes import Endpoint
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.uuids import Uuid
from tests.broker.replication.nodes import BROKERS, ID, Nodes, on_nodes
from tests.kit.environment import ManualClock, uuid_of
from tests.storage.support import batch_of

UNKNOWN_ID = uuid_of(77)


async def with_addresses(nodes: Nodes) -> None:
    """Give every broker its roles and the other brokers' addresses."""
    await nodes.tell(is_new=True)
    brokers = {
        each: BrokerImage(each, 50 + each, {"B": Endpoint("B", f"host{each}", 9090 + each, "PLAINTEXT")}, f"rack{each}")
        for each in BROKERS
    }
    for each in BROKERS:
        nodes[each].metadata._image = nodes.image().replace(brokers=brokers)


def context(version: int, listener: str = "B") -> RequestContext:
    return RequestContext(version, "c", "here", listener)


def produce(nodes: Nodes, broker_id: int, version: int, listener: str = "B") -> ProduceResponse:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch_of(b"a"))
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics)
    no_transactions: Any = None
    handlers = ProduceHandlers(nodes[broker_id].replicas, no_transactions, ManualClock())
    answer = handlers.produce(context(version, listener), request)
    assert isinstance(answer, ProduceResponse)
    return answer


def fetch(nodes: Nodes, broker_id: int, version: int, epoch: int = -1, topic_id: Uuid = ID) -> FetchResponse:
    asked = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=1_000
    )
    topics = [FetchRequest.FetchTopic(topic="t", topic_id=topic_id, partitions=[asked])]
    answer = nodes[broker_id].fetches.fetch(context(version), FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics))
    assert isinstance(answer, FetchResponse)
    return answer


def hint(partition: Any) -> tuple[int, int] | None:
    known = partition.current_leader
    return None if known is None else (known.leader_id, known.leader_epoch)


def nodes_in(answer: ProduceResponse | FetchResponse) -> list[tuple[int, str, int, str | None]]:
    return [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]


@on_nodes()
async def test_a_producer_hears_who_leads(nodes: Nodes) -> None:
    nodes.elect(3)
    await with_addresses(nodes)
    answer = produce(nodes, 2, 10)
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert hint(partition) == (3, 1)
    assert nodes_in(answer) == [(3, "host3", 9093, "rack3")]
    answer.to_bytes(10)
    older = produce(nodes, 2, 9)
    assert hint(older.responses[0].partition_responses[0]) is None
    older.to_bytes(9)
    assert not produce(nodes, 3, 10).node_endpoints
    elsewhere = produce(nodes, 2, 10, listener="C")
    assert hint(elsewhere.responses[0].partition_responses[0]) == (3, 1)
    assert not elsewhere.node_endpoints, "the leader has no such listener"


@on_nodes()
async def test_a_broker_without_a_replica_knows_from_the_metadata(nodes: Nodes) -> None:
    await with_addresses(nodes)
    await nodes.stop_replica(2, delete=True)
    answer = produce(nodes, 2, 11)
    partition = answer.responses[0].partition_responses[0]
    assert (partition.error_code, hint(partition)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (1, 0))


@pytest.mark.parametrize("version", [15, 16])
def test_a_reader_hears_who_leads(version: int) -> None:
    @on_nodes()
    async def scenario(nodes: Nodes) -> None:
        nodes.elect(1)
        await with_addresses(nodes)
        await nodes.stop_replica(2, delete=True)
        for broker_id, epoch, error in (
            (2, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (1, 0, ErrorCode.FENCED_LEADER_EPOCH),
        ):
            answer = fetch(nodes, broker_id, version, epoch)
            partition = answer.responses[0].partitions[0]
            assert partition.error_code == error
            assert hint(partition) == ((1, 1) if version >= 16 else None)
            assert nodes_in(answer) == ([(1, "host1", 9091, "rack1")] if version >= 16 else [])
            answer.to_bytes(version)
        for broker_id, epoch, topic_id, error in (
            (1, 9, ID, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (1, -1, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
            (1, -1, ID, ErrorCode.NONE),
        ):
            answer = fetch(nodes, broker_id, version, epoch, topic_id)
            partition = answer.responses[0].partitions[0]
            assert (partition.error_code, hint(partition), nodes_in(answer)) == (error, None, [])

    scenario()
