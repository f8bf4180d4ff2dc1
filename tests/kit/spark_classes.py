"""Spark's classes in an archive of the JVM's (JEP 350), made once and kept between runs.

A JVM of Spark's reads and verifies some 15,000 classes before it does anything. With the archive a short job takes some
40 % less processor time. Run as a program, this makes the archive for the options that tests' JVMs start with.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def archive_of(directory: Path, *options: str) -> Path:
    """Where in `directory` the archive is, or will be, of JVMs that start with `options`."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    # The JVM takes an archive for the class path and the build that it was made with, and else does without.
    version = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    made_with = version + f"{spark.origin}\n{' '.join(options)}".encode() + Path(__file__).read_bytes()
    return directory / f"spark-{hashlib.sha256(made_with).hexdigest()[:12]}.jsa"


def make(archive: Path, *options: str) -> None:
    """Make the archive unless it is there, or another process makes it; none comes of it where Spark does not start."""
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
        made = {"SPARK_SUBMIT_OPTS": " ".join([*options, f"-XX:ArchiveClassesAtExit={partial}"])}
        # The output ends with the JVM, which writes the archive when the program has ended.
        subprocess.run(
            [sys.executable, "-m", "tests.kit.spark_classes", "use"],
            cwd=ROOT,
            env={**os.environ, **made, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if partial.exists():
            partial.rename(archive)


def _use_classes() -> None:
    """Do as most jobs: parse, count with state, write a table, read it."""
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


def _main() -> None:
    if sys.argv[1:] == ["use"]:
        _use_classes()
        return
    from tests.kit.jars import QUICK_START, cache_directory

    make(archive_of(cache_directory(), *QUICK_START), *QUICK_START)


if __name__ == "__main__":
    _main()
