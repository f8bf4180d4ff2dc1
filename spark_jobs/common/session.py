"""The SparkSession of a job, with Spark's Kafka connector on its class path."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

SCALA_VERSION = "2.13"
"""The only Scala that Spark 4 is built for."""


def cache_dir() -> Path:
    """Where downloaded jars are kept: `ODRADEK_CACHE`, else `odradek` in the user's cache directory."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek"
    return Path(os.environ.get("ODRADEK_CACHE") or fallback)


def connector_coordinate() -> str:
    """The Maven coordinate of the Kafka connector that belongs to the installed PySpark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:{pyspark.__version__}"


def build_session(
    app_name: str, *, master: str | None = None, kafka_jars: str | None = None, shuffle_partitions: int = 4
) -> SparkSession:
    """A session whose JVM has the Kafka connector, in UTC.

    `kafka_jars` names a directory of jars to use instead of asking Maven Central. Under spark-submit the session that
    it made is returned, and its own --master, --packages and --jars hold. Raises FileNotFoundError when `kafka_jars`
    has no jar.
    """
    builder = (
        SparkSession.builder.appName(app_name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", shuffle_partitions)
        .config("spark.ui.showConsoleProgress", "false")
    )
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # One machine: nothing of Spark's needs to be reachable from another.
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.ui.enabled", "false")
    if kafka_jars is not None:
        jars = sorted(str(jar) for jar in Path(kafka_jars).glob("*.jar"))
        if not jars:
            raise FileNotFoundError(f"no *.jar in --kafka-jars {kafka_jars}")
        builder = builder.config("spark.jars", ",".join(jars))
    else:
        # A directory of our own: a half-downloaded artifact in the user's ~/.m2 or ~/.ivy2 must not fail the job.
        builder = builder.config("spark.jars.packages", connector_coordinate())
        builder = builder.config("spark.jars.ivy", str(cache_dir() / "ivy"))
    session: SparkSession = builder.getOrCreate()
    return session
