"""A job without a group coordinator continues to read, and logs once why its progress is not committed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.progress import JobMetrics, ProgressListener, SourceCluster
from spark_jobs.common.source import SourceConfig, read_stream
from tests.kit.broker_process import BrokerProcess
from tests.spark.job_runs import make_topics, produce_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RECORDS = 40
BATCHES = 8


def test_progress_that_cannot_be_committed_does_not_hold_the_job(spark: SparkSession, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", {"offsets.topic.replication.factor": "3"})
    broker.start()
    said = io.StringIO()
    try:
        (topic,) = make_topics(broker.address, "alone", partitions=1)
        produce_values(broker.address, topic, [b"x"] * RECORDS)
        source = SourceConfig(
            bootstrap_servers=broker.address, topics=topic, max_offsets_per_trigger=RECORDS // BATCHES
        )
        with KafkaAdmin(spark, broker.address, {}) as admin:
            cluster = SourceCluster(admin, "read_committed", "late")
            listener = ProgressListener(cluster, JobMetrics("alone").count, lambda _: None, said)
            spark.streams.addListener(listener)
            try:
                writer = read_stream(spark, source).writeStream.format("noop").trigger(availableNow=True)
                query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
                assert query.awaitTermination(200)
                # The default time that a job waits for its last report.
                assert listener.finished()
            finally:
                spark.streams.removeListener(listener)
    finally:
        broker.kill()
    (line,) = [line for line in said.getvalue().splitlines() if "lag" not in line]
    assert line.startswith("progress is not committed to the consumer group: no coordinator of the group late answers ")
    assert len(said.getvalue().splitlines()) == BATCHES + 1
