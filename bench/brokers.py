"""The two sides: a broker of each kind, started as its users start it, on a data directory of its own."""

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
"""Of Kafka's session with ZooKeeper."""

SETTINGS = {
    "broker.id": "0",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Deleted topics leave the disk before the next scenario, on both sides.
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
    """Return when the port accepts; raises RuntimeError when the process ends or `START_TIMEOUT_S` passes before."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise RuntimeError(f"nothing listens on {port} (exit code {process.poll()})")


def java_command(directory: Path, options: Sequence[str], main_class: str) -> list[str]:
    """The command line of a class of Kafka's or ZooKeeper's that logs warnings to standard error."""
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
        """Start and wait until it listens. Raises RuntimeError when it does not."""
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
        """Stop it; nothing happens when it does not run."""
        if self._process is not None:
            stop([self._process])
            self._process = None


class Broker(abc.ABC):
    """One broker. `prepare`: what is not the broker's own start; `launch` spawns it; `start` does both and waits."""

    name: str

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings: Mapping[str, str] = {}
        """Of its server.properties, beside those of every broker."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: Mapping[str, str] = {}
        """Of its processes, beside this one's."""

    @property
    def pid(self) -> int:
        """The broker's process; raises RuntimeError before `launch`."""
        if self.process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self.process.pid

    def write_properties(self, **more: str) -> Path:
        """server.properties of this broker."""
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
        """Start a process of this broker with its output in a file of the directory."""
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
        """One more of this kind, not started, whose port and data are its own and which has no settings."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Start the processes that the broker needs; they are not counted as its start."""

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
        """Compile what may be compiled for compaction."""

    def restart(self) -> None:
        """Stop the broker in order and start it again on its data; what was prepared for it stays."""
        self.end()
        self.launch()
        if self.process is not None:
            await_listening(self.port, self.process)

    def end(self) -> None:
        """Stop the broker in order; what was prepared for it stays, and so do its data."""
        if self.process is not None:
            stop([self.process])
            self.process = None

    def kill(self) -> None:
        """Kill -9; returns when the broker can be launched again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Stop the broker and what was prepared for it; its data stay."""
        self.end()

    def remove(self) -> None:
        """Remove the data of a broker that was stopped."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_s(self) -> float:
        """CPU seconds of the broker since its start, once it has come to rest."""
        await_cpu_quiet(self.pid)
        return cpu_s(self.pid)

    def rss_bytes(self) -> int:
        """Resident memory of the broker now."""
        return rss_bytes(self.pid)


class Odradek(Broker):
    """Ours, by the script that users call, of this checkout or another."""

    name = "Odradek"

    def __init__(self, root: Path = ROOT) -> None:
        super().__init__()
        self._root = root

    def another(self) -> Broker:
        """A broker of the same checkout."""
        return Odradek(self._root)

    def prepare(self) -> None:
        """Nothing: coordination is embedded."""

    def launch(self) -> None:
        """bin/kafka-server-start.sh, in the foreground."""
        script = str(self._root / "bin" / "kafka-server-start.sh")
        properties = str(self.write_properties())
        # The script prepares .venv; PYTHONPATH of this benchmark is not the user's. And Python keeps modules that it
        # compiled, unless told not to as in many images for CI: a broker compiles at its first start alone.
        self.process = self.spawn([script, properties], {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}, "broker.log")

    def build_fast(self) -> None:
        """bin/build-fast."""
        run([str(self._root / "bin" / "build-fast")], BUILD_TIMEOUT_S)


class ApacheKafka(Broker):
    """Apache Kafka 3.9.1 with ZooKeeper, with the heap and the collector of its own start script."""

    name = "Apache Kafka"
    java_options = (
        "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._zookeeper = ZooKeeper(self.directory)

    def another(self) -> Broker:
        """A broker with a ZooKeeper of its own."""
        return ApacheKafka()

    def prepare(self) -> None:
        """ZooKeeper, up and listening."""
        self._zookeeper.start()

    def launch(self) -> None:
        """kafka.Kafka, on the ZooKeeper of the settings or on its own."""
        own = {
            "zookeeper.connect": self._zookeeper.address,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        }
        properties = self.write_properties(**{**own, **self.settings})
        command = java_command(self.directory, self.java_options, "kafka.Kafka")
        self.process = self.spawn([*command, str(properties)], {}, "broker.log")

    def build_fast(self) -> None:
        """There is no such step."""

    def kill(self) -> None:
        """ZooKeeper keeps the registration of a broker that was killed until its session ends."""
        super().kill()
        time.sleep(SESSION_TIMEOUT_MS / 1000 + 2)

    def stop(self) -> None:
        """The broker first, ZooKeeper last."""
        super().stop()
        self._zookeeper.stop()


@dataclass(frozen=True)
class Side:
    """One column of measurements."""

    name: str
    make: Callable[[], Broker]
    is_kafka: bool = False


def side(text: str) -> Side:
    """The side that the command line calls `text`; raises ValueError for other texts."""
    if text == "kafka":
        return Side(ApacheKafka.name, ApacheKafka, is_kafka=True)
    if text == "odradek":
        return Side(Odradek.name, Odradek)
    root = Path(text).resolve()
    if not (root / "bin" / "kafka-server-start.sh").exists():
        raise ValueError(f"--sides {text}: neither kafka, odradek nor a checkout")
    return Side(root.name, partial(Odradek, root))
