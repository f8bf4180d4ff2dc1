"""Watches a running query: prints a line a batch, serves Prometheus metrics (`--metrics-port`), commits its offsets for
a consumer group, and prints the plan for `--explain`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.registry import Collector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_jobs.checkpoints.checkpoint import Checkpoint, Offsets
from spark_jobs.common.errors import REPORTED, one_line
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.source import SourceConfig, starting_offsets, timestamp_ms

COMMIT_TIMEOUT_MS = 5_000
COMMIT_PAUSE_S = 30.0
"""How long commits pause after a failure: each one delays the batch reports and the end of the job."""
DUPLICATES = "numDroppedDuplicateRows"
"""Spark's metric of a deduplicating state operator: how many rows it dropped in a batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """Progress of one batch. `lag` is by `topic-partition`, measured after the batch, or None if no broker answered.

    A query that reads no topic has an empty one.
    """

    batch: int
    records: int
    duration_ms: int
    lag: dict[str, int] | None
    state_rows: int
    late_records: int
    duplicate_rows: int

    def line(self) -> str:
        """One line for people: `batch 7: 1,000 records in 0.5 s (2,000 records/s), lag 0`."""
        seconds = self.duration_ms / 1000
        rate = f"{self.records / seconds:,.0f} records/s" if seconds else "at once"
        text = f"batch {self.batch}: {self.records:,} records in {seconds:.1f} s ({rate})"
        if self.lag is None:
            text += ", lag unknown"
        elif self.lag:
            text += f", lag {sum(self.lag.values()):,}"
            if max(self.lag.values()):
                furthest = max(self.lag, key=self.lag.__getitem__)
                text += f" ({furthest}: {self.lag[furthest]:,})"
        for count, what in (
            (self.state_rows, "rows of state"),
            (self.late_records, "late records dropped"),
            (self.duplicate_rows, "duplicates dropped"),
        ):
            if count:
                text += f", {count:,} {what}"
        return text


def kafka_offsets(progress: dict[str, Any]) -> Offsets:
    """Where a batch ended in its Kafka sources, from its progress (a dict of its JSON)."""
    ends: Offsets = {}
    for source in progress["sources"]:
        end = source["endOffset"]
        parsed = json.loads(end) if isinstance(end, str) else end
        if isinstance(parsed, dict):
            for topic, partitions in parsed.items():
                if isinstance(partitions, dict):  # Spark's rate sources have numbers instead
                    ends.setdefault(topic, {}).update(partitions)
    return ends


def records_between(earlier: Offsets, later: Offsets) -> dict[str, int]:
    """How many offsets lie between `earlier` and `later`, for each `topic-partition` in both."""
    return {
        f"{topic}-{partition}": max(0, offset - earlier[topic][partition])
        for topic, partitions in later.items()
        for partition, offset in partitions.items()
        if partition in earlier.get(topic, {})
    }


class SourceCluster:
    """The watcher's view of the cluster that the query reads from."""

    def __init__(self, admin: KafkaAdmin, isolation_level: str, group_id: str) -> None:
        self._admin = admin
        self._isolation_level = isolation_level
        self._group_id = group_id

    def lag(self, offsets: Offsets) -> dict[str, int]:
        """Records after `offsets` by `topic-partition`, at the time of the call."""
        counts = {topic: max(map(int, partitions)) + 1 for topic, partitions in offsets.items()}
        return records_between(offsets, self._admin.offsets(counts, "latest", self._isolation_level))

    def commit(self, offsets: Offsets) -> None:
        """Commit `offsets` for the consumer group, so that every lag tool sees the query; does nothing without a group.

        Raises as `KafkaAdmin.commit` does, after at most `COMMIT_TIMEOUT_MS`.
        """
        if self._group_id:
            self._admin.commit(self._group_id, offsets, COMMIT_TIMEOUT_MS)


