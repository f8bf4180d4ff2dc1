"""kafka-verifiable-producer and kafka-verifiable-consumer against our broker: events, their fields and order, the end.

The events are those of Kafka 3.9.1's tools, and `test_tools_parity` compares ours with them if Java is available.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker_process import ROOT, BrokerProcess
from tools import verifiable_consumer, verifiable_producer


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), {"num.partitions": "1"})
    broker.start()
    yield broker.address
    broker.stop()


def events_in(output: str) -> list[dict[str, Any]]:
    """The events and their fields, in order, without the times, which must be recent."""
    found = [json.loads(line) for line in output.splitlines()]
    for event in found:
        assert next(iter(event)) == "timestamp"
        assert abs(event.pop("timestamp") - time.time() * 1000) < 60_000
        assert next(iter(event)) == "name"
    return found


def produce(address: str, topic: str, *arguments: str) -> None:
    assert verifiable_producer.main(["--bootstrap-server", address, "--topic", topic, *arguments]) == 0


def consume(address: str, topic: str, group: str, *arguments: str) -> None:
    given = ["--bootstrap-server", address, "--topic", topic, "--group-id", group, *arguments]
    assert verifiable_consumer.main(given) == 0


def test_each_record_is_told(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "told", "--max-messages", "3", "--value-prefix", "7", "--repeating-keys", "2")
    start, *sent, end, sums = events_in(capsys.readouterr().out)
    assert start == {"name": "startup_complete"}
    assert [list(event.items()) for event in sent] == [
        [
            ("name", "producer_send_success"),
            ("key", key),
            ("value", value),
            ("offset", offset),
            ("topic", "told"),
            ("partition", 0),
        ]
        for offset, (key, value) in enumerate([("0", "7.0"), ("1", "7.1"), ("0", "7.2")])
    ]
    assert end == {"name": "shutdown_complete"}
    assert sums.pop("avg_throughput") > 0
    assert list(sums.items()) == [("name", "tool_data"), ("sent", 3), ("acked", 3), ("target_throughput", -1)]

    consume(address, "told", "tellers", "--max-messages", "2", "--verbose")
    assert [list(event.items()) for event in events_in(capsys.readouterr().out)] == [
        [("name", "startup_complete")],
        [("name", "partitions_assigned"), ("partitions", [{"topic": "told", "partition": 0}])],
        *(
            [
                ("name", "record_data"),
                ("key", str(offset)),
                ("value", f"7.{offset}"),
                ("topic", "told"),
                ("partition", 0),
                ("offset", offset),
            ]
            for offset in range(2)
        ),
        [
            ("name", "records_consumed"),
            ("count", 3),  # everything from one poll, as Kafka counts it
            ("partitions", [{"topic": "told", "partition": 0, "count": 2, "minOffset": 0, "maxOffset": 1}]),
        ],
        [
            ("name", "offsets_committed"),
            ("offsets", [{"topic": "told", "partition": 0, "offset": 2}]),
            ("success", True),
        ],
        [("name", "partitions_revoked"), ("partitions", [{"topic": "told", "partition": 0}])],
        [("name", "shutdown_complete")],
    ]


def test_a_group_goes_on_where_it_was(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "on", "--max-messages", "4")
    capsys.readouterr()
    ranges = []
    for _ in range(2):
        consume(address, "on", "going-on", "--max-messages", "2")
        read = [event for event in events_in(capsys.readouterr().out) if event["name"] == "records_consumed"]
        ranges += [(event["partitions"][0]["minOffset"], event["partitions"][0]["maxOffset"]) for event in read]
    assert ranges == [(0, 1), (2, 3)]


def test_a_record_that_fails_is_told(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "no topic", "--max-messages", "1")
    _, failure, _, sums = events_in(capsys.readouterr().out)
    assert list(failure.items()) == [
        ("name", "producer_send_error"),
        ("topic", "no topic"),
        ("key", None),
        ("value", "0"),
        ("exception", "class org.apache.kafka.common.errors.InvalidTopicException"),
        ("message", "Invalid topics: [no topic]"),
    ]
    assert (sums["sent"], sums["acked"]) == (1, 0)


def test_sigterm_ends_with_the_sums(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "tools.verifiable_producer", "--bootstrap-server", address]
    path = tmp_path / "events"
    with path.open("wb") as output:
        producer = subprocess.Popen(
            [*command, "--topic", "ended", "--throughput", "50"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=output,
        )
    deadline = time.monotonic() + 60
    while path.read_text().count("\n") < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    producer.terminate()
    producer.wait(60)
    *told, end, sums = events_in(path.read_text())
    assert end == {"name": "shutdown_complete"}
    sent = [event for event in told if event["name"] == "producer_send_success"]
    assert sums["acked"] == sums["sent"] == len(sent) > 0


@pytest.mark.parametrize("tool", [verifiable_producer, verifiable_consumer])
def test_help(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([]) == 0
    without = capsys.readouterr()
    assert tool.main(["--help"]) == 1
    assert capsys.readouterr() == without
    assert without.out.startswith(f"usage: {tool.__name__.removeprefix('tools.').replace('_', '-')} [-h]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "t", "--group-id", "g"], "one of the arguments --bootstrap-server --broker-list is required"),
        (["--bootstrap-server", "b:1", "--topic", "t"], "the following arguments are required: --group-id"),
        (["--bootstrap-server", "b:1", "--broker-list", "b:1"], "not allowed with argument --bootstrap-server"),
        (
            ["--bootstrap-server", "b:1", "--topic", "t", "--group-id", "g", "--reset-policy", "foo"],
            "Invalid value foo for configuration auto.offset.reset: String must be one of: latest, earliest, none",
        ),
    ],
)
def test_mistakes_of_the_consumer(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert verifiable_consumer.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_properties_of_a_file(address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "producer.properties"
    path.write_text("linger.ms=20\ncompression.type=gzip\n")
    produce(address, "with-file", "--max-messages", "3", "--producer.config", str(path), "--acks", "1")
    assert events_in(capsys.readouterr().out)[-1]["acked"] == 3


def test_there_are_no_transactions_without_retries(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Kafka's tool does not support transactions either."""
    path = tmp_path / "producer.properties"
    path.write_text("transactional.id=t\n")
    given = ["--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--producer.config", str(path)]
    assert verifiable_producer.main(given) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Cannot set a transactional.id without also enabling idempotence.\n")
