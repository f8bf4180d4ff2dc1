"""Apache Kafka's jars for the tests that compare with it, fetched by Maven once and kept between runs.

They go to `$ODRADEK_CACHE`, or `~/.cache/odradek-tests`. Where Java or Maven is missing, tests are skipped with the
reason, and fail under `CI=true`. The temporary directory of the Java programs is removed after the run.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of Java programs that run for seconds: optimized compilation costs them more time than it saves."""

_POMS = Path(__file__).with_name("kafka-jars")


def cache_directory() -> Path:
    """Where tests keep their downloads."""
    return Path(os.environ.get("ODRADEK_CACHE") or Path.home() / ".cache" / "odradek-tests")


@functools.cache
def java_temporary_directory() -> str:
    """For the temporary files of Java programs (native codecs, Spark's blocks), which killed programs leave behind;
    removed when this process exits.
    """
    directory = tempfile.mkdtemp(prefix="odradek-java-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def java(*options: str) -> list[str]:
    """The command `java` with `options` and a temporary directory that is removed after this run."""
    return ["java", f"-Djava.io.tmpdir={java_temporary_directory()}", *options]


def require(*programs: str) -> None:
    """Skip the running test if one of `programs` is missing; fail it under CI=true."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    reason = f"needs {' and '.join(missing)} on the PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def kafka_classpath() -> str:
    """A class path with Apache Kafka 3.9.1: clients, broker (`kafka.Kafka`), tools and ZooKeeper.

    Downloads missing jars. Skips (or fails, see `require`) without Java and Maven.
    """
    return _classpath(_POMS / "pom.xml", "kafka-jars")


def newest_clients_classpath() -> str:
    """A class path with the newest released Java client; downloads, skips and fails like `kafka_classpath`."""
    return _classpath(_POMS / "newest-clients" / "pom.xml", "newest-clients")


def debezium_classpath() -> str:
    """A class path with Kafka Connect and Debezium's connector for PostgreSQL; downloads and skips like the others."""
    return _classpath(_POMS / "debezium" / "pom.xml", "debezium")


def streams_and_connect_classpath() -> str:
    """A class path with Kafka Streams, and Kafka Connect with the file connectors; downloads and skips like the
    others.
    """
    return _classpath(_POMS / "streams-and-connect" / "pom.xml", "streams-and-connect")


def _classpath(pom: Path, name: str) -> str:
    require("java", "mvn")
    # The directory depends on the pom, so that a changed version never meets old jars.
    target = cache_directory() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if not target.is_dir():
        _fetch(pom, target)
    return str(target / "*")


def _fetch(pom: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            pytest.fail(f"Maven could not fetch Kafka's jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        partial.rename(target)
