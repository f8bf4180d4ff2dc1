"""ZooKeeper's jars: from an installation, from PySpark, from an earlier download, or downloaded by Maven.

The commands start java directly, so that their caller can exec or spawn the JVM itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).with_name("pom.xml")
SERVER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SHELL_CLASS = "org.apache.zookeeper.ZooKeeperMain"

_NEEDED = (
    "zookeeper-", "netty-", "slf4j-api-", "slf4j-reload4j-", "reload4j-", "log4j-api-", "log4j-core-", "log4j-slf4j",
    "metrics-core-", "snappy-java-", "commons-io-", "commons-cli-", "jline-2", "audience-annotations-",
)  # fmt: skip
"""The jars that ZooKeeper needs, among hundreds in some directories: the others would slow down its start."""


class ZookeeperMissingError(Exception):
    """ZooKeeper cannot run here; the message is one line naming the missing part."""


def java() -> str:
    """The java program. Raises ZookeeperMissingError."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ZookeeperMissingError("ZooKeeper needs Java 11 or newer; there is no java on the PATH or in JAVA_HOME")
    return found


def server_command(properties: Path, *, heap: str = "256M") -> list[str]:
    """The command of a server that reads `properties`. Raises ZookeeperMissingError."""
    options = os.environ.get("KAFKA_HEAP_OPTS", f"-Xmx{heap}").split() + shlex.split(os.environ.get("KAFKA_OPTS", ""))
    return [java(), *options, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_logging("zookeeper"), "-cp",
            class_path(), SERVER_CLASS, str(properties)]  # fmt: skip


def shell_command(arguments: Sequence[str]) -> list[str]:
    """The command of ZooKeeper's own shell. Raises ZookeeperMissingError."""
    return [java(), "-XX:TieredStopAtLevel=1", *_logging("tools"), "-cp", class_path(), SHELL_CLASS, *arguments]


def _logging(name: str) -> list[str]:
    # The logging library depends on the source of the jars.
    directory = ROOT / "config"
    return [
        f"-Dlog4j.configuration=file:{directory / name}-log4j.properties",
        f"-Dlog4j2.configurationFile=file:{directory / name}-log4j2.properties",
    ]


def class_path() -> str:
    """A class path with ZooKeeper; downloads missing jars. Raises ZookeeperMissingError."""
    for directory in _directories():
        jars = _jars_in(directory)
        if jars:
            return os.pathsep.join(jars)
    return os.pathsep.join(_jars_in(_fetched()))


def _directories() -> Iterator[Path]:
    installed = os.environ.get("ZOOKEEPER_HOME")
    if installed:
        yield Path(installed) / "lib"
    yield _fetch_target()
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        yield Path(spark.origin).parent / "jars"
    yield from sorted(ROOT.glob(".venv*/lib/python3*/site-packages/pyspark/jars"))
    # The jars that the tests compare with: all of Kafka 3.9, including ZooKeeper.
    yield from sorted(_cache().glob("kafka-jars-*"))


def _jars_in(directory: Path) -> list[str]:
    """The jars in the directory that ZooKeeper needs, sorted; empty if ZooKeeper itself is not among them."""
    if not any(directory.glob("zookeeper-[0-9]*.jar")):
        return []
    return sorted(str(jar) for jar in directory.glob("*.jar") if jar.name.startswith(_NEEDED))


def _cache() -> Path:
    return Path(os.environ.get("ODRADEK_CACHE") or Path.home() / ".cache" / "odradek")


def _fetch_target() -> Path:
    # The pom names the directory, so that a changed version never mixes with old jars.
    return _cache() / f"zookeeper-jars-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def _fetched() -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise ZookeeperMissingError(
            "ZooKeeper's jars are not on this machine: install PySpark (pip install 'odradek[spark]') or Maven, "
            "or set ZOOKEEPER_HOME"
        )
    target = _fetch_target()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            partial = target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [
                maven,
                "-q",
                "-B",
                "-f",
                str(POM),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={partial}",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                lines = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
                why = lines[0].removeprefix("[ERROR]").strip() if lines else f"exit code {done.returncode}"
                raise ZookeeperMissingError(f"Maven could not fetch ZooKeeper's jars: {why}")
            partial.rename(target)
    return target
