"""Requests whose client hung up, and headers that repeat."""

from __future__ import annotations

import asyncio
import struct
from typing import cast

import pytest

from broker.network.client_quotas import ClientQuotas
from broker.network.connection import Connection
from broker.network.dispatcher import Dispatcher
from broker.network.registry import CloseConnection, HandlerRegistry, RequestContext, RequestKind, Waiting, api
from broker.network.reply_writer import Parts
from broker.security.rights import EVERYBODY
from cluster.quotas.entities import QuotaLimits
from cluster.security.principal import Principal
from environment.slices import in_slices
from environment.system import SystemClock
from protocol.api_keys import ApiKey
from protocol.errors import DecodeError
from protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import DescribeClusterRequest
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.wire.schema import Request
from tests.broker.network.test_closed_connections import cycles_of_ours
from tests.kit.environment import ManualClock
from tests.kit.in_process import request_bytes
from tests.kit.waiting import turns
from tests.kit.wire_requests import produce


class Handlers:
    """One reads, one writes, one only waits; each records how it ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.go_on = asyncio.Event()
        self.waiting: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
        self.contexts: list[RequestContext] = []

    @api(ApiKey.LIST_GROUPS, versions=(0, 4), right=EVERYBODY, reads_only=True, whole="it is small")
    async def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        return await self._answer("read", ListGroupsResponse(error_code=0, groups=[]))

    @api(ApiKey.DELETE_GROUPS, versions=(0, 2), right=EVERYBODY, whole="it is small")
    async def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        return await self._answer("written", DeleteGroupsResponse(throttle_time_ms=0, results=[]))

    @api(ApiKey.HEARTBEAT, versions=(0, 4), right=EVERYBODY)
    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> Waiting[HeartbeatResponse]:
        self.contexts.append(context)
        return Waiting(self.waiting)

    async def _answer(self, what: str, response: object) -> object:  # type: ignore[misc]
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{what}: cancelled")
            raise
        self.ended.append(what)
        return response


class Producing:
    """Appends, and waits forever for other replicas."""

    @api(ApiKey.PRODUCE, versions=(3, 9), right=EVERYBODY, whole="it is small")
    def produce(self, context: RequestContext, request: ProduceRequest) -> Waiting[ProduceResponse]:
        return Waiting(asyncio.get_running_loop().create_future())


class FakeConnection:
    """The attributes of a connection that the dispatcher uses."""

    client_address, listener_name, peer_name = "127.0.0.1", "PLAINTEXT", "127.0.0.1:1"
    principal, security_protocol = Principal("User", "alice"), "SSL"

    def __init__(self) -> None:
        self.kinds: dict[int, RequestKind] = {}

    def hold_request(self, size: int) -> None:
        """Charge it to no limit."""

    def release_request(self, size: int) -> None:
        """Give nothing back."""


def dispatched(dispatcher: Dispatcher, request: Request, version: int) -> Waiting[object]:
    frame = memoryview(bytearray(request_bytes(request, version)))
    reply = dispatcher.dispatch(cast("Connection", FakeConnection()), frame)
    assert isinstance(reply, Waiting)
    return cast("Waiting[object]", reply)


def heartbeat() -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def test_who_hangs_up_cancels_reading_and_waiting_but_no_change() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        dispatcher = Dispatcher(HandlerRegistry([handlers]), ManualClock(), ClientQuotas(ManualClock()))
        replies = [
            dispatched(dispatcher, ListGroupsRequest(), 4),
            dispatched(dispatcher, DeleteGroupsRequest(groups_names=["g"]), 2),
            dispatched(dispatcher, heartbeat(), 4),
        ]
        assert [bool(reply.lets_pass) for reply in replies] == [False, False, True]
        await asyncio.sleep(0)
        for reply in replies:
            reply.future.cancel()
        await asyncio.sleep(0.01)
        assert handlers.ended == ["read: cancelled"]
        assert handlers.waiting.cancelled()
        handlers.go_on.set()
        await dispatcher.drain()
        assert handlers.ended == ["read: cancelled", "written"]

    asyncio.run(scenario())


def test_what_is_written_is_charged_to_who_hangs_up() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        quotas = ClientQuotas(clock)
        dispatcher = Dispatcher(HandlerRegistry([Producing()]), clock, quotas)
        quotas.produce.set_limits(QuotaLimits({("alice", None): 1000.0}))
        quotas.is_limited = True
        for _ in range(2):
            dispatched(dispatcher, produce("t", [b"x" * 10_000], acks=-1), 9).future.cancel()
        await asyncio.sleep(0.01)
        ((sharers, usage),) = list(quotas.produce)
        assert (sharers.user, usage.rate.total(clock.ms) > 20_000) == ("alice", True)

    asyncio.run(scenario())


def test_a_client_id_is_that_of_the_request_however_often_it_changes() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        dispatcher = Dispatcher(HandlerRegistry([handlers]), ManualClock(), ClientQuotas(ManualClock()))
        connection = cast("Connection", FakeConnection())
        asked = [
            (4, "a"),
            (4, "a"),
            (3, "a"),
            (4, "b"),
            (3, None),
            (4, "ab"),
            (4, None),
            (4, ""),
            (4, "x" * 300),
            (3, "a"),
        ]
        dispatched = []
        for number, (version, client_id) in enumerate(asked):
            header = RequestHeader(
                request_api_key=int(ApiKey.HEARTBEAT),
                request_api_version=version,
                correlation_id=number,
                client_id=client_id,
            )
            frame = header.to_bytes(ApiKey.HEARTBEAT.request_header_version(version)) + heartbeat().to_bytes(version)
            handlers.waiting = asyncio.get_running_loop().create_future()
            handlers.waiting.set_result(HeartbeatResponse(throttle_time_ms=0, error_code=0))
            dispatched.append(dispatcher.dispatch(connection, memoryview(bytearray(frame))))
        found = [(context.api_version, context.client_id) for context in handlers.contexts]
        assert found == asked
        assert {(str(each.principal), each.security_protocol) for each in handlers.contexts} == {("User:alice", "SSL")}
        assert len(connection.kinds) == 2, "one for each version, not for each client id"
        replies = [await reply.future for reply in cast("list[Waiting[Parts]]", dispatched)]
        numbers = [struct.unpack_from(">i", reply[0], 4)[0] for reply in replies]
        assert numbers == list(range(len(asked)))

    asyncio.run(scenario())


@pytest.mark.parametrize(("request_", "version"), [(heartbeat(), -1), (heartbeat(), 5), (DescribeClusterRequest, 0)])
def test_what_is_not_served_closes_the_connection_every_time(request_: Request, version: int) -> None:
    async def scenario() -> None:
        dispatcher = Dispatcher(HandlerRegistry([Handlers()]), ManualClock(), ClientQuotas(ManualClock()))
        key = int(request_.api_key)
        frame = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + bytes(4) + b"\xff\xff\0"
        for _ in range(2):
            with pytest.raises(CloseConnection):
                dispatcher.dispatch(cast("Connection", FakeConnection()), memoryview(bytearray(frame)))

    asyncio.run(scenario())


def test_work_in_slices_lets_others_have_their_turn() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        done = []
        async for item in in_slices(range(10), clock):
            done.append(item)
            clock.ms += 2
        assert done == list(range(10))
        assert turns == 3
        counting.cancel()

    asyncio.run(scenario())


def test_a_request_that_fails_is_in_no_cycle() -> None:
    """The traceback of its error refers to everything that was decoded: it would stay until a garbage collection finds
    it.
    """

    class Failing:
        @api(ApiKey.DELETE_GROUPS, versions=(0, 2), right=EVERYBODY, whole="it is small")
        async def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
            raise MemoryError

    async def scenario() -> None:
        dispatcher = Dispatcher(HandlerRegistry([Failing()]), SystemClock(), ClientQuotas(SystemClock()))
        connection = cast("Connection", FakeConnection())
        request = request_bytes(DeleteGroupsRequest(groups_names=["g"] * 2000), 1)
        small = request_bytes(DeleteGroupsRequest(groups_names=["g"]), 1)
        with cycles_of_ours() as found:
            for frame, error in ((request, MemoryError), (request[:-1], DecodeError)):
                reply = cast("Waiting[Parts]", dispatcher.dispatch(connection, memoryview(bytearray(frame))))
                await asyncio.wait([reply.future])
                assert isinstance(reply.future.exception(), error)
            del reply
            with pytest.raises(DecodeError):
                dispatcher.dispatch(connection, memoryview(bytearray(small[:-1])))
            await turns()
        assert not found

    asyncio.run(scenario())
