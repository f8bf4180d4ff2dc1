"""Where a lake keeps its parts, and which checkpoint it belongs to."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_jobs.common.files import TableDirectory

MARKER = "_odradek_lake.json"
"""See `spark_jobs.common.binding`."""


def dead_letters_of(output: str, asked: str | None) -> str:
    """The directory of the dead letters: the one that was asked for, or one beside the table."""
    return asked or f"{output.rstrip('/')}-dead-letters"


def check_owner(spark: SparkSession, output: str, checkpoint: str) -> None:
    """Raise ValueError unless the job `lake` filled `output` with this checkpoint."""
    there = TableDirectory(spark, output).read_text(MARKER)
    if there is None:
        raise ValueError(f"--output {output}: no table of the job lake is there")
    if TableDirectory(spark, checkpoint).read_text(MARKER) != there:
        raise ValueError(f"--checkpoint {checkpoint}: {output} belongs to another checkpoint")
