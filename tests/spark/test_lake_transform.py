"""The lake's transform on static frames: parsed values, dead letters and their reasons, and refused options."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.source import SourceConfig
from spark_jobs.jobs.lake import LakeConfig, bind_output, dead_letter_rows, table_rows, transform

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

CONNECTOR_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
FrameOf = Callable[..., "DataFrame"]


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> FrameOf:
    """A function from values to the connector's frame for them."""

    def frame(*values: bytes | None, timestamp: dt.datetime = NOON) -> DataFrame:
        rows = [(b"k", value, "t", 0, offset, timestamp, 0, None) for offset, value in enumerate(values)]
        return spark.createDataFrame(rows, CONNECTOR_COLUMNS)

    return frame


def schema(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl)


def config(ddl: str | None = None, checkpoint: str = "unused", **fields: Any) -> LakeConfig:
    paths = {"output": "unused", "dead_letters": "unused"} | fields
    return LakeConfig(
        source=SourceConfig(bootstrap_servers="unused:9092", topics="t"),
        run=RunConfig(checkpoint=checkpoint, trigger={"availableNow": True}, group_id="", metrics_port=None),
        schema=schema(ddl) if ddl is not None else None,
        **paths,
    )


def test_fields_become_columns(records: FrameOf) -> None:
    lake = config("a INT, b STRING")
    (row,) = table_rows(transform(records(b'{"a": 1, "b": "x", "other": 2}'), lake)).collect()
    local_noon = NOON.astimezone().replace(tzinfo=None)  # the result of `collect`, whatever the session's time zone
    assert row.asDict() == {
        "a": 1, "b": "x", "kafka_key": b"k", "kafka_partition": 0, "kafka_offset": 0,
        "kafka_timestamp": local_noon, "kafka_headers": None, "topic": "t", "date": dt.date(2026, 3, 1),
    }  # fmt: skip


def test_without_a_schema_nothing_is_a_dead_letter(records: FrameOf) -> None:
    lake = config()
    rows = transform(records(b"\xff\x00", None, b""), lake)
    assert [row.value for row in table_rows(rows).orderBy("kafka_offset").collect()] == [b"\xff\x00", None, b""]
    assert "raw_value" not in rows.columns


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "value is null"),
        (b"", "value is empty"),
        (b"[1]", "expected an object, found an array"),
        (b'{"a": "text"}', 'field a: expected INT, found string "text"'),
        (b'{"a": 1', "not JSON at line 1, column 8 (byte 7): Expecting ',' delimiter"),
        (b"{}", "field a: expected INT, found no such field"),
    ],
)
def test_dead_letters_say_why(records: FrameOf, value: bytes | None, reason: str) -> None:
    lake = config("a INT NOT NULL, b STRING")
    rows = transform(records(value), lake)
    assert table_rows(rows).count() == 0
    (letter,) = dead_letter_rows(rows, schema("a INT NOT NULL, b STRING")).collect()
    assert (letter.value, letter.dead_letter_reason, letter.kafka_offset, letter.topic) == (value, reason, 0, "t")


def test_table_and_dead_letters_share_nothing_and_lose_nothing(records: FrameOf) -> None:
    lake = config("a INT NOT NULL")
    values = [b'{"a": %d}' % n if n % 3 else b"bad" for n in range(30)]
    rows = transform(records(*values), lake)
    kept = {row.kafka_offset for row in table_rows(rows).collect()}
    dead = {row.kafka_offset for row in dead_letter_rows(rows, schema("a INT NOT NULL")).collect()}
    assert (kept & dead, kept | dead, len(dead)) == (set(), set(range(30)), 10)


def test_a_batch_run_again_replaces_itself_and_no_other(records: FrameOf, tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "table")
    lake = config("a INT", output=path)
    first = table_rows(transform(records(b'{"a": 1}', b'{"a": 2}'), lake))
    second = table_rows(transform(records(b'{"a": 3}'), lake))
    lake.table.write(first, 0)
    lake.table.write(second, 1)
    lake.table.write(first, 0)
    assert sorted(row.a for row in spark.read.parquet(path).collect()) == [1, 2, 3]


def test_later_batches_run_the_code_that_was_compiled_for_the_first(
    records: FrameOf, compilations: Callable[[], int], tmp_path: Path
) -> None:
    lake = config("a INT", output=str(tmp_path / "table"))
    lake.table.write(table_rows(transform(records(b'{"a": 1}'), lake)), 0)
    compiled = compilations()
    lake.table.write(table_rows(transform(records(b'{"a": 2}'), lake)), 1)
    assert compilations() == compiled


@pytest.mark.parametrize(
    ("ddl", "partition_by", "message"),
    [
        ("a INT, topic STRING", ("date",), "columns of its own with these names: topic"),
        ("a INT", ("b",), "--partition-by b"),
        ("a INT", (), "--partition-by"),
        ("a INT", ("a",), "at least one field"),
    ],
)
def test_impossible_layouts_are_refused(ddl: str, partition_by: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(ddl, partition_by=partition_by)


def bound(spark: SparkSession, directory: Path, checkpoint: str, **fields: Any) -> None:
    paths = {"output": str(directory / "table"), "dead_letters": str(directory / "dead")}
    bind_output(spark, config(checkpoint=str(directory / checkpoint), **paths, **fields))


def test_an_output_belongs_to_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    bound(spark, tmp_path, "first")
    bound(spark, tmp_path, "first")
    with pytest.raises(ValueError, match="belongs to another checkpoint than"):
        bound(spark, tmp_path, "second")


def test_an_output_keeps_its_layout(spark: SparkSession, tmp_path: Path) -> None:
    bound(spark, tmp_path, "first", partition_by=("date",))
    with pytest.raises(ValueError, match=r"--partition-by: .* was begun with date"):
        bound(spark, tmp_path, "first", partition_by=("topic", "date"))


def test_what_a_dead_attempt_was_preparing_is_cleared(spark: SparkSession, tmp_path: Path) -> None:
    bound(spark, tmp_path, "first")
    left = tmp_path / "table" / ".spark-staging-1234" / "date=2026-03-01"
    left.mkdir(parents=True)
    kept = tmp_path / "table" / "date=2026-03-01"
    kept.mkdir()
    bound(spark, tmp_path, "first")
    assert not left.exists()
    assert kept.exists()
