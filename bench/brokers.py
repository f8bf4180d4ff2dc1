"""The two sides: brokers of either kind, started as by their users, each on a separate data directory."""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.processes import await_cpu_quiet, cpu_s, rss_bytes, run, stop
from tests.kit.broker_process import free_port
from tests.kit.jars import java, kafka_classpath

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 300
SESSION_TIMEOUT_MS = 6_000
"""Timeout of Kafka's session with ZooKeeper."""

SETTINGS = {
    "broker.id": "0",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # On both sides, deleted topics leave the disk before the next scenario.
    "log.segment.delete.delay.ms": "1000",
}

LOG4J = """log4j.rootLogger=WARN, stderr
log4j.logger.kafka.log.LogManager=INFO
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def await_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the port accepts; raises RuntimeError if the process ends or `START_TIMEOUT_S` passes first."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise RuntimeError(f"nothing listens on {port} (exit code {process.poll()})")


def java_command(directory: Path, options: Sequence[str], main_class: str) -> list[str]:
    """The command line of a Kafka or ZooKeeper class that logs warnings to standard error."""
    log4j = directory / "log4j.properties"
    log4j.write_text(LOG4J)
    return java(*options, "-cp", kafka_classpath(), f"-Dlog4j.configuration=file:{log4j}", main_class)


class ZooKeeper:
    """A ZooKeeper with its data in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it listens. Raises RuntimeError on failure."""
        properties = self._directory / "zookeeper.properties"
        properties.write_text(
            f"dataDir={self._directory}/zookeeper\nclientPort={self._port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=1000\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        command = java_command(self._directory, ("-Xmx256M",), "org.apache.zookeeper.server.quorum.QuorumPeerMain")
        with (self._directory / "zookeeper.log").open("ab") as out:
            self._process = subprocess.Popen(
                [*command, str(properties)], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        await_listening(self._port, self._process)

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            stop([self._process])
            self._process = None


class Broker(abc.ABC):
    """One broker. `prepare` starts its dependencies; `launch` spawns it; `start` does both and waits."""

    name: str

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings: Mapping[str, str] = {}
        """Additional server.properties, on top of those of every broker."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: Mapping[str, str] = {}
        """Additional environment variables of its processes."""

    @property
    def pid(self) -> int:
        """The broker's process; raises RuntimeError before `launch`."""
        if self.process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self.process.pid

    def write_properties(self, **more: str) -> Path:
        """Write this broker's server.properties, with `more` entries."""
        settings = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.directory / "data"),
            **self.settings,
            **more,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def spawn(self, command: list[str], environment: dict[str, str], output: str) -> subprocess.Popen[bytes]:
        """Start a process of this broker, with its output in a file of the directory."""
        with (self.directory / output).open("ab") as out:
            return subprocess.Popen(
                command,
                env={**os.environ, **environment, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @abc.abstractmethod
    def another(self) -> Broker:
        """Another broker of this kind, not started, with a separate port and data directory and without settings."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Start the processes that the broker needs; they do not count towards its start."""

    @abc.abstractmethod
    def launch(self) -> None:
        """Spawn the broker's process, and return at once."""

    def start(self) -> None:
        """Prepare, launch, wait for the port."""
        self.prepare()
        self.launch()
        if self.process is not None:
            await_listening(self.port, self.process)

    @abc.abstractmethod
    def build_fast(self) -> None:
        """Compile the record code for compaction, if this kind can."""

    def restart(self) -> None:
        """Stop the broker cleanly and start it again on its data; the processes of `prepare` keep running."""
        self.end()
        self.launch()
        if self.process is not None:
            await_listening(self.port, self.process)

    def end(self) -> None:
        """Stop the broker cleanly; its data and the processes of `prepare` stay."""
        if self.process is not None:
            stop([self.process])
            self.process = None

    def kill(self) -> None:
        """SIGKILL the broker; return when it can be launched again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Stop the broker and the processes of `prepare`; its data stays."""
        self.end()

    def remove(self) -> None:
        """Remove the data of a stopped broker."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_s(self) -> float:
        """CPU seconds of the broker since its start, measured once it is idle."""
        await_cpu_quiet(self.pid)
        return cpu_s(self.pid)

    def rss_bytes(self) -> int:
        """Current resident memory of the broker."""
        return rss_bytes(self.pid)


class Odradek(Broker):
    """Our broker, started by the users' script, from this checkout or another."""

    name = "Odradek"

    def __init__(self, root: Path = ROOT) -> None:
        super().__init__()
        self._root = root

    def another(self) -> Broker:
        """A broker of the same checkout."""
        return Odradek(self._root)

    def prepare(self) -> None:
        """Do nothing: coordination is embedded."""

    def launch(self) -> None:
        """Run bin/kafka-server-start.sh in the foreground."""
        script = str(self._root / "bin" / "kafka-server-start.sh")
        properties = str(self.write_properties())
        # The script prepares .venv, and users do not have this benchmark's PYTHONPATH. Python must cache compiled
        # modules, which many CI images disable: a broker compiles them only at its first start.
        self.process = self.spawn([script, properties], {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}, "broker.log")

    def build_fast(self) -> None:
        """Run bin/build-fast."""
        run([str(self._root / "bin" / "build-fast")], BUILD_TIMEOUT_S)


class ApacheKafka(Broker):
    """Apache Kafka 3.9.1 with ZooKeeper, with the heap and the collector from its start script."""

    name = "Apache Kafka"
    java_options = (
        "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._zookeeper = ZooKeeper(self.directory)

    def another(self) -> Broker:
        """A broker with a separate ZooKeeper."""
        return ApacheKafka()

    def prepare(self) -> None:
        """Start ZooKeeper and wait until it listens."""
        self._zookeeper.start()

    def launch(self) -> None:
        """Run kafka.Kafka, on the ZooKeeper in the settings or on its own."""
        own = {
            "zookeeper.connect": self._zookeeper.address,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        }
        properties = self.write_properties(**{**own, **self.settings})
        command = java_command(self.directory, self.java_options, "kafka.Kafka")
        self.process = self.spawn([*command, str(properties)], {}, "broker.log")

    def build_fast(self) -> None:
        """Do nothing: Kafka has nothing to compile."""

    def kill(self) -> None:
        """SIGKILL, then wait: ZooKeeper keeps a killed broker's registration until its session ends."""
        super().kill()
        time.sleep(SESSION_TIMEOUT_MS / 1000 + 2)

    def stop(self) -> None:
        """Stop the broker first, then ZooKeeper."""
        super().stop()
        self._zookeeper.stop()


@dataclass(frozen=True)
class Side:
    """One column of measurements."""

    name: str
    make: Callable[[], Broker]
    is_kafka: bool = False


def side(text: str) -> Side:
    """The side with the name `text` on the command line; raises ValueError for an unknown one."""
    if text == "kafka":
        return Side(ApacheKafka.name, ApacheKafka, is_kafka=True)
    if text == "odradek":
        return Side(Odradek.name, Odradek)
    root = Path(text).resolve()
    if not (root / "bin" / "kafka-server-start.sh").exists():
        raise ValueError(f"--sides {text}: neither kafka, odradek nor a checkout")
    return Side(root.name, partial(Odradek, root))
