"""The common part of all drivers: a real client in a separate process, which answers each JSON line with another.

A driver knows its client and nothing of the tests; the tests know the commands below and nothing of the clients. It is
a process because group members die by being killed.

Commands are the methods of `Driver` and of its `Admin`: `{"do": "produce", "topic": ...}` is answered with
`{"ok": ...}`, or with `{"error": {"code": Kafka's error code or the client's own, "type": ..., "text": ...}}`. Bytes
are encoded as base64 text.
"""

from __future__ import annotations

import abc
import base64
import json
import queue
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from typing import Any, NamedTuple

PATIENCE_S = 50
"""Less than a test waits for an answer, so that the driver can report what is missing."""
METADATA_MAX_AGE_MS = 1000
"""Clients look for new topics and partitions this often: soon enough for a test."""
MAX_REQUEST_BYTES = 4_000_000
"""The clients' own limit, far above the broker's: the broker must refuse large records."""
STREAM_WINDOW = 1000
"""A stream waits while this many of its records are not acknowledged."""

Plain = Any
"""A JSON value."""


class Unsupported(Exception):
    """The client does not have this call."""


def to_bytes(text: str | None) -> bytes | None:
    """Decode bytes from a JSON value."""
    return None if text is None else base64.b64decode(text)


def to_text(data: bytes | None) -> str | None:
    """Encode bytes as a JSON value."""
    return None if data is None else base64.b64encode(data).decode()


class Patience:
    """A deadline `PATIENCE_S` from now."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + PATIENCE_S

    def left_s(self, what: str) -> float:
        """The remaining seconds. Raises TimeoutError with the progress if there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(what)
        return left


class Outgoing(NamedTuple):
    """A record to produce."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def outgoing(record: dict[str, Plain]) -> Outgoing:
    """Decode a record to produce from its JSON form."""
    return Outgoing(
        record["partition"],
        record["timestamp"],
        to_bytes(record["key"]),
        to_bytes(record["value"]),
        [(name, to_bytes(value)) for name, value in record["headers"]],
    )


def incoming(
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> dict[str, Plain]:
    """A consumed record in its JSON form."""
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms,
        "key": to_text(key),
        "value": to_text(value),
        "headers": [[name, to_text(data)] for name, data in headers],
    }


def record_of(record: Any) -> dict[str, Plain]:
    """A consumed record in its JSON form, from the record class of kafka-python and its forks."""
    return incoming(
        record.partition, record.offset, record.timestamp, record.key, record.value, list(record.headers or [])
    )


def name(partition: Any) -> str:
    """`topic-number` of a client's TopicPartition."""
    return f"{partition.topic}-{partition.partition}"


class Membership(NamedTuple):
    """The parameters of a member."""

    group: str
    topics: list[str]
    strategy: str
    instance: str | None
    session_timeout_ms: int


class Member(threading.Thread, abc.ABC):
    """One consumer in a group, polled continuously by one thread, since clients are not thread-safe.

    Auto-commit is off; without a committed offset it starts at the earliest.
    """

    def __init__(self, address: str, membership: Membership) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.membership = membership
        self._requests: queue.Queue[tuple[str, Future[None]]] = queue.Queue()
        self._assignment: set[str] = set()
        self._events: list[list[Plain]] = []
        self._records: list[dict[str, Plain]] = []
        self._failure: str | None = None

    @abc.abstractmethod
    def open(self) -> None:
        """Create the consumer and subscribe."""

    @abc.abstractmethod
    def poll(self) -> None:
        """Poll for at most 100 ms and pass the records to `received`."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Commit the positions."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Close the consumer cleanly."""

    def assigned(self, partitions: list[str], *, incremental: bool) -> None:
        """Record that the client reported these partitions (`topic-number`) as new, or as its whole assignment."""
        self._assignment = self._assignment | set(partitions) if incremental else set(partitions)
        self._events.append(["assigned", sorted(partitions)])

    def revoked(self, partitions: list[str]) -> None:
        """Record that the client reported these partitions as revoked."""
        self._assignment -= set(partitions)
        self._events.append(["revoked", sorted(partitions)])

    def received(self, record: dict[str, Plain]) -> None:
        """Record that the client read a record."""
        self._records.append(record)

    def state(self) -> dict[str, Plain]:
        """All events so far."""
        return {
            "assignment": sorted(self._assignment),
            "events": list(self._events),
            "records": list(self._records),
            "failure": self._failure,
        }

    def request(self, what: str) -> None:
        """Make the thread `commit` or `leave`; raises the client's error."""
        done: Future[None] = Future()
        self._requests.put((what, done))
        done.result(PATIENCE_S)

    def run(self) -> None:
        try:
            self.open()
            while self._obey():
                self.poll()
        except Exception as error:  # noqa: BLE001  the test is to see it
            self._failure = f"{type(error).__name__}: {error}"
            traceback.print_exc()

    def _obey(self) -> bool:
        while not self._requests.empty():
            what, done = self._requests.get()
            try:
                self.commit() if what == "commit" else self.leave()
            except Exception as error:  # noqa: BLE001  the command is answered with it
                done.set_exception(error)
            else:
                done.set_result(None)
            if what == "leave":
                return False
        return True


