"""The join's transform on static frames: which rows match, and which options are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.sink import ParquetSink
from spark_jobs.common.source import SourceConfig
from spark_jobs.jobs import join
from spark_jobs.jobs.join import JoinConfig, Side, build_query, transform
from spark_jobs.tables.schema_change import EVOLVE, FAIL, NEW_TABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CONNECTOR_COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
MINUTE_MS = 60_000


def side(name: str, ddl: str) -> Side:
    from pyspark.sql.types import StructType

    source = SourceConfig(bootstrap_servers="unused:9092", topics=name)
    return Side(name=name, source=source, schema=StructType.fromDDL(ddl))


def config(**fields: Any) -> JoinConfig:
    given = {"right": side("right", "k STRING, v INT"), "within_ms": 10 * MINUTE_MS, "on": ("k",)}
    given |= {"sink": ParquetSink(path="unused")} | fields
    return JoinConfig(
        run=RunConfig(checkpoint="unused", trigger={"availableNow": True}, group_id="", metrics_port=None),
        left=side("left", "k STRING, v INT"),
        **given,
    )


def records(spark: SparkSession, *rows: tuple[float, Any]) -> DataFrame:
    """Records from pairs of minutes after noon and values."""
    values = [
        (None, json.dumps(value).encode(), "t", 0, offset, NOON + dt.timedelta(minutes=minute))
        for offset, (minute, value) in enumerate(rows)
    ]
    return spark.createDataFrame(values, CONNECTOR_COLUMNS)


def joined(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row.k, row.v, row.right_v) for row in frame.collect())


def test_records_within_the_interval_on_both_sides(spark: SparkSession) -> None:
    left = records(spark, (0, {"k": "a", "v": 1}), (60, {"k": "a", "v": 2}), (0, "not an object"))
    right = records(
        spark, (10, {"k": "a", "v": 10}), (-10, {"k": "a", "v": 11}), (11, {"k": "a", "v": 12}), (0, {"k": "b"})
    )
    assert joined(transform(left, right, config())) == [("a", 1, 10), ("a", 1, 11)]
    outer = transform(left, right, config(kind="left")).where("right_v IS NULL")
    assert joined(outer) == [("a", 2, None)]
    assert outer.columns == ["k", "v", "left_time", "right_v", "right_time"]


def test_a_static_table(spark: SparkSession) -> None:
    left = records(spark, (0, {"k": "a", "v": 1}), (9, {"k": "z", "v": 2}))
    static = spark.createDataFrame([("a", 5, "x"), ("b", 6, "y")], "k STRING, v INT, name STRING")
    for kind, expected in (("inner", [("a", 1, 5)]), ("left", [("a", 1, 5), ("z", 2, None)])):
        frame = transform(left, static, config(right=None, within_ms=None, static="t", kind=kind))
        assert joined(frame) == expected
        assert frame.columns == ["k", "v", "left_time", "right_v", "name"]


def test_a_static_table_without_the_field(spark: SparkSession) -> None:
    static = spark.createDataFrame([("a",)], "other STRING")
    with pytest.raises(ValueError, match="--on k: --static t has no such column"):
        transform(records(spark, (0, {"k": "a"})), static, config(right=None, within_ms=None, static="t"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"within_ms": None}, "--right: needs --within"),
        ({"on": ()}, "--on: at least one field"),
        ({"on": ("x",)}, "--on x: the schema of --left has no such field"),
    ],
)
def test_bad_joins_are_refused(spark: SparkSession, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_a_static_table_with_other_types_stops_the_job_before_the_first_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with a column of two types cannot be read."""
    records(spark).write.parquet(str(tmp_path / "records"))
    monkeypatch.setattr(
        join, "read_stream", lambda *_: spark.readStream.schema(CONNECTOR_COLUMNS).parquet(str(tmp_path / "records"))
    )

    def build(static: str, schema_change: str = EVOLVE) -> None:
        built = config(
            right=None, static=str(tmp_path / f"{static}.csv"), sink=ParquetSink(path=str(tmp_path / "results")),
            schema_change=schema_change,
        )  # fmt: skip
        run = dataclasses.replace(built.run, checkpoint=str(tmp_path / "checkpoint"))
        build_query(spark, dataclasses.replace(built, run=run))

    for name, size in {"numbers": "1", "words": "large", "wider": "1,2"}.items():
        header = "k,size,colour" if "," in size else "k,size"
        (tmp_path / f"{name}.csv").write_text(f"{header}\na,{size}\n")
    build("numbers")
    build("wider")
    with pytest.raises(ValueError, match="column colour is gone"):
        build("numbers", FAIL)
    with pytest.raises(ValueError, match="column size is INT in the table and STRING now"):
        build("words")
    build("words", NEW_TABLE)
    assert (tmp_path / "results-2").exists()
