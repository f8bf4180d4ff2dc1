"""Restarts with much coordinator state: how long it takes to load, how long clients wait, how much memory it uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.brokers import Broker, await_listening
from bench.probe import Probe
from bench.scenario import Context, Measure, Sample
from bench.wait_loads import await_coordinator, connect, few, make_topics
from bench.waits import memory_bytes
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitResponse, OffsetFetchResponse
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from tests.kit import group_requests
from tests.kit.wire_client import WireClient

SETTINGS: Final = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
"""One log holds everything, so that nothing loads in parallel."""
_IDS_AT_ONCE: Final = 100
_FETCH_VERSION: Final = 7
_INIT_VERSION: Final = 4
_PATIENCE_S: Final = 300
_POLL_S: Final = 0.01

IsLoaded = Callable[[WireClient], bool]
"""Whether the coordinator serves the contents of its log."""
Fill = Callable[[Context, Broker, str, ExitStack], IsLoaded]


def offsets(groups: int, partitions: int) -> Measure:
    """Seconds from the launch until the offsets of `groups` are available; each group commits all `partitions`."""

    def fill(context: Context, broker: Broker, topic: str, stack: ExitStack) -> IsLoaded:
        client = connect(broker, stack)
        make_topics(client, [topic], partitions)
        await_coordinator(broker, topic, stack)
        for number in range(few(context, groups)):
            committed = [(topic, partition, number) for partition in range(partitions)]
            answer = client.ask(group_requests.commit(f"{topic}-{number}", committed), group_requests.COMMIT)
            if not isinstance(answer, OffsetCommitResponse) or any(
                each.error_code for each in answer.topics[0].partitions
            ):
                raise RuntimeError(f"offsets were not committed: {answer}")

        def is_loaded(client: WireClient) -> bool:
            answer = client.ask(group_requests.fetch(f"{topic}-0", {topic: [0]}), _FETCH_VERSION)
            if not isinstance(answer, OffsetFetchResponse) or answer.error_code:
                return False
            if answer.topics[0].partitions[0].committed_offset != 0:
                raise RuntimeError(f"an offset was lost: {answer}")
            return True

        return is_loaded

    return _loading(fill)


def transactional_ids(count: int) -> Measure:
    """Seconds from the launch until `count` transactional ids are available."""

    def fill(context: Context, broker: Broker, topic: str, stack: ExitStack) -> IsLoaded:
        client = connect(broker, stack)
        await_coordinator(broker, topic, stack, of_transactions=True)
        ids = [f"{topic}-{number}" for number in range(few(context, count))]
        for start in range(0, len(ids), _IDS_AT_ONCE):
            some = ids[start : start + _IDS_AT_ONCE]
            # Apache Kafka makes producers retry when its block of ids is used up.
            _await(partial(_have_ids, client, some), "producer ids")

        def is_loaded(client: WireClient) -> bool:
            answer = client.ask(DescribeTransactionsRequest(transactional_ids=[f"{topic}-0"]), 0)
            if not isinstance(answer, DescribeTransactionsResponse):
                raise TypeError("not the answer to DescribeTransactions")
            return answer.transaction_states[0].error_code == ErrorCode.NONE

        return is_loaded

    return _loading(fill)


def _have_ids(client: WireClient, transactional_ids: Sequence[str]) -> bool:
    """Ask for the producer ids of all; returns whether each got one."""
    for transactional_id in transactional_ids:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        client.send(request, _INIT_VERSION)
    answers = [client.receive(InitProducerIdRequest, _INIT_VERSION) for _ in transactional_ids]
    return all(isinstance(each, InitProducerIdResponse) and not each.error_code for each in answers)


def _await(is_so: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds. Raises RuntimeError on timeout."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not in {_PATIENCE_S} s")
        time.sleep(_POLL_S)


def _loading(fill: Fill) -> Measure:
    """Fill the log of a coordinator, restart the broker, and measure the loading."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        with ExitStack() as stack:
            is_loaded = fill(context, broker, topic, stack)
        broker.end()
        began = time.monotonic()
        broker.launch()
        if broker.process is not None:
            await_listening(broker.port, broker.process)
        with WireClient("127.0.0.1", broker.port, "load", _PATIENCE_S) as client, Probe(broker.port) as probe:
            _await(lambda: is_loaded(client), "loaded")
            seconds = time.monotonic() - began
        details = {
            "longest_wait_ms": probe.longest_ms,
            "MB_at_the_peak": memory_bytes(broker.pid, at_the_peak=True) / 1e6,
            "MB_afterwards": memory_bytes(broker.pid) / 1e6,
        }
        return Sample(seconds, broker.cpu_s(), details=details)

    return measure
