"""Brokers that must not start, and their errors: Apache Kafka's real ones, and ours, on the same ZooKeeper."""

from __future__ import annotations

import contextlib
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.jars import java, kafka_classpath
from tests.kit.zookeeper import real_zookeeper, something_else, without_quorum
from tests.kit.zookeeper_process import ZookeeperProcess

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    with real_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def connect(server: ZookeeperProcess) -> str:
    """zookeeper.connect for a new cluster."""
    return f"{server.address}/{secrets.token_hex(8)}"


def apache_configuration(directory: Path, connect: str, settings: Mapping[str, str]) -> Path:
    """The configuration of an Apache broker with the id 1; `settings` have underscores for dots."""
    directory.mkdir()
    values = {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "log.dirs": str(directory / "data"),
        "zookeeper.connect": connect,
        "zookeeper.session.timeout.ms": "4000",
        "controlled.shutdown.enable": "false",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def last_words_of_apache(directory: Path, connect: str, **settings: str) -> str:
    """Why it does not start: its FATAL line with the following exception."""
    path = apache_configuration(directory, connect, settings)
    log4j = directory / "log4j"
    log4j.write_text(
        "log4j.rootLogger=ERROR, stdout\nlog4j.appender.stdout=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stdout.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.stdout.layout.ConversionPattern=%p %m%n\n"
    )
    options = ("-Xmx512M", "-XX:TieredStopAtLevel=1", "-cp", kafka_classpath(), f"-Dlog4j.configuration=file:{log4j}")
    command = java(*options, "kafka.Kafka", str(path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stdout[-2000:]
    return done.stdout


def ours(directory: Path, connect: str, settings: Mapping[str, str] | None = None) -> BrokerProcess:
    own = {"broker.id": "1", "zookeeper.connect": connect, "zookeeper.session.timeout.ms": "4000"}
    return BrokerProcess(directory, own | dict(settings or {}))


def last_words(process: BrokerProcess) -> str:
    """Why it does not start: its last line."""
    with process.output.open("ab") as output:
        assert process.spawn(output).wait(60) == 1
    return process.output.read_text().splitlines()[-1]


@contextlib.contextmanager
def running(process: BrokerProcess) -> Iterator[BrokerProcess]:
    process.start()
    try:
        yield process
    finally:
        process.stop()


def test_two_brokers_with_one_id(connect: str, tmp_path: Path) -> None:
    with running(ours(tmp_path / "first", connect)) as first:
        words = last_words_of_apache(tmp_path / "apache", connect)
        assert "NodeExists" in words
        said = last_words(ours(tmp_path / "second", connect))
        assert f"A broker is already registered with the id 1, at PLAINTEXT://{first.address}" in said


def test_the_logs_of_another_cluster(server: ZookeeperProcess, connect: str, tmp_path: Path) -> None:
    for name in ("own", "other"):
        with running(ours(tmp_path / name, f"{connect}-{name}")):
            pass
    stored = (tmp_path / "own" / "data" / "meta.properties").read_text()
    expected = r"Invalid cluster\.id in: \S*meta\.properties\. Expected ([\w-]+), but read ([\w-]+)"
    words = last_words_of_apache(tmp_path / "apache", f"{connect}-other", log_dirs=str(tmp_path / "own" / "data"))
    said = last_words(ours(tmp_path / "own", f"{connect}-other"))
    for each in (words, said):
        found = re.search(expected, each)
        assert found is not None, each
        assert f"cluster.id={found[2]}\n" in stored
    assert re.search(expected, words)[1] == re.search(expected, said)[1]  # type: ignore[index]


def test_no_zookeeper(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    words = last_words_of_apache(tmp_path / "apache", nowhere, zookeeper_connection_timeout_ms="1000")
    assert "Timed out waiting for connection while in state: CONNECTING" in words
    said = last_words(ours(tmp_path / "ours", nowhere, {"zookeeper.connection.timeout.ms": "1000"}))
    assert f"No ZooKeeper answered at {nowhere} within 1000 ms" in said


@pytest.mark.parametrize("kind", ["something else", "read-only"])
def test_no_zookeeper_that_a_broker_can_use(kind: str, tmp_path: Path) -> None:
    settings = {"zookeeper.connection.timeout.ms": "4000"}
    used, reason = (
        (something_else(), "what answers there is not a ZooKeeper")
        if kind == "something else"
        else (without_quorum(tmp_path / "zookeeper", read_only=True), "is read-only, as it has no quorum")
    )
    with used as address:
        words = last_words_of_apache(tmp_path / "apache", address, zookeeper_connection_timeout_ms="4000")
        assert "Timed out waiting for connection while in state: CONNECTING" in words
        said = last_words(ours(tmp_path / "ours", address, settings))
    assert f"No ZooKeeper answered at {address} within 4000 ms" in said
    assert reason in said


@pytest.mark.parametrize(
    ("chroot", "expected"),
    [
        ("//kafka", 'Invalid path string "//kafka"'),
        ("/kafka/", "Path must not end with / character"),
        ("/kafka/../other", 'Invalid path string "/kafka/../other"'),
    ],
)
def test_a_chroot_that_is_no_path(chroot: str, expected: str, server: ZookeeperProcess, tmp_path: Path) -> None:
    words = last_words_of_apache(tmp_path / "apache", f"{server.address}{chroot}")
    assert f"IllegalArgumentException: {expected}" in words
    said = last_words(ours(tmp_path / "ours", f"{server.address}{chroot}"))
    assert f"{server.address}{chroot} for configuration zookeeper.connect: {chroot} is not the path of a node" in said


def test_a_chroot_without_the_cluster_of_the_logs(connect: str, tmp_path: Path) -> None:
    """Apache Kafka creates a cluster there before it notices."""
    with running(ours(tmp_path / "ours", connect)):
        pass
    words = last_words_of_apache(tmp_path / "apache", f"{connect}-typo-1", log_dirs=str(tmp_path / "ours" / "data"))
    assert re.search(r"Invalid cluster\.id in: \S*meta\.properties", words)
    said = last_words(ours(tmp_path / "ours", f"{connect}-typo-2"))
    assert "zookeeper.connect names a place where no cluster is yet" in said
