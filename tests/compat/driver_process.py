"""The test's end of a driver: a client in a separate process that executes JSON lines."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from protocol.errors import ErrorCode
from tests.kit.jars import java, kafka_classpath, newest_clients_classpath

T = TypeVar("T")
SLICE = 10_000
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
T0 = (time.time_ns() // 10**9 - 3600) * 1000
"""Test records are an hour old: retention deletes those older than a week, at any moment of a test."""
JAVA_DRIVER = Path(__file__).with_name("java") / "Driver.java"
PYTHON_DRIVERS = {"librdkafka": "librdkafka", "kafka-python": "kafka_python", "aiokafka": "asyncio_client"}
JAVA_CLIENTS: dict[str, Callable[[], str]] = {"java-3.9": kafka_classpath, "java-4": newest_clients_classpath}

CLIENTS = [*PYTHON_DRIVERS, *(pytest.param(name, marks=pytest.mark.java) for name in JAVA_CLIENTS)]
"""Every client, as parameters of a test."""


class ClientError(Exception):
    """The client failed; `code` is Kafka's error code, or the client's own, or None."""

    def __init__(self, code: int | None, kind: str, text: str) -> None:
        super().__init__(f"{kind} (code {code}): {text}")
        self.code = code
        self.kind = kind

    @property
    def error(self) -> ErrorCode | None:
        """The broker's error, None if the client made it up."""
        return ErrorCode(self.code) if self.code in set(ErrorCode) else None


class Record(NamedTuple):
    """A record as a test knows it, to be sent or received."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = T0
    partition: int = 0
    offset: int = -1


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _outgoing(record: Record) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "timestamp": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _incoming(record: dict[str, Any]) -> Record:
    return Record(
        _bytes(record["value"]),
        _bytes(record["key"]),
        tuple((name, _bytes(value)) for name, value in record["headers"]),
        record["timestamp"],
        record["partition"],
        record["offset"],
    )


def _command(client: str) -> list[str]:
    if client in PYTHON_DRIVERS:
        return [sys.executable, "-P", "-m", f"tests.compat.drivers.{PYTHON_DRIVERS[client]}"]
    # The interpreter and the serial collector: a driver lives for seconds, and the machine is small.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
    return java(*options, "-cp", JAVA_CLIENTS[client](), str(JAVA_DRIVER))


class Driver:
    """A running client. It executes one command at a time."""

    def __init__(self, client: str, address: str, log: Path) -> None:
        self.client = client
        self._log = log
        self._answers: queue.Queue[str] = queue.Queue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*_command(client), address],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, do: str, **arguments: Any) -> Any:
        """Run one command. Raises ClientError, and AssertionError for a dead or silent driver; skips the test for an
        unsupported command.
        """
        assert self._process.stdin is not None
        # A dead driver is detected below, at the end of its answers.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"{self.client} does not answer to {do}; its log:\n{self.log_tail()}") from None
        assert line, f"{self.client} died at {do}; its log:\n{self.log_tail()}"
        answer = json.loads(line)
        if "unsupported" in answer:
            pytest.skip(f"{self.client} has no call for {arguments.get('call', do)}")
        if "error" in answer:
            error = answer["error"]
            raise ClientError(error["code"], error["type"], error["text"])
        return answer["ok"]

    def log_tail(self) -> str:
        """The end of the client's standard error."""
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Kill the process (SIGKILL): to the broker, the client just falls silent."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    # -- commands ------------------------------------------------------------------------------------------------------

    def produce(self, topic: str, records: list[Record], codec: str = "none", acks: str = "all") -> list[list[int]]:
        """`[partition, offset]` of every record, offset -1 with acks=0."""
        sent = [_outgoing(record) for record in records]
        answer: list[list[int]] = self.ask("produce", topic=topic, records=sent, codec=codec, acks=acks)
        return answer

    def consume(
        self, topic: str, count: int, at: str | int = "earliest", partition: int = 0, timestamp_ms: int = 0
    ) -> tuple[int, list[Record]]:
        """The position denoted by `at`, and `count` records from there on."""
        answer = self.ask("consume", topic=topic, partition=partition, at=at, timestamp=timestamp_ms, count=count)
        return answer["position"], [_incoming(record) for record in answer["records"]]

    def read(self, topic: str, count: int) -> list[Record]:
        """`count` records from offset 0 on, in several commands: on a busy machine a stream may have grown long."""
        records: list[Record] = []
        while len(records) < count:
            records += self.consume(topic, min(count - len(records), SLICE), at=len(records))[1]
        return records

    def admin(self, call: str, **arguments: Any) -> Any:
        """One admin call."""
        return self.ask("admin", call=call, **arguments)

    def join(
        self,
        member: str,
        group: str,
        topic: str,
        strategy: str = "range",
        instance: str | None = None,
        session_timeout_ms: int = 30_000,
    ) -> Member:
        """Start a new member of a group, which is polled from now on."""
        self.ask(
            "join",
            member=member,
            group=group,
            topics=[topic],
            strategy=strategy,
            instance=instance,
            session_timeout_ms=session_timeout_ms,
        )
        return Member(self, member)


class State(NamedTuple):
    """Everything that a member has seen so far. Partitions are `topic-number`."""

    assignment: list[str]
    events: list[tuple[str, list[str]]]
    records: list[Record]


class Member:
    """A consumer in a group, inside a driver."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def state(self) -> State:
        """Everything that it has seen so far. Fails if its client failed."""
        found = self._driver.ask("state", member=self._name)
        assert found["failure"] is None, found["failure"]
        events = [(kind, partitions) for kind, partitions in found["events"]]
        return State(found["assignment"], events, [_incoming(record) for record in found["records"]])

    def commit(self) -> None:
        """Commit its position."""
        self._driver.ask("commit", member=self._name)

    def leave(self) -> None:
        """Close it cleanly."""
        self._driver.ask("leave", member=self._name)
