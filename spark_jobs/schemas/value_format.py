"""Converts values in any format to the JSON text that `spark_jobs.common.values` parses."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.common import values
from spark_jobs.schemas.sources import AVRO, JSON_SCHEMA, SchemaFiles, SchemaRegistry

if TYPE_CHECKING:
    import pyarrow as pa

JSON = "json"
TEXT = "_text"
"""The column with the JSON text of a value, or null."""


@dataclasses.dataclass(frozen=True)
class ValueFormat:
    """A format of values. `source` has the schemas for `AVRO` and `JSON_SCHEMA`; values of `JSON` are not framed."""

    kind: str = JSON
    source: SchemaFiles | SchemaRegistry | None = None

    @contextmanager
    def decided(self, rows: DataFrame) -> Iterator[DataFrame]:
        """`rows` for writers that read them twice, so that both reads decode the same values.

        A registry that learns a schema in between would change that: the rows are cached until the writer is done.
        """
        if not isinstance(self.source, SchemaRegistry):
            yield rows
            return
        kept = rows.persist()
        try:
            yield kept
        finally:
            kept.unpersist()

    def with_text(self, df: DataFrame, columns: Mapping[str, str] | None = None) -> DataFrame:
        """`df` plus the JSON texts of binary columns, under the names in `columns` (default `value`: `TEXT`).

        Fails at run time with one line if a registry cannot be reached.
        """
        columns = {"value": TEXT} if columns is None else columns
        kind, source = self.kind, self.source
        if source is None:
            return df.withColumns({text: sql.col(name) for name, text in columns.items()})

        def decode(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            import pyarrow as pa

            from spark_jobs.schemas.framing import decoders

            text_of = decoders(kind, source).text_or_none
            for batch in batches:
                texts = [
                    pa.array([text_of(value) for value in batch.column(name).to_pylist()], pa.string())
                    for name in columns
                ]
                yield pa.RecordBatch.from_arrays(
                    [*batch.columns, *texts], names=[*batch.schema.names, *columns.values()]
                )

        added = [StructField(text, StringType()) for text in columns.values()]
        return df.mapInArrow(decode, StructType([*df.schema.fields, *added]))

    def reason(self, value: Column, schema: StructType) -> Column:
        """Why `value` does not fit, as text. Only for values that `values.failed`: it runs Python for each row."""
        kind, source = self.kind, self.source
        if source is None:
            return values.reason(value, schema)

        def explain(raw: bytes | None) -> str:
            from spark_jobs.schemas.decoders import MisfitError
            from spark_jobs.schemas.framing import decoders, schema_id

            value = b"" if raw is None else bytes(raw)
            try:
                text = decoders(kind, source).text(None if raw is None else value)
                why = f"{values.reason_of(text.encode(errors='replace'), schema)} (schema id {schema_id(value)})"
            except MisfitError as misfit:
                why = str(misfit)
            # The text may hold half a surrogate pair, which UTF-8 cannot represent.
            return why.encode(errors="replace").decode()

        return sql.udf(explain, StringType())(value.cast("binary"))


PLAIN_JSON = ValueFormat()
"""JSON values without a schema id."""


def add_value_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the format of values and the source of their schemas."""
    group = parser.add_argument_group("values")
    group.add_argument(
        "--value-format",
        choices=[JSON, AVRO, JSON_SCHEMA],
        default=JSON,
        help="avro and json-schema: each value begins with a byte 0 and its schema's id (default: json, without an id)",
    )
    where = group.add_mutually_exclusive_group()
    where.add_argument("--registry", metavar="URL", help="the schema registry, asked once for each id")
    where.add_argument(
        "--schemas", metavar="DIR", help="or its schemas as files: ID.avsc (Avro), ID.json (JSON Schema)"
    )
    group.add_argument("--registry-auth", metavar="FILE", help="USER:PASSWORD for the registry")


def value_format(arguments: argparse.Namespace) -> ValueFormat:
    """The format that the options describe; raises OSError or ValueError with one line about a bad one."""
    kind = arguments.value_format
    if arguments.registry_auth is not None and arguments.registry is None:
        raise ValueError("--registry-auth: needs --registry")
    if kind == JSON:
        given = (
            "--registry" if arguments.registry is not None else "--schemas" if arguments.schemas is not None else None
        )
        if given is not None:
            raise ValueError(f"{given}: needs --value-format {AVRO} or {JSON_SCHEMA}")
        return PLAIN_JSON
    if arguments.registry is None and arguments.schemas is None:
        raise ValueError(f"--value-format {kind}: needs --registry or --schemas")
    if vars(arguments).get("schema", "") is None:
        raise ValueError(f"--value-format {kind}: needs --schema, the fields to take from the values")
    try:
        from spark_jobs.schemas import decoders
    except ModuleNotFoundError as missing:
        raise ValueError(f"--value-format {kind}: needs {missing.name}: pip install 'odradek[spark]'") from None
    if arguments.registry is not None:
        return ValueFormat(kind, SchemaRegistry.at(arguments.registry, _user_and_password(arguments.registry_auth)))
    files = SchemaFiles.read(arguments.schemas)
    for schema_id, schema in files.by_id:
        try:
            decoders.decoder_of(schema, kind)
        except decoders.MisfitError as misfit:
            raise ValueError(f"--schemas {arguments.schemas}: schema id {schema_id} {misfit}") from None
    return ValueFormat(kind, files)


def _user_and_password(path: str | None) -> str | None:
    if path is None:
        return None
    text = Path(path).read_text(encoding="utf-8").strip()
    if ":" not in text:
        raise ValueError(f"--registry-auth {path}: must hold USER:PASSWORD")
    return text
