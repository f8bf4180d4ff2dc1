"""The schema that values are parsed with, read from a file."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from spark_jobs.common.errors import one_line


def read_schema(path: str) -> StructType:
    """A struct from a file: Spark's JSON when it begins with `{`, else DDL (`carrier STRING NOT NULL, flight INT`).

    Lines that begin with `--` are comments. Raises OSError, or ValueError naming the file and what is wrong.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip()
    if not text:
        raise ValueError(f"--schema {path}: empty")
    if text.startswith("{"):
        try:
            return StructType.fromJson(json.loads(text))
        except (KeyError, TypeError, json.JSONDecodeError) as failure:
            raise ValueError(f"--schema {path}: not a Spark schema in JSON: {failure!r}") from None
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as failure:
        raise ValueError(f"--schema {path}: {one_line(failure)}") from None
    if not isinstance(schema, StructType):
        raise ValueError(f"--schema {path}: a type, not a list of fields: {text}")  # noqa: TRY004
    return schema
