"""kafka-storage, and a broker that starts with a file and with variables written for a single KRaft node."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import DescribeUserScramCredentialsRequest
from tests.kit.broker_process import PATIENCE_S, ROOT, await_port, free_port
from tests.kit.wire_client import WireClient
from tools.configurations.quotas import RefusedError
from tools.storage import main, parse_user, random_uuid

CLUSTER_ID = "BqSmks9JS8O4vFsKuqTp9A"


def stock_file(directory: Path, port: int) -> Path:
    """Like Kafka 4's config/server.properties, with two directories."""
    path = directory / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:9093\ninter.broker.listener.name=PLAINTEXT\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT\n"
        f"log.dirs={directory}/d1,{directory}/d2\nshare.coordinator.state.topic.replication.factor=1\n"
    )
    return path


def answered(port: int) -> tuple[str, list[str]]:
    """The cluster's id, and the SCRAM users."""
    with WireClient("127.0.0.1", port) as client:
        metadata = client.ask(MetadataRequest(topics=[]), 9)
        users = client.ask(DescribeUserScramCredentialsRequest(users=None), 0)
    return metadata.cluster_id, [each.user for each in users.results]


@contextlib.contextmanager
def broker(directory: Path, port: int, *arguments: str, **variables: str) -> Iterator[Path]:
    """A running broker; yields the file with its output."""
    output = directory / "broker.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "broker", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        await_port(port, process, output, PATIENCE_S)
        yield output
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_stock_file_of_kraft_is_formatted_and_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    file = str(stock_file(tmp_path, port))
    assert main(["info", "-c", file]) == 1
    assert "Found problems:\n" in capfd.readouterr().out
    user = "SCRAM-SHA-512=[name=alice,iterations=8192,password=alice-secret]"
    command = ["format", "-t", CLUSTER_ID, "-c", file]
    assert main([*command, "--standalone", "--add-scram", user]) == 0
    assert capfd.readouterr().out.count("Formatting ") == 2
    assert main(command) == 1
    assert f"Log directory {tmp_path}/d1 is already formatted. Use --ignore-formatted to" in capfd.readouterr().err
    assert main([*command, "--ignore-formatted"]) == 0
    assert capfd.readouterr().out == "All of the log directories are already formatted.\n"
    assert main(["format", "--cluster-id", random_uuid(), "--config", file, "-g"]) == 1
    assert f"Invalid cluster.id in: {tmp_path}/d1/meta.properties" in capfd.readouterr().err
    assert main(["info", "--config", file]) == 0
    assert f"Found metadata: {{broker.id=1, cluster.id={CLUSTER_ID}, version=0}}\n" in capfd.readouterr().out
    with broker(tmp_path, port, file) as output:
        assert answered(port) == (CLUSTER_ID, ["alice"])
        said = output.read_text()
    assert "process.roles=broker,controller is read as one broker" in said
    assert "Transitioning from RECOVERY to RUNNING" in said
    assert "Kafka Server started" in said


def test_the_environment_of_apaches_image_starts_one_node(tmp_path: Path) -> None:
    port = free_port()
    defaults = tmp_path / "image.properties"
    defaults.write_text(f"broker.id=0\nlog.dirs={tmp_path}/data\n")
    variables = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://localhost:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "CLUSTER_ID": CLUSTER_ID,
    }
    for _ in range(2):
        with broker(tmp_path, port, "--environment", str(defaults), **variables):
            assert answered(port)[0] == CLUSTER_ID
    other = subprocess.run(
        [sys.executable, "-P", "-m", "broker", "--environment", str(defaults)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables, "CLUSTER_ID": random_uuid()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert f"Invalid cluster.id in: {tmp_path}/data/meta.properties" in other.stdout + other.stderr


def test_directories_of_apaches_kraft_are_refused(tmp_path: Path) -> None:
    file = stock_file(tmp_path, free_port())
    (tmp_path / "d2" / "__cluster_metadata-0").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "broker", str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{tmp_path}/d2 belongs to Apache Kafka in KRaft mode" in done.stdout + done.stderr
    assert "mirror and move-group" in done.stdout + done.stderr


def test_users_are_given_as_kafka_has_it() -> None:
    name, salted = parse_user('SCRAM-SHA-256=[name=al,iterations=8192,salt="N3E=",saltedpassword="YCE="]')
    assert (name, *salted) == ("al", "SCRAM-SHA-256", 8192, b"7q", b"`!")
    assert parse_user("SCRAM-SHA-512=[name=b,password=x=y]")[1].iterations == 4096
    for text in (
        "PLAIN=[name=a,password=secret]",
        "SCRAM-SHA-256=[password=secret]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=secret,saltedpassword=x]",
        "SCRAM-SHA-256=[name=a,saltedpassword=secret]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=1]",
        "SCRAM-SHA-256=[name=a,secret]",
    ):
        with pytest.raises(RefusedError) as caught:
            parse_user(text)
        assert "secret" not in str(caught.value)


def test_a_cluster_id_never_begins_with_a_dash() -> None:
    assert all(len(each) == 22 and not each.startswith("-") for each in (random_uuid() for _ in range(500)))
