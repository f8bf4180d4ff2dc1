"""Prometheus metrics of a running job, served where `--metrics-port` says."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.registry import Collector

from spark_jobs.common.progress import BatchProgress


class JobMetrics:
    """Metrics of one query, with the job's name as their label `job`, and those of `own`."""

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
