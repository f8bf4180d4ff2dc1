"""`lake compact`: merge the small files of a lake that the job `lake` keeps.

    python -m spark_jobs.jobs.lake compact --output /lake/flights --checkpoint /lake/checkpoints/flights

Guarantee: the table has the same rows before and after, even if the command dies at any moment and is repeated; the job
may keep running meanwhile. Only committed batches are merged. `spark_jobs.lakes.compaction` describes the effect on
readers. Delta tables are merged by OPTIMIZE, Iceberg tables by rewrite_data_files; their readers notice nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint
from spark_jobs.common.cli import add_session_options, positive, size_in_bytes
from spark_jobs.common.runner import guarded, parser_of, session_of
from spark_jobs.lakes.compaction import Compactor
from spark_jobs.lakes.layout import check_owner, dead_letters_of
from spark_jobs.tables.formats import PARQUET, DeltaSink, IcebergSink, add_format_option, table_sink

NAME = "lake compact"


def build_parser() -> argparse.ArgumentParser:
    """A parser with the options of the command."""
    parser = parser_of(NAME, "Merge the small files of a lake, of batches that are done.")
    parser.add_argument("--output", required=True, metavar="DIR", help="of the job lake")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="of the job lake, which may run meanwhile")
    parser.add_argument("--dead-letters", metavar="DIR", help="of the job lake (default: OUTPUT-dead-letters)")
    parser.add_argument(
        "--target-file-size", type=size_in_bytes, default="128MB", metavar="SIZE", help="default: 128MB"
    )
    parser.add_argument(
        "--min-files",
        type=positive,
        default=8,
        metavar="N",
        help="leave partitions alone that have fewer small files: less than half of the target (default: 8)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be merged, and merge nothing")
    add_format_option(parser)
    add_session_options(parser)
    return parser


def _compact(spark: SparkSession, path: str, last_batch: int, arguments: argparse.Namespace) -> tuple[int, int]:
    """Compact one table; returns the number of merged files, and the number that replaces them."""
    table = table_sink(arguments.format if path == arguments.output else PARQUET, path)
    if isinstance(table, DeltaSink | IcebergSink):
        return table.compact(spark, target_bytes=arguments.target_file_size, min_files=arguments.min_files)
    compactor = Compactor(spark, path)
    merges = compactor.plan(last_batch, target_bytes=arguments.target_file_size, min_files=arguments.min_files)
    for merge in merges:
        if not arguments.dry_run:
            compactor.merge(merge)
        print(f"{path}: {merge.line()}")
    return sum(merge.files for merge in merges), sum(merge.outputs for merge in merges)


def main(argv: Sequence[str] | None = None) -> int:
    """Compact the table and the dead letters of one lake; 0 on success.

    Exit codes: 1 after one line about a failure, 2 for bad options.
    """
    arguments = build_parser().parse_args(argv)

    def body() -> int:
        if arguments.dry_run and arguments.format != PARQUET:
            raise ValueError(f"--dry-run: {arguments.format} does not say beforehand which files it would merge")
        with session_of("lake-compact", arguments, shows_progress=True) as spark:
            check_owner(spark, arguments.output, arguments.checkpoint, arguments.format)
            last_batch = Checkpoint(spark, arguments.checkpoint).committed_batch()
            before = after = 0
            for path in (arguments.output, dead_letters_of(arguments.output, arguments.dead_letters)):
                if last_batch is not None:
                    files, outputs = _compact(spark, path, last_batch, arguments)
                    before, after = before + files, after + outputs
            done = "would become" if arguments.dry_run else "became"
            print(f"{NAME}: {before:,} files {done} {after:,}")
        return 0

    return guarded(NAME, body)


if __name__ == "__main__":
    sys.exit(main())
