"""Frames like the connector's, and configurations of `upsert`, for its tests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, DateType, DoubleType, IntegerType, LongType, StringType, StructType

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.source import SourceConfig
from spark_jobs.jobs.upsert import UpsertConfig
from spark_jobs.upserts.changes import ChangeFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECTOR_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
TYPES: dict[str, DataType] = {
    "INT": IntegerType(), "BIGINT": LongType(), "STRING": StringType(), "DOUBLE": DoubleType(), "DATE": DateType(),
}  # fmt: skip
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def frame_of(
    spark: SparkSession, records: Iterable[tuple[bytes | None, bytes | None]], *, partition: int = 0, first: int = 0
) -> DataFrame:
    """Keys and values as records of one partition: offsets from `first` on, a second apart."""
    rows = [
        (key, value, "t", partition, offset, NOON + dt.timedelta(seconds=offset), 0, None)
        for offset, (key, value) in enumerate(records, start=first)
    ]
    return spark.createDataFrame(rows, CONNECTOR_COLUMNS)


def form_of(ddl: str, keys: tuple[str, ...] = ("id",), **options: Any) -> ChangeFormat:
    """A format with the fields of `ddl`, parsed without a session: none exists during the collection of tests."""
    schema = StructType()
    for field in ddl.split(", "):
        name, kind, *not_null = field.split()
        schema.add(name, TYPES[kind], nullable=not not_null)
    return ChangeFormat(schema=schema, keys=keys, **options)


def config_of(
    form: ChangeFormat, directory: Path | None = None, *, checkpoint: str = "checkpoint", **options: Any
) -> UpsertConfig:
    """A configuration of the job; without a directory only for pure functions."""
    base = directory if directory is not None else Path("unused")
    return UpsertConfig(
        source=SourceConfig(bootstrap_servers="unused:9092", topics="t"),
        run=RunConfig(
            checkpoint=str(base / checkpoint), trigger={"availableNow": True}, group_id="", metrics_port=None
        ),
        output=str(base / "table"),
        dead_letters=str(base / "dead"),
        changes=form,
        **options,
    )
