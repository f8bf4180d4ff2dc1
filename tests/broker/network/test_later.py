"""Answers that a handler gives later, many at once, without a future for each (`Later`)."""

from __future__ import annotations

import asyncio

import pytest

from broker.network.client_quotas import ClientQuotas
from broker.network.dispatcher import Dispatcher
from broker.network.registry import HandlerRegistry, Later, RequestContext, api
from broker.security.rights import EVERYBODY
from environment.system import SystemClock
from protocol.api_keys import ApiKey
from protocol.messages.group_admin import ListGroupsRequest, ListGroupsResponse
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from protocol.wire.schema import Request
from tests.broker.network.scripted_server import ScriptedServer, is_closed, run
from tests.kit.in_process import framed, request_bytes
from tests.kit.waiting import eventually_on_loop

HEARTBEAT, LIST = 4, 4


class Handlers:
    """Heartbeats wait for `answer`; only other heartbeats may pass them."""

    def __init__(self) -> None:
        self.waiting: list[Later[HeartbeatResponse]] = []
        self.listed = 0

    @api(ApiKey.HEARTBEAT, versions=(0, 4), right=EVERYBODY)
    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> Later[HeartbeatResponse]:
        self.waiting.append(Later(frozenset({ApiKey.HEARTBEAT})))
        return self.waiting[-1]

    @api(ApiKey.LIST_GROUPS, versions=(0, 4), right=EVERYBODY, whole="it is small")
    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        self.listed += 1
        return ListGroupsResponse(error_code=0, groups=[])

    def answer(self, number: int) -> None:
        self.waiting[number].answer(HeartbeatResponse(throttle_time_ms=number, error_code=0))

    async def await_requests(self, count: int) -> None:
        await eventually_on_loop("the requests are taken up", lambda: len(self.waiting) == count)


def server(handlers: Handlers) -> ScriptedServer:
    scripted = ScriptedServer(lambda _: None)
    clock = SystemClock()
    scripted.dispatcher = Dispatcher(HandlerRegistry([handlers]), clock, ClientQuotas(clock))  # type: ignore[assignment]
    return scripted


def packet(*requests: tuple[Request, int]) -> bytes:
    return b"".join(framed(request_bytes(request, version)) for request, version in requests)


def heartbeats(count: int) -> list[tuple[Request, int]]:
    return [(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), HEARTBEAT)] * count


async def receive(reader: asyncio.StreamReader) -> bytes:
    """The body of the next reply, whose header is flexible."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return (await reader.readexactly(size))[5:]


async def numbers(reader: asyncio.StreamReader, count: int) -> list[int]:
    bodies = [await receive(reader) for _ in range(count)]
    return [HeartbeatResponse.decode(memoryview(body), HEARTBEAT).throttle_time_ms for body in bodies]


def test_answers_leave_in_the_order_of_the_requests_and_others_wait() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        async with server(handlers) as scripted:
            reader, writer = await scripted.connect()
            writer.write(packet(*heartbeats(3), (ListGroupsRequest(), LIST), *heartbeats(1)))
            await handlers.await_requests(3)
            handlers.answer(2)
            handlers.answer(0)
            assert await numbers(reader, 1) == [0]
            assert handlers.listed == 0
            assert len(handlers.waiting) == 3
            handlers.answer(1)
            assert await numbers(reader, 2) == [1, 2]
            assert ListGroupsResponse.decode(memoryview(await receive(reader)), LIST).groups == []
            await handlers.await_requests(4)
            handlers.answer(3)
            assert await numbers(reader, 1) == [3]

    run(scenario())


def test_an_outcome_that_cannot_be_translated_closes_its_connection_alone() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        async with server(handlers) as scripted:
            reader, writer = await scripted.connect()
            others_reader, other = await scripted.connect()
            writer.write(packet(*heartbeats(1)))
            await handlers.await_requests(1)
            other.write(packet(*heartbeats(1)))
            await handlers.await_requests(2)
            handlers.waiting[0].translate = {}.__getitem__
            handlers.answer(0)
            handlers.answer(1)
            assert await is_closed(reader)
            assert await numbers(others_reader, 1) == [1]

    run(scenario())


def test_more_requests_than_may_wait_are_all_answered() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        async with server(handlers) as scripted:
            reader, writer = await scripted.connect()
            total = 1000
            writer.write(packet(*heartbeats(total)))
            answered = 0
            while answered < total:
                await eventually_on_loop("more requests", lambda: len(handlers.waiting) > answered)  # noqa: B023
                taken_up = len(handlers.waiting)
                for number in reversed(range(answered, taken_up)):
                    handlers.answer(number)
                assert await numbers(reader, taken_up - answered) == list(range(answered, taken_up))
                answered = taken_up

    run(scenario())


def test_who_hangs_up_is_not_answered_and_the_broker_waits_for_what_is_under_way() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        async with server(handlers) as scripted:
            _, writer = await scripted.connect()
            _, other = await scripted.connect()
            writer.write(packet(*heartbeats(1)))
            other.write(packet(*heartbeats(1)))
            await handlers.await_requests(2)
            writer.close()
            await eventually_on_loop("it is gone", lambda: len(scripted.server.connections) == 1)
            draining = asyncio.ensure_future(scripted.dispatcher.drain())  # type: ignore[attr-defined]
            handlers.answer(0)
            await asyncio.sleep(0)
            assert not draining.done()
            handlers.answer(1)
            await draining

    run(scenario())


def test_an_answer_that_cannot_be_encoded_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        handlers = Handlers()
        async with server(handlers) as scripted:
            reader, writer = await scripted.connect()
            writer.write(packet(*heartbeats(2)))
            await handlers.await_requests(2)
            handlers.waiting[1].answer(HeartbeatResponse(throttle_time_ms=2**40, error_code=0))
            assert await is_closed(reader)
            handlers.answer(0)

    run(scenario())
    assert "an unexpected error in the broker" in caplog.text