class Stream(threading.Thread, abc.ABC):
    """An idempotent producer that sends the numbers from 0 on to partition 0, in order, until it is stopped."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.topic = topic
        self.rate = 0
        """The limit of records per second; 0 for unlimited."""
        self._began_s = time.monotonic()
        self.stopping = threading.Event()
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failures: list[str] = []

    @abc.abstractmethod
    def stream(self) -> None:
        """Send until `stopping` is set, then wait for the outstanding acknowledgements."""

    def value(self) -> bytes:
        """The next value to send."""
        number, self.sent = self.sent, self.sent + 1
        return b"%d" % number

    @property
    def is_full(self) -> bool:
        """Whether too many records are unacknowledged, or were sent for the elapsed time, to send more."""
        if self.rate and self.sent >= self.rate * (time.monotonic() - self._began_s):
            return True
        return self.sent - len(self.acknowledged) - len(self.failures) >= STREAM_WINDOW

    def run(self) -> None:
        try:
            self.stream()
        except Exception as error:  # noqa: BLE001  the test is to see it
            self.failures.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()


class Driver(abc.ABC):
    """The commands of one client."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._members: dict[str, Member] = {}
        self._producers: dict[str, Any] = {}
        """The transactional producers, by id."""
        self._stream: Stream | None = None

    # -- what a client implements --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def produce(self, topic: str, records: list[dict[str, Plain]], codec: str, acks: str) -> Plain:
        """Produce in order; returns `[partition, offset]` per record (offset -1 for acks=0)."""

    @abc.abstractmethod
    def consume(self, topic: str, partition: int, at: str | int, timestamp: int, count: int) -> Plain:
        """Read `count` records without a group; `at` is earliest, latest, timestamp, or an offset.

        Returns the position before the first record, and the records.
        """

    @abc.abstractmethod
    def begin(self, transactional_id: str) -> Plain:
        """Start a transactional producer, and a transaction."""

    @abc.abstractmethod
    def write(self, transactional_id: str, topic: str, values: list[str]) -> Plain:
        """Write values to partition 0 of a topic, in the open transaction; returns when they are acknowledged."""

    @abc.abstractmethod
    def send_offset(self, transactional_id: str, group: str, topic: str, offset: int) -> Plain:
        """Commit the offset of a group in partition 0 of a topic, in the open transaction."""

    @abc.abstractmethod
    def end(self, transactional_id: str, *, commit: bool, again: bool) -> Plain:
        """End the open transaction; with `again`, begin the next one."""

    @abc.abstractmethod
    def error_code(self, error: Exception) -> int | None:
        """Kafka's code in this client's exception, or None if it has none."""

    @abc.abstractmethod
    def new_member(self, membership: Membership) -> Member:
        """A consumer for `join`."""

    @abc.abstractmethod
    def new_stream(self, topic: str) -> Stream:
        """A producer for `stream`."""

    @abc.abstractmethod
    def admin(self, call: str, **arguments: Plain) -> Plain:
        """One call of the admin client; raises Unsupported if it lacks the call."""

    # -- commands over those -------------------------------------------------------------------------------------------

    def join(self, member: str, **membership: Plain) -> None:
        """Start a member of a group."""
        self._members[member] = self.new_member(Membership(**membership))
        self._members[member].start()

    def state(self, member: str) -> dict[str, Plain]:
        """Everything that a member has seen so far."""
        return self._members[member].state()

    def commit(self, member: str) -> None:
        """Make a member commit."""
        self._members[member].request("commit")

    def leave(self, member: str) -> None:
        """Make a member leave, and forget it."""
        self._members.pop(member).request("leave")

    def stream(self, topic: str, rate: int = 0) -> None:
        """Start the stream, with this limit of records per second."""
        self._stream = self.new_stream(topic)
        self._stream.rate = rate
        self._stream.start()

    def stream_state(self, *, stop: bool) -> dict[str, Plain]:
        """The progress of the stream; with `stop`, end it first."""
        assert self._stream is not None
        if stop:
            self._stream.stopping.set()
            self._stream.join(PATIENCE_S)
        return {
            "sent": self._stream.sent,
            "acknowledged": self._stream.acknowledged if stop else len(self._stream.acknowledged),
            "failures": self._stream.failures,
            "running": self._stream.is_alive(),
        }

    def _answer(self, line: str) -> dict[str, Plain]:
        arguments = json.loads(line)
        command = getattr(self, arguments.pop("do"))
        try:
            return {"ok": command(**arguments)}
        except Unsupported:
            return {"unsupported": True}
        except Exception as error:  # noqa: BLE001  the test is to see it
            traceback.print_exc()
            return {"error": {"code": self.error_code(error), "type": type(error).__name__, "text": str(error)}}

    def serve(self) -> None:
        """Execute commands from standard input to its end."""
        for line in sys.stdin:
            sys.stdout.write(json.dumps(self._answer(line)) + "\n")
            sys.stdout.flush()
