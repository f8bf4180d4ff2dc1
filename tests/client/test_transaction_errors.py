"""Errors for a transactional producer: some are fatal, after others it aborts and continues, like Kafka's
`TransactionManager`; transient ones are retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from client.errors import TransactionError
from client.groups import GroupMetadata, OffsetAndMetadata
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ClientSettings
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.messages.coordinators import FindCoordinatorResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.records.batch import RecordBatch
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Response
from tests.client.clients import run
from tests.client.scripted_broker import Answer, Peer, broker
from tests.client.transactional import producer_of

Versions = Mapping[int, tuple[int, int]]
VERSIONS: Versions = {
    0: (3, 9),
    3: (1, 9),
    10: (0, 4),
    18: (0, 3),
    22: (0, 4),
    24: (0, 3),
    25: (0, 3),
    26: (0, 3),
    28: (0, 3),
}
GROUP = GroupMetadata("g")
OFFSETS = {TopicPartition("t", 0): OffsetAndMetadata(1)}


class Script:
    """A broker that coordinates and leads everything, and answers with scripted error codes."""

    def __init__(self, codes: Mapping[ApiKey, Sequence[ErrorCode]], versions: Versions = VERSIONS) -> None:
        self.port = 0
        self._versions = versions
        self.seen: list[str] = []
        """The transactional requests, abbreviated."""
        self._codes = {key: list(each) for key, each in codes.items()}
        self._epoch = -1

    @property
    def answers(self) -> dict[ApiKey, Answer]:
        """One handler for each API, named after its method."""
        return {ApiKey(key): self._handler(ApiKey(key)) for key in VERSIONS}

    def _handler(self, key: ApiKey) -> Answer:
        method: Callable[[Any, int], Response] = getattr(self, key.name.lower())

        async def answer(peer: Peer, header: RequestHeader, request: Any) -> None:
            codes = self._codes.get(key)
            code = codes.pop(0) if codes else ErrorCode.NONE
            peer.reply(header.correlation_id, method(request, code), header.request_api_version)

        return answer

    def api_versions(self, request: None, code: int) -> Response:
        del request
        offered = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self._versions.items()
        ]
        return ApiVersionsResponse(error_code=code, api_keys=offered)

    def metadata(self, request: MetadataRequest, code: int) -> Response:
        partition = MetadataResponse.MetadataResponsePartition(
            error_code=code, partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0], offline_replicas=[]
        )
        topics = [
            MetadataResponse.MetadataResponseTopic(error_code=0, name=each.name, partitions=[partition])
            for each in request.topics or ()
        ]
        node = MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port, rack=None)
        return MetadataResponse(brokers=[node], controller_id=0, topics=topics)

    def find_coordinator(self, request: Any, code: int) -> Response:
        found = FindCoordinatorResponse.Coordinator(
            key=request.coordinator_keys[0],
            node_id=0,
            host="127.0.0.1",
            port=self.port,
            error_code=code,
            error_message=None,
        )
        return FindCoordinatorResponse(coordinators=[found])

    def init_producer_id(self, request: InitProducerIdRequest, code: int) -> Response:
        self.seen.append(f"init {request.producer_id}/{request.producer_epoch}")
        if not code:
            self._epoch += 1
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=code, producer_id=-1 if code else 7, producer_epoch=max(self._epoch, 0)
        )

    def add_partitions_to_txn(self, request: AddPartitionsToTxnRequest, code: int) -> Response:
        self.seen.append("add")
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0,
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                            partition_index=each, partition_error_code=code
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ],
        )

    def add_offsets_to_txn(self, request: Any, code: int) -> Response:
        del request
        self.seen.append("add offsets")
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)

    def txn_offset_commit(self, request: TxnOffsetCommitRequest, code: int) -> Response:
        self.seen.append("offsets")
        (topic,) = request.topics
        (partition,) = topic.partitions
        outcome = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=code
        )
        topics = [TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=[outcome])]
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)

    def end_txn(self, request: EndTxnRequest, code: int) -> Response:
        self.seen.append("commit" if request.committed else "abort")
        return EndTxnResponse(throttle_time_ms=0, error_code=code)

    def produce(self, request: ProduceRequest, code: int) -> Response:
        (topic,) = request.topic_data
        records = topic.partition_data[0].records
        assert records is not None
        batch = RecordBatch(memoryview(records))
        assert batch.is_transactional
        assert request.transactional_id == "id"
        self.seen.append(f"produce {batch.producer_id}/{batch.producer_epoch} {batch.base_sequence}")
        outcome = ProduceResponse.PartitionProduceResponse(index=0, error_code=code, base_offset=-1 if code else 0)
        return ProduceResponse(
            responses=[ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=[outcome])]
        )


def play(script: Script, test: Callable[[Producer], Awaitable[None]], **settings: str) -> None:
    async def with_broker() -> None:
        async with broker(script.answers) as script.port:
            values = {"bootstrap.servers": f"127.0.0.1:{script.port}", "retry.backoff.ms": "1"}
            async with KafkaClient(ClientSettings.parse(values)) as client:
                producer = producer_of(client, "id", **settings)
                try:
                    await test(producer)
                finally:
                    await producer.close(flush=False)

    run(with_broker)


async def one_transaction(producer: Producer) -> None:
    producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    await producer.send_offsets_to_transaction(OFFSETS, GROUP)
    await producer.commit_transaction()


PASSING = [
    (ApiKey.FIND_COORDINATOR, [ErrorCode.COORDINATOR_NOT_AVAILABLE]),
    (ApiKey.INIT_PRODUCER_ID, [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]),
    (ApiKey.ADD_PARTITIONS_TO_TXN, [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
    (ApiKey.ADD_OFFSETS_TO_TXN, [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS]),
    (ApiKey.TXN_OFFSET_COMMIT, [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]),
    (ApiKey.END_TXN, [ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS]),
    (ApiKey.PRODUCE, [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CONCURRENT_TRANSACTIONS]),
]


@pytest.mark.parametrize(("key", "codes"), PASSING, ids=[key.name for key, _ in PASSING])
def test_what_passes_is_asked_again(key: ApiKey, codes: list[ErrorCode]) -> None:
    script = Script({key: codes})

    async def test(producer: Producer) -> None:
        await producer.init_transactions()
        await one_transaction(producer)

    play(script, test)
    assert script.seen[-1] == "commit"
    assert list(dict.fromkeys(script.seen)) in (
        ["init -1/-1", "add", "add offsets", "offsets", "produce 7/0 0", "commit"],
        ["init -1/-1", "add", "add offsets", "produce 7/0 0", "offsets", "commit"],
        ["init -1/-1", "add", "produce 7/0 0", "add offsets", "offsets", "commit"],
        ["init -1/-1", "add offsets", "offsets", "add", "produce 7/0 0", "commit"],
    )


def ids(cases: Iterable[Sequence[Any]]) -> list[str]:
    return [f"{key.name}-{code.name}" for key, code, *_ in cases]


ABORTABLE = [
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, True),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.UNKNOWN_SERVER_ERROR, False),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.OPERATION_NOT_ATTEMPTED, False),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED, False),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.UNKNOWN_PRODUCER_ID, True),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID, False),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION, False),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTION_ABORTABLE, False),
    (ApiKey.END_TXN, ErrorCode.TRANSACTION_ABORTABLE, False),
    (ApiKey.END_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, True),
    (ApiKey.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH, True),
    (ApiKey.PRODUCE, ErrorCode.INVALID_TXN_STATE, True),
    (ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True),
    (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, True),
]


@pytest.mark.parametrize(
    ("key", "code", "is_bumped"), ABORTABLE, ids=[f"{key.name}-{code.name}" for key, code, _ in ABORTABLE]
)
def test_after_some_errors_a_transaction_is_aborted(
    key: ApiKey, code: ErrorCode, is_bumped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script({key: [code]})

    async def test(producer: Producer) -> None:
        await producer.init_transactions()
        with pytest.raises(TransactionError) as failed:
            await one_transaction(producer)
        assert not failed.value.is_fatal
        assert isinstance(failed.value.cause, ApiError)
        assert failed.value.cause.error_code == code
        await producer.abort_transaction()
        script.seen.append("next")
        producer.begin_transaction()
        await (await producer.send("t", b"v", partition=0))
        await producer.commit_transaction()

    with caplog.at_level(logging.ERROR):
        play(script, test)
    assert not caplog.records, "the producer claims no loss"
    assert ("init 7/0" in script.seen) == is_bumped
    (produced,) = [each for each in script.seen[script.seen.index("next") :] if each.startswith("produce")]
    assert produced.startswith(f"produce 7/{int(is_bumped)}")
    if is_bumped:
        assert produced.endswith(" 0"), "sequence numbers begin anew"
        assert "abort" not in script.seen or script.seen.index("abort") < script.seen.index("init 7/0")


FATAL = [
    (ApiKey.FIND_COORDINATOR, ErrorCode.INVALID_REQUEST),
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_PRODUCER_ID),
    (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED),
    (ApiKey.PRODUCE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    (ApiKey.PRODUCE, ErrorCode.PRODUCER_FENCED),
]


@pytest.mark.parametrize(("key", "code"), FATAL, ids=ids(FATAL))
def test_after_other_errors_a_producer_is_of_no_more_use(key: ApiKey, code: ErrorCode) -> None:
    script = Script({key: [code]})
    fenced = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}

    async def test(producer: Producer) -> None:
        async def work() -> None:
            await producer.init_transactions()
            await one_transaction(producer)

        with pytest.raises(TransactionError) as failed:
            await work()
        assert failed.value.is_fatal
        assert isinstance(failed.value.cause, ApiError)
        assert failed.value.cause.error_code == (ErrorCode.PRODUCER_FENCED if code in fenced else code)
        assert ("has been fenced" in str(failed.value)) == (code in fenced)
        for call in (producer.abort_transaction, producer.commit_transaction, producer.init_transactions):
            with pytest.raises(TransactionError):
                await call()
        with pytest.raises(TransactionError):
            await producer.send("t", b"v", partition=0)

    play(script, test)
    assert "init 7/0" not in script.seen


class RefusesSecond(Script):
    """Refuses the second batch of its first epoch, and all later ones."""

    def produce(self, request: ProduceRequest, code: int) -> Response:
        records = request.topic_data[0].partition_data[0].records
        assert records is not None
        batch = RecordBatch(memoryview(records))
        if not batch.producer_epoch and batch.base_sequence:
            is_second = batch.base_sequence == 1
            code = ErrorCode.MESSAGE_TOO_LARGE if is_second else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return super().produce(request, code)


def test_records_behind_one_that_the_broker_misses_fail_with_the_transaction() -> None:
    """The next transaction has all of its records, under another epoch."""
    script = RefusesSecond({})

    async def test(producer: Producer) -> None:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send_batch("t", [b"first"], partition=0))
        sent = []
        with contextlib.suppress(TransactionError):  # if an answer arrives before the last of them
            for number in range(4):
                sent.append(await producer.send_batch("t", [b"%d" % number], partition=0))
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(each, Exception) for each in outcomes)
        with pytest.raises(TransactionError, match="in an error state"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        producer.begin_transaction()
        for number in range(3):
            await (await producer.send_batch("t", [b"%d" % number], partition=0))
        await producer.commit_transaction()

    play(script, test)
    assert script.seen[-7:] == ["abort", "init 7/0", "add", *(f"produce 7/1 {number}" for number in range(3)), "commit"]


def test_a_transaction_that_nobody_may_begin_can_be_tried_again() -> None:
    script = Script({ApiKey.INIT_PRODUCER_ID: [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]})

    async def test(producer: Producer) -> None:
        with pytest.raises(TransactionError) as failed:
            await producer.init_transactions()
        assert not failed.value.is_fatal
        await producer.abort_transaction()
        await producer.init_transactions()
        await one_transaction(producer)

    play(script, test)


def test_a_coordinator_that_is_too_old_is_told() -> None:
    script = Script({}, {**VERSIONS, 28: (0, 2)})

    async def test(producer: Producer) -> None:
        await producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(TransactionError, match="TxnOffsetCommit"):
            await producer.send_offsets_to_transaction(OFFSETS, GROUP._replace(generation=3, member_id="m"))

    play(script, test)
