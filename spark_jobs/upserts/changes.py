"""Row changes, parsed from records: Debezium's envelopes, or plain values with keys; a null value deletes.

A record whose change cannot be determined gets a reason in `dead_letter_reason`; nothing is guessed.
"""

from __future__ import annotations

import dataclasses

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.common import exactness, values
from spark_jobs.common.records import REASON, RECORD_COLUMNS, record_columns
from spark_jobs.schemas.value_format import PLAIN_JSON, TEXT, ValueFormat
from spark_jobs.upserts.snapshots import DELETED, SEQUENCE

PLAIN, DEBEZIUM = "none", "debezium"
UPSERTS = ("c", "u", "r")
UNAVAILABLE = "__debezium_unavailable_value"
"""Text that Debezium sends for a large column if an update left it unchanged and the database did not log it."""

TIME = "_time"
UNPARSED = "not JSON of the schema"
_KEY_TEXT = "_key_text"
INTERNAL = (TIME, TEXT, _KEY_TEXT, values.CORRUPT, "_row", "_why", "_delete", "_lsn", "_value", "_envelope")
"""Names that fields of a row cannot have, in addition to those of the columns above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangeFormat:
    """How records describe changes. `keys` are fields of `schema`; so are `sequence_by`, which order a key's changes.

    `delete_when` is an SQL condition over the fields. Raises ValueError naming the option that is wrong.
    """

    schema: StructType
    keys: tuple[str, ...]
    envelope: str = PLAIN
    sequence_by: tuple[str, ...] = ()
    delete_when: str | None = None
    values: ValueFormat = PLAIN_JSON

    def __post_init__(self) -> None:
        fields = self.schema.fieldNames()
        for option, names in (("--keys", self.keys), ("--sequence-by", self.sequence_by)):
            unknown = [name for name in names if name not in fields]
            if unknown:
                raise ValueError(f"{option} {','.join(unknown)}: must be fields of the schema")
        if not self.keys:
            raise ValueError("--keys: at least one field is needed")

    @property
    def sequenced(self) -> bool:
        """Whether changes have an order other than that of their offsets."""
        return bool(self.sequence_by) or self.envelope == DEBEZIUM


def _field(name: str, parent: str | None = None) -> Column:
    return sql.col(f"`{name}`") if parent is None else sql.col(f"{parent}.`{name}`")


def _envelope_type(schema: StructType) -> StructType:
    """Both layouts of a Debezium value: the envelope itself, and the envelope as payload next to its schema."""
    nullable = StructType([StructField(field.name, field.dataType) for field in schema])
    source = StructType().add("lsn", "long").add("ts_ms", "long")
    envelope = StructType().add("before", nullable).add("after", nullable).add("op", "string")
    envelope = envelope.add("ts_ms", "long").add("source", source)
    return StructType([*envelope, StructField("payload", envelope)])


def value_type(form: ChangeFormat) -> StructType:
    """The type that values are parsed with. All fields are nullable: the change decides which are required."""
    if form.envelope == DEBEZIUM:
        return _envelope_type(form.schema)
    return StructType([StructField(field.name, field.dataType) for field in form.schema])


def explained(form: ChangeFormat) -> Column:
    """The reasons of `parse_changes`, with the error in a value that does not parse: put it behind a filter."""
    why = form.values.reason(sql.col("raw_value"), value_type(form))
    return sql.when(sql.col(REASON) == UNPARSED, why).otherwise(sql.col(REASON))


def _key_text() -> Column:
    """The key as text: decoded if framed, else unchanged; keys are often unframed even if values are framed."""
    framed = sql.coalesce(sql.startswith("key", sql.lit(b"\0")), sql.lit(False))
    return sql.coalesce(sql.col(_KEY_TEXT).cast("string"), sql.when(~framed, sql.col("key").cast("string")))


def _exactly(text: Column, schema: StructType) -> Column:
    parsed = sql.from_json(values.without_long_exponents(text, schema), schema)
    return sql.when(~exactness.altered(text, parsed, schema), parsed)


def _key_field(field: StructField, *, alone: bool) -> Column:
    """A key field from the record's key: a JSON object (also under `payload`), or for a single field a bare value."""
    key = sql.col(_KEY_TEXT)
    text = sql.when(~key.rlike(r"\A\s*+\{") | exactness.one_object(key), key)
    fields = StructType([StructField(field.name, field.dataType)])
    below = StructType().add("payload", fields)
    inner = _exactly(text, below).getField("payload").getField(field.name)
    outer = _exactly(text, fields).getField(field.name)
    if not alone:
        return sql.coalesce(inner, outer)
    unquoted = sql.from_json(sql.concat(sql.lit("["), text, sql.lit("]")), "array<string>")
    quoted = sql.when(text.startswith('"') & text.endswith('"') & (sql.size(unquoted) == 1), unquoted[0])
    bare = sql.when(~text.startswith("{"), sql.coalesce(quoted, text)).try_cast(field.dataType)
    return sql.coalesce(inner, outer, bare)


