"""A producer's batches arrive in order and exactly once, whatever happens to connections, to other batches or to the
log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import pytest

from client.batches import BATCHES_KEPT, Batch, PartitionQueue, ProducerId
from client.environment import LoopNetwork
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ClientSettings, ProducerSettings
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.producer_ids import InitProducerIdResponse
from protocol.records.batch import Record, RecordBatch
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request
from tests.client.scripted_broker import Answer, Peer, broker

P = TypeVar("P", bound=asyncio.BaseProtocol)

BATCHES = 5
LEADER = "localhost"
"""The leader's address differs from the bootstrap address, so that it gets a separate connection."""


class FailingNetwork:
    """TCP, but the first attempts to connect to the leader fail after a while."""

    def __init__(self, failures: int) -> None:
        self._network = LoopNetwork()
        self._failures_left = failures

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        if host == LEADER and self._failures_left:
            self._failures_left -= 1
            for _ in range(3 * BATCHES):  # the sender has had enough turns to take every batch
                await asyncio.sleep(0)
            raise ConnectionRefusedError(f"{host}:{port}")
        return await self._network.connect(protocol_factory, "127.0.0.1", port)


class Leader:
    """A broker that leads every partition, and records the sequence numbers of the batches in the order of their
    arrival.
    """

    def __init__(self) -> None:
        self.port = 0
        self.sequences: list[int] = []
        self.first_epoch = 0
        """The epoch of the first producer id."""
        self._last_producer_id = 6

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
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                error_code=0, partition_index=index, leader_id=0, replica_nodes=[0], isr_nodes=[0], offline_replicas=[]
            )
            for index in range(2)
        ]
        topics = [
            MetadataResponse.MetadataResponseTopic(error_code=0, name=each.name, partitions=partitions)
            for each in request.topics or ()
        ]
        node = MetadataResponse.MetadataResponseBroker(node_id=0, host=LEADER, port=self.port, rack=None)
        response = MetadataResponse(brokers=[node], controller_id=0, topics=topics)
        peer.reply(header.correlation_id, response, header.request_api_version)

    async def producer_id(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        del request
        self._last_producer_id += 1
        response = InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=self._last_producer_id, producer_epoch=self.first_epoch
        )
        self.first_epoch = 0
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


class CheckingLeader(Leader):
    """A leader that checks sequence numbers, and gives scripted answers to the first attempts to send a value."""

    def __init__(
        self, answers: Mapping[bytes, ErrorCode | Sequence[ErrorCode]], appended: frozenset[bytes] = frozenset()
    ) -> None:
        """A refused batch of a value in `answers` is appended anyway if the value is in `appended`."""
        super().__init__()
        self.logs: defaultdict[int, list[bytes]] = defaultdict(list)
        """The values in each partition."""
        self.requests: list[list[bytes]] = []
        """The values of each request."""
        self._answers = {
            value: [codes] if isinstance(codes, ErrorCode) else list(codes) for value, codes in answers.items()
        }
        self._appended = appended
        self._known: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)

    def lose_end(self, partition: int) -> None:
        """Lose the last record, as in a power cut."""
        self.logs[partition].pop()
        self._known[partition].pop()

    async def produce(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        assert isinstance(request, ProduceRequest)
        (topic,) = request.topic_data
        answers = []
        values = []
        for each in topic.partition_data:
            assert each.records is not None
            batch = RecordBatch(memoryview(each.records))
            (record,) = batch.records()
            value = record.value
            assert value is not None
            values.append(value)
            codes = self._answers.get(value)
            code = codes.pop(0) if codes else None
            if code is None or value in self._appended:
                code = self._append(each.index, batch, value) or code
            answers.append(
                ProduceResponse.PartitionProduceResponse(index=each.index, error_code=code or 0, base_offset=0)
            )
        self.requests.append(values)
        response = ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=answers)]
        )
        peer.reply(header.correlation_id, response, header.request_api_version)

    def _append(self, partition: int, batch: RecordBatch, value: bytes) -> ErrorCode | None:
        known = self._known[partition]
        number = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if number in known:
            return None
        of_producer = [each for each in known if each[0] == batch.producer_id]
        if of_producer:
            _, epoch, sequence = of_producer[-1]
            if batch.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if batch.base_sequence != (sequence + 1 if batch.producer_epoch == epoch else 0):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        known.append(number)
        self.logs[partition].append(value)
        return None


def _run(leader: Leader, test: Callable[[Producer], Awaitable[None]], failures: int = 0) -> None:
    answers: dict[ApiKey, Answer] = {
        ApiKey.API_VERSIONS: leader.versions,
        ApiKey.METADATA: leader.metadata,
        ApiKey.INIT_PRODUCER_ID: leader.producer_id,
        ApiKey.PRODUCE: leader.produce,
    }

    async def run() -> None:
        async with broker(answers) as leader.port:
            settings = ClientSettings.parse({"bootstrap.servers": f"127.0.0.1:{leader.port}", "retry.backoff.ms": "1"})
            async with (
                KafkaClient(settings, network=FailingNetwork(failures)) as client,
                Producer(client, ProducerSettings.parse({}), lambda: 0) as producer,
            ):
                await test(producer)

    asyncio.run(run())


def test_batches_keep_their_order_while_the_leader_cannot_be_connected_to() -> None:
    leader = Leader()

    async def test(producer: Producer) -> None:
        sent = [await producer.send_batch("t", [b"a"], partition=0) for _ in range(BATCHES)]
        assert [(await each).offset for each in sent] == list(range(BATCHES))

    _run(leader, test, failures=2)
    assert leader.sequences == list(range(BATCHES))


