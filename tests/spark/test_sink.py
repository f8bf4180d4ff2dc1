"""The sinks: headers that identify a row, equal when a batch is rewritten, and tables whose batches replace."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, Message
from pyarrow import parquet
from pyspark.sql import functions as sql

from spark_jobs.checkpoints.binding import in_use
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.sink import ROW_HEADERS, KafkaSink, ParquetSink, json_records, query_id, with_row_headers
from spark_jobs.common.source import SourceConfig
from tests.spark.equal_frames import assert_frames_equal
from tests.spark.job_runs import make_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def headers_of(frame: DataFrame) -> dict[bytes, list[tuple[str, bytes]]]:
    return {bytes(row.value): [(h.key, bytes(h.value)) for h in row.headers] for row in frame.collect()}


def test_rows_have_the_same_headers_whatever_order_they_come_in(spark: SparkSession) -> None:
    rows = [(None, str(number).encode()) for number in range(5)]
    once = spark.createDataFrame(rows, "key BINARY, value BINARY").coalesce(1)
    again = spark.createDataFrame(rows[::-1], "key BINARY, value BINARY").coalesce(1)
    headers = headers_of(with_row_headers(once, "q", 7))
    assert headers == headers_of(with_row_headers(again, "q", 7))
    assert headers[b"3"] == [("query", b"q"), ("batch", b"7"), ("partition", b"0"), ("row", b"3")]


def test_rows_of_two_partitions_have_numbers_of_their_own(spark: SparkSession) -> None:
    frame = spark.range(6).selectExpr("id", "CAST(id AS STRING) AS key", "CAST(CAST(id AS STRING) AS BINARY) AS value")
    found = with_row_headers(frame.repartition(3, "id").drop("id"), "q", 0).collect()
    places = {tuple(bytes(header.value) for header in row.headers) for row in found}
    assert len(places) == 6
    assert len({place[2] for place in places}) > 1


def test_headers_of_the_record_stay_first(spark: SparkSession) -> None:
    columns = "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    frame = spark.createDataFrame([(None, b"a", [("row", b"mine")]), (None, b"b", None)], columns)
    headers = headers_of(with_row_headers(frame, "q", 0))
    assert headers[b"a"][0] == ("row", b"mine")
    assert [name for name, _ in headers[b"a"][1:]] == [name for name, _ in headers[b"b"]] == list(ROW_HEADERS)


def test_rows_become_json_with_their_nulls(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x", 1, None)], "a STRING, `b.c` INT, d STRING")
    expected = spark.createDataFrame([('{"a":"x","d":null}', '{"a":"x","b.c":1,"d":null}')], "key STRING, value STRING")
    assert_frames_equal(json_records(rows, ["a", "d"]), expected)


def test_a_batch_written_again_replaces_itself_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "table"))
    sink.bind(spark, str(tmp_path / "one"))
    for batch, count in ((0, 3), (1, 2), (0, 3)):
        sink.write(spark.range(count), batch)
    sink.bind(spark, str(tmp_path / "one"))
    assert spark.read.parquet(sink.path).count() == 5
    with pytest.raises(ValueError, match="belongs to another checkpoint"):
        sink.bind(spark, str(tmp_path / "two"))


def test_a_new_table_needs_a_new_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    ParquetSink(path=str(tmp_path / "table")).bind(spark, checkpoint)
    other = ParquetSink(path=str(tmp_path / "other"))
    other.bind(spark, checkpoint)
    (tmp_path / "checkpoint" / "commits").mkdir()
    (tmp_path / "checkpoint" / "commits" / "2").touch()
    other.bind(spark, checkpoint)
    late = ParquetSink(path=str(tmp_path / "late"))
    with pytest.raises(ValueError, match=r"has done batches 0 to 2, which .*/late does not have"):
        late.bind(spark, checkpoint)
    late.bind(spark, checkpoint, has_results=False)


def test_a_checkpoint_without_a_query_has_no_id(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no query was started there"):
        query_id(spark, str(tmp_path))


def test_client_properties_reach_the_producer() -> None:
    sink = KafkaSink(bootstrap_servers="b:9092", topic="t", client_properties={"acks": "all"})
    assert sink.options() == {"kafka.acks": "all", "kafka.bootstrap.servers": "b:9092", "topic": "t"}


def test_a_topic_written_twice_holds_each_row_twice_with_equal_headers(spark: SparkSession, bootstrap: str) -> None:
    (topic,) = make_topics(bootstrap, "sink", partitions=2)
    sink = KafkaSink(bootstrap_servers=bootstrap, topic=topic)
    sink.check(spark)
    for descending in (False, True):
        rows = spark.range(100).orderBy("id", ascending=not descending).repartition(3, "id")
        sink.write(json_records(rows, ["id"]), "q", 4)
    with pytest.raises(ValueError, match=f"topic none-{topic} does not exist"):
        KafkaSink(bootstrap_servers=bootstrap, topic=f"none-{topic}").check(spark)
    messages = consume(bootstrap, topic, 200)
    named = [(message.value(), tuple(message.headers() or ())) for message in messages]
    assert sorted(map(repr, named)) == sorted(map(repr, [*set(named), *set(named)]))
    assert len({headers for _, headers in named}) == 100


def consume(bootstrap: str, topic: str, count: int) -> list[Message]:
    settings = {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    messages: list[Message] = []
    try:
        while len(messages) < count:
            found = consumer.consume(count, timeout=60)
            assert found, f"{len(messages)} of {count} records in a minute"
            messages += [message for message in found if message.error() is None]
    finally:
        consumer.close()
    return messages


def test_a_checkpoint_has_one_job_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "a checkpoint")
    with in_use(spark, checkpoint):
        with (
            pytest.raises(ValueError, match=rf"is in use by process {os.getpid()}: stop that job"),
            in_use(spark, f"file://{checkpoint}"),
        ):
            pass
        with in_use(spark, str(tmp_path / "other")):
            pass
    with in_use(spark, checkpoint):
        pass


def test_times_in_tables_are_in_microseconds(spark: SparkSession, tmp_path: Path) -> None:
    """In INT96, Spark's default, the year 5138 becomes another one for readers that count nanoseconds."""
    sink = ParquetSink(path=str(tmp_path / "table"))
    sink.write(spark.sql("SELECT timestamp'5138-11-16 09:46:40' AS at"), 0)
    (at,) = parquet.read_table(next((tmp_path / "table").rglob("*.parquet")))["at"].to_pylist()
    assert at.year == 5138


