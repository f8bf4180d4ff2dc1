"""`package`: write the jobs into a zip for spark-submit.

    python -m spark_jobs.jobs.package odradek-spark-jobs.zip

Also writes the file that spark-submit starts next to the zip, with the suffix `.py`, and prints the command. The zip is
reproducible byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark

import spark_jobs
from spark_jobs.common.runner import guarded, parser_of
from spark_jobs.common.session import connector_coordinate, write_archive

NAME = "package"
MAIN = "__main__.py"


def write_package(archive: Path) -> Path:
    """Write the zip and the file that spark-submit starts; returns that file. Raises OSError or ValueError."""
    started = write_archive(archive).with_suffix(".py")
    started.write_bytes((Path(spark_jobs.__file__).parent / MAIN).read_bytes())
    return started


def main(argv: Sequence[str] | None = None) -> int:
    """Write the zip and print the command that runs a job from it; 1 after one line about a failure."""
    parser = parser_of(NAME, "Write the jobs into a zip for spark-submit.")
    parser.add_argument("file", metavar="FILE.zip", type=Path)
    arguments = parser.parse_args(argv)

    def body() -> int:
        started = write_package(arguments.file)
        print(f"{arguments.file} and {started}: the jobs for Spark {pyspark.__version__}; run one with")
        print(f"spark-submit --packages {connector_coordinate()} --py-files {arguments.file} {started} lake ...")
        return 0

    return guarded(NAME, body)


if __name__ == "__main__":
    sys.exit(main())
