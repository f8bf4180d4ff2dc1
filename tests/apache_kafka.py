"""Real Apache Kafka 3.9.1 with its ZooKeeper on loopback: what this broker is compared with."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.broker_process import free_port
from tests.jars import java, kafka_classpath

START_TIMEOUT_S = 60.0
_LOG4J = """log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.org.apache.zookeeper=WARN
"""
_JVM = ("-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Quick to start; nobody measures this broker."""


def await_controller(address: str) -> None:
    """Until the broker knows its controller and itself: a port that accepts is not there yet, and what is asked of it
    in between (a new topic, say) may be refused or never answered. Raises RuntimeError after `START_TIMEOUT_S`.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        client = AdminClient({"bootstrap.servers": address, "log_level": 0})
        with contextlib.suppress(KafkaException):
            metadata = client.list_topics(timeout=5)
            if metadata.controller_id in metadata.brokers:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Apache Kafka at {address} has no controller")


class ApacheKafka:
    """One broker and its ZooKeeper, under `directory`. Skips the test where Java or Maven is missing."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.data_directory = directory / "data"
        self._directory = directory
        self._class_path = kafka_classpath()
        self._zookeeper_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        (directory / "log4j.properties").write_text(_LOG4J)
        (directory / "zookeeper.properties").write_text(
            f"dataDir={directory / 'zookeeper'}\nclientPort={self._zookeeper_port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        )
        properties = {
            "broker.id": "0",
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.data_directory),
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(settings or {}),
        }
        (directory / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def start(self) -> None:
        """Start both and wait until the broker is the controller. Raises RuntimeError with its output otherwise."""
        self._run("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper")
        self._await("zookeeper", self._zookeeper_port)
        self._run("kafka.Kafka", "server")
        self._await("server", int(self.address.rpartition(":")[2]))
        await_controller(self.address)

    def stop(self) -> None:
        """End both, the broker first; nothing happens when they do not run."""
        while self._processes:
            process = self._processes.pop()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def _run(self, main_class: str, name: str) -> None:
        log4j = f"-Dlog4j.configuration=file:{self._directory / 'log4j.properties'}"
        properties = str(self._directory / f"{name}.properties")
        command = java(*_JVM, "-cp", self._class_path, log4j, main_class, properties)
        with (self._directory / f"{name}.log").open("ab") as output:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            )

    def _await(self, name: str, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"Apache Kafka did not start:\n{(self._directory / f'{name}.log').read_text()[-4000:]}")
