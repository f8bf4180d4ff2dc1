"""Apache Kafka's jars for the tests that compare with it, fetched by Maven once and kept between runs.

They go to `$ODRADEK_CACHE`, or `~/.cache/odradek-tests`. Where Java or Maven is missing, tests are skipped with the
reason, and fail under `CI=true`. What Java programs leave in their temporary directory goes with the run. Run as a
program, this makes the archive of Spark's classes.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of Java programs that run for seconds: to compile for speed costs them more time than it saves."""

_ROOT = Path(__file__).parents[2]
_POMS = Path(__file__).with_name("kafka-jars")


def cache_directory() -> Path:
    """Where tests keep what they fetch."""
    return Path(os.environ.get("ODRADEK_CACHE") or Path.home() / ".cache" / "odradek-tests")


@functools.cache
def java_temporary_directory() -> str:
    """For the temporary files of Java programs (native codecs, Spark's blocks), which they leave behind when they are
    killed; removed when this process ends.
    """
    directory = tempfile.mkdtemp(prefix="odradek-java-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def java(*options: str) -> list[str]:
    """The command `java` with `options`, its temporary files where they go with this run."""
    return ["java", f"-Djava.io.tmpdir={java_temporary_directory()}", *options]


def spark_environment() -> dict[str, str]:
    """Environment variables that do the same for a process that runs Spark; it takes its classes from an archive if
    there is one.
    """
    directory = java_temporary_directory()
    options = [f"-Djava.io.tmpdir={directory}", *QUICK_START]
    if (classes := _spark_archive()).exists():
        options.append(f"-XX:SharedArchiveFile={classes}")
    return {
        "SPARK_LOCAL_DIRS": directory,
        "SPARK_SUBMIT_OPTS": " ".join(options),
        "SPARK_LAUNCHER_OPTS": " ".join(QUICK_START),
    }


def require(*programs: str) -> None:
    """Skip the running test when one of `programs` is missing; fail it under CI=true."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    reason = f"needs {' and '.join(missing)} on the PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def kafka_classpath() -> str:
    """A class path with Apache Kafka 3.9.1: clients, broker (`kafka.Kafka`), tools and ZooKeeper.

    Fetches the jars when they are not there. Skips (or fails, see `require`) without Java and Maven.
    """
    return _classpath(_POMS / "pom.xml", "kafka-jars")


def newest_clients_classpath() -> str:
    """A class path with the newest released Java client; fetched, skipped and failed as `kafka_classpath`."""
    return _classpath(_POMS / "newest-clients" / "pom.xml", "newest-clients")


def debezium_classpath() -> str:
    """A class path with Kafka Connect and Debezium's connector for PostgreSQL; fetched and skipped as the others."""
    return _classpath(_POMS / "debezium" / "pom.xml", "debezium")


def streams_and_connect_classpath() -> str:
    """A class path with Kafka Streams, and Kafka Connect the file connectors; fetched and skipped as the others."""
    return _classpath(_POMS / "streams-and-connect" / "pom.xml", "streams-and-connect")


def _classpath(pom: Path, name: str) -> str:
    require("java", "mvn")
    # The pom names the directory, so that a changed version never meets old jars.
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


@functools.cache
def _spark_archive() -> Path:
    """The archive of Spark's classes (JEP 350) for JVMs that start with `QUICK_START`; `make_spark_archive` makes it.

    A JVM of Spark's reads and verifies some 15,000 classes before it does anything. With the archive a short job takes
    some 40 % less processor time.
    """
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    # The JVM takes an archive for the class path and the build that it was made with, and else does without.
    version = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    made_with = version + f"{spark.origin}\n{' '.join(QUICK_START)}".encode() + Path(__file__).read_bytes()
    return cache_directory() / f"spark-{hashlib.sha256(made_with).hexdigest()[:12]}.jsa"


def make_spark_archive() -> None:
    """Make the archive of Spark's classes, unless it is there or another process makes it. None comes of it where Spark
    does not start.
    """
    archive = _spark_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if archive.exists():
            return
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        made = {"SPARK_SUBMIT_OPTS": " ".join([*QUICK_START, f"-XX:ArchiveClassesAtExit={partial}"])}
        # The output ends with the JVM, which writes the archive when the program has ended.
        subprocess.run(
            [sys.executable, "-m", "tests.kit.jars", "use"],
            cwd=_ROOT,
            env={**os.environ, **made, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if partial.exists():
            partial.rename(archive)


def _use_spark() -> None:
    """Do what most jobs do: parse, count with state, write a table, read it."""
    from pyspark.sql import functions as sql

    from spark_jobs.common.session import build_session

    spark = build_session("classes", master="local[1]", shuffle_partitions=1)
    with tempfile.TemporaryDirectory() as name:
        values, table = Path(name, "values"), str(Path(name, "table"))
        values.mkdir()
        (values / "one").write_text('{"n": 1, "at": "2020-01-01T00:00:00Z"}\n')
        parsed = spark.readStream.text(str(values)).select(sql.from_json("value", "n INT, at TIMESTAMP").alias("of"))
        windows = parsed.select("of.*").withWatermark("at", "1 hour").groupBy(sql.window("at", "1 hour"), "n").count()
        writer = windows.writeStream.outputMode("update").option("checkpointLocation", str(Path(name, "checkpoint")))
        writer = writer.foreachBatch(lambda frame, _number: frame.write.partitionBy("n").parquet(table, "append"))
        writer.trigger(availableNow=True).start().awaitTermination()
        spark.read.parquet(table).orderBy("n").collect()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["use"]:
        _use_spark()
    else:
        make_spark_archive()
