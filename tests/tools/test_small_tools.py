"""kafka-cluster, kafka-e2e-latency and `odradek health` against our broker."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.kit.broker_process import BrokerProcess
from tools import cluster, e2e_latency, health
from tools.support.common import ToolError


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.address
    broker.stop()


def test_cluster_id(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["cluster-id", "--bootstrap-server", address]) == 0
    assert re.fullmatch(r"Cluster ID: \S{22}\n", capsys.readouterr().out)


def test_unregistering_is_for_kraft(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["unregister", "-b", address, "--id", "7"]) == 0
    assert capsys.readouterr().out == "The target cluster does not support the broker unregistration API.\n"
    assert cluster.main(["cluster-id", "--bootstrap-controller", address]) == 1
    assert cluster.main([]) == 1


def test_latency_of_new_and_old_topics(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    number = r"\d+(\.\d+)?(e-\d+)?"
    results = rf"0\t{number}\nAvg latency: \d+\.\d{{4}} ms\nPercentiles: 50th = \d+, 99th = \d+, 99\.9th = \d+\n"
    created = 'Topic "e2e" does not exist. Will create topic with 1 partition(s) and replication factor = 1\n'
    for acks, beginning in (("all", created), ("1", "")):
        assert e2e_latency.main([address, "e2e", "20", acks, "100"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(beginning)
        assert re.fullmatch(results, said.removeprefix(beginning)), said


def test_mistakes_of_e2e_latency(capsys: pytest.CaptureFixture[str]) -> None:
    assert e2e_latency.main(["--help"]) == 1
    assert capsys.readouterr().err.startswith("USAGE: ")
    assert e2e_latency.main(["127.0.0.1:1", "t", "1", "0", "1"]) == 1
    assert "Please use 1 or all" in capsys.readouterr().err
    assert e2e_latency.main(["127.0.0.1:1", "t", "many", "1", "1"]) == 1


def test_only_the_record_that_was_sent_counts() -> None:
    e2e_latency.check_arrival([b"a"], b"a")
    for values in ([], [b"b"], [None], [b"a", b"a"]):
        with pytest.raises(ToolError):
            e2e_latency.check_arrival(values, b"a")


def test_health_asks_for_api_versions(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["--bootstrap-server", address]) == 0
    assert re.fullmatch(rf"{address} serves \d\d APIs\n", capsys.readouterr().out)


def test_a_port_that_accepts_and_is_silent_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        assert health.main(["--bootstrap-server", servers, "--timeout", "300"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"{servers} did not answer within 300 ms"
