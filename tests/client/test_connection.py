"""One connection: versions, pipelining, deadlines, and misbehaving peers."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from client.broker_connection import BrokerConnection, connect
from client.environment import LoopNetwork
from client.errors import DisconnectedError, UnsupportedVersionError
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.messages.fetch import FetchRequest
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.wire.frames import ReceiveBuffer
from protocol.wire.schema import Request
from tests.client.scripted_broker import Answer, Peer, broker, connected


def metadata(controller_id: int) -> MetadataResponse:
    return MetadataResponse(brokers=[], controller_id=controller_id, topics=[])


async def answer_by_correlation_id(peer: Peer, header: RequestHeader, request: Request | None) -> None:
    peer.reply(header.correlation_id, metadata(header.correlation_id), header.request_api_version)


async def ask(connection: BrokerConnection) -> MetadataResponse:
    return await connection.ask(MetadataRequest(topics=[]), MetadataResponse)


def test_versions_are_negotiated_and_answers_come_in_order() -> None:
    async def run() -> None:
        async with connected({ApiKey.METADATA: answer_by_correlation_id}) as connection:
            assert connection.version_of(MetadataRequest) == 12
            assert connection.version_of(MetadataRequest, at_most=5) == 5
            with pytest.raises(UnsupportedVersionError, match="FETCH"):
                connection.version_of(FetchRequest)
            with pytest.raises(UnsupportedVersionError, match="METADATA"):
                connection.version_of(MetadataRequest, at_most=0)
            answers = await asyncio.gather(*(ask(connection) for _ in range(50)))
            first = answers[0].controller_id
            assert [each.controller_id for each in answers] == list(range(first, first + 50))
            assert connection.in_flight == 0

    asyncio.run(run())


def test_a_broker_that_does_not_know_the_newest_api_versions() -> None:
    asked: list[int] = []

    async def old(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        asked.append(header.request_api_version)
        is_known = header.request_api_version <= 2
        response = ApiVersionsResponse(
            error_code=0 if is_known else ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2),
                ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=1),
            ],
        )
        peer.reply(header.correlation_id, response, header.request_api_version if is_known else 0)

    async def run() -> None:
        async with connected({ApiKey.API_VERSIONS: old}) as connection:
            assert connection.version_of(MetadataRequest) == 1

    asyncio.run(run())
    assert asked == [4, 2]


def check_that_asking_fails(answer: Answer, reason: str, request_timeout_ms: int = 60_000) -> None:
    async def run() -> None:
        async with connected({ApiKey.METADATA: answer}, request_timeout_ms) as connection:
            with pytest.raises(DisconnectedError, match=reason):
                await ask(connection)
            assert not connection.is_open
            with pytest.raises(DisconnectedError):
                await ask(connection)

    asyncio.run(run())


def test_an_answer_that_does_not_come_ends_the_connection() -> None:
    async def silent(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        await asyncio.sleep(0)

    check_that_asking_fails(silent, "not answered in time", request_timeout_ms=50)


def test_a_longer_timeout_does_not_hide_a_shorter_one() -> None:
    async def silent(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        await asyncio.sleep(0)

    async def run() -> None:
        async with connected({ApiKey.METADATA: silent}) as connection:
            patient = connection.send(MetadataRequest(topics=[]), MetadataResponse, timeout_ms=60_000)
            with pytest.raises(DisconnectedError):
                await connection.ask(MetadataRequest(topics=[]), MetadataResponse, timeout_ms=50)
            assert isinstance(patient.exception(), DisconnectedError)

    # The first deadline is checked when its timer fires: the second request must not wait for that.
    asyncio.run(asyncio.wait_for(run(), 30))


def test_an_answer_to_something_else_ends_the_connection() -> None:
    async def confused(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        peer.reply(header.correlation_id + 1, metadata(0), header.request_api_version)

    check_that_asking_fails(confused, "correlation id")


def test_bytes_that_are_no_answer_end_the_connection() -> None:
    async def garbled(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        peer.send(header.correlation_id.to_bytes(4, "big") + b"\0\xff\xff\xff")

    check_that_asking_fails(garbled, "MetadataResponse v12")


def test_a_frame_above_the_bound_ends_the_connection_before_it_is_read() -> None:
    """CVE-2026-10142 of kafka-python."""

    async def huge(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        peer.writer.write((2**31 - 1).to_bytes(4, "big"))

    check_that_asking_fails(huge, "Invalid receive")


def test_a_broker_that_hangs_up() -> None:
    async def rude(peer: Peer, header: RequestHeader, request: Request | None) -> None:
        peer.writer.close()
        raise ConnectionError

    check_that_asking_fails(rude, "the broker closed it")


def test_who_stops_waiting_does_not_disturb_the_others() -> None:
    async def run() -> None:
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def slow(peer: Peer, header: RequestHeader, request: Request | None) -> None:
            asked.set()
            await may_answer.wait()
            await answer_by_correlation_id(peer, header, request)

        async with connected({ApiKey.METADATA: slow}) as connection:
            impatient = asyncio.create_task(ask(connection))
            await asked.wait()
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            may_answer.set()
            assert (await ask(connection)).controller_id > 0

    asyncio.run(run())


def test_a_plain_connection_to_a_listener_with_tls_says_what_may_be_wrong() -> None:
    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate: handshakes fail before they need it
        network = LoopNetwork()
        async with broker({}, context) as port:
            with pytest.raises(DisconnectedError, match=r"if the listener wants TLS, set security\.protocol"):
                await connect(
                    network, "127.0.0.1", port, client_id="test", request_timeout_ms=60_000, setup_timeout_ms=60_000,
                    receive_buffer=ReceiveBuffer(),
                )  # fmt: skip

    asyncio.run(run())
