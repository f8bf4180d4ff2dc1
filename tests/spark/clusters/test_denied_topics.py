"""Apache Kafka's only broker, after a restart, denies its topics for some time: no job may fail because of that."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from spark_jobs.common.errors import TopicMissingError, is_denial, patiently
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.source import SourceConfig, read_range, read_stream, source_options
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.due import turn
from tests.kit.waiting import eventually
from tests.spark.job_runs import PATIENCE_S, make_topics, produce_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

VALUES = [b"a", b"b", b"c"]


@pytest.fixture(scope="module")
def only_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    broker = ApacheKafka(tmp_path_factory.mktemp("kafka"), {"auto.create.topics.enable": "false"})
    yield broker
    broker.stop()


@pytest.fixture
def kafka(only_broker: ApacheKafka) -> ApacheKafka:
    if not only_broker.is_running:
        only_broker.start()
    return only_broker


@pytest.fixture
def source(kafka: ApacheKafka) -> SourceConfig:
    """A topic with the values, in one partition."""
    (topic,) = make_topics(kafka.address, "denied", partitions=1)
    produce_values(kafka.address, topic, VALUES)
    return SourceConfig(bootstrap_servers=kafka.address, topics=topic)


def test_a_range_is_read_once_the_broker_has_its_topic_again(
    kafka: ApacheKafka, source: SourceConfig, spark: SparkSession
) -> None:
    (topic,) = source.topic_names()

    def read() -> list[bytes]:
        records = read_range(spark, source, {topic: {"0": 0}}, {topic: {"0": len(VALUES)}})
        return [bytes(row.value) for row in records.collect()]

    said = io.StringIO()
    kafka.kill()
    with ThreadPoolExecutor() as threads:
        with kafka.started_without(str(source.topics)):
            with pytest.raises(Exception, match="does not host this topic") as denied:
                read()
            assert is_denial(denied.value)
            reading = threads.submit(patiently, read, out=said)
            eventually("the job is told to wait", said.getvalue)
            assert not reading.done()
        assert reading.result(PATIENCE_S) == VALUES
    assert said.getvalue() == "waiting for a broker: This server does not host this topic-partition.\n"


def test_the_admin_waits_for_a_topic(kafka: ApacheKafka, source: SourceConfig, spark: SparkSession) -> None:
    said = io.StringIO()
    kafka.kill()
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as clients:
        with kafka.started_without(str(source.topics)):
            admin = clients.enter_context(KafkaAdmin(spark, kafka.address, {}))
            with pytest.raises(TopicMissingError):
                admin.topics(names=source.topic_names())
            asking = threads.submit(patiently, lambda: admin.topics(names=source.topic_names()), out=said)
            eventually("the job is told to wait", said.getvalue)
            assert not asking.done()
        assert asking.result(PATIENCE_S) == {source.topics: 1}


def test_a_topic_that_is_not_there_is_told(kafka: ApacheKafka, spark: SparkSession) -> None:
    with (
        KafkaAdmin(spark, kafka.address, {}) as admin,
        pytest.raises(TopicMissingError, match="nowhere does not exist"),
    ):
        patiently(lambda: admin.topics(names=["nowhere"]), pause_s=0, out=io.StringIO())


def test_a_stream_outlives_one_with_the_attempts_of_spark(
    kafka: ApacheKafka, source: SourceConfig, spark: SparkSession, tmp_path: Path
) -> None:
    options = {name: value for name, value in source_options(source).items() if not name.startswith("fetchOffset")}
    impatient = spark.readStream.format("kafka").options(**options).load()

    def started(name: str) -> StreamingQuery:
        frame = read_stream(spark, source) if name == "patient" else impatient
        writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    kafka.kill()
    with kafka.started_without(str(source.topics)):
        # By the time the second one exits, the first has had as many attempts.
        ours, theirs = started("patient"), started("impatient")
        with pytest.raises(StreamingQueryException, match="does not host this topic"):
            theirs.awaitTermination(PATIENCE_S)
        assert ours.isActive
    assert ours.awaitTermination(PATIENCE_S)
    assert [bytes(row.value) for row in spark.table("patient").collect()] == VALUES


@pytest.fixture
def each_look_told(spark: SparkSession) -> Iterator[None]:
    """Make queries report each trigger, even the empty ones."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", 0)
    yield
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


@contextlib.contextmanager
def of_pattern(spark: SparkSession, source: SourceConfig, name: str, checkpoint: Path) -> Iterator[StreamingQuery]:
    """A query that reads the topics of a pattern into a table of that name."""
    by_pattern = dataclasses.replace(source, topics=None, pattern=source.topics)
    writer = read_stream(spark, by_pattern).writeStream.format("memory").queryName(name)
    query = writer.trigger(processingTime="100 milliseconds").option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def await_values(spark: SparkSession, name: str, wanted: list[bytes]) -> None:
    def read() -> list[bytes]:
        return [bytes(row.value) for row in spark.table(name).collect()]

    eventually("the values are read", read, lambda values: values == wanted)


def await_a_look(query: StreamingQuery) -> None:
    """Wait for a trigger of the query. The first one may have begun earlier."""
    before = query.lastProgress
    eventually("the query has looked for new records", lambda: query.lastProgress, lambda now: now != before)


@pytest.mark.usefixtures("each_look_told")
@turn(0, of=2)
def test_a_stream_of_a_pattern_goes_on_after_a_broker_that_showed_no_topic(
    kafka: ApacheKafka, source: SourceConfig, spark: SparkSession, tmp_path: Path
) -> None:
    """Topics that are temporarily denied are neither lost nor read again."""
    with of_pattern(spark, source, "pattern", tmp_path) as query:
        await_values(spark, "pattern", VALUES)
        kafka.kill()
        with kafka.started_without(str(source.topics)):
            with KafkaAdmin(spark, kafka.address, {}) as admin:
                assert not admin.topics(pattern=source.topics)
            await_a_look(query)
            await_a_look(query)
        produce_values(kafka.address, str(source.topics), [b"d"])
        await_values(spark, "pattern", [*VALUES, b"d"])


@pytest.mark.usefixtures("each_look_told")
@turn(1, of=2)
def test_a_stream_of_a_pattern_that_starts_while_no_topic_is_shown_reads_all_later(
    kafka: ApacheKafka, source: SourceConfig, spark: SparkSession, tmp_path: Path
) -> None:
    kafka.kill()
    with contextlib.ExitStack() as running:
        with kafka.started_without(str(source.topics)):
            query = running.enter_context(of_pattern(spark, source, "started_early", tmp_path))
            await_a_look(query)
            await_values(spark, "started_early", [])
        await_values(spark, "started_early", VALUES)
