"""Runner of streaming jobs: options, session, query, progress, stop, and one line for what goes wrong."""

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
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.progress import JobMetrics, ProgressListener, SourceCluster, explain
from spark_jobs.common.schema import SessionNeededError
from spark_jobs.common.session import build_session, is_one_machine, write_archive
from spark_jobs.common.source import SourceConfig, check_starting_offsets, starting_offsets
from spark_jobs.tables.formats import session_parts

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Query:
    """A query that is not started: the runner gives it its name, checkpoint and trigger.

    `summary` is the line that the job ends with.
    """

    writer: DataStreamWriter
    summary: Callable[[], str]
    records_of: Callable[[int], int | None] = lambda _batch_id: None
    """How many records a batch held, for jobs that read a batch twice; None: as Spark counts them."""
    watch: Callable[[dict[str, Any]], int] = lambda _progress: 0
    """Told the progress of each batch that is done, as a dict of its JSON, by another thread than the batch's; gives
    how many records of the batch were late.
    """
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    """Set by the job when it has done all that it was to do, by the runner when it is to end, whatever the reason."""
    exit_code: Callable[[], int] = lambda: 0
    """Of the job when it comes to its end."""
    collector: Collector | None = None
    """Prometheus metrics of the job's own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Generic[Config]):
    """Parts that one job adds to the common command line.

    `configure` makes its configuration of the parsed options, and raises ValueError or OSError with one line about a
    bad one. `plan` is the frame that the query writes, without writing it.
    """

    name: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    configure: Callable[[argparse.Namespace, SourceConfig, RunConfig], Config]
    plan: Callable[[SparkSession, Config], DataFrame]
    build_query: Callable[[SparkSession, Config], Query]
    topics: Callable[[argparse.Namespace], str] | None = None
    """Topics that options of the job's own name, comma separated; None: those of --topics or --pattern."""
    reads_topics: bool = True
    """Whether the job's query reads topics; another has no options about that, and no consumer group."""


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """A parser that calls the job what the user called it."""
    return argparse.ArgumentParser(prog=os.environ.get("ODRADEK_COMMAND", name), description=description)


@contextmanager
def session_of(name: str, arguments: argparse.Namespace) -> Iterator[SparkSession]:
    """The session that the options describe, stopped in the end.

    Executors of a cluster that --master names get the jobs' code; spark-submit ships it itself.
    """
    has_executors = arguments.master is not None and not is_one_machine(arguments.master)
    with ExitStack() as ending:
        shipped = ending.enter_context(TemporaryDirectory(prefix="odradek-")) if has_executors else None
        spark = build_session(
            f"odradek-{name}",
            master=arguments.master,
            kafka_jars=arguments.kafka_jars,
            log_level=arguments.log_level,
            parts=session_parts(vars(arguments).get("format")),
        )
        ending.callback(spark.stop)
        if shipped is not None:
            spark.sparkContext.addPyFile(str(write_archive(Path(shipped) / "odradek-spark-jobs.zip")))
        yield spark


def guarded(name: str, body: Callable[[], int]) -> int:
    """Run `body`: the code it returns, or 1 after one line about what stopped it."""
    try:
        return body()
    except REPORTED as failure:
        print(f"{name}: {one_line(failure)}", file=sys.stderr)
        return 1


def bad_options(name: str, failure: Exception) -> int:
    """Exit code 2, after one line about options that are no use together, or a file that they name."""
    print(f"{name}: {one_line(failure)}", file=sys.stderr)
    return 2


def stop_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set, in place of ending the process."""
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
    """Run `job` until its trigger is done or SIGINT or SIGTERM, which lets the batch end that is under way.

    Exit codes: the query's (0) when it came to its end, 1 after one line about what went wrong, 2 for bad options.
    """
    arguments = build_parser(job).parse_args(argv)
    if job.topics is not None:
        arguments.topics, arguments.pattern = job.topics(arguments), None
    configured: Config | None = None
    try:
        source = source_config(arguments) if job.reads_topics else cluster_config(arguments)
        running = run_config(arguments, job.name)
        # Before Spark starts, which takes seconds: all but the words of a schema that only Spark knows.
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
            # Most queries name no offsets, and their checkpoint is not read for that.
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
        # A call of the JVM's that found Python gone would end in a StackOverflowError: py4j tries to send it for ever.
        spark.streams.removeListener(listener)
    print(f"{name}: {query.summary()}")
    return query.exit_code()


def _await_end_of_batch(started: StreamingQuery, listener: ProgressListener) -> None:
    """Wait for the batch that is under way. One that begins meanwhile is cut off, and run again by the next start."""
    before = listener.batches
    while started.isActive and started.status["isTriggerActive"] and listener.batches == before:
        time.sleep(0.05)
