"""Reads tables like any Spark user; `WarmJobs` runs it after the jobs that wrote them.

reader --format KIND versions TABLE           a summary of the ids, now and in the first version, and all operations
reader --format KIND rows A,B;C TABLE TABLE   the rows of these columns of each table, sorted
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from spark_jobs.common.cli import add_session_options
from spark_jobs.common.runner import session_of
from spark_jobs.tables.formats import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def versions(spark: SparkSession, kind: str, path: str) -> dict[str, Any]:
    """Count, distinct, sum and batches of the ids, now and in the first version, and the operations of all versions."""

    def figures(**version: Any) -> list[int]:
        table = spark.read.format(kind).options(**version).load(path)
        row = table.agg(sql.count("id"), sql.count_distinct("id"), sql.sum("id"), sql.count_distinct("batch_id"))
        return list(row.collect()[0])

    if kind == DELTA:
        spark.conf.set("spark.databricks.delta.snapshotPartitions", 1)
        made = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").orderBy("version").collect()
        first = {"versionAsOf": made[0]["version"]}
    else:
        made = spark.read.format(kind).load(f"{path}#snapshots").orderBy("committed_at").collect()
        first = {"snapshot-id": made[0]["snapshot_id"]}
    return {"now": figures(), "first": figures(**first), "made": [row["operation"] for row in made]}


def rows(spark: SparkSession, kind: str, columns: str, *paths: str) -> list[list[list[Any]]]:
    """The rows of each table."""
    names = [each.split(",") for each in columns.split(";")]
    found = [spark.read.format(kind).load(path).select(each) for path, each in zip(paths, names, strict=True)]
    return [sorted(map(list, table.collect())) for table in found]


def main(argv: list[str]) -> int:
    """Print the requested data as JSON."""
    parser = argparse.ArgumentParser()
    add_session_options(parser)
    parser.add_argument("--format")
    parser.add_argument("what", choices=["versions", "rows"])
    parser.add_argument("arguments", nargs="+")
    arguments = parser.parse_args(argv)
    with session_of("reader", arguments) as spark:
        print(
            json.dumps(
                {"versions": versions, "rows": rows}[arguments.what](spark, arguments.format, *arguments.arguments)
            )
        )
    return 0