def test_a_producer_goes_on_behind_records_that_the_broker_has_lost(caplog: pytest.LogCaptureFixture) -> None:
    leader = CheckingLeader({})

    async def test(producer: Producer) -> None:
        for value in (b"a", b"b"):
            await (await producer.send_batch("t", [value], partition=0))
        leader.lose_end(0)
        for each in [await producer.send_batch("t", [value], partition=0) for value in (b"c", b"d", b"e")]:
            await each

    with caplog.at_level(logging.ERROR):
        _run(leader, test)
    assert leader.logs[0] == [b"a", b"c", b"d", b"e"]
    assert [record.getMessage() for record in caplog.records] == [
        "The broker has lost records of t-0 that it had acknowledged"
    ]


@pytest.mark.parametrize("epoch", [0, 2**15 - 1], ids=["next-epoch", "next-producer-id"])
def test_batches_behind_one_that_is_refused_arrive_in_order(caplog: pytest.LogCaptureFixture, epoch: int) -> None:
    leader = CheckingLeader({b"b": ErrorCode.MESSAGE_TOO_LARGE})
    leader.first_epoch = epoch

    async def test(producer: Producer) -> None:
        sent = [await producer.send_batch("t", [value], partition=0) for value in (b"a", b"b", b"c", b"d", b"e")]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert [str(each) for each in outcomes if isinstance(each, Exception)] == ["MESSAGE_TOO_LARGE"]

    with caplog.at_level(logging.ERROR):
        _run(leader, test)
    assert leader.logs[0] == [b"a", b"c", b"d", b"e"]
    assert not caplog.records


def test_a_batch_is_not_sent_again_behind_one_whose_retry_is_under_way() -> None:
    """The broker does not know the producer, and accepts any number as its first one: it must be that of the oldest
    batch.
    """
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    leader = CheckingLeader({b"a": (refused, refused), b"b": refused})

    async def test(producer: Producer) -> None:
        for each in [await producer.send_batch("t", [value], partition=0) for value in (b"a", b"b")]:
            await each

    _run(leader, test)
    assert leader.logs[0] == [b"a", b"b"]


def test_a_gap_in_one_partition_makes_no_duplicates_in_another() -> None:
    """When the batch of partition 0 is refused, the broker has that of partition 1, but its acknowledgement is lost."""
    leader = CheckingLeader(
        {b"x": ErrorCode.MESSAGE_TOO_LARGE, b"y": ErrorCode.REQUEST_TIMED_OUT}, appended=frozenset([b"y"])
    )

    async def test(producer: Producer) -> None:
        refused = await producer.send_batch("t", [b"x"], partition=0)
        in_doubt = await producer.send_batch("t", [b"y"], partition=1)
        with pytest.raises(ApiError):
            await refused
        await (await producer.send_batch("t", [b"z"], partition=0))
        await in_doubt

    _run(leader, test)
    assert leader.requests[0] == [b"x", b"y"]
    assert leader.logs == {0: [b"z"], 1: [b"y"]}


def test_a_batch_that_was_given_up_makes_no_duplicates_behind_it() -> None:
    """The broker has two batches: it reports that one failed, and the outcome of the next is unknown."""
    leader = CheckingLeader(
        {b"a": ErrorCode.UNKNOWN_SERVER_ERROR, b"b": ErrorCode.REQUEST_TIMED_OUT}, appended=frozenset([b"a", b"b"])
    )

    async def test(producer: Producer) -> None:
        given_up, in_doubt, last = [
            await producer.send_batch("t", [value], partition=0) for value in (b"a", b"b", b"c")
        ]
        with pytest.raises(ApiError):
            await given_up
        await in_doubt
        await last

    _run(leader, test)
    assert leader.logs[0] == [b"a", b"b", b"c"]


def test_the_first_batch_of_a_producer_goes_alone() -> None:
    """Otherwise the broker could take the second one as the first of an unknown producer."""
    leader = CheckingLeader({b"a": ErrorCode.NOT_LEADER_OR_FOLLOWER})

    async def test(producer: Producer) -> None:
        for each in [await producer.send_batch("t", [value], partition=0) for value in (b"a", b"b")]:
            await each

    _run(leader, test)
    assert leader.logs[0] == [b"a", b"b"]


def test_no_batch_leaves_so_far_behind_an_open_one_that_the_broker_would_not_recognize_it() -> None:
    async def test() -> None:
        queue = PartitionQueue(TopicPartition("t", 0))
        producer = ProducerId(7, 0)
        for _ in range(BATCHES_KEPT + 3):
            queue.append(Record(0, None, b"a", ()), 10, 0.0, 1, asyncio.get_running_loop().create_future())

        def take_all() -> list[Batch]:
            taken = []
            while queue.due_s(0.0) is not None:
                taken.append(queue.take(producer))
            return taken

        def deliver(batch: Batch) -> None:
            queue.delivered(batch)
            queue.completed(batch)

        (first,) = take_all()
        deliver(first)
        taken = take_all()
        assert [each.number for each in taken] == list(range(1, 1 + BATCHES_KEPT))
        # The oldest one is in flight to a leader that does not answer, and a new leader answers the others.
        for each in taken[1:]:
            deliver(each)
        assert take_all() == []
        deliver(taken[0])
        assert [each.number for each in take_all()] == [1 + BATCHES_KEPT, 2 + BATCHES_KEPT]

    asyncio.run(test())
