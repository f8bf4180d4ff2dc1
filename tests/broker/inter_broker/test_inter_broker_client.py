"""A connection between brokers: no negotiation, requests in order, reopened after a loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.inter_broker.inter_broker_client import Address, InterBrokerClient
from client.environment import LoopNetwork, P
from client.errors import DisconnectedError
from protocol.api_keys import ApiKey
from protocol.messages.cluster_requests import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.headers import RequestHeader
from protocol.wire.schema import Request
from tests.broker.network.test_closed_connections import cycles_of_ours
from tests.client.scripted_broker import Peer, broker
from tests.kit.broker_process import free_port
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import turns


class OtherBroker:
    """Answers AllocateProducerIds with the broker id in the request, and records everything."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.headers: list[RequestHeader] = []
        self.peers: list[Peer] = []
        self.hangs_up = 0
        """How many of the next requests end their connection instead of being answered."""
        self.is_silent = False

    async def answer(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        assert isinstance(request, AllocateProducerIdsRequest)
        self.asked.append(request.broker_id)
        self.headers.append(header)
        if peer not in self.peers:
            self.peers.append(peer)
        if self.hangs_up:
            self.hangs_up -= 1
            raise ConnectionResetError
        if not self.is_silent:
            peer.reply(header.correlation_id, block(request.broker_id), header.request_api_version)


def block(first: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(throttle_time_ms=0, error_code=0, producer_id_start=first, producer_id_len=1)


@asynccontextmanager
async def other_broker() -> AsyncIterator[tuple[OtherBroker, int]]:
    """A broker that negotiates nothing: an ApiVersions request would end the connection."""
    other = OtherBroker()

    async def refuse(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        raise AssertionError("brokers do not negotiate")

    async with broker({ApiKey.ALLOCATE_PRODUCER_IDS: other.answer, ApiKey.API_VERSIONS: refuse}) as port:
        yield other, port


def client_of(address: int | Callable[[], Address | None], request_timeout_ms: int = 60_000) -> InterBrokerClient:
    there = address if callable(address) else ("127.0.0.1", address)
    return InterBrokerClient(LoopNetwork(), there, "broker-1-to-2", request_timeout_ms)


async def ask(client: InterBrokerClient, number: int, timeout_ms: int | None = None) -> int:
    request = AllocateProducerIdsRequest(broker_id=number)
    return (await client.ask(request, AllocateProducerIdsResponse, 0, timeout_ms)).producer_id_start


@in_loop
async def test_requests_are_answered_without_a_negotiation() -> None:
    async with other_broker() as (other, port):
        client = client_of(port)
        assert not client.is_connected
        assert await ask(client, 7) == 7
        assert client.is_connected
        assert other.headers[0].client_id == "broker-1-to-2"
        client.close()


@in_loop
async def test_requests_leave_in_the_order_in_which_they_were_asked() -> None:
    async with other_broker() as (other, port):
        client = client_of(port)
        assert await asyncio.gather(*(ask(client, number) for number in range(50))) == list(range(50))
        assert other.asked == list(range(50))
        assert len(other.peers) == 1
        client.close()


@in_loop
async def test_a_late_request_does_not_overtake_those_that_waited_for_the_connection() -> None:
    async with other_broker() as (other, port):
        client = client_of(port)
        first = [asyncio.ensure_future(ask(client, number)) for number in range(3)]
        while not client.is_connected:
            await asyncio.sleep(0)
        await ask(client, 3)
        await asyncio.gather(*first)
        assert other.asked == [0, 1, 2, 3]
        client.close()


@in_loop
async def test_a_lost_connection_is_an_error_and_the_next_request_opens_another() -> None:
    async with other_broker() as (other, port):
        client = client_of(port)
        await ask(client, 1)
        other.hangs_up = 1
        with pytest.raises(DisconnectedError):
            await ask(client, 2)
        assert await ask(client, 3) == 3
        assert len(other.peers) == 2
        client.close()


@in_loop
async def test_attempts_that_fail_are_in_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers retry while another one is away: its requests would stay until a garbage collection finds them."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # pytest keeps log records
    async with other_broker() as (other, port):
        away, leaving, closed = client_of(free_port()), client_of(port), client_of(port)
        closed.close()
        with cycles_of_ours() as found:
            for number in range(3):
                other.hangs_up = 1
                for client in (away, leaving, closed):
                    with contextlib.suppress(DisconnectedError):
                        await ask(client, number)
            await turns()
        assert not found
        away.close()
        leaving.close()


@in_loop
async def test_an_answer_that_takes_too_long_ends_the_connection() -> None:
    async with other_broker() as (other, port):
        client = client_of(port)
        other.is_silent = True
        with pytest.raises(DisconnectedError, match="not answered in time"):
            await ask(client, 1, timeout_ms=20)
        other.is_silent = False
        assert await ask(client, 2) == 2
        client.close()


@in_loop
async def test_a_broker_that_moved_is_found_at_its_new_address() -> None:
    async with other_broker() as (before, old_port), other_broker() as (after, new_port):
        address: Address | None = None
        client = client_of(lambda: address)
        with pytest.raises(DisconnectedError, match="not known"):
            await ask(client, 1)
        address = ("127.0.0.1", old_port)
        await ask(client, 2)
        address = ("127.0.0.1", new_port)
        await ask(client, 3)
        assert (before.asked, after.asked) == ([2], [3])
        client.close()


@in_loop
async def test_nobody_there_is_an_error_that_says_so() -> None:
    async with other_broker() as (_, port):
        pass
    client = client_of(port)
    with pytest.raises(DisconnectedError, match="Connection refused"):
        await ask(client, 1)
    client.close()


@in_loop
async def test_closing_ends_what_waits_and_what_comes() -> None:
    async with other_broker() as (other, port):
        client = client_of(port)
        other.is_silent = True
        waiting = asyncio.ensure_future(ask(client, 1))
        while not other.asked:
            await asyncio.sleep(0)
        client.close()
        for each in (waiting, ask(client, 2)):
            with pytest.raises(DisconnectedError, match="closed"):
                await each
        assert other.asked == [1]


class HeldNetwork:
    """Connections are never opened."""

    def __init__(self) -> None:
        self.tries = 0

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        self.tries += 1
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing ends the future")


@in_loop
async def test_closing_ends_a_connection_that_is_being_opened() -> None:
    network = HeldNetwork()
    client = InterBrokerClient(network, ("127.0.0.1", 1), "test", 60_000)
    waiting = [asyncio.ensure_future(ask(client, number)) for number in range(2)]
    while not network.tries:
        await asyncio.sleep(0)
    client.close()
    for each in waiting:
        with pytest.raises(DisconnectedError, match="closed"):
            await each
    assert network.tries == 1


@in_loop
async def test_a_cancelled_request_does_not_disturb_the_next() -> None:
    network = HeldNetwork()
    held = InterBrokerClient(network, ("127.0.0.1", 1), "test", 60_000)
    connecting = asyncio.ensure_future(ask(held, 1))
    while not network.tries:
        await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    async with other_broker() as (other, port):
        client = client_of(port)
        given_up = asyncio.ensure_future(ask(client, 1))
        while not other.asked:
            await asyncio.sleep(0)
        given_up.cancel()
        assert await ask(client, 2) == 2
        assert len(other.peers) == 1
        client.close()


@in_loop
async def test_records_of_an_answer_are_slices_of_what_was_received() -> None:
    records = b"x" * 100_000
    partition = FetchResponse.PartitionData(partition_index=0, error_code=0, high_watermark=5, records=records)
    topic = FetchResponse.FetchableTopicResponse(partitions=[partition])

    async def fetch(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        peer.reply(header.correlation_id, FetchResponse(responses=[topic]), header.request_api_version)

    async with broker({ApiKey.FETCH: fetch}) as port:
        client = client_of(port)
        response = await client.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[]), FetchResponse, 17)
        read = response.responses[0].partitions[0].records
        assert isinstance(read, memoryview)
        assert read == records
        assert len(read.obj) > len(records)
        client.close()
