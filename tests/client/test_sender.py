"""A producer's batches arrive in order, whatever happens to the connection to their leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from client.cluster import KafkaClient
from client.environment import LoopNetwork
from client.producer import Producer
from client.settings import ClientSettings, ProducerSettings
from protocol.api_keys import ApiKey
from protocol.messages import (
    ApiVersionsResponse,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    RequestHeader,
)
from protocol.records.batch import RecordBatch
from protocol.wire.schema import Request
from tests.client.scripted_broker import Answer, Peer, broker

P = TypeVar("P", bound=asyncio.BaseProtocol)

BATCHES = 5
LEADER = "localhost"
"""The leader's address differs from that of bootstrap, so that it has a connection of its own."""


class FailingNetwork:
    """TCP, but the first attempts to connect to the leader fail after a while."""

    def __init__(self, failures: int) -> None:
        self._network = LoopNetwork()
        self._failures_left = failures

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        if host == LEADER and self._failures_left:
            self._failures_left -= 1
            for _ in range(3 * BATCHES):  # the sender has had turns enough to take every batch
                await asyncio.sleep(0)
            raise ConnectionRefusedError(f"{host}:{port}")
        return await self._network.connect(protocol_factory, "127.0.0.1", port)


class Leader:
    """A broker that leads every partition, and the sequence numbers of the batches in the order of their arrival."""

    def __init__(self) -> None:
        self.port = 0
        self.sequences: list[int] = []

    async def versions(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        del request
        offered = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, low, high in ((0, 3, 9), (3, 1, 9), (18, 0, 3), (22, 0, 3))
        ]
        response = ApiVersionsResponse(error_code=0, api_keys=offered)
        peer.reply(header.correlation_id, response, header.request_api_version)

    async def metadata(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        assert isinstance(request, MetadataRequest)
        partition = MetadataResponse.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0], offline_replicas=[]
        )
        topics = [
            MetadataResponse.MetadataResponseTopic(error_code=0, name=each.name, partitions=[partition])
            for each in request.topics or ()
        ]
        node = MetadataResponse.MetadataResponseBroker(node_id=0, host=LEADER, port=self.port, rack=None)
        response = MetadataResponse(brokers=[node], controller_id=0, topics=topics)
        peer.reply(header.correlation_id, response, header.request_api_version)

    async def producer_id(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        del request
        response = InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0)
        peer.reply(header.correlation_id, response, header.request_api_version)

    async def produce(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        assert isinstance(request, ProduceRequest)
        topic = request.topic_data[0]
        records = topic.partition_data[0].records
        assert records is not None
        sequence = RecordBatch(memoryview(records)).base_sequence
        self.sequences.append(sequence)
        appended = ProduceResponse.PartitionProduceResponse(index=0, error_code=0, base_offset=sequence)
        response = ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=[appended])]
        )
        peer.reply(header.correlation_id, response, header.request_api_version)


def test_batches_keep_their_order_while_the_leader_cannot_be_connected_to() -> None:
    leader = Leader()
    answers: dict[ApiKey, Answer] = {
        ApiKey.API_VERSIONS: leader.versions,
        ApiKey.METADATA: leader.metadata,
        ApiKey.INIT_PRODUCER_ID: leader.producer_id,
        ApiKey.PRODUCE: leader.produce,
    }

    async def run() -> list[int]:
        async with broker(answers) as leader.port:
            settings = ClientSettings.parse({"bootstrap.servers": f"127.0.0.1:{leader.port}", "retry.backoff.ms": "1"})
            async with (
                KafkaClient(settings, network=FailingNetwork(failures=2)) as client,
                Producer(client, ProducerSettings.parse({}), lambda: 0) as producer,
            ):
                sent = [await producer.send_batch("t", [b"a"], partition=0) for _ in range(BATCHES)]
                return [(await each).offset for each in sent]

    assert asyncio.run(run()) == list(range(BATCHES))
    assert leader.sequences == list(range(BATCHES))
