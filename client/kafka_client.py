"""The client's view of a cluster: bootstrap, connections by broker, metadata, coordinators, retries.

Requests go to a broker by its role (`ask_any`, `ask_node`, `ask_controller`, `ask_coordinator`). After a lost
connection or a retriable error code they are retried with growing pauses (KIP-580) until `default.api.timeout.ms`; then
the last failure is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from types import TracebackType
from typing import Final, Self, TypeVar

from client.broker_connection import BrokerConnection, connect
from client.environment import LoopNetwork, Network, Random, system_random
from client.errors import ClientTimeoutError, DisconnectedError, NoBrokerError, SettingsError
from client.metadata import Metadata, Node
from client.settings import ClientSettings
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.wire.frames import ReceiveBuffer
from protocol.wire.schema import Request, Response

logger = logging.getLogger("kafka.clients.NetworkClient")

R = TypeVar("R", bound=Response)
T = TypeVar("T")

COORDINATOR: Final = "coordinator"
FETCH: Final = "fetch"
TRANSACTION: Final = "transaction"
"""Purposes of connections (`node_connection`)."""


class CoordinatorType(IntEnum):
    """Kinds of coordinators (Kafka class `FindCoordinatorRequest.CoordinatorType`)."""

    GROUP = 0
    TRANSACTION = 1


_Address = tuple[str, int, str]
_JITTER: Final = 0.2


class Backoff:
    """Pauses between attempts: they double up to a limit, with jitter, so that clients do not retry in step."""

    def __init__(self, initial_ms: int, limit_ms: int, rng: Random) -> None:
        self._initial_ms = initial_ms
        self._limit_ms = max(limit_ms, initial_ms)
        self._rng = rng
        self._attempts = 0

    def next_s(self) -> float:
        """The next pause in seconds."""
        pause_ms = min(self._initial_ms << min(self._attempts, 30), self._limit_ms)
        self._attempts += 1
        return pause_ms / 1000 * self._rng.uniform(1 - _JITTER, 1 + _JITTER)


class KafkaClient:
    """Connections to a cluster. Use as an async context manager, or call `close`."""

    def __init__(self, settings: ClientSettings, rng: Random | None = None, network: Network | None = None) -> None:
        self.settings = settings
        self.rng = system_random() if rng is None else rng
        self._network = _network(settings) if network is None else network
        self._receive_buffer = ReceiveBuffer()
        self._nodes: dict[int, Node] = {}
        self._unreachable: set[int] = set()
        """Nodes that were unreachable at their addresses: the metadata is refreshed before the next attempt."""
        self._connections: dict[_Address, BrokerConnection] = {}
        self._connecting: dict[_Address, asyncio.Lock] = {}
        self._bootstrap = list(settings.bootstrap_servers)
        self._controller_id = -1
        self._first_failure_s: float | None = None
        """Loop time of the first failed bootstrap."""
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the client opens no more connections."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def backoff(self) -> Backoff:
        """A backoff with `retry.backoff.ms` and `retry.backoff.max.ms`."""
        return Backoff(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms, self.rng)

    # -- connections ---------------------------------------------------------------------------------------------------

    async def any_connection(self) -> BrokerConnection:
        """An open connection to any broker, or a new one to the first reachable broker.

        Raises DisconnectedError, and NoBrokerError when a retry is pointless.
        """
        for (_, _, purpose), connection in self._connections.items():
            if connection.is_open and not purpose:
                return connection
        failure: DisconnectedError | None = None
        self._check_open()
        known = [(node.host, node.port) for node in self._nodes.values()]
        for address in [*known, *(each for each in self._bootstrap if each not in known)]:
            try:
                return await self._connect(*address)
            except DisconnectedError as error:
                failure = detached(error)
                logger.warning("%s. Broker may not be available.", error)
        self._check_bootstrap_timeout(failure)
        raise failure or DisconnectedError("no broker is known")

    def _check_bootstrap_timeout(self, failure: DisconnectedError | None) -> None:
        """Raise NoBrokerError if no broker has ever responded and `bootstrap_timeout_ms` is over."""
        limit_ms = self.settings.bootstrap_timeout_ms
        if limit_ms is None or self._connections:
            return
        now_s = asyncio.get_running_loop().time()
        if self._first_failure_s is None:
            self._first_failure_s = now_s
        # The pause before the next attempt may last a second, and so may the attempt.
        if now_s - self._first_failure_s > limit_ms / 1000 - 1:
            raise NoBrokerError(f"No broker answered within {limit_ms / 1000:.0f} s: {failure}")

    async def node_connection(self, node_id: int, purpose: str = "") -> BrokerConnection:
        """The connection to one broker; each `purpose` has a separate one.

        Brokers serve the requests of a connection one after the other, so requests that may wait long (a join, a fetch)
        must not share a connection with others. Raises DisconnectedError if the broker is unknown or unreachable.
        """
        if node_id not in self._nodes or node_id in self._unreachable:
            await self.fetch_metadata([])
        node = self._nodes.get(node_id)
        if node is None:
            raise DisconnectedError(f"broker {node_id} is not known in the cluster")
        try:
            return await self._connect(node.host, node.port, purpose)
        except DisconnectedError:
            self._unreachable.add(node_id)
            raise

    def is_connected(self, node_id: int) -> bool:
        """Whether `node_connection` already has an open connection to this broker."""
        node = self._nodes.get(node_id)
        if node is None or node_id in self._unreachable:
            return False
        connection = self._connections.get((node.host, node.port, ""))
        return connection is not None and connection.is_open

    def known_nodes(self) -> list[Node]:
        """The brokers of the last metadata, by id."""
        return [self._nodes[node_id] for node_id in sorted(self._nodes)]

    async def _connect(self, host: str, port: int, purpose: str = "") -> BrokerConnection:
        address = (host, port, purpose)
        async with self._connecting.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is not None and connection.is_open:
                return connection
            self._check_open()
            connection = await connect(
                self._network,
                host,
                port,
                client_id=self.settings.client_id,
                request_timeout_ms=self.settings.request_timeout_ms,
                setup_timeout_ms=self.settings.connection_setup_timeout_ms,
                receive_buffer=self._receive_buffer,
            )
            try:
                self._check_open()  # it may have been closed meanwhile
            except DisconnectedError:
                connection.close()
                raise
            self._connections[address] = connection
            return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise DisconnectedError("the client is closed")

    # -- requests ------------------------------------------------------------------------------------------------------

    async def retry(self, what: str, attempt: Callable[[], Awaitable[T]], timeout_ms: int | None = None) -> T:
        """Call `attempt` until it succeeds, fails permanently or times out.

        Raises the last error of `attempt`: an ApiError unchanged, but ClientTimeoutError, naming `what`, instead of
        DisconnectedError.
        """
        limit_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = asyncio.get_running_loop().time() + limit_ms / 1000
        backoff = self.backoff()
        failure: ApiError | DisconnectedError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError:
                raise _timed_out(what, failure) from failure
            except (ApiError, DisconnectedError) as error:
                failure = detached(error)
            if isinstance(failure, ApiError) and not failure.error_code.retriable:
                raise detached(failure)
            pause_s = backoff.next_s()
            if asyncio.get_running_loop().time() + pause_s > deadline:
                if isinstance(failure, ApiError):
                    raise detached(failure)
                raise _timed_out(what, failure) from failure
            await asyncio.sleep(pause_s)

    async def ask_any(self, what: str, request: Request, response_type: type[R]) -> R:
        """Ask any reachable broker. The caller handles error codes in the response."""

        async def attempt() -> R:
            return await (await self.any_connection()).ask(request, response_type)

        return await self.retry(what, attempt)

    async def ask_node(self, node_id: int, what: str, request: Request, response_type: type[R]) -> R:
        """Ask one broker. The caller handles error codes in the response."""

        async def attempt() -> R:
            return await (await self.node_connection(node_id)).ask(request, response_type)

        return await self.retry(what, attempt)

    async def ask_controller(
        self, what: str, request: Request, response_type: type[R], error_codes: Callable[[R], Iterable[int]]
    ) -> R:
        """Ask the controller, and retry at the new one if `error_codes` of the response say that it moved."""

        async def attempt() -> R:
            if self._controller_id < 0:
                await self.fetch_metadata([])
            if self._controller_id < 0:
                raise ApiError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller")
            try:
                response = await (await self.node_connection(self._controller_id)).ask(request, response_type)
            except DisconnectedError:
                self._controller_id = -1
                raise
            if ErrorCode.NOT_CONTROLLER in error_codes(response):
                self._controller_id = -1
                raise ApiError(ErrorCode.NOT_CONTROLLER, "the controller moved")
            return response

        return await self.retry(what, attempt)

    async def find_coordinator(self, key: str, key_type: CoordinatorType = CoordinatorType.GROUP) -> int:
        """The broker that coordinates a group or a transactional id.

        Raises ApiError, also for retriable error codes.
        """
        connection = await self.any_connection()
        version = connection.version_of(FindCoordinatorRequest)
        if version >= 4:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        else:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
        response = await connection.ask(request, FindCoordinatorResponse, version)
        if version >= 4:
            found = response.coordinators[0]
        else:
            found = FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=response.node_id,
                host=response.host,
                port=response.port,
                error_code=response.error_code,
                error_message=response.error_message,
            )
        if found.error_code:
            raise ApiError(ErrorCode.of(found.error_code), found.error_message or "")
        self._nodes[found.node_id] = Node(found.node_id, found.host, found.port)
        self._unreachable.discard(found.node_id)
        return found.node_id

    async def ask_coordinator(
        self,
        what: str,
        group_id: str,
        request: Request,
        response_type: type[R],
        error_codes: Callable[[R], Iterable[int]],
    ) -> R:
        """Ask a group's coordinator, and retry while `error_codes` of the response say that it moves or loads its
        state.
        """

        async def attempt() -> R:
            node_id = await self.find_coordinator(group_id)
            response = await (await self.node_connection(node_id)).ask(request, response_type)
            for code in error_codes(response):
                if code in COORDINATOR_ERRORS:
                    raise ApiError(ErrorCode.of(code), f"the coordinator of group '{group_id}' is not available yet")
            return response

        return await self.retry(what, attempt)

    # -- metadata ------------------------------------------------------------------------------------------------------

    async def fetch_metadata(self, topics: list[str] | None, *, allow_auto_topic_creation: bool = False) -> Metadata:
        """Brokers, controller and `topics` (None: all) in any state. Raises DisconnectedError."""
        wanted = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=None if topics is None else [wanted(name=name) for name in topics],
            allow_auto_topic_creation=allow_auto_topic_creation,
        )
        connection = await self.any_connection()
        found = Metadata.of(await connection.ask(request, MetadataResponse))
        if found.nodes:
            self._nodes = dict(found.nodes)
            self._unreachable.clear()
        self._controller_id = found.controller_id
        return found

    async def describe_topics(self, topics: list[str] | None) -> Metadata:
        """`fetch_metadata`, retried while no broker is reachable. Raises ClientTimeoutError."""
        return await self.retry("describeTopics", lambda: self.fetch_metadata(topics))


def _network(settings: ClientSettings) -> Network:
    """Raises SettingsError for unusable TLS stores."""
    if settings.channel is None:
        return LoopNetwork()
    from client.secured_network import SecuredNetwork
    from config.definitions import ConfigError

    try:
        return SecuredNetwork(settings.channel)
    except ConfigError as error:
        raise SettingsError(str(error)) from error


def _timed_out(what: str, failure: ApiError | DisconnectedError | None) -> ClientTimeoutError:
    """Kafka's message for a call that timed out, with the last broker tried."""
    tried = f" ({failure})" if isinstance(failure, DisconnectedError) else ""
    return ClientTimeoutError(f"Timed out waiting for a node assignment. Call: {what}{tried}")


