"""A client that exceeds its quota is answered at once with a throttle time, and muted for that long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.network.client_quotas import ClientQuotas
from broker.network.registry import RequestContext
from cluster.quotas.client_quota import MOST_REMEMBERED_CLIENTS, THROTTLE_WINDOW_MS
from cluster.quotas.entities import DEFAULT, QuotaLimits
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.metadata import MetadataResponse
from protocol.messages.produce import ProduceResponse
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)
from protocol.wire.schema import Request
from tests.broker.handlers.test_client_quota_handlers import DONE, alter
from tests.kit.environment import ManualClock, SeededRandom
from tests.kit.in_process import InProcessBroker, Wire, play
from tests.kit.waiting import eventually_on_loop
from tests.kit.wire_requests import delete_topics, fetch, metadata, new_topic, produce, values_in

WINDOW_MS = 11_000
"""The time after which a client's past usage is forgotten."""
Work = Callable[[InProcessBroker, Wire], Awaitable[None]]
TURNS = 50
"""Turns of the event loop within which an unmuted connection is answered."""


async def is_answered(client: Wire, request: Request | None = None) -> bool:
    """Whether a request without effects is answered now."""
    client.transport.written.clear()
    client.send(ApiVersionsRequest() if request is None else request, 0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return bool(client.transport.written)


async def produced(client: Wire, size: int, acks: int = 1) -> int:
    """The throttle time in the response."""
    response = await client.ask(produce("t", [b"x" * size], acks), 9)
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return response.throttle_time_ms


async def begin(client: Wire, quota: str, limit: float) -> None:
    """Create a topic `t`, and a quota for client id `limited`."""
    await client.ask(new_topic("t"), 7)
    assert await alter(client, ({"client-id": "limited"}, {quota: limit})) == [DONE]


async def throttle_a_producer(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "producer_byte_rate", 1000)
    limited = broker.connect("limited")
    assert await produced(limited, 9_000) == 0, "a burst of the whole window is fine"
    throttle_ms = await produced(limited, 2_000)
    assert 1_000 < throttle_ms < 1_500, "10 s are enough for 10,000 bytes"
    assert not await is_answered(limited)
    assert await produced(client, 100_000) == 0
    assert await is_answered(client), "another client is not slowed"
    assert await produced(broker.connect("limited"), 100) > throttle_ms, "all connections of a client share its quota"
    broker.clock.ms += WINDOW_MS
    assert await produced(broker.connect("limited"), 9_000) == 0


def test_a_producer_is_throttled() -> None:
    play(throttle_a_producer)


async def mute_for_as_long_as_is_told(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "producer_byte_rate", 100_000)
    limited = broker.connect("limited")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    throttle_ms = await produced(limited, 1_005_000)
    assert 50 <= throttle_ms < 100
    limited.transport.written.clear()
    for _ in range(3):
        limited.send(ApiVersionsRequest(), 0)
    while len(limited.transport.written) < 3 * 100:
        await asyncio.sleep(0.001)
    assert loop.time() - began_s >= throttle_ms / 1000
    assert await is_answered(limited)


def test_a_connection_is_muted_for_as_long_as_is_told() -> None:
    play(mute_for_as_long_as_is_told, socket_request_max_bytes="2000000", message_max_bytes="2000000")


async def throttle_without_an_answer(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "producer_byte_rate", 1000)
    limited = broker.connect("limited")
    limited.send(produce("t", [b"x" * 20_000], 0), 9)
    assert not await is_answered(limited)
    limited.close()


def test_producers_that_want_no_answer_are_throttled() -> None:
    play(throttle_without_an_answer)


async def fetched(client: Wire, offset: int = 0) -> FetchResponse:
    request = fetch("t", offset)
    request.max_bytes = 1 << 20
    response = await client.ask(request, 11)
    assert isinstance(response, FetchResponse)
    assert response.error_code == ErrorCode.NONE
    return response


async def throttle_a_consumer(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "consumer_byte_rate", 1000)
    for _ in range(10):
        await produced(client, 2_000)
    limited = broker.connect("limited")
    first = await fetched(limited)
    assert first.throttle_time_ms == 0
    assert len(values_in(first)) == 4, "no more at once than is enough for the window"
    throttled = await fetched(broker.connect("limited"), offset=4)
    assert (throttled.responses, 5_000 < throttled.throttle_time_ms < 10_000) == ([], True)
    again = await fetched(broker.connect("limited"), offset=4)
    assert again.throttle_time_ms == throttled.throttle_time_ms, "what was not sent does not count"
    assert await is_answered(limited), "only the connection that asked waits"
    served = broker.server.serving.logs.replicas
    assert sum(partition.bytes_out for partition in served) < 10_000, "nothing was sent"
    broker.clock.ms += WINDOW_MS
    assert len(values_in(await fetched(broker.connect("limited"), offset=4))) == 4, "it was not counted before"
    assert len(values_in(await fetched(client))) == 10


def test_a_consumer_is_throttled_and_gets_nothing_meanwhile() -> None:
    play(throttle_a_consumer)


async def continue_a_session(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "consumer_byte_rate", 1000)
    for _ in range(10):
        await produced(client, 2_000)
    request = fetch("t", 0)
    request.session_epoch, request.max_bytes = 0, 1 << 20
    opened = await broker.connect("limited").ask(request, 11)
    assert isinstance(opened, FetchResponse)
    again = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, topics=[], session_id=opened.session_id,
        session_epoch=1, forgotten_topics_data=[],
    )  # fmt: skip
    throttled = await broker.connect("limited").ask(again, 11)
    assert isinstance(throttled, FetchResponse)
    assert throttled.throttle_time_ms > 0
    assert (throttled.session_id, throttled.responses) == (opened.session_id, [])
    broker.clock.ms += WINDOW_MS
    again.session_epoch = 2
    assert len(values_in(await broker.connect("limited").ask(again, 11))) == 4