class ProgressListener(StreamingQueryListener):
    """Prints each non-empty batch of one query, passes it to `count`, and commits its end offsets.

    Spark calls it from a separate thread after it has committed the batch to the checkpoint; `finished` waits for the
    last call.
    """

    def __init__(
        self,
        cluster: SourceCluster,
        count: Callable[[BatchProgress], None],
        records_of: Callable[[int], int | None],
        out: TextIO = sys.stderr,
        watch: Callable[[dict[str, Any]], int] = lambda _progress: 0,
    ) -> None:
        """`watch` receives each batch's progress, as a dict of its JSON, before the report, and returns its late
        records.

        Spark's own count is taken after rows are grouped, and is too low.
        """
        self._cluster = cluster
        self._count = count
        self._records_of = records_of
        self._out = out
        self._watch = watch
        self._ended = threading.Event()
        self.batches = 0
        """Number of finished batches."""
        self._warned = False
        self._commit_from_s = 0.0

    def finished(self, timeout_s: float = 30) -> bool:
        """Wait for the event of the query's end, which follows its last batch; False on timeout."""
        return self._ended.wait(timeout_s)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no batch has run yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no batch ran."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Report a finished batch, or a trigger that found no data."""
        # Use the JSON text: PySpark's progress object gives offsets as the repr of Python dicts.
        progress = json.loads(event.progress.json)
        late = self._watch(progress)
        counted = self._records_of(progress["batchId"])
        offsets = kafka_offsets(progress)
        operators = progress["stateOperators"]
        done = BatchProgress(
            batch=progress["batchId"],
            records=sum(source["numInputRows"] for source in progress["sources"]) if counted is None else counted,
            duration_ms=progress["batchDuration"],
            lag=self._ask_for_lag(offsets),
            state_rows=sum(operator["numRowsTotal"] for operator in operators),
            late_records=late,
            duplicate_rows=sum(operator["customMetrics"].get(DUPLICATES, 0) for operator in operators),
        )
        self._count(done)
        self.batches += 1
        if done.records:
            print(done.line(), file=self._out, flush=True)
        self._commit(offsets)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802 - Spark's name
        """Note that the query has ended."""
        self._ended.set()

    def _ask_for_lag(self, offsets: Offsets) -> dict[str, int] | None:
        try:
            return self._cluster.lag(offsets)
        except REPORTED:
            return None

    def _commit(self, offsets: Offsets) -> None:
        """Commit, and report only the first failure: a stale group is harmless to the query."""
        if time.monotonic() < self._commit_from_s:
            return
        try:
            self._cluster.commit(offsets)
        except REPORTED as failure:
            self._commit_from_s = time.monotonic() + COMMIT_PAUSE_S
            if not self._warned:
                print(f"progress is not committed to the consumer group: {one_line(failure)}", file=self._out)
            self._warned = True


class JobMetrics:
    """Prometheus metrics of one query, labelled with the job's name as `job`, and those of `own`."""

    def __init__(self, job: str, own: Collector | None = None) -> None:
        self._job = job
        self._registry = registry = CollectorRegistry()
        if own is not None:
            registry.register(own)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"spark_job_{name}", text, ["job"], registry=registry)

        self._records = counter("records", "Records read.")
        self._batches = counter("batches", "Batches that had records.")
        self._late = counter("late_records", "Records dropped because they came after the watermark.")
        self._duplicates = counter("duplicate_rows", "Rows dropped as duplicates.")
        self._seconds = counter("batch_seconds", "Time that batches took.")
        self._state = Gauge("spark_job_state_rows", "Rows of state.", ["job"], registry=registry)
        self._lag = Gauge(
            "spark_job_lag_records", "Records behind the end of the partition.", ["job", "partition"], registry=registry
        )

    def serve(self, port: int) -> int:
        """Serve `/metrics` on `port` (0: any free one) until the process ends; returns the port. Raises OSError."""
        server, _thread = start_http_server(port, registry=self._registry)
        return int(server.server_port)

    def count(self, done: BatchProgress) -> None:
        """Add one batch."""
        self._records.labels(self._job).inc(done.records)
        self._batches.labels(self._job).inc(1 if done.records else 0)
        self._late.labels(self._job).inc(done.late_records)
        self._duplicates.labels(self._job).inc(done.duplicate_rows)
        self._seconds.labels(self._job).inc(done.duration_ms / 1000)
        self._state.labels(self._job).set(done.state_rows)
        for partition, records in (done.lag or {}).items():
            self._lag.labels(self._job, partition).set(records)


def first_offsets(source: SourceConfig, topics: dict[str, int], admin: KafkaAdmin) -> Offsets:
    """Where a new query would begin, as `starting` says."""
    if source.starting in {"earliest", "latest"}:
        return admin.offsets(topics, "earliest" if source.starting == "earliest" else "latest", source.isolation_level)
    given = starting_offsets(source.starting)
    if given is None:
        return admin.offsets(topics, timestamp_ms(source.starting[1:]), source.isolation_level)
    named = {
        -2: admin.offsets(topics, "earliest", source.isolation_level),
        -1: admin.offsets(topics, "latest", source.isolation_level),
    }
    return {
        topic: {number: named[at][topic][number] if at in named else at for number, at in numbers.items()}
        for topic, numbers in given.items()
    }


def explain(plan: DataFrame, spark: SparkSession, source: SourceConfig, checkpoint: str, admin: KafkaAdmin) -> None:
    """Print the plan, and a line for each partition: where the next batch begins, where the partition ends."""
    plan.explain(mode="formatted")
    topics = admin.topics(names=source.topic_names(), pattern=source.pattern)
    begin = Checkpoint(spark, checkpoint).starts_of_next()
    print(f"from {checkpoint}" if begin is not None else f"a new query, from {source.starting}")
    begin = begin if begin is not None else first_offsets(source, topics, admin)
    first = admin.offsets(topics, "earliest", source.isolation_level)
    ends = admin.offsets(topics, "latest", source.isolation_level)
    print(f"{'TOPIC':<40} {'PARTITION':>9} {'FROM':>15} {'TO':>15} {'OFFSETS':>15}")
    for topic, partitions in sorted(ends.items()):
        for number, end in sorted(partitions.items(), key=lambda item: int(item[0])):
            # A partition that the query does not know yet is read from its first offset.
            start = begin.get(topic, {}).get(number, first[topic][number])
            print(f"{topic:<40} {number:>9} {start:>15,} {end:>15,} {end - start:>15,}")
