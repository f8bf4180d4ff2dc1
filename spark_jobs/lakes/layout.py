"""The directories of a lake, and the checkpoint that it belongs to."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.binding import ONCE_WITHOUT
from spark_jobs.common.files import TableDirectory

MARKER = "_odradek_lake.json"
"""See `spark_jobs.checkpoints.binding`."""


def dead_letters_of(output: str, asked: str | None) -> str:
    """The directory of the dead letters: `asked` if given, else one next to the table."""
    return asked or f"{output.rstrip('/')}-dead-letters"


def _format_in(marker: str) -> str:
    return str({**ONCE_WITHOUT, **json.loads(marker)}["format"])


def check_parquet(spark: SparkSession, output: str) -> None:
    """Raise ValueError for a lake in another format: its directory contains files that no longer belong to it."""
    there = TableDirectory(spark, output).read_text(MARKER)
    if there is not None and _format_in(there) != "parquet":
        raise ValueError(f"{output} is a table in the format {_format_in(there)}: only Parquet can be read")


def check_owner(spark: SparkSession, output: str, checkpoint: str, table_format: str) -> None:
    """Raise ValueError unless the job `lake` filled `output` with this checkpoint, in this format."""
    there = TableDirectory(spark, output).read_text(MARKER)
    if there is None:
        raise ValueError(f"--output {output}: no table of the job lake is there")
    if TableDirectory(spark, checkpoint).read_text(MARKER) != there:
        raise ValueError(f"--checkpoint {checkpoint}: {output} belongs to another checkpoint")
    begun = _format_in(there)
    if begun != table_format:
        raise ValueError(f"--format {table_format}: {output} was begun with {begun}")
