"""How group dialogues are run: the fixture, its requirements for a place, and a broker on the network as a place.

`local_place` is the other place: our handlers in this process.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from protocol.wire.schema import Request, Response
from tests.kit.wire_client import WireClient
from tests.parity.transcript import Mask, Plain

OFFSETS_PARTITIONS = 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "100",
    "group.max.session.timeout.ms": "20000",
    "group.max.size": "4",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.retention.check.interval.ms": "500",
}
"""The configuration of the recorded broker."""


class Connection(Protocol):
    """One connection; answers come in the order of the requests."""

    def send(self, request: Request, version: int) -> None: ...

    def receive(self, request_type: type[Request], version: int) -> Response: ...

    def ask(self, request: Request, version: int) -> Response: ...


class Place(Protocol):
    """A broker."""

    def connect(self, client_id: str) -> Connection: ...

    def sleep(self, seconds: float) -> None: ...

    def create_topic(self, name: str, partitions: int) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    @property
    def port(self) -> int: ...


class Remote:
    """A broker on the network."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self.port = port

    def connect(self, client_id: str) -> Connection:
        return WireClient(self._host, self.port, client_id)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def create_topic(self, name: str, partitions: int) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        with WireClient(self._host, self.port) as client:
            client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False), 5)
        time.sleep(0.3)

    def delete_topic(self, name: str) -> None:
        with WireClient(self._host, self.port) as client:
            client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)
        time.sleep(1)

    def await_coordinator(self, group_id: str) -> None:
        """Return when groups are served."""
        with WireClient(self._host, self.port) as client:
            for _ in range(200):
                response = client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), 4)
                assert isinstance(response, FindCoordinatorResponse)
                if response.coordinators[0].error_code == ErrorCode.NONE:
                    return
                time.sleep(0.1)
        raise AssertionError("no coordinator")


class GroupFixture:
    """A dialogue running at a place: its clients, and their recorded answers."""

    def __init__(self, place: Place, name: str, salt: str = "") -> None:
        self.place = place
        self.name = name
        self.mask = Mask(place.port, salt=salt)
        self.transcript: list[Plain] = []
        self._salt = salt
        self._connections: dict[str, Connection] = {}

    def group(self, suffix: str = "g") -> str:
        """A group id that only this dialogue uses."""
        return f"{self.name}-{suffix}{self._salt}"

    def topic(self, suffix: str = "t", partitions: int = 2) -> str:
        """Create a topic that only this dialogue uses."""
        name = f"{self.name}-{suffix}{self._salt}"
        self.place.create_topic(name, partitions)
        return name

    def connection(self, who: str) -> Connection:
        """The connection of `who`, which is also its client id."""
        if who not in self._connections:
            self._connections[who] = self.place.connect(who)
        return self._connections[who]

    def ask(self, who: str, request: Request, version: int) -> Any:
        """Send a request, and record the answer."""
        self.send(who, request, version)
        return self.receive(who, type(request), version)

    def send(self, who: str, request: Request, version: int) -> None:
        """Ask without waiting."""
        self.connection(who).send(request, version)

    def receive(self, who: str, request_type: type[Request], version: int) -> Any:
        """The recorded answer to the last request."""
        response = self.connection(who).receive(request_type, version)
        name = request_type.__name__.removesuffix("Request")
        self.transcript.append([f"{who} {name} v{version}", self.mask.plain(response)])
        return response

    def note(self, label: str, value: Any) -> None:
        """Write anything down."""
        self.transcript.append([label, self.mask.plain(value)])

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.place.sleep(seconds)

    def close(self) -> None:
        for connection in self._connections.values():
            if isinstance(connection, WireClient):
                connection.close()
