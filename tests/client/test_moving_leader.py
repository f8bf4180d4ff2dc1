"""A producer's batches arrive in order while the leader of their partition changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ClientSettings, ProducerSettings
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.records.batch import RecordBatch
from protocol.wire.schema import Request
from tests.client.scripted_broker import Peer, broker
from tests.client.test_sender import LEADER, CheckingLeader, FailingNetwork, Leader


class MovingPartition:
    """Two successive leaders of partition 0. The old one delays its answer to "b", which is a refusal."""

    def __init__(self, new: CheckingLeader) -> None:
        self.old, self.new = Leader(), new
        self.current = 0
        self.metadata_count = 0
        self.new_is_connected = asyncio.Event()
        self._held: list[Callable[[], None]] = []
        self.holds = asyncio.Event()

    async def metadata(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        assert isinstance(request, MetadataRequest)
        self.metadata_count += 1
        partition = MetadataResponse.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=self.current, leader_epoch=self.current,
            replica_nodes=[0, 1], isr_nodes=[0, 1], offline_replicas=[],
        )  # fmt: skip
        topic = MetadataResponse.MetadataResponseTopic(error_code=0, name="t", partitions=[partition])
        nodes = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host=LEADER, port=leader.port, rack=None)
            for number, leader in enumerate((self.old, self.new))
        ]
        response = MetadataResponse(brokers=nodes, controller_id=0, topics=[topic])
        peer.reply(header.correlation_id, response, header.request_api_version)

    async def versions_of_the_new(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        await self.new.versions(peer, header, request)
        self.new_is_connected.set()

    async def produce_at_the_old(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        assert isinstance(request, ProduceRequest)
        records = request.topic_data[0].partition_data[0].records
        assert records is not None
        (record,) = RecordBatch(memoryview(records)).records()
        if record.value != b"b":
            await self.old.produce(peer, header, request)
            return
        refused = ProduceResponse.PartitionProduceResponse(
            index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1
        )
        response = ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=[refused])]
        )
        self._held.append(lambda: peer.reply(header.correlation_id, response, header.request_api_version))
        self.holds.set()

    def release(self) -> None:
        for answer in self._held:
            answer()

    async def sender_had_turns(self) -> None:
        """Wait until the sender has looked for work a few times: it requests metadata each time."""
        until = self.metadata_count + 5
        while self.metadata_count < until:
            await asyncio.sleep(0)


def _run(moving: MovingPartition, test: Callable[[Producer], Awaitable[None]]) -> None:
    old, new = moving.old, moving.new
    common = {ApiKey.METADATA: moving.metadata, ApiKey.INIT_PRODUCER_ID: old.producer_id}
    of_old = {ApiKey.API_VERSIONS: old.versions, ApiKey.PRODUCE: moving.produce_at_the_old}
    of_new = {ApiKey.API_VERSIONS: moving.versions_of_the_new, ApiKey.PRODUCE: new.produce}

    async def run() -> None:
        async with broker(common | of_old) as old.port, broker(common | of_new) as new.port:
            settings = ClientSettings.parse(
                {
                    "bootstrap.servers": f"127.0.0.1:{old.port}",
                    "retry.backoff.ms": "1",
                    "metadata.max.age.ms": "0",
                }
            )
            async with (
                KafkaClient(settings, network=FailingNetwork(0)) as client,
                Producer(client, ProducerSettings.parse({}), lambda: 0) as producer,
            ):
                await (await producer.send_batch("t", [b"a"], partition=0))
                await test(producer)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_batches_wait_for_those_in_flight_to_the_old_leader() -> None:
    moving = MovingPartition(CheckingLeader({}))

    async def test(producer: Producer) -> None:
        sent = [await producer.send_batch("t", [b"b"], partition=0)]
        await moving.holds.wait()
        moving.current = 1
        await moving.sender_had_turns()
        sent += [await producer.send_batch("t", [value], partition=0) for value in (b"c", b"d")]
        await moving.new_is_connected.wait()
        await moving.sender_had_turns()
        moving.release()
        await asyncio.gather(*sent)

    _run(moving, test)
    assert moving.new.logs[0] == [b"b", b"c", b"d"]


def test_the_first_batch_goes_alone_to_a_new_leader() -> None:
    """It refuses the batch temporarily, and accepts any sequence number as the first of an unknown producer."""
    moving = MovingPartition(CheckingLeader({b"b": ErrorCode.NOT_ENOUGH_REPLICAS}))

    async def test(producer: Producer) -> None:
        moving.current = 1
        await asyncio.gather(*[await producer.send_batch("t", [value], partition=0) for value in (b"b", b"c")])

    _run(moving, test)
    assert moving.new.logs[0] == [b"b", b"c"]
