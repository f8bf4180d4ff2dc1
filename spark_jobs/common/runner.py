"""Runs streaming jobs: options, session, query, progress, shutdown, and one-line errors."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Generic, TypeVar

from prometheus_client.registry import Collector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_jobs.checkpoints.binding import in_use
from spark_jobs.checkpoints.checkpoint import Checkpoint, check_topic_ids
from spark_jobs.common.cli import (
    RunConfig,
    add_common_options,
    add_session_options,
    cluster_config,
    run_config,
    source_config,
)
from spark_jobs.common.errors import REPORTED, one_line
from spark_jobs.common.kafka_admin import KafkaAdmin, await_broker
from spark_jobs.common.progress import JobMetrics, ProgressListener, SourceCluster, explain
from spark_jobs.common.schema import SessionNeededError
from spark_jobs.common.session import build_session, is_one_machine, write_archive
from spark_jobs.common.source import SourceConfig, check_starting_offsets, read_properties, starting_offsets
from spark_jobs.tables.formats import session_parts

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Query:
    """A query before its start: the runner sets its name, checkpoint and trigger.

    `summary` returns the job's last line of output.
    """

    writer: DataStreamWriter
    summary: Callable[[], str]
    records_of: Callable[[int], int | None] = lambda _batch_id: None
    """Record count of a batch, for jobs that read a batch twice; by default Spark's count."""
    watch: Callable[[dict[str, Any]], int] = lambda _progress: 0
    """Called with the progress of each finished batch, as a dict of its JSON, from another thread than the batch's;
    returns how many records of the batch were late.
    """
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    """Set by the job when its work is done, and by the runner when the job is to stop for any reason."""
    exit_code: Callable[[], int] = lambda: 0
    """The job's exit code, asked for at its end."""
    collector: Collector | None = None
    """Additional Prometheus metrics of the job."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Generic[Config]):
    """The parts that one job adds to the common command line.

    `configure` turns the parsed options into a configuration, and raises ValueError or OSError with one line about a
    mistake. `plan` returns the frame that the query writes, without writing it.
    """

    name: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    configure: Callable[[argparse.Namespace, SourceConfig, RunConfig], Config]
    plan: Callable[[SparkSession, Config], DataFrame]
    build_query: Callable[[SparkSession, Config], Query]
    topics: Callable[[argparse.Namespace], str] | None = None
    """Comma-separated topics from the job's own options, instead of --topics or --pattern."""
    reads_topics: bool = True
    """Whether the job's query reads topics. If not, it has neither the options for that nor a consumer group."""


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with the command name that the user typed."""
    return argparse.ArgumentParser(prog=os.environ.get("ODRADEK_COMMAND", name), description=description)


@contextmanager
def session_of(name: str, arguments: argparse.Namespace, *, shows_progress: bool = False) -> Iterator[SparkSession]:
    """The session that the options describe, stopped on exit. With `shows_progress`, Spark draws its progress bar on
    standard error if that is a terminal. Raises OSError if a cluster's brokers are unreachable.

    Executors of a cluster named by --master get the jobs' code; spark-submit ships the code itself.
    """
    _await_brokers(arguments)
    parts = session_parts(vars(arguments).get("format"))
    if shows_progress and sys.stderr.isatty():
        parts = dataclasses.replace(parts, settings={**parts.settings, "spark.ui.showConsoleProgress": "true"})
    has_executors = arguments.master is not None and not is_one_machine(arguments.master)
    with ExitStack() as ending:
        shipped = ending.enter_context(TemporaryDirectory(prefix="odradek-")) if has_executors else None
        spark = build_session(
            f"odradek-{name}",
            master=arguments.master,
            kafka_jars=arguments.kafka_jars,
            log_level=arguments.log_level,
            parts=parts,
        )
        ending.callback(spark.stop)
        if shipped is not None:
            spark.sparkContext.addPyFile(str(write_archive(Path(shipped) / "odradek-spark-jobs.zip")))
        yield spark


def _await_brokers(arguments: argparse.Namespace) -> None:
    """Wait for the clusters that the options name, so that Spark is not started in vain."""
    options = vars(arguments)
    for servers, config in (("bootstrap_servers", "command_config"), ("target_bootstrap_servers", "target_config")):
        if options.get(servers) is not None:
            properties = read_properties(options[config]) if options.get(config) else {}
            await_broker(options[servers], properties)


def guarded(name: str, body: Callable[[], int]) -> int:
    """Run `body` and return its exit code, or 1 after printing one line about the failure."""
    try:
        return body()
    except REPORTED as failure:
        print(f"{name}: {one_line(failure)}", file=sys.stderr)
        return 1


def bad_options(name: str, failure: Exception) -> int:
    """Print one line about conflicting options, or a file that they name, and return exit code 2."""
    print(f"{name}: {one_line(failure)}", file=sys.stderr)
    return 2


def stop_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set instead of ending the process."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stopping


def build_parser(job: Job[Config]) -> argparse.ArgumentParser:
    """The common options and those of the job."""
    parser = parser_of(job.name, job.description)
    add_common_options(parser, reads_topics=job.reads_topics, names_topics=job.topics is None)
    add_session_options(parser)
    job.add_options(parser)
    return parser


def run(job: Job[Config], argv: Sequence[str] | None = None) -> int:
    """Run `job` until its trigger is done, or until SIGINT or SIGTERM; the current batch may still finish.

    Exit codes: the query's (0) at its regular end, 1 after one line about a failure, 2 for bad options.
    """
    arguments = build_parser(job).parse_args(argv)
    if job.topics is not None:
        arguments.topics, arguments.pattern = job.topics(arguments), None
    configured: Config | None = None
    try:
        source = source_config(arguments) if job.reads_topics else cluster_config(arguments)
        running = run_config(arguments, job.name)
        # Check before Spark starts, which takes seconds; only Spark knows some words of a schema.
        with suppress(SessionNeededError):
            configured = job.configure(arguments, source, running)
    except (OSError, ValueError) as failure:
        return bad_options(job.name, failure)

    def body() -> int:
        with (
            session_of(job.name, arguments) as spark,
            KafkaAdmin(spark, source.bootstrap_servers, source.client_properties) as admin,
        ):
            config = configured or job.configure(arguments, source, running)
            topics = admin.topics(names=source.topic_names(), pattern=source.pattern)
            if job.reads_topics and not topics:
                print(f"{job.name}: no topic matches --pattern {source.pattern} yet", file=sys.stderr)
            if arguments.explain:
                explain(job.plan(spark, config), spark, source, running.checkpoint, admin)
                return 0
            # Read the checkpoint only if the query names offsets; most name none.
            if starting_offsets(source.starting) and not Checkpoint(spark, running.checkpoint).starts_of_next():
                check_starting_offsets(source.starting, topics)
            with in_use(spark, running.checkpoint):
                query = job.build_query(spark, config)
                if job.reads_topics:
                    ids = admin.topic_ids(topics)
                    check_topic_ids(spark, running.checkpoint, topics, ids, fail_on_data_loss=source.fail_on_data_loss)
                return _watch(job.name, query, spark, source, running, admin)

    return guarded(job.name, body)


def _watch(
    name: str, query: Query, spark: SparkSession, source: SourceConfig, running: RunConfig, admin: KafkaAdmin
) -> int:
    metrics = JobMetrics(name, query.collector)
    if running.metrics_port is not None:
        port = metrics.serve(running.metrics_port)
        print(f"{name}: metrics on port {port}, /metrics", file=sys.stderr)
    stopping = stop_signals()
    cluster = SourceCluster(admin, source.isolation_level, running.group_id)
    listener = ProgressListener(cluster, metrics.count, query.records_of, watch=query.watch)
    spark.streams.addListener(listener)
    writer = query.writer.queryName(name).option("checkpointLocation", running.checkpoint).trigger(**running.trigger)
    started = writer.start()
    try:
        while not stopping.is_set() and not query.ended.is_set() and not started.awaitTermination(1):
            pass
        query.ended.set()
        _await_end_of_batch(started, listener)
    finally:
        started.stop()
        listener.finished()
        # Remove the listener: when the JVM calls a Python that is gone, py4j retries until a StackOverflowError.
        spark.streams.removeListener(listener)
    print(f"{name}: {query.summary()}")
    return query.exit_code()


def _await_end_of_batch(started: StreamingQuery, listener: ProgressListener) -> None:
    """Wait for the current batch. One that begins meanwhile is cut off, and the next start runs it again."""
    before = listener.batches
    while started.isActive and started.status["isTriggerActive"] and listener.batches == before:
        time.sleep(0.05)
