"""The broker that coordinates a group or a transactional id: found when it is asked, kept until it is forgotten."""

from __future__ import annotations

from typing import TypeVar

from client.broker_connection import Connection
from client.errors import DisconnectedError
from client.kafka_client import COORDINATOR_ERRORS, CoordinatorType, KafkaClient
from protocol.errors import ApiError
from protocol.wire.schema import Request, Response

R = TypeVar("R", bound=Response)


class Coordinator:
    """The coordinator of `key`, on a connection of `purpose` (see `KafkaClient.node_connection`)."""

    def __init__(self, client: KafkaClient, key: str, key_type: CoordinatorType, purpose: str) -> None:
        self._client = client
        self._key = key
        self._key_type = key_type
        self._purpose = purpose
        self._node_id = -1

    async def connect(self, purpose: str | None = None) -> Connection:
        """The connection to it, of another purpose if one is given. Raises DisconnectedError, and ApiError while there
        is no coordinator.
        """
        if self._node_id < 0:
            self._node_id = await self._client.find_coordinator(self._key, self._key_type)
        return await self._client.node_connection(self._node_id, self._purpose if purpose is None else purpose)

    async def ask(
        self, request: Request, response_type: type[R], *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> R:
        """Ask it once, in no version above `at_most`; raises as `connect` and `Connection.ask`."""
        connection = await self.connect()
        return await connection.ask(request, response_type, connection.version_of(type(request), at_most), timeout_ms)

    def forget(self) -> None:
        """Look for it again before it is asked: it has moved, or does not answer."""
        self._node_id = -1

    def forget_after(self, error: ApiError | DisconnectedError) -> None:
        """Look for it again if the error says that it has moved, or does not answer."""
        if isinstance(error, DisconnectedError) or error.error_code in COORDINATOR_ERRORS:
            self.forget()
