"""Tables whose schema is another one than when they were begun: compared before the first batch of a run.

A column of another type in later files of a Parquet table makes the whole table unreadable for most readers, and no
batch that is done can be taken back.
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
"""In a table: all the columns that it ever had, as Spark's JSON of a schema."""
TABLES = "_odradek_tables.json"
"""In a checkpoint: where `--schema-change=new-table` has begun the newest table, by `--output`."""


def add_schema_change_option(group: argparse._ArgumentGroup) -> None:
    """The option that says what becomes of a table with other columns."""
    group.add_argument(
        "--schema-change",
        choices=[EVOLVE, NEW_TABLE, FAIL],
        default=EVOLVE,
        help="evolve: add columns, widen types where the format can, else stop; new-table: begin OUTPUT-2 and so on "
        "where evolve would stop; fail: stop at any change (default: evolve)",
    )


def accepted(spark: SparkSession, table: TableSink, checkpoint: str, schema: StructType, change: str) -> TableSink:
    """The table to write rows of `schema` to: `table`, or a new one that took its place.

    Raises ValueError that names the column when `change` does not let the schema be another one, and for a table of
    another checkpoint, which is left as it is.
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
    """A table at `path` that belongs to the checkpoint of `old`."""
    theirs, ours = TableDirectory(spark, old.path), TableDirectory(spark, path)
    for name in (MARKER, LAKE_MARKER):
        text = theirs.read_text(name)
        if text is not None:
            ours.write_text(name, text)
    return dataclasses.replace(old, path=path)


def _schema_of(spark: SparkSession, table: TableSink) -> StructType | None:
    """The columns of a table; None for one that is not begun. Older ones did not note them: their files tell."""
    directory = TableDirectory(spark, table.path)
    text = directory.read_text(SCHEMA)
    if text is not None:
        return StructType.fromJson(json.loads(text))
    begun = directory.has(MARKER) or directory.has(LAKE_MARKER)
    if not begun or not any(name[0] not in "._" for name in directory.names()):
        return None
    # Spark guesses the types of columns that directories are named for.
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
    """Whether Iceberg reads old files of a column as its new type."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale == old.scale and new.precision >= old.precision
    return (type(old), type(new)) in {(IntegerType, LongType), (FloatType, DoubleType)}


def _union(old: StructType, new: StructType) -> StructType:
    """Both, with the new types: a column that comes back later must be of the type that its files have."""
    fields = {field.name: field for field in old}
    for field in new:
        before = fields[field.name].dataType if field.name in fields else None
        kind = field.dataType
        if isinstance(before, StructType) and isinstance(kind, StructType):
            kind = _union(before, kind)
        fields[field.name] = StructField(field.name, kind, field.nullable)
    return StructType(list(fields.values()))
