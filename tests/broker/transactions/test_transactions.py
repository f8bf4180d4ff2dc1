"""Transactions over the wire, at a broker in this process: what is written, who is fenced, and which results are
visible.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.transactions import ListTransactionsRequest, WriteTxnMarkersRequest
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from tests.kit.in_process import InProcessBroker
from tests.kit.transactions.requests import (
    add_offsets,
    commit_offsets,
    fetch_offset,
    find_coordinator,
    init,
    produce_in_transaction,
    verify,
)
from tests.kit.transactions.transactional_producer import TransactionalProducer as Producer
from tests.kit.transactions.transactional_producer import read
from tests.kit.wire_requests import new_topic

AT = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
ID = "payments"


def on_a_broker(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test with a broker that has a topic, and a producer connected to it."""

    names = inspect.signature(test).parameters

    async def scenario(arguments: dict[str, Any]) -> None:
        async with InProcessBroker() as broker:
            await prepare(broker)
            given = {"broker": broker, "producer": Producer(broker.connect(), ID)} | arguments
            await test(**{name: given[name] for name in names})

    def run(**arguments: Any) -> None:
        asyncio.run(scenario(arguments))

    run.__name__ = test.__name__
    wanted = [each for name, each in names.items() if name not in {"broker", "producer"}]
    run.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    return run


async def prepare(broker: InProcessBroker) -> None:
    wire = broker.connect()
    await wire.ask(new_topic("t", 2), 5)
    await wire.ask(find_coordinator(ID), 4)


@on_a_broker
async def test_a_committed_transaction(producer: Producer) -> None:
    assert await producer.init() == ErrorCode.NONE
    assert await producer.add(AT, OTHER) == [ErrorCode.NONE] * 2
    assert await producer.write(b"1", at=AT) == ErrorCode.NONE
    assert await producer.write(b"2", at=OTHER) == ErrorCode.NONE
    state = await producer.state()
    assert (state.transaction_state, [(each.topic, each.partitions) for each in state.topics]) == (
        "Ongoing", [("t", [0, 1])],
    )  # fmt: skip
    assert await read(producer.wire, AT) == []
    assert await read(producer.wire, AT, committed=False) == [b"1"]
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert await producer.settled() == "CompleteCommit"
    assert await read(producer.wire, AT) == [b"1"]
    assert await read(producer.wire, OTHER) == [b"2"]
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert await producer.end(commit=False) == ErrorCode.INVALID_TXN_STATE


@on_a_broker
async def test_an_aborted_transaction_between_two_others(producer: Producer) -> None:
    await producer.init()
    for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
        assert await producer.add(AT) == [ErrorCode.NONE]
        assert await producer.write(value, at=AT) == ErrorCode.NONE
        assert await producer.end(commit=commit) == ErrorCode.NONE
        await producer.settled()
    assert await read(producer.wire, AT) == [b"1", b"3"]
    assert await read(producer.wire, AT, committed=False) == [b"1", b"2", b"3"]