def test_a_topic_is_created_where_that_is_asked_for(spark: SparkSession, bootstrap: str) -> None:
    source = SourceConfig(bootstrap_servers=bootstrap, topics=",".join(make_topics(bootstrap, "read", partitions=3)))
    missing = f"missing-{uuid.uuid4()}"
    with pytest.raises(ValueError, match=f"topic {missing} does not exist"):
        KafkaSink(bootstrap_servers=bootstrap, topic=missing).check(spark)
    KafkaSink(bootstrap_servers=bootstrap, topic=missing, created_for=source).check(spark)
    with KafkaAdmin(spark, bootstrap, {}) as admin:
        assert admin.topics(names=[missing]) == {missing: 3}


def test_readers_of_all_files_find_nothing_but_rows_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "table"), partition_by=("_part",))
    table = tmp_path / "table"

    def look(number: int) -> int:
        """Return the row; fails the task if it can find a file of the batch being written."""
        assert not [path for path in table.rglob("*") if "staging" in str(path) or "_temporary" in str(path)]
        return number

    rows = spark.range(4).select((sql.col("id") % 2).alias("_part"), sql.udf(look, "long")("id").alias("id"))
    sink.bind(spark, str(tmp_path / "checkpoint"))
    sink.write(rows, 0)
    first = set((tmp_path / "table").rglob("*.parquet"))
    assert len(first) == 2
    sink.write(rows.where("_part = 0"), 1)
    sink.write(rows, 0)
    found = set((tmp_path / "table").rglob("*.parquet"))
    assert len(found) == 3
    assert not found & first
    assert spark.read.parquet(sink.path).count() == 6
    assert not (tmp_path / ".table-staging").exists()
    (tmp_path / ".table-staging").mkdir()
    sink.clear(spark)
    assert not (tmp_path / ".table-staging").exists()
