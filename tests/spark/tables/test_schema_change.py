"""Another schema for a table with rows: columns are added, or the job stops, or another table is begun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from spark_jobs.common.sink import ParquetSink, TableSink
from spark_jobs.tables.formats import IcebergSink
from spark_jobs.tables.schema_change import EVOLVE, FAIL, NEW_TABLE, SCHEMA, accepted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Table:
    """A table of one checkpoint that gets rows of a schema at the start of a run."""

    def __init__(self, spark: SparkSession, directory: Path, kind: type[TableSink] = ParquetSink) -> None:
        self._spark = spark
        self._sink = kind(path=str(directory / "table"), partition_by=("day",))
        self._checkpoint = str(directory / "checkpoint")

    def name_for(self, ddl: str, change: str = EVOLVE) -> str:
        """The directory for rows of `ddl`, with rows in it."""
        schema = StructType.fromDDL(f"{ddl}, day INT")
        taken = accepted(self._spark, self._sink, self._checkpoint, schema, change)
        taken.bind(self._spark, self._checkpoint)
        if isinstance(taken, ParquetSink):
            taken.write(self._spark.createDataFrame([], schema).unionByName(
                self._spark.range(1).selectExpr("CAST(id AS INT) AS day"), allowMissingColumns=True
            ), 0)  # fmt: skip
        return Path(taken.path).name


def test_columns_are_added_and_types_stay(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path)
    assert table.name_for("at TIMESTAMP, o STRUCT<x: INT>") == "table"
    assert table.name_for("at TIMESTAMP, o STRUCT<x: INT, y: INT>, more STRING") == "table"
    assert table.name_for("o STRUCT<y: INT>, more STRING") == "table"
    for ddl, wrong in {
        "at STRING": "column at is TIMESTAMP in the table and STRING now",
        "o STRUCT<x: BIGINT>": "column o.x is INT in the table and BIGINT now",
        "more ARRAY<STRING>": "column more is STRING in the table and ARRAY<STRING> now",
    }.items():
        with pytest.raises(ValueError, match=f"{wrong}; --schema-change=new-table begins another table"):
            table.name_for(ddl)
    wrong = "column new is new; column at is gone; column o is gone; column more is gone$"
    with pytest.raises(ValueError, match=wrong):
        table.name_for("new INT", FAIL)


def test_a_new_table_is_written_to_from_then_on(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path)
    assert table.name_for("at TIMESTAMP", NEW_TABLE) == "table"
    assert table.name_for("at TIMESTAMP, more INT", NEW_TABLE) == "table"
    assert table.name_for("at STRING", NEW_TABLE) == "table-2"
    assert table.name_for("at STRING") == "table-2"
    assert table.name_for("at INT", NEW_TABLE) == "table-3"
    assert table.name_for("at INT", FAIL) == "table-3"


def test_a_table_of_another_checkpoint_gets_no_columns(spark: SparkSession, tmp_path: Path) -> None:
    Table(spark, tmp_path).name_for("at TIMESTAMP")
    before = (tmp_path / "table" / SCHEMA).read_text()
    schema = StructType.fromDDL("at TIMESTAMP, more INT, day INT")
    stranger = ParquetSink(path=str(tmp_path / "table"), partition_by=("day",))
    with pytest.raises(ValueError, match="belongs to another checkpoint"):
        accepted(spark, stranger, str(tmp_path / "other"), schema, EVOLVE)
    assert (tmp_path / "table" / SCHEMA).read_text() == before


def test_a_table_that_noted_no_schema_is_asked_for_it(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path)
    table.name_for("at TIMESTAMP")
    (tmp_path / "table" / SCHEMA).unlink()
    with pytest.raises(ValueError, match="column at is TIMESTAMP in the table and STRING now"):
        table.name_for("at STRING")


def test_iceberg_takes_wider_types(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path, IcebergSink)
    table.name_for("a INT, b FLOAT, c DECIMAL(5,2)")
    assert table.name_for("a BIGINT, b DOUBLE, c DECIMAL(9,2)") == "table"
    with pytest.raises(ValueError, match="column c is DECIMAL"):
        table.name_for("c DECIMAL(9,4)")
