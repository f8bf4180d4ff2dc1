"""A Spark job as a user runs it, and the data of its topics."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spark_jobs.common.sink import ROW_HEADERS
from tests.kit.broker_process import ROOT
from tests.kit.spark.environment import spark_environment
from tests.spark.warm_jobs import WarmJobs

PATIENCE_S = 300.0


def make_topics(bootstrap: str, *names: str, partitions: int = 3) -> list[str]:
    """New topics whose names begin with `names`."""
    topics = [f"{name}-{uuid.uuid4()}" for name in names]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, num_partitions=partitions) for topic in topics]).values():
        created.result(30)
    return topics


def produce_values(bootstrap: str, topic: str, values: Iterable[bytes | None]) -> None:
    """Send every value, across restarts of the broker, and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
    for value in values:
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0


class Results:
    """Rows of a topic that a job writes, without repeats, which have equal headers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": str(uuid.uuid4()),
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._rows: dict[tuple[bytes, ...], Message] = {}

    def close(self) -> None:
        self._consumer.close()

    def await_rows(self, count: int, by: Callable[[dict[str, Any]], object] | None = None) -> list[dict[str, Any]]:
        """The rows, once there are `count`; each key, or each value of `by`, occurs once."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self._rows) < count:
            assert time.monotonic() < deadline, f"{len(self._rows)} of {count} rows"
            for message in self._consumer.consume(1000, timeout=1):
                if message.error() is None:
                    headers = dict(message.headers() or [])
                    place = tuple(headers[name] for name in ROW_HEADERS)
                    again = self._rows.setdefault(place, message)
                    assert (again.key(), again.value()) == (message.key(), message.value())
        messages = list(self._rows.values())
        rows: list[dict[str, Any]] = [json.loads(message.value() or b"") for message in messages]
        named = {by(row) for row in rows} if by is not None else {message.key() for message in messages}
        assert len(named) == len(rows)
        return rows


class JobRun:
    """One job with its options, in a separate process group so that its JVM dies with it."""

    def __init__(self, name: str, directory: Path, *options: str) -> None:
        self.said = directory / f"{name}.log"
        self._seen = 0
        self._name, self._options = name, options
        self._command = [sys.executable, "-m", f"spark_jobs.jobs.{name}", "--master", "local[2]", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        with self.said.open("ab") as said:
            self._process = subprocess.Popen(
                [*self._command, *options],
                env={**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def go_on(self, jobs: WarmJobs) -> str:
        """Run in the process of `jobs`, which already has a JVM, until everything up to the current end has been read.

        Returns what the job printed, its summary first. For runs that the test does not kill.
        """
        code, said = jobs.run(self._name, *self._options, "--trigger", "available-now")
        assert code == 0, said[-3000:]
        return said

    def text(self) -> str:
        return self.said.read_text(errors="replace") if self.said.exists() else ""

    def assert_running(self) -> None:
        """Fail with the job's output if it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.text()[-3000:]

    def await_text(self, text: str) -> None:
        """Wait until the job prints `text`, after the previously awaited output."""
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.text().find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, self.text()[-3000:]
            self.assert_running()
            time.sleep(0.1)
        self._seen = at + len(text)

    def await_records(self, count: int) -> None:
        """Wait until the job has reported batches of `count` more records."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(found := [int(told.replace(",", "")) for told in self._told()]) < count:
            assert time.monotonic() < deadline, f"{found}: {self.text()[-3000:]}"
            self.assert_running()
            time.sleep(0.1)
        self._seen = len(self.text())

    def _told(self) -> list[str]:
        return re.findall(r"batch \d+: ([\d,]+) records in .*lag", self.text()[self._seen :])

    def end(self, *, terminate: bool = False, code: int = 0) -> str:
        """The last line of the job, once it has exited with `code`; `terminate` stops it."""
        assert self._process is not None
        if terminate:
            self._process.terminate()
        try:
            ended = self._process.wait(PATIENCE_S)
        finally:
            self.kill()
        assert ended == code, self.text()[-3000:]
        self._seen = len(self.text())
        return self.text().splitlines()[-1]

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._seen = len(self.text())
