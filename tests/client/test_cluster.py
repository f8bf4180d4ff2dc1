"""A broker comes back at another address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from protocol.api_keys import ApiKey
from protocol.messages.coordinators import FindCoordinatorResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.wire.schema import Request
from tests.client.scripted_broker import Peer, broker

MOVING = 7
SETTINGS = {"retry.backoff.ms": "1", "default.api.timeout.ms": "20000"}


class MovingBroker:
    """The address of broker 7 in the metadata of all brokers."""

    def __init__(self) -> None:
        self.port = 0

    async def metadata(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        node = MetadataResponse.MetadataResponseBroker(node_id=MOVING, host="127.0.0.1", port=self.port, rack=None)
        response = MetadataResponse(brokers=[node], controller_id=MOVING, topics=[])
        peer.reply(header.correlation_id, response, header.request_api_version)

    async def coordinator(self, peer: Peer, header: RequestHeader, request: Request | None) -> None:
        found = FindCoordinatorResponse.Coordinator(
            key="g", node_id=MOVING, host="127.0.0.1", port=self.port, error_code=0, error_message=None
        )
        response = FindCoordinatorResponse(coordinators=[found])
        peer.reply(header.correlation_id, response, header.request_api_version)


def check_that_it_is_found(ask: Callable[[KafkaClient], Awaitable[MetadataResponse]]) -> None:
    async def run() -> None:
        moving = MovingBroker()
        answered: list[int] = []

        async def note(peer: Peer, header: RequestHeader, request: Request | None) -> None:
            answered.append(moving.port)
            await moving.metadata(peer, header, request)

        async with broker({ApiKey.METADATA: moving.metadata, ApiKey.FIND_COORDINATOR: moving.coordinator}) as other:
            settings = ClientSettings.parse({"bootstrap.servers": f"127.0.0.1:{other}", **SETTINGS})
            async with KafkaClient(settings) as client:
                for _ in range(3):
                    async with broker({ApiKey.METADATA: note}) as moving.port:
                        await client.any_connection()
                        await ask(client)
                        assert answered.pop() == moving.port

    asyncio.run(run())


def test_by_its_id() -> None:
    check_that_it_is_found(lambda client: client.ask_node(MOVING, "ask", MetadataRequest(topics=[]), MetadataResponse))


def test_as_the_coordinator_of_a_group() -> None:
    check_that_it_is_found(
        lambda client: client.ask_coordinator(
            "ask", "g", MetadataRequest(topics=[]), MetadataResponse, lambda response: ()
        )
    )
