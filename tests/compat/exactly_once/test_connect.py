"""Kafka Connect with its file connectors: it copies the lines of one file to another, though the broker and the workers
are killed again and again. With `exactly.once.source.support` each line is in the topic once.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.exactly_once.program import Program, java_command
from tests.compat.exactly_once.trial import Follower, Trial, committed_records
from tests.compat.steady_load import PARTITIONS, create_topics
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(900)]

TOPIC = "file-lines"
SOURCE = {
    "name": "source",
    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "topic": TOPIC,
    # Lines that do not fit in a batch wait until the file grows again: no batch gets full.
    "batch.size": "1000000",
    # Transactions stay open until the next poll, a second later: most kills meet one.
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "500",
}
SINK = {
    "name": "sink",
    "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "topics": TOPIC,
    "consumer.override.isolation.level": "read_committed",
    "consumer.override.session.timeout.ms": "6000",
}
CONVERTERS = {f"{which}.converter": "org.apache.kafka.connect.storage.StringConverter" for which in ("key", "value")}
PAUSE_S = 0.004


class Writer(threading.Thread):
    """Appends lines to a file until it is stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self._path = path
        self._stopping = threading.Event()

    def run(self) -> None:
        with self._path.open("a", buffering=1) as file:
            while not self._stopping.wait(PAUSE_S):
                line = f"line {len(self.lines)}"
                self.lines.append(line)
                file.write(line + "\n")

    def stop(self) -> list[str]:
        """Stop writing; returns everything written."""
        self._stopping.set()
        self.join()
        return self.lines


def properties(path: Path, settings: dict[str, str]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)


def worker_settings(broker: BrokerProcess, port: int) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.address,
        "listeners": f"http://127.0.0.1:{port}",
        "offset.flush.interval.ms": "200",
        "connector.client.config.override.policy": "All",
        "producer.reconnect.backoff.max.ms": "100",
        "consumer.reconnect.backoff.max.ms": "100",
        "reconnect.backoff.max.ms": "100",
        **CONVERTERS,
    }


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writing = Writer(tmp_path / "in.txt")
    writing.start()
    yield writing
    writing.stop()


def await_all(trial: Trial, follower: Follower, broker: BrokerProcess, lines: list[str], written: Path) -> None:
    """Wait until every line is in the topic and in the file of the sink; fails if the topic has a duplicate, or a
    partition is out of order.
    """
    trial.await_progress(len(lines))
    found = committed_records(broker.address, TOPIC)
    for partition in range(PARTITIONS):
        numbers = [int((each.value or b"").split()[1]) for each in found if each.partition == partition]
        assert numbers == sorted(numbers)
    assert sorted((each.value or b"").decode() for each in found) == sorted(lines)
    eventually("the file of the sink", lambda: set(written.read_text().splitlines()) >= set(lines), patience_s=120)
    follower.stop()
    assert follower.failure is None
    assert sorted(follower.found) == sorted(found)


def test_standalone(broker: BrokerProcess, writer: Writer, tmp_path: Path) -> None:
    """A killed source repeats what it had not recorded, so here only the broker is killed. The idempotent producer
    resends the batches in flight.
    """
    create_topics(broker.address, {TOPIC: {}})
    settings = worker_settings(broker, free_port())
    settings |= {"offset.storage.file.filename": str(tmp_path / "offsets"), "producer.enable.idempotence": "true"}
    source = {**SOURCE, "file": str(tmp_path / "in.txt")}
    sink = {**SINK, "file": str(tmp_path / "out.txt")}
    files = [
        properties(tmp_path / f"{name}.properties", content)
        for name, content in (("worker", settings), ("source", source), ("sink", sink))
    ]
    worker = Program(
        java_command("org.apache.kafka.connect.cli.ConnectStandalone", *files), tmp_path / "standalone.log"
    )
    follower = Follower(broker.address, TOPIC)
    trial = Trial(broker, [worker], lambda: len(follower.found))
    with contextlib.ExitStack() as stack:
        stack.callback(follower.stop)
        stack.callback(worker.kill)
        follower.start()
        worker.start()
        trial.kill_amid()
        await_all(trial, follower, broker, writer.stop(), tmp_path / "out.txt")
    assert sorted((tmp_path / "out.txt").read_text().splitlines()) == sorted(writer.lines)


class Worker(Program):
    """A worker of a distributed Kafka Connect."""

    def __init__(self, broker: BrokerProcess, directory: Path, number: int) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/connectors"
        settings = {
            **worker_settings(broker, port),
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
        }
        for kind in ("config", "offset", "status"):
            settings[f"{kind}.storage.topic"] = f"connect-{kind}s"
            settings[f"{kind}.storage.replication.factor"] = "1"
        path = properties(directory / f"worker-{number}.properties", settings)
        command = java_command("org.apache.kafka.connect.cli.ConnectDistributed", path)
        super().__init__(command, directory / f"worker-{number}.log")

    def put_connector(self, settings: dict[str, str]) -> None:
        """Create a connector, or change its settings."""
        self._ask("PUT", f"/{settings['name']}/config", settings)

    def tasks(self, connector: str) -> list[str]:
        """The states of the tasks of a connector."""
        return [task["state"] for task in self._ask("GET", f"/{connector}/status")["tasks"]]

    def _ask(self, method: str, path: str, content: dict[str, str] | None = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=90) as response:
            return json.load(response)


def test_distributed_exactly_once(broker: BrokerProcess, writer: Writer, tmp_path: Path) -> None:
    """Two workers; each is killed, together with its current tasks."""
    create_topics(broker.address, {TOPIC: {}})
    workers = [Worker(broker, tmp_path, number) for number in range(2)]
    follower = Follower(broker.address, TOPIC)
    trial = Trial(broker, workers, lambda: len(follower.found))
    with contextlib.ExitStack() as stack:
        stack.callback(follower.stop)
        follower.start()
        for worker in workers:
            stack.callback(worker.kill)
            worker.start()
        for name, settings in (("in", SOURCE), ("out", SINK)):
            connector = {**settings, "file": str(tmp_path / f"{name}.txt")}
            eventually(
                f"the connector {name}",
                succeeds(lambda wanted=connector: workers[0].put_connector(wanted)),
                not_yet=(OSError,),
                patience_s=120,
            )
        trial.kill_amid(workers[0].restart, workers[1].restart)
        await_all(trial, follower, broker, writer.stop(), tmp_path / "out.txt")
        for connector in ("source", "sink"):
            eventually(
                f"the task of {connector}",
                lambda name=connector: workers[0].tasks(name),
                lambda states: states == ["RUNNING"],
                not_yet=(OSError,),
            )


def succeeds(call: Callable[[], None]) -> Callable[[], bool]:
    """An observation that holds once `call` raises nothing."""

    def observe() -> bool:
        call()
        return True

    return observe