def parse_changes(df: DataFrame, form: ChangeFormat) -> DataFrame:
    """The connector's rows as changes: the row's fields, `_deleted`, `_time`, `_sequence` (if `form` has one), then the
    source record and `dead_letter_reason` (null for a valid change).

    A deleted row has its key fields, and others only if the record contains them.
    Pure: the same records always give the same changes.
    """
    df = form.values.with_text(df, {"value": TEXT, "key": _KEY_TEXT})
    texts = [sql.col(TEXT), _key_text().alias(_KEY_TEXT)]
    records = df.select(*record_columns(), sql.col("value").alias("raw_value"), *texts)
    parse = _debezium if form.envelope == DEBEZIUM else _plain
    parsed = parse(records, form)
    fields = []
    for field in form.schema:
        column = _field(field.name, "_row")
        if field.name in form.keys:
            column = sql.coalesce(column, _key_field(field, alone=len(form.keys) == 1))
        fields.append(column.alias(field.name))
    tombstone = sql.col("raw_value").isNull()
    condition = sql.lit(False) if form.delete_when is None else sql.coalesce(sql.expr(form.delete_when), sql.lit(False))
    changes = parsed.select(*fields, *RECORD_COLUMNS, "topic", "date", "raw_value", "_why", "_delete", TIME, "_lsn")
    changes = changes.withColumn(DELETED, tombstone | sql.col("_delete") | (~tombstone & condition))
    changes = changes.withColumn(REASON, _reason(form))
    if form.sequenced:
        changes = changes.withColumn(SEQUENCE, _sequence(form))
    return changes.drop("_why", "_delete", "_lsn")


def _plain(records: DataFrame, form: ChangeFormat) -> DataFrame:
    text, schema = sql.col(TEXT), value_type(form)
    parsed = values.parse(text, schema)
    why = sql.when(values.failed(text, sql.col("_row"), schema), sql.lit(UNPARSED))
    return (
        records.withColumn("_row", parsed)
        .withColumn("_why", why)
        .withColumn("_delete", sql.lit(False))
        .withColumn(TIME, sql.col("kafka_timestamp"))
        .withColumn("_lsn", sql.lit(None).cast("struct<lsn: bigint, ts_ms: bigint>"))
    )


def _debezium(records: DataFrame, form: ChangeFormat) -> DataFrame:
    text, schema = sql.col(TEXT), value_type(form)
    parsed = records.withColumn("_value", values.parse(text, schema))
    bare = sql.struct(*(sql.col(f"_value.{name}") for name in ("before", "after", "op", "ts_ms", "source")))
    parsed = parsed.withColumn("_envelope", sql.coalesce(sql.col("_value.payload"), bare))
    op, after = sql.col("_envelope.op"), sql.col("_envelope.after")
    changed_ms = sql.coalesce(sql.col("_envelope.source.ts_ms"), sql.col("_envelope.ts_ms"))
    unavailable = [
        sql.when(
            (op != "d") & (_field(field.name, "_envelope.after") == UNAVAILABLE),
            sql.lit(f"field {field.name} is not in the event: set REPLICA IDENTITY FULL on the table"),
        )
        for field in form.schema
        if isinstance(field.dataType, StringType)
    ]
    why = sql.coalesce(
        sql.when(values.failed(text, sql.col("_value"), schema), sql.lit(UNPARSED)),
        sql.when(op.isNull(), sql.lit("not a Debezium envelope: no op")),
        sql.when(~op.isin(*UPSERTS, "d"), sql.concat(sql.lit("op "), op, sql.lit(" is not a change of one row"))),
        sql.when((op != "d") & after.isNull(), sql.concat(sql.lit("op "), op, sql.lit(" without after"))),
        sql.when(changed_ms.isNull(), sql.lit("no ts_ms")),
        *unavailable,
    )
    order = sql.struct(sql.col("_envelope.source.lsn").alias("lsn"), changed_ms.alias("ts_ms"))
    return (
        parsed.withColumn("_row", sql.when(op == "d", sql.col("_envelope.before")).otherwise(after))
        .withColumn("_why", why)
        .withColumn("_delete", sql.coalesce(op == "d", sql.lit(False)))
        .withColumn(TIME, sql.coalesce(sql.timestamp_millis(changed_ms), sql.col("kafka_timestamp")))
        .withColumn("_lsn", sql.when(changed_ms.isNotNull(), order))
    )


def _sequence(form: ChangeFormat) -> Column:
    """The sequence; null for a delete without one, which follows everything that arrived before it."""
    if not form.sequence_by:
        return sql.col("_lsn")
    missing = sql.lit(False)
    for name in form.sequence_by:
        missing = missing | _field(name).isNull()
    return sql.when(~missing, sql.struct(*(_field(name) for name in form.sequence_by)))


def _reason(form: ChangeFormat) -> Column:
    needed = [field.name for field in form.schema if not field.nullable and field.name not in form.keys]
    lacking = [sql.when(_field(name).isNull(), sql.lit(f"key {name} is missing or null")) for name in form.keys]
    for name in [*needed, *(name for name in form.sequence_by if name not in needed)]:
        text = sql.lit(f"field {name} is missing or null")
        lacking.append(sql.when(~sql.col(DELETED) & _field(name).isNull(), text))
    parsed = sql.when(sql.col("raw_value").isNotNull(), sql.col("_why"))
    return sql.coalesce(parsed, *lacking)