COORDINATOR_ERRORS: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Coordinator:
    """The coordinator of `key`, on a connection of `purpose` (see `KafkaClient.node_connection`)."""

    def __init__(self, client: KafkaClient, key: str, key_type: CoordinatorType, purpose: str) -> None:
        self._client = client
        self._key = key
        self._key_type = key_type
        self._purpose = purpose
        self._node_id = -1

    async def connect(self, purpose: str | None = None) -> BrokerConnection:
        """The connection to the coordinator, for another purpose if given. Raises DisconnectedError, and ApiError while
        the coordinator is not available.
        """
        if self._node_id < 0:
            self._node_id = await self._client.find_coordinator(self._key, self._key_type)
        return await self._client.node_connection(self._node_id, self._purpose if purpose is None else purpose)

    async def ask(
        self, request: Request, response_type: type[R], *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> R:
        """Ask the coordinator once, in a version up to `at_most`; raises as `connect` and `BrokerConnection.ask`."""
        connection = await self.connect()
        return await connection.ask(request, response_type, connection.version_of(type(request), at_most), timeout_ms)

    def forget(self) -> None:
        """Find the coordinator again before the next request: it has moved or is unreachable."""
        self._node_id = -1

    def forget_after(self, error: ApiError | DisconnectedError) -> None:
        """Find the coordinator again if the error says that it has moved or is unreachable."""
        if isinstance(error, DisconnectedError) or error.error_code in COORDINATOR_ERRORS:
            self.forget()
