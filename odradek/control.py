"""A client of the control API of one broker, and the exceptions of the package. docs/control-api.md lists the
requests.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from http.client import HTTPConnection

PATIENCE_S = 60.0
_OK = 200
_CONFLICT = 409


class OdradekError(Exception):
    """Something that was asked of a broker failed; the message says what, and why."""


class KafkaError(OdradekError):
    """The broker answered with an error of Kafka; `name` is Kafka's name of it, such as `TOPIC_ALREADY_EXISTS`."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.name = name


class ExpectationError(OdradekError, AssertionError):
    """A test waited for something that did not happen in time."""


Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """A record of a topic. `timestamp` is milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class Control:
    """Requests to one broker. Each thread has a separate connection."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token
        self._local = threading.local()
        self._connections: list[HTTPConnection] = []

    @property
    def url(self) -> str:
        """The address of the API."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Close the connections of all threads."""
        while self._connections:
            self._connections.pop().close()

    def _connection(self) -> HTTPConnection:
        from http.client import HTTPConnection  # takes 20 ms, which tests without a broker need not spend

        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Send a request; returns the JSON of the answer. Raises KafkaError, OdradekError."""
        given = {name: value for name, value in query.items() if value is not None}
        target = f"/v1/{quote(path)}" + (f"?{urlencode(given)}" if given else "")
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        from http.client import HTTPException

        connection = self._connection()
        try:
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException) as error:
            connection.close()
            raise OdradekError(f"the broker does not answer {method} {target}: {error!r}") from error
        if response.status == _OK:
            return answer
        if response.status == _CONFLICT:
            raise KafkaError(answer["error_name"], answer["error"])
        raise OdradekError(answer["error"])

    def records(self, topic: str, partition: int | None, first: int, isolation: str) -> list[Record]:
        """Records of the partitions that this broker leads, by partition and offset."""
        found = self.ask("GET", "records", topic=topic, partition=partition, isolation=isolation, **{"from": first})
        return [
            Record(
                topic,
                each["partition"],
                each["offset"],
                each["timestamp"],
                _bytes(each["key"]),
                _bytes(each["value"]),
                tuple((name, _bytes(value)) for name, value in each["headers"]),
            )
            for each in found["records"]
        ]

    def append(self, topic: str, partition: int, records: Iterable[Mapping[str, Any]]) -> int:
        """Append records; returns the offset of the first one."""
        encoded = [
            {
                **each,
                "key": _base64(each.get("key")),
                "value": _base64(each.get("value")),
                "headers": [[name, _base64(value)] for name, value in each.get("headers", ())],
            }
            for each in records
        ]
        answer = self.ask("POST", "records", {"topic": topic, "partition": partition, "records": encoded})
        offset: int = answer["offset"]
        return offset


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _base64(data: bytes | str | None) -> str | None:
    raw = data.encode() if isinstance(data, str) else data
    return None if raw is None else base64.b64encode(raw).decode()
