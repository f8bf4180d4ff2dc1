"""Connections cannot use up the file descriptors that the logs need: a disk would seem to fail."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import fetch, new_topic, produce, values_in

OPEN_FILES = 256
CONNECTIONS = 400
EAGER = {"log.flush.offset.checkpoint.interval.ms": "100", "replica.high.watermark.checkpoint.interval.ms": "100"}


def connect(broker: BrokerProcess) -> WireClient:
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


CONFIGS = {"segment.bytes": "100", "flush.messages": "1", "retention.ms": "-1"}
"""Every record gets a separate segment, and is flushed."""


def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, EAGER, open_files=OPEN_FILES)
    broker.start()
    host, port = broker.address.split(":")
    values: list[bytes | None] = []

    def write(client: WireClient, count: int) -> None:
        for _ in range(count):
            value = b"value %d" % len(values)
            answer = client.ask(produce("t", [value]), 11)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
            values.append(value)

    try:
        with connect(broker) as client, contextlib.ExitStack() as idle:
            client.ask(new_topic("t", configs=CONFIGS), 7)
            write(client, 1)
            for number in range(CONNECTIONS):
                with contextlib.suppress(OSError):  # refused, as it should be
                    idle.enter_context(socket.create_connection((host, int(port)), timeout=5))
                if number % 10 == 0:
                    write(client, 5)
            time.sleep(0.5)  # the rounds of the checkpoints
            write(client, 50)
            client.ask(new_topic("another", configs=CONFIGS), 7)

        def write_and_read_all() -> list[bytes | None]:
            with connect(broker) as client:
                write(client, 1)
                found: list[bytes | None] = []
                while more := values_in(client.ask(fetch("t", len(found)), 12)):
                    found += more
                return found

        # The idle connections are gone, and the next client is served.
        served = eventually("a connection", write_and_read_all, not_yet=(OSError, ConnectionClosed))
        assert served == values
        assert broker.stop() == 0
    finally:
        broker.kill()
    said = broker.output.read_text()
    assert "are reserved for the logs" in said
    assert "Too many open files" not in said
    assert "Stopping serving logs" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_many_connections_at_once_do_not_take_them_all(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections arrived while the broker was stopped, and wait in the backlog: more than its limit of open
    files.
    """
    monkeypatch.setenv("ODRADEK_LOOP", loop)
    few, many = 128, 200
    broker = BrokerProcess(tmp_path, {**EAGER, "socket.listen.backlog.size": str(2 * many)}, open_files=few)
    broker.start()
    host, port = broker.address.split(":")
    try:
        with connect(broker) as client, contextlib.ExitStack() as flood:
            client.ask(new_topic("t", configs=CONFIGS), 7)
            broker.send_signal(signal.SIGSTOP)
            for _ in range(many):
                connection = flood.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex((host, int(port)))
            broker.send_signal(signal.SIGCONT)
            for number in range(50):
                answer = client.ask(produce("t", [b"%d" % number]), 11)
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
            eventually("it is said", broker.output.read_text, lambda text: "are reserved for the logs" in text)
        assert broker.stop() == 0
    finally:
        broker.kill()
    said = broker.output.read_text()
    assert "Too many open files" not in said
    assert "Stopping serving logs" not in said
    assert "Traceback" not in said


def test_a_start_without_descriptors_names_their_limit(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, open_files=12)
    with pytest.raises(RuntimeError, match=r"Too many open files \(this process may have 12 files open: ulimit -n\)"):
        broker.start()
    assert "Traceback" not in broker.output.read_text()