@on_a_broker
async def test_a_new_producer_fences_the_old_one(broker: InProcessBroker, producer: Producer) -> None:
    await producer.init()
    await producer.add(AT)
    await producer.write(b"zombie", at=AT)
    successor = Producer(broker.connect(), ID)
    assert await successor.init() == ErrorCode.NONE
    assert (successor.producer_id, successor.epoch) == (producer.producer_id, producer.epoch + 2)
    assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert await producer.end(commit=True, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.add(OTHER) == [ErrorCode.PRODUCER_FENCED]
    assert await producer.add(OTHER, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await producer.write(b"late", at=AT) == ErrorCode.INVALID_PRODUCER_EPOCH
    await successor.add(AT)
    await successor.write(b"new", at=AT)
    await successor.end(commit=True)
    await successor.settled()
    assert await read(producer.wire, AT) == [b"new"]


@on_a_broker
async def test_a_producer_goes_on_with_a_higher_epoch(producer: Producer) -> None:
    await producer.init()
    known = producer.producer_id, producer.epoch
    assert await producer.init(goes_on=True) == ErrorCode.NONE
    assert (producer.producer_id, producer.epoch) == (known[0], known[1] + 1)
    producer.epoch -= 1  # the answer was lost
    assert await producer.init(goes_on=True) == ErrorCode.NONE
    assert producer.epoch == known[1] + 1
    producer.epoch += 5
    assert await producer.init(goes_on=True) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
@on_a_broker
async def test_timeouts_that_no_transaction_may_have(producer: Producer, timeout_ms: int) -> None:
    assert await producer.init(timeout_ms) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@on_a_broker
async def test_what_was_not_added_is_not_written(producer: Producer) -> None:
    await producer.init()
    await producer.add(AT)
    assert await producer.write(b"1", at=OTHER) == ErrorCode.TRANSACTION_ABORTABLE
    assert await producer.write(b"1", at=OTHER, version=10) == ErrorCode.INVALID_TXN_STATE
    assert await read(producer.wire, OTHER, committed=False) == []
    await producer.end(commit=True)
    await producer.settled()
    assert await producer.write(b"late", at=AT) == ErrorCode.TRANSACTION_ABORTABLE
    assert await read(producer.wire, AT, committed=False) == []


def test_verification_can_be_switched_off() -> None:
    async def scenario() -> None:
        async with InProcessBroker(transaction_partition_verification_enable="false") as broker:
            await prepare(broker)
            producer = Producer(broker.connect(), ID)
            await producer.init()
            assert await producer.write(b"1", at=AT) == ErrorCode.NONE

    asyncio.run(scenario())


@on_a_broker
async def test_a_transactional_batch_needs_a_transactional_id(producer: Producer) -> None:
    await producer.init()
    await producer.add(AT)
    request = produce_in_transaction(None, producer.producer_id, producer.epoch, 0, [b"1"], AT)
    response = await producer.ask(request, 11)
    code = response.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@on_a_broker
async def test_a_plain_write_amid_a_transaction_is_refused(producer: Producer) -> None:
    await producer.init()
    await producer.add(AT)
    await producer.write(b"1", at=AT)
    request = produce_in_transaction(*producer.identity, 1, [b"2"], AT, is_transactional=False)
    response = await producer.ask(request, 11)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE


@on_a_broker
async def test_partitions_that_do_not_exist(producer: Producer) -> None:
    await producer.init()
    missing, internal = TopicPartition("t", 7), TopicPartition(CONSUMER_OFFSETS, 0)
    assert await producer.add(AT, missing) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    assert await producer.add(internal) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert (await producer.state()).transaction_state == "Empty"


@on_a_broker
async def test_who_is_not_known(producer: Producer) -> None:
    producer.producer_id, producer.epoch = 77, 0
    assert await producer.add(AT) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert await producer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await producer.state()).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (await producer.ask(init(""), 5)).error_code == ErrorCode.INVALID_REQUEST


@on_a_broker
async def test_a_broker_asks_what_is_in_a_transaction(producer: Producer) -> None:
    await producer.init()
    await producer.add(AT)
    response = await producer.ask(verify(*producer.identity, AT, OTHER), 5)
    (result,) = response.results_by_transaction
    codes = {each.partition_index: each.partition_error_code for each in result.topic_results[0].results_by_partition}
    assert codes == {0: ErrorCode.NONE, 1: ErrorCode.TRANSACTION_ABORTABLE}


@on_a_broker
async def test_a_transaction_that_is_open_for_too_long_is_aborted(broker: InProcessBroker, producer: Producer) -> None:
    await producer.init(timeout_ms=1000)
    await producer.add(AT)
    await producer.write(b"1", at=AT)
    service = broker.server.serving.member.coordinators.transactions
    broker.clock.ms += 900
    await service.abort_late_transactions()
    assert (await producer.state()).transaction_state == "Ongoing"
    broker.clock.ms += 200
    await service.abort_late_transactions()
    assert await producer.settled() == "CompleteAbort"
    assert await read(producer.wire, AT) == []
    assert await producer.write(b"2", at=AT) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.end(commit=True) == ErrorCode.PRODUCER_FENCED


@on_a_broker
async def test_lists_pass_filters(producer: Producer) -> None:
    await producer.init()

    async def listed(**filters: Any) -> Any:
        request = ListTransactionsRequest(**({"state_filters": [], "producer_id_filters": []} | filters))
        return await producer.ask(request, 1)

    (state,) = (await listed()).transaction_states
    assert (state.transactional_id, state.producer_id, state.transaction_state) == (
        ID, producer.producer_id, "Empty",
    )  # fmt: skip
    assert (await listed(state_filters=["Ongoing"])).transaction_states == []
    unknown = await listed(state_filters=["Elsewhere"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Elsewhere"], [])
    assert (await listed(producer_id_filters=[producer.producer_id + 1])).transaction_states == []


@on_a_broker
async def test_offsets_count_with_their_transaction(producer: Producer) -> None:
    await producer.ask(find_group("g"), 4)
    await producer.init()

    async def fetched(*, require_stable: bool = False) -> tuple[int, int]:
        response = await producer.ask(fetch_offset("g", AT, require_stable=require_stable), 8)
        found = response.groups[0].topics[0].partitions[0]
        return found.committed_offset, found.error_code

    for offset, commit, before in ((5, True, -1), (9, False, 5)):
        assert (await producer.ask(add_offsets(*producer.identity, "g"), 4)).error_code == ErrorCode.NONE
        response = await producer.ask(commit_offsets(*producer.identity, "g", AT, offset), 4)
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await fetched() == (before, ErrorCode.NONE)
        assert (await fetched(require_stable=True))[1] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await producer.end(commit=commit) == ErrorCode.NONE
        await producer.settled()
        assert await fetched(require_stable=True) == (5, ErrorCode.NONE)


@on_a_broker
async def test_offsets_outside_of_a_transaction_are_refused(producer: Producer) -> None:
    await producer.ask(find_group("g"), 4)
    await producer.init()
    await producer.add(AT)
    for version, code in ((4, ErrorCode.TRANSACTION_ABORTABLE), (3, ErrorCode.INVALID_TXN_STATE)):
        response = await producer.ask(commit_offsets(*producer.identity, "g", AT, 5), version)
        assert response.topics[0].partitions[0].error_code == code


@on_a_broker
async def test_markers_of_a_deposed_coordinator_are_refused(producer: Producer) -> None:
    async def mark(coordinator_epoch: int, at: TopicPartition = AT) -> int:
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=at.topic, partition_indexes=[at.partition])
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=5,
            producer_epoch=0,
            transaction_result=True,
            topics=[topic],
            coordinator_epoch=coordinator_epoch,
        )
        response = await producer.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
        return int(response.markers[0].topics[0].partitions[0].error_code)

    assert await mark(3) == ErrorCode.NONE
    assert await mark(2) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await mark(3) == ErrorCode.NONE
    assert await mark(3, TopicPartition("elsewhere", 0)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def find_group(group_id: str) -> Any:
    request = find_coordinator(group_id)
    request.key_type = 0
    return request