def test_a_fetch_session_outlives_its_throttling() -> None:
    play(continue_a_session)


class BusyClock(ManualClock):
    """Reading it takes a millisecond."""

    def monotonic_s(self) -> float:
        self.ms += 1
        return super().monotonic_s()


async def throttle_by_time(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "request_percentage", 1)
    limited = broker.connect("limited")
    for _ in range(200):
        response = await limited.ask(metadata(), 9)
        assert isinstance(response, MetadataResponse)
        if response.throttle_time_ms:
            break
    assert 0 < response.throttle_time_ms <= 1000, "never longer than a window"
    assert not await is_answered(limited)
    assert await is_answered(client)


async def throttle_a_fetch_by_its_time(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "request_percentage", 1e-6)
    assert (await fetched(broker.connect("limited"))).throttle_time_ms > 0, "its own time counts for it"


def be_busy(broker: InProcessBroker) -> None:
    broker.clock = BusyClock()


@pytest.mark.parametrize("work", [throttle_by_time, throttle_a_fetch_by_its_time])
def test_a_client_is_throttled_by_the_time_that_it_takes(work: Work) -> None:
    play(work, prepare=be_busy)


class SlowRandom(SeededRandom):
    """Drawing a number takes half a second; the controller draws two for each topic."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def randrange(self, stop: int) -> int:
        self._clock.ms += 500
        return super().randrange(stop)


def be_slow_to_plan(broker: InProcessBroker) -> None:
    broker.random = SlowRandom(broker.clock)


async def have_topics_judged(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "request_percentage", 50)
    request = new_topic("a")
    request.topics += [new_topic(name).topics[0] for name in "bcdefgh"]
    response = await broker.connect("limited").ask(request, 7)
    assert isinstance(response, CreateTopicsResponse)
    assert response.throttle_time_ms > 0, "8 of 11 s"
    assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}
    response = await broker.connect("another").ask(new_topic("i"), 7)
    assert isinstance(response, CreateTopicsResponse)
    assert response.throttle_time_ms == 0


def test_the_time_in_which_the_controller_judges_topics_is_the_clients() -> None:
    play(have_topics_judged, prepare=be_slow_to_plan)


CLUSTER_ACTIONS = (
    ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.WRITE_TXN_MARKERS, ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS,
)  # fmt: skip


async def work_for_the_cluster(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "request_percentage", 1e-6)
    quotas, context = broker.server.serving.quotas, RequestContext(0, "limited", "127.0.0.1", "PLAINTEXT")
    reply = ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=[])
    for api_key in CLUSTER_ACTIONS:
        assert quotas.charge(api_key, context, reply, 100, 10.0)[1] == 0
    assert quotas.charge(ApiKey.METADATA, context, reply, 100, 10.0)[1] > 0


def test_what_only_the_cluster_needs_is_exempt() -> None:
    play(work_for_the_cluster)


def test_connections_share_a_quota_after_its_usage_was_forgotten() -> None:
    """Idle usages are dropped when there are too many. A connection that had one is charged to its replacement."""
    clock = ManualClock()
    quotas, reply = ClientQuotas(clock), ProduceResponse(responses=[])
    quotas.produce.set_limits(QuotaLimits({(None, DEFAULT): 100}))

    def context(client_id: str) -> RequestContext:
        return RequestContext(9, client_id, "127.0.0.1", "PLAINTEXT")

    def throttle_ms(context: RequestContext, size: int) -> int:
        return quotas.charge(ApiKey.PRODUCE, context, reply, size, 0)[1]

    old, new = context("limited"), context("limited")
    assert throttle_ms(old, 1) == 0
    clock.ms += 2 * THROTTLE_WINDOW_MS
    for number in range(MOST_REMEMBERED_CLIENTS):
        quotas.produce.record("ANONYMOUS", str(number), 1, quotas.now_s() * 1000)
    assert len(list(quotas.produce)) == MOST_REMEMBERED_CLIENTS, "the idle one was dropped"
    assert throttle_ms(new, 1000) == 0
    assert throttle_ms(old, 100) > 0


async def change_topics(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "controller_mutation_rate", 1)

    async def created(name: str, partitions: int, version: int) -> tuple[ErrorCode, str | None, int]:
        response = await broker.connect("limited").ask(new_topic(name, partitions), version)
        assert isinstance(response, CreateTopicsResponse)
        result = response.topics[0]
        return ErrorCode(result.error_code), result.error_message, response.throttle_time_ms

    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert await created("a", 14, 6) == (ErrorCode.NONE, None, 0), "11 tokens, and not used up before"
    assert await created("b", 1, 6) == (refused, None, 3000)
    assert await created("c", 1, 5) == (ErrorCode.NONE, None, 4000), "older clients do not know the error"
    deleted = await broker.connect("limited").ask(delete_topics("a"), 5)
    assert isinstance(deleted, DeleteTopicsResponse)
    assert (deleted.responses[0].error_code, deleted.throttle_time_ms) == (refused, 4000)
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=None)],
        timeout_ms=1000,
        validate_only=False,
    )
    for version, outcome in ((3, refused), (2, ErrorCode.NONE)):
        grown = await broker.connect("limited").ask(grow, version)
        assert isinstance(grown, CreatePartitionsResponse)
        assert grown.results[0].error_code == outcome
        assert grown.throttle_time_ms == (4000 if outcome else 6000)
    broker.clock.ms += 6000
    assert await created("d", 1, 7) == (ErrorCode.NONE, None, 0)
    muted = broker.connect("limited")
    assert (await muted.ask(new_topic("e", 1), 7)).topics[0].error_code == refused  # type: ignore[attr-defined]
    assert not await is_answered(muted)


def test_changes_of_topics_are_limited() -> None:
    play(change_topics)


async def limit_connections(broker: InProcessBroker, client: Wire) -> None:
    quotas = broker.server.serving.quotas
    limit: dict[str, float | None] = {"connection_creation_rate": 1.0}
    assert await alter(client, ({"ip": "10.0.0.1"}, limit)) == [DONE]
    assert [quotas.charge_connection("10.0.0.1") for _ in range(12)] == [0] * 10 + [1000] * 2
    assert not any(quotas.charge_connection("10.0.0.2") for _ in range(100))
    broker.clock.ms += WINDOW_MS
    assert [quotas.charge_connection("10.0.0.1") for _ in range(12)] == [0] * 10 + [1000] * 2
    broker.clock.ms += 5_000
    assert all(quotas.charge_connection("10.0.0.1") for _ in range(50))
    broker.clock.ms += WINDOW_MS - 5_000
    assert quotas.charge_connection("10.0.0.1") == 0, "those that were refused do not count"
    assert await alter(client, ({"ip": "localhost"}, limit)) == [DONE]
    await eventually_on_loop("the host's address is known", lambda: quotas.charge_connection("127.0.0.1"))
    assert not any(quotas.charge_connection("10.0.0.3") for _ in range(11))
    broker.network.hosts["localhost"] = "10.0.0.3"
    await quotas.look_up_hosts()
    assert any(quotas.charge_connection("10.0.0.3") for _ in range(11)), "the host has moved"
    del broker.network.hosts["localhost"]
    broker.clock.ms += WINDOW_MS
    await quotas.look_up_hosts()
    assert any(quotas.charge_connection("10.0.0.3") for _ in range(11)), "it keeps its address while nobody knows it"
    broker.network.hosts["localhost"] = "127.0.0.1"
    await quotas.look_up_hosts()
    while not quotas.charge_connection("127.0.0.1"):
        pass
    refused = broker.connect()
    assert not await is_answered(refused)
    await eventually_on_loop("it is closed", lambda: refused.is_closed, pause_s=0.01)


def test_connections_of_an_address_are_limited() -> None:
    play(limit_connections)


async def change_quotas(broker: InProcessBroker, client: Wire) -> None:
    await begin(client, "producer_byte_rate", 1000)
    assert await produced(broker.connect("limited"), 20_000) > 0
    assert await alter(client, ({"client-id": "limited"}, {"producer_byte_rate": 10_000.0})) == [DONE]
    assert await produced(broker.connect("limited"), 1_000) == 0
    assert await alter(client, ({"user": "ANONYMOUS", "client-id": "limited"}, {"producer_byte_rate": 10.0})) == [DONE]
    assert await produced(broker.connect("limited"), 1_000) > 0, "the quota of user and client id goes before"
    for entity in ({"user": "ANONYMOUS", "client-id": "limited"}, {"client-id": "limited"}):
        assert await alter(client, (entity, {"producer_byte_rate": None})) == [DONE]
    assert not broker.server.serving.quotas.is_limited
    assert await produced(broker.connect("limited"), 500_000) == 0


def test_changed_quotas_count_at_once() -> None:
    play(change_quotas)


@pytest.mark.parametrize("quota", ["consumer_byte_rate", "request_percentage"])
def test_replication_is_exempt(quota: str) -> None:
    async def replicate(broker: InProcessBroker, client: Wire) -> None:
        await begin(client, quota, 0)
        await produced(client, 100_000)
        follower = broker.connect("limited")
        request = fetch("t", 0)
        request.replica_id = 7
        for _ in range(5):
            response = await follower.ask(request, 11)
            assert isinstance(response, FetchResponse)
            assert response.throttle_time_ms == 0

    play(replicate)
