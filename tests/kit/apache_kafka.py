"""Real Apache Kafka 3.9.1 and ZooKeeper on loopback, to compare this broker with."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.kit.broker_process import await_port, free_port
from tests.kit.jars import QUICK_START, java, kafka_classpath
from tests.kit.waiting import eventually

START_TIMEOUT_S = 60.0
_LOG4J = """log4j.rootLogger={level}, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.org.apache.zookeeper=WARN
"""
_HEAP = "-Xmx512M"


class JavaServer:
    """A server that reads `properties` and listens on `port`; `start` may follow `end`.

    Its log, from `level` on, is next to its properties, with the suffix `.log`.
    """

    def __init__(self, main_class: str, properties: Path, port: int, *, level: str = "INFO") -> None:
        self._main_class = main_class
        self._properties = properties
        self._port = port
        self._level = level
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return when it listens; raises RuntimeError otherwise. Skips the test if Java or Maven is
        missing.
        """
        properties = self._properties
        log4j, log = properties.with_suffix(".log4j"), properties.with_suffix(".log")
        log4j.write_text(_LOG4J.format(level=self._level))
        options = [_HEAP, *QUICK_START, "-cp", kafka_classpath(), f"-Dlog4j.configuration=file:{log4j}"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                java(*options, self._main_class, str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            await_port(self._port, self._process, log, START_TIMEOUT_S)
        except RuntimeError:
            self.end(signal.SIGKILL)
            raise

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by this signal, if it is running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def java_server(
    main_class: str, properties: Path, port: int, *, level: str = "INFO", end: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """Run a `JavaServer` for the duration of a block, and end it by the signal `end`."""
    server = JavaServer(main_class, properties, port, level=level)
    server.start()
    try:
        yield
    finally:
        server.end(end)


@contextlib.contextmanager
def zookeeper(directory: Path, port: int | None = None) -> Iterator[str]:
    """Run a ZooKeeper server, by default on a free port; yields `host:port`."""
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    properties = directory / "zookeeper.properties"
    properties.write_text(
        f"dataDir={directory / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    with java_server("org.apache.zookeeper.server.quorum.QuorumPeerMain", properties, port):
        yield f"127.0.0.1:{port}"


def await_controller(address: str) -> None:
    """Wait until the broker knows its controller and itself. An open port is not enough: until then requests (a new
    topic, say) may be refused or never answered.
    """

    def has_controller() -> bool:
        metadata = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=5)
        return metadata.controller_id in metadata.brokers

    eventually(f"the controller of Apache Kafka at {address}", has_controller, not_yet=(KafkaException,), pause_s=0.1)


class ApacheKafka:
    """One broker and its ZooKeeper, under `directory`. Skips the test if Java or Maven is missing."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, address: str | None = None
    ) -> None:
        """`address` is a plain-text listener, for `settings` with their own listeners."""
        directory.mkdir(parents=True, exist_ok=True)
        self.address = address or f"127.0.0.1:{free_port()}"
        self.data_directory = directory / "data"
        self._directory = directory
        self._zookeeper_port = free_port()
        self._zookeeper = contextlib.ExitStack()
        self._zookeeper_runs = False
        path = directory / "server.properties"
        self._broker = JavaServer("kafka.Kafka", path, int(self.address.rpartition(":")[2]))
        properties = {
            "broker.id": "0",
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.data_directory),
            "zookeeper.connect": self.zookeeper_address,
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(settings or {}),
        }
        self._broker_id = properties["broker.id"]
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    @property
    def zookeeper_address(self) -> str:
        """The address of its ZooKeeper."""
        return f"127.0.0.1:{self._zookeeper_port}"

    @property
    def is_running(self) -> bool:
        """Whether the broker is running."""
        return self._broker.is_running

    def start(self) -> None:
        """Start both, or after `kill` the broker on its data, and wait until it is the controller.

        Raises RuntimeError with its output otherwise.
        """
        try:
            if self._zookeeper_runs:
                self._expire_session()
            else:
                self._zookeeper.enter_context(zookeeper(self._directory, self._zookeeper_port))
                self._zookeeper_runs = True
            self._broker.start()
            await_controller(self.address)
        except BaseException:
            self.stop()
            raise

    @contextlib.contextmanager
    def started_without(self, topic: str) -> Iterator[None]:
        """After `kill`: start the broker on its data, but hide `topic` from its controller until the block ends.

        Until then the broker does not know the topic, just as after every start it knows none for a moment. Raises like
        `start`.
        """
        client = KazooClient(self.zookeeper_address)
        client.start()
        try:
            node = f"/brokers/topics/{topic}"
            replicas, _ = client.get(node)
            client.delete(node, recursive=True)
            self.start()
            yield
            # The controller recreates the children.
            client.create(node, replicas)
        finally:
            client.stop()
            client.close()

    def kill(self) -> None:
        """Kill the broker (SIGKILL). Its ZooKeeper keeps running until `stop`."""
        self._broker.end(signal.SIGKILL)

    def _expire_session(self) -> None:
        """Remove the killed broker's nodes from ZooKeeper, as the end of its session would after 18 s.

        A broker does not start while its id is registered.
        """
        client = KazooClient(self.zookeeper_address)
        client.start()
        try:
            for path in (f"/brokers/ids/{self._broker_id}", "/controller"):
                with contextlib.suppress(NoNodeError):
                    client.delete(path)
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        """Stop both if they are running, the broker first."""
        self._broker.end()
        self._zookeeper.close()
        self._zookeeper_runs = False
