"""The environment of a test process that runs Spark: directories for its files, and a JVM that starts fast.

A Spark JVM spends half of its start on loading and verifying some 15,000 classes, and the tests start dozens. So one
JVM archives them first (JEP 350, "Dynamic CDS Archives"), and the others map that file. It lies in the virtual
environment whose class path it was made for. Without it, as on another Java, a JVM loads the classes as usual.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.kit.broker_process import ROOT
from tests.kit.jars import QUICK_START, java_temporary_directory

_TIMEOUT_S = 300
_QUICK_START = " ".join(QUICK_START)


def spark_environment() -> dict[str, str]:
    """Environment variables for a short-lived process that runs Spark."""
    archive = _class_archive()
    mapped = f" -XX:SharedArchiveFile={archive} -Xlog:disable" if archive is not None else ""
    return _environment(_QUICK_START + mapped)


def long_lived_spark_environment() -> dict[str, str]:
    """The same for a process that is measured: its JVM has Java's defaults, like a user's."""
    return _environment("")


def _environment(options: str) -> dict[str, str]:
    directory = java_temporary_directory()
    return {
        "SPARK_LOCAL_DIRS": directory,
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={directory} {options}",
        "SPARK_LAUNCHER_OPTS": _QUICK_START,
    }


@functools.cache
def _class_archive() -> Path | None:
    """The archive for this Java and this environment, made if missing, or None if Java cannot make one."""
    try:
        version = subprocess.run(["java", "-version"], capture_output=True, timeout=_TIMEOUT_S, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return None  # The test reports the missing Java.
    home = Path(pyspark.__file__).parent
    named = hashlib.sha256(b"\n".join([version, pyspark.__version__.encode(), str(home).encode()])).hexdigest()[:12]
    archive = Path(sys.prefix) / f"spark-classes-{named}.jsa"
    if not archive.is_file() and os.access(sys.prefix, os.W_OK):
        with archive.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.is_file():
                _make(archive)
    return archive if archive.is_file() else None


def _make(archive: Path) -> None:
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [sys.executable, "-m", "tests.kit.spark.environment"],
            cwd=directory,
            env={
                **os.environ,
                **_environment(f"{_QUICK_START} -XX:ArchiveClassesAtExit={partial} -Xlog:disable"),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,  # wait for the JVM, which outlives the process and holds its stderr
            timeout=_TIMEOUT_S,
            check=False,
        )
    if partial.is_file():
        partial.rename(archive)


def _use_spark() -> None:
    """Read and write files and parse JSON in streams, with a watermark, windows and state, like most jobs."""
    from pyspark.sql import functions

    from spark_jobs.common.session import build_session

    spark = build_session("classes", master="local[2]")
    rows = spark.createDataFrame([(number, '{"a": 1, "b": "x"}') for number in range(10)], "id long, value string")
    rows.write.parquet("rows")
    parsed = (
        spark.readStream.schema(rows.schema)
        .parquet("rows")
        .select("id", functions.from_json("value", "a int, b string").alias("parsed"))
        .select("id", "parsed.*", functions.current_timestamp().alias("time"))
        .withWatermark("time", "1 minute")
    )
    counts = parsed.groupBy(functions.window("time", "1 minute"), "b").count()
    to_files = parsed.writeStream.option("checkpointLocation", "checkpoint-parsed").option("path", "parsed")
    to_files.trigger(availableNow=True).start().awaitTermination()
    to_python = counts.writeStream.option("checkpointLocation", "checkpoint-counts").outputMode("update")
    to_python.foreachBatch(lambda batch, _: None).trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet("parsed").groupBy("a").count().collect()
    spark.stop()


if __name__ == "__main__":
    _use_spark()
