"""The SparkSession of a job, with Spark's Kafka connector on its class path, and the zip of the jobs that Spark ships
to its executors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import spark_jobs

SCALA_VERSION = "2.13"
"""The only Scala version that Spark 4 is built for."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that keeps state outside the JVM's heap."""


def cache_dir() -> Path:
    """Where downloaded jars are kept: `ODRADEK_CACHE`, or `odradek` in the user's cache directory."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek"
    return Path(os.environ.get("ODRADEK_CACHE") or fallback)


def connector_coordinate() -> str:
    """The Maven coordinate of the Kafka connector for the installed PySpark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:{pyspark.__version__}"


def ivy_dir() -> Path:
    """Where Spark stores downloaded packages. It is a private directory: a half-downloaded artifact in the user's ~/.m2
    or ~/.ivy2 must not fail the job.
    """
    return cache_dir() / "ivy"


@contextlib.contextmanager
def fetching(packages: str) -> Iterator[None]:
    """Hold a lock while Spark starts, if `ivy_dir` lacks one of `packages` (Maven coordinates, separated by commas).

    Ivy does not lock its cache: two processes that download the same file at once both fail. Under spark-submit the JVM
    already runs and fetches nothing, so no directory is made.
    """
    ivy = ivy_dir()
    jars = ["{}_{}-{}.jar".format(*package.split(":")) for package in packages.split(",")]
    if "PYSPARK_GATEWAY_PORT" in os.environ or all((ivy / "jars" / jar).exists() for jar in jars):
        yield
        return
    ivy.mkdir(parents=True, exist_ok=True)
    with (ivy / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_RESOLVE = """
import sys
from pyspark.sql import SparkSession
settings = {"spark.jars.packages": sys.argv[1], "spark.jars.ivy": sys.argv[2], "spark.ui.enabled": "false"}
settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
print(SparkSession.builder.master("local[1]").config(map=settings).getOrCreate().sparkContext.getConf().get("spark.jars"))
"""


def resolved(packages: str) -> str:
    """The jars of `packages` and their dependencies, comma separated; fetches those that `ivy_dir` lacks.

    Runs a separate process and shows its output only on failure: Ivy prints thirty lines at each start. Raises
    ChildProcessError.
    """
    named = hashlib.sha256(packages.encode()).hexdigest()[:16]
    kept = ivy_dir() / f"resolved-{named}"
    jars = kept.read_text(encoding="utf-8") if kept.exists() else ""
    if jars and all(Path(jar.removeprefix("file://")).exists() for jar in jars.split(",")):
        return jars
    print("fetching the connector's jars...", file=sys.stderr)
    command = [sys.executable, "-c", _RESOLVE, packages, str(ivy_dir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    jars = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not jars:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise ChildProcessError(f"{packages}: not fetched")
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(jars, encoding="utf-8")
    partial.replace(kept)
    return jars


@dataclasses.dataclass(frozen=True)
class SessionParts:
    """Maven packages and settings that some jobs add to their session."""

    packages: tuple[str, ...] = ()
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)


def java_class(spark: SparkSession, name: str) -> Any:
    """A class of the driver's JVM, by its full name.

    `spark._jvm.org.apache...` asks the JVM about each part of the name on every use, and Java searches all jars of the
    class path for a class `org`: 1 ms for each part.
    """
    return _java_class(spark._jvm, name)


@functools.lru_cache(maxsize=256)
def _java_class(jvm: JVMView, name: str) -> JavaClass:
    found: JavaClass = getattr(jvm, name)
    return found


def is_one_machine(master: str) -> bool:
    """Whether this master runs Spark in one process: `local` or `local[4]`, but not `local-cluster[2,1,1024]`."""
    return master.partition("[")[0] == "local"


def build_session(
    app_name: str,
    *,
    master: str | None = None,
    kafka_jars: str | None = None,
    log_level: str = "OFF",
    shuffle_partitions: int = 4,
    parts: SessionParts = SessionParts(),
) -> SparkSession:
    """A session with the Kafka connector, in UTC, with state in RocksDB; prints which connector it uses.

    `parts` are added. `kafka_jars` names a directory of jars to use instead of Maven Central. Under spark-submit, its
    own --master, --packages and --jars apply. Raises OSError with advice if Java is missing, `kafka_jars` contains no
    jar, or the connector cannot be fetched.
    """
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise OSError("Java is missing: Spark needs Java 17; install it, or set JAVA_HOME")
    builder = _builder(app_name, master, shuffle_partitions, parts)
    if kafka_jars is not None:
        jars = sorted(str(jar) for jar in Path(kafka_jars).glob("*.jar"))
        if not jars:
            raise FileNotFoundError(f"no *.jar in --kafka-jars {kafka_jars}")
        builder = builder.config("spark.jars", ",".join(jars))
        connector = f"the {len(jars)} jars of {kafka_jars}"
        turn: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    else:
        connector = ",".join([connector_coordinate(), *parts.packages])
        turn = fetching(connector)
    print(f"{app_name}: Spark {pyspark.__version__} with Kafka connector: {connector}", file=sys.stderr)
    try:
        with turn:
            if kafka_jars is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
                builder = builder.config("spark.jars", resolved(connector))
            session: SparkSession = builder.getOrCreate()
    except (PySparkRuntimeError, ChildProcessError) as failure:
        raise OSError(
            f"Spark did not start with {connector} (the lines above say why); without a way to Maven Central, put the "
            "connector, spark-token-provider-kafka-0-10, kafka-clients, commons-pool2 and the jars of --format in a "
            "directory and name it with --kafka-jars"
        ) from failure
    if isinstance(java_class(session, "org.apache.kafka.clients.admin.Admin"), JavaPackage):
        session.stop()
        raise OSError(f"Spark has no Kafka connector: start spark-submit with --packages {connector_coordinate()}")
    # PySpark looks up this class thirteen times for each Java exception, and every Java iterator ends with one.
    kinds = types.SimpleNamespace(TypeUtil=java_class(session, "py4j.reflection.TypeUtil"))
    vars(session._jvm)["py4j"] = types.SimpleNamespace(reflection=kinds)
    session.sparkContext.setLogLevel(log_level)
    # PySpark logs each exception that it converts, with both stack traces; the job prints one line instead.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = log_level == "OFF"
    return session


def _builder(app_name: str, master: str | None, shuffle_partitions: int, parts: SessionParts) -> SparkSession.Builder:
    """A builder with the settings of every session, wherever its jars come from."""
    builder: SparkSession.Builder = (
        SparkSession.builder.appName(app_name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", shuffle_partitions)
        .config("spark.ui.showConsoleProgress", "false")
        # INT96, Spark's default, counts nanoseconds: many readers misread it outside of 1677 to 2262.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    )
    for name, value in parts.settings.items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master)
        if is_one_machine(master):
            # No other machine needs to reach Spark.
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.ui.enabled", "false")
    return builder


def write_archive(archive: Path) -> Path:
    """Write every module of the jobs into the zip `archive` and return it; the zip is reproducible byte for byte.

    Raises OSError, or ValueError if the name does not show Spark that it is a zip.
    """
    if archive.suffix != ".zip":
        raise ValueError(f"{archive}: must end in .zip, or Spark does not recognize it")
    root = Path(spark_jobs.__file__).parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for path in sorted(root.rglob("*.py")):
            # Omit the file's time, which differs from checkout to checkout.
            name = zipfile.ZipInfo(str(path.relative_to(root.parent)))
            written.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive
