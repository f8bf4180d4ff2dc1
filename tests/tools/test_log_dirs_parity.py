"""kafka-log-dirs, Kafka's and ours, on a broker with a future replica and an offline directory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.kit.broker_process import BrokerProcess
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import new_topic, produce
from tests.tools.tool_pair import Runner

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]

NAMES = ("data", "data-2", "data-3")
STOPPED = "The move of a-0 is held up: CORRUPT_MESSAGE"


def described(client: WireClient) -> list[DescribeLogDirsResponse.DescribeLogDirsResult]:
    response = client.ask(DescribeLogDirsRequest(topics=None), 4)
    assert isinstance(response, DescribeLogDirsResponse)
    return response.results


def test_a_future_replica_and_a_directory_that_is_offline(kafkas: Runner, ours: Runner, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in NAMES]
    broker = BrokerProcess(
        tmp_path,
        {"log.dirs": ",".join(map(str, paths)), "replica.high.watermark.checkpoint.interval.ms": "200"},
    )
    broker.start()
    host, port = broker.address.split(":")
    with WireClient(host, int(port)) as client:
        for topic in ("a", "b", "c"):
            client.ask(new_topic(topic), 7)
            for number in range(3):
                client.ask(produce(topic, [b"%d" % number]), 11)
    assert broker.stop() == 0
    # A damaged batch stops the copy, so the future replica stays one.
    segment = paths[0] / "a-0" / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    broker.start()
    try:
        with WireClient(host, int(port)) as client:
            topics = [AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="a", partitions=[0])]
            directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(paths[1]), topics=topics)
            client.ask(AlterReplicaLogDirsRequest(dirs=[directory]), 2)
            paths[2].rename(tmp_path / "gone")
            paths[2].write_text("no directory")
            client.ask(produce("c", [b"is noticed"]), 11)
            deadline = time.monotonic() + 60
            while (
                described(client)[2].error_code != ErrorCode.KAFKA_STORAGE_ERROR
                or STOPPED not in broker.output.read_text()
            ):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        for options in ([], ["--topic-list", "a"], ["--topic-list", "b,c"]):
            arguments = [f"--bootstrap-server={broker.address}", "--describe", *options]
            theirs, mine = (runner.run("log_dirs", arguments) for runner in (kafkas, ours))
            assert (mine.code, theirs.code) == (0, 0), mine.stderr
            assert by_directory(mine.stdout) == by_directory(theirs.stdout)
            if not options:
                assert '"isFuture":true' in mine.stdout
                assert "KafkaStorageException" in mine.stdout
    finally:
        broker.kill()


def by_directory(output: str) -> tuple[list[str], object]:
    """The text lines, and the JSON with sorted directories (Kafka's tool does not sort them)."""
    *prose, answer = output.splitlines()
    parsed = json.loads(answer)
    for each in parsed["brokers"]:
        each["logDirs"].sort(key=lambda directory: directory["logDir"])
    return prose, parsed
