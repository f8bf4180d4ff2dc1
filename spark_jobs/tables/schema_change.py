"""Detects tables whose schema has changed since they were begun, before the first batch of a run.

If later files of a Parquet table have another type for a column, most readers cannot read the table at all, and
committed batches cannot be undone.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from spark_jobs.checkpoints.binding import MARKER, check_owner
from spark_jobs.common.files import TableDirectory
from spark_jobs.common.sink import BATCH, TableSink
from spark_jobs.lakes.layout import MARKER as LAKE_MARKER

EVOLVE, NEW_TABLE, FAIL = "evolve", "new-table", "fail"
SCHEMA = "_odradek_schema.json"
"""File in a table: all the columns that it ever had, as Spark's JSON of a schema."""
TABLES = "_odradek_tables.json"
"""File in a checkpoint: the newest table that `--schema-change=new-table` has begun, by `--output`."""


def add_schema_change_option(group: argparse._ArgumentGroup) -> None:
    """Add the option that decides what happens to a table with other columns."""
    group.add_argument(
        "--schema-change",
        choices=[EVOLVE, NEW_TABLE, FAIL],
        default=EVOLVE,
        help="evolve: add columns, widen types where the format can, else stop; new-table: begin OUTPUT-2 and so on "
        "where evolve would stop; fail: stop at any change (default: evolve)",
    )


def accepted(spark: SparkSession, table: TableSink, checkpoint: str, schema: StructType, change: str) -> TableSink:
    """The table for rows of `schema`: `table`, or a new one that replaces it.

    Raises ValueError naming the column if `change` does not allow the difference, and for a table of another
    checkpoint, which stays unchanged.
    """
    notes = TableDirectory(spark, checkpoint)
    text = notes.read_text(TABLES)
    newest: dict[str, str] = json.loads(text) if text is not None else {}
    current = dataclasses.replace(table, path=newest.get(table.path, table.path))
    for marker in (MARKER, LAKE_MARKER):
        check_owner(spark, current.path, checkpoint, marker)
    columns = StructType([field for field in schema if field.name != BATCH])
    kept = _schema_of(spark, current)
    if kept is not None:
        wrong = list(_conflicts(kept, columns, "", current.format, strictly=change == FAIL))
        if wrong and change != NEW_TABLE:
            hint = "" if change == FAIL else "; --schema-change=new-table begins another table"
            raise ValueError(f"--schema: {current.path}: {'; '.join(wrong)}{hint}")
        if wrong:
            free = (f"{table.path}-{number}" for number in itertools.count(2))
            path = next(path for path in free if not TableDirectory(spark, path).names())
            current = _begun(spark, current, path)
            notes.replace_text(TABLES, json.dumps(newest | {table.path: current.path}))
            kept = None
    everything = columns if kept is None else _union(kept, columns)
    if everything != kept or not TableDirectory(spark, current.path).has(SCHEMA):
        TableDirectory(spark, current.path).replace_text(SCHEMA, everything.json())
    return current


def _begun(spark: SparkSession, old: TableSink, path: str) -> TableSink:
    """A new table at `path`, tied to the checkpoint of `old`."""
    theirs, ours = TableDirectory(spark, old.path), TableDirectory(spark, path)
    for name in (MARKER, LAKE_MARKER):
        text = theirs.read_text(name)
        if text is not None:
            ours.write_text(name, text)
    return dataclasses.replace(old, path=path)


def _schema_of(spark: SparkSession, table: TableSink) -> StructType | None:
    """The columns of a table, or None if it is not begun. Older tables lack the note: their files show the columns."""
    directory = TableDirectory(spark, table.path)
    text = directory.read_text(SCHEMA)
    if text is not None:
        return StructType.fromJson(json.loads(text))
    begun = directory.has(MARKER) or directory.has(LAKE_MARKER)
    if not begun or not any(name[0] not in "._" for name in directory.names()):
        return None
    # Spark guesses the types of partition columns from directory names.
    guessed = {*table.partition_by, BATCH}
    found = spark.read.format(table.format).load(table.path).schema
    return StructType([field for field in found if field.name not in guessed])


def _conflicts(old: StructType, new: StructType, prefix: str, table_format: str, *, strictly: bool) -> Iterator[str]:
    names = old.fieldNames()
    for field in new:
        path = f"{prefix}{field.name}"
        if field.name in names:
            yield from _conflict(old[field.name].dataType, field.dataType, path, table_format, strictly=strictly)
        elif strictly:
            yield f"column {path} is new"
    if strictly:
        yield from (f"column {prefix}{name} is gone" for name in names if name not in new.fieldNames())


def _conflict(old: DataType, new: DataType, path: str, table_format: str, *, strictly: bool) -> Iterator[str]:
    if isinstance(old, StructType) and isinstance(new, StructType):
        yield from _conflicts(old, new, f"{path}.", table_format, strictly=strictly)
    elif isinstance(old, ArrayType) and isinstance(new, ArrayType):
        yield from _conflict(old.elementType, new.elementType, f"{path}[]", table_format, strictly=strictly)
    elif isinstance(old, MapType) and isinstance(new, MapType):
        yield from _conflict(old.keyType, new.keyType, f"{path} (key)", table_format, strictly=strictly)
        yield from _conflict(old.valueType, new.valueType, f"{path}[]", table_format, strictly=strictly)
    elif old != new and (strictly or not (table_format == "iceberg" and _widens(old, new))):
        yield f"column {path} is {old.simpleString().upper()} in the table and {new.simpleString().upper()} now"


def _widens(old: DataType, new: DataType) -> bool:
    """Whether Iceberg can read a column's old files as its new type."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale == old.scale and new.precision >= old.precision
    return (type(old), type(new)) in {(IntegerType, LongType), (FloatType, DoubleType)}


def _union(old: StructType, new: StructType) -> StructType:
    """Both, with the new types: a column that returns later must have the type of the existing files."""
    fields = {field.name: field for field in old}
    for field in new:
        before = fields[field.name].dataType if field.name in fields else None
        kind = field.dataType
        if isinstance(before, StructType) and isinstance(kind, StructType):
            kind = _union(before, kind)
        fields[field.name] = StructField(field.name, kind, field.nullable)
    return StructType(list(fields.values()))
