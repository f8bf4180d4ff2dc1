"""A real ZooKeeper, and a real Kafka on it, for the tests that compare with them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.broker_process import free_port
from tests.jars import java, kafka_classpath

_QUIET = ["-Dlog4j.rootLogger=OFF", "-Dzookeeper.admin.enableServer=false"]


@contextlib.contextmanager
def zookeeper(directory: Path) -> Iterator[str]:
    """A ZooKeeper server on a free port; gives `host:port`."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    properties = directory / "zookeeper.properties"
    properties.write_text(
        f"dataDir={directory / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    with _java(
        directory / "zookeeper.log", ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(properties)], port
    ):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def apache_kafka(directory: Path, zookeeper_address: str, settings: Mapping[str, str] | None = None) -> Iterator[int]:
    """Apache Kafka on that ZooKeeper; gives its port."""
    port = free_port()
    properties = {
        "broker.id": "0",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory / "kafka"),
        "zookeeper.connect": zookeeper_address,
        "offsets.topic.replication.factor": "1",
        **(settings or {}),
    }
    file = directory / "kafka.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    with _java(directory / "kafka.log", ["kafka.Kafka", str(file)], port):
        yield port


@contextlib.contextmanager
def _java(log: Path, arguments: list[str], port: int, timeout_s: float = 60) -> Iterator[None]:
    command = java("-Xmx512M", "-cp", kafka_classpath(), *_QUIET, *arguments)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, process, log, timeout_s)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on {port}:\n{log.read_text()[-2000:]}")
