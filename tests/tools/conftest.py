"""Fixtures for the tests of the tools: both kinds of broker, and both kinds of tools in long-lived processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import ROOT, BrokerProcess
from tests.tools.tool_pair import Runner, kafkas_runner, our_runner

SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # This allows a transaction that its coordinator does not know.
    "transaction.partition.verification.enable": "false",
}


@pytest.fixture(scope="session", params=["apache-kafka", "odradek"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker: first Apache Kafka's, then ours."""
    kind: type[ApacheKafka | BrokerProcess] = ApacheKafka if request.param == "apache-kafka" else BrokerProcess
    broker = kind(tmp_path_factory.mktemp(request.param), SETTINGS)
    broker.start()
    yield broker.address
    broker.stop()


@pytest.fixture(scope="session")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Kafka's tools."""
    runner = kafkas_runner(tmp_path_factory.mktemp("tools"))
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def ours() -> Iterator[Runner]:
    """Our tools."""
    runner = our_runner()
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files named in command lines."""
    directory = tmp_path_factory.mktemp("files")
    duplicate = {"topic": "t", "partition": 0, "offset": 1}
    texts = {
        "duplicate.json": json.dumps({"partitions": [duplicate, duplicate], "version": 1}),
        "without-offset.json": '{"partitions":[{"topic":"t","partition":0}],"version":1}',
        "version-2.json": '{"partitions":[],"version":2}',
        "no.json": "nothing",
        "without-partitions.json": '{"version":1}',
        "text-for-number.json": '{"partitions":[{"topic":"t","partition":"0","offset":1}]}',
        "topic.properties": "retention.ms=77\nmin.insync.replicas=1\n",
        "scram.properties": "SCRAM-SHA-256=iterations=5000,password=a [b], c=d\n",
    }
    for side in "ko":
        partitions = [
            {"topic": f"{side}-r", "partition": 0, "offset": 2},
            {"topic": f"{side}-two", "partition": 0, "offset": 1000},
            {"topic": f"{side}-two", "partition": 1, "offset": -1},
        ]
        texts[f"{side}-delete.json"] = json.dumps({"partitions": partitions})
        texts[f"{side}-reset.csv"] = f"{side}-u,0,5\n{side}-t,1,1\n"
        texts[f"{side}-groups.csv"] = f"{side}-g,{side}-u,0,6\n{side}-h,{side}-u,0,1\n"
    for name, text in texts.items():
        (directory / name).write_text(text)
    return directory


@pytest.fixture(scope="session")
def active_group(address: str) -> Iterator[str]:
    """A group with a member, named `active`."""
    member = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "tools.verifiable_consumer", "--bootstrap-server", address),
            *("--topic", "read-by-active", "--group-id", "active"),
        ],
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert member.stdout is not None
    for line in member.stdout:
        if json.loads(line).get("partitions"):
            break
    yield "active"
    member.terminate()
    member.communicate(timeout=20)
