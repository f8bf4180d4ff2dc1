"""Framed values on static frames: the fields of the valid ones, and the reasons for the others."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.common import values
from spark_jobs.schemas.sources import AVRO, JSON_SCHEMA, SchemaFiles
from spark_jobs.schemas.value_format import TEXT, ValueFormat
from spark_jobs.upserts.changes import ChangeFormat, parse_changes
from tests.spark.schemas.registry import avro, framed
from tests.spark.upsert.upserts import frame_of

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

UTC = dt.UTC
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "namespace": "shop",
    "fields": [
        {"name": "i", "type": ["null", "int"]},
        {"name": "l", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": "boolean"},
        {"name": "t", "type": ["string", "int"]},
        {"name": "raw", "type": "bytes"},
        {"name": "fixed", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "e", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
        {
            "name": "o",
            "type": {
                "type": "record",
                "name": "Inner",
                "fields": [{"name": "x", "type": "int"}, {"name": "again", "type": ["null", "Inner"]}],
            },
        },
        {"name": "a", "type": {"type": "array", "items": ["null", "Color"]}},
        {"name": "m", "type": {"type": "map", "values": "Inner"}},
    ],
}
DDL = (
    "m MAP<STRING, STRUCT<x: INT>>, a ARRAY<STRING>, o STRUCT<x: INT, again: STRUCT<x: BIGINT>>, e STRING, u STRING, "
    "local TIMESTAMP_NTZ, us TIMESTAMP, ms TIMESTAMP, day DATE, n DECIMAL(38, 9), fixed BINARY, raw BINARY, t STRING, "
    "b BOOLEAN, d DOUBLE, f FLOAT, l BIGINT, i INT, absent STRING"
)
RECORD: dict[str, Any] = {
    "i": -(2**31),
    "l": 2**63 - 1,
    "f": 0.1,
    "d": 1e-300,
    "b": True,
    "t": 'é "quoted" 😀\n',
    "raw": b"\x00\xff",
    "fixed": b"\x01\x02",
    "n": Decimal("12345678901234567890123456789.123456789"),
    "day": dt.date(1969, 7, 20),
    "ms": dt.datetime(2026, 2, 28, 12, 0, 0, 123000, UTC),
    "us": dt.datetime(1960, 1, 1, 0, 0, 0, 1, UTC),
    "local": dt.datetime(2026, 2, 28, 12, 0, 0, 1),  # noqa: DTZ001 - without a zone, as the type is
    "u": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "e": "GREEN",
    "o": {"x": 1, "again": {"x": 2, "again": None}},
    "a": ["RED", None],
    "m": {"k": {"x": 3, "again": None}},
}
V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "size", "type": ["null", "double"]},
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
ORDER_DDL = "id INT NOT NULL, size DOUBLE, price DECIMAL(9, 2), note STRING"
ORDER_JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "note": {"enum": ["new", "old"]},
        "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
    },
    "required": ["id", "note"],
}


def schemas(directory: Path, **by_name: object) -> SchemaFiles:
    """Files of a directory: `avro_7` is 7.avsc, `json_7` is 7.json."""
    for name, schema in by_name.items():
        kind, _, schema_id = name.partition("_")
        (directory / f"{schema_id}.{'avsc' if kind == 'avro' else 'json'}").write_text(json.dumps(schema))
    return SchemaFiles.read(str(directory))


def parsed(
    spark: SparkSession, values_of: ValueFormat, ddl: str, *raw: bytes | None
) -> tuple[list[Row], dict[bytes | None, str]]:
    """The rows of the valid values, in order, and the reasons for the others."""
    schema = StructType.fromDDL(ddl)
    frame = spark.createDataFrame(list(enumerate(raw)), "number INT, value BINARY")
    rows = values_of.with_text(frame).withColumn("parsed", values.parse(sql.col(TEXT), schema))
    failed = values.failed(sql.col(TEXT), sql.col("parsed"), schema)
    fit = rows.where(~failed).orderBy("number").select(*(f"parsed.{name}" for name in schema.fieldNames())).collect()
    why = rows.where(failed).select("number", values_of.reason(sql.col("value"), schema)).collect()
    return fit, {raw[number]: reason for number, reason in why}


def test_every_type_of_avro(spark: SparkSession, tmp_path: Path) -> None:
    values_of = ValueFormat(AVRO, schemas(tmp_path, avro_1=EVERYTHING))
    (row,), why = parsed(spark, values_of, DDL, avro(1, EVERYTHING, RECORD))
    assert not why
    found = row.asDict(recursive=True)
    instants = {name: found.pop(name).timestamp() for name in ("ms", "us")}
    assert instants == {name: RECORD[name].timestamp() for name in ("ms", "us")}
    assert found.pop("f") == pytest.approx(0.1, rel=1e-7)
    wanted = {name: value for name, value in RECORD.items() if name not in {"ms", "us", "f"}}
    wanted |= {"u": str(RECORD["u"]), "o": {"x": 1, "again": {"x": 2}}, "m": {"k": {"x": 3}}, "absent": None}
    assert found == wanted


def test_records_of_an_evolved_schema_are_resolved_by_name(spark: SparkSession, tmp_path: Path) -> None:
    values_of = ValueFormat(AVRO, schemas(tmp_path, avro_1=V1, avro_2=V2))
    rows, why = parsed(
        spark,
        values_of,
        ORDER_DDL,
        avro(1, V1, {"id": 1, "note": "first"}),
        avro(2, V2, {"size": 1.5, "id": 2, "price": Decimal("-0.01")}),
        avro(2, V2, {"size": None, "id": 3, "price": Decimal("1e2")}),
    )
    assert not why
    assert [tuple(row) for row in rows] == [
        (1, None, None, "first"),
        (2, 1.5, Decimal("-0.01"), None),
        (3, None, Decimal("100.00"), None),
    ]


def test_each_kind_of_failure_has_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    files = schemas(tmp_path, avro_1=V1, avro_2=V2, json_3=ORDER_JSON, avro_4="string", avro_5={"type": "recrod"})
    whole = avro(1, V1, {"id": 1, "note": "first"})
    refused = {
        None: "value is null",
        b"": "value is empty",
        b'{"id": 1}': "byte 0: expected 0x00, the first byte of a framed value, found 0x7b",
        b"\0\0\0": "byte 3: expected a schema id of 4 bytes, found the end of the value",
        framed(99, b"\x02"): f"schema id 99: not in {tmp_path}",
        framed(3, b"{}"): "schema id 3 is of the kind json-schema: expected avro",
        framed(1, b""): 'field id: expected Avro "int" at byte 5, found the end of the value (schema id 1)',
        whole[:-2]: 'field note: expected Avro "string" at byte 6, found the end of the value (schema id 1)',
        whole + b"!": "byte 12: expected the end of the value, found 1 more byte (schema id 1)",
        avro(4, {"type": "string"}, "x"): 'expected an object, found string "x" (schema id 4)',
        avro(2, V2, {"size": None, "id": 2**40, "price": Decimal(1)}): (
            "field id: expected INT, found number 1099511627776 (out of range) (schema id 2)"
        ),
    }
    rows, why = parsed(spark, ValueFormat(AVRO, files), ORDER_DDL, *refused)
    assert rows == []
    assert why == refused
    rows, why = parsed(spark, ValueFormat(AVRO, files), "id INT, note INT, more INT NOT NULL", whole)
    assert why[whole] == (
        'field note: expected INT, found string "first"; field more: expected INT, found no such field (schema id 1)'
    )
    not_utf8 = framed(1, b"\x02\x04\xff\xff")
    _, why = parsed(spark, ValueFormat(AVRO, files), ORDER_DDL, not_utf8, framed(5, b""))
    assert why[not_utf8].startswith('field note: expected Avro "string" at byte 6, found what cannot be read: ')
    assert why[framed(5, b"")].startswith("schema id 5 is not a schema of the kind avro: ")


def test_values_of_a_json_schema(spark: SparkSession, tmp_path: Path) -> None:
    values_of = ValueFormat(JSON_SCHEMA, schemas(tmp_path, json_3=ORDER_JSON, avro_1=V1))
    refused = {
        b"": "value is empty (schema id 3)",
        b'{"id": }': "not JSON at line 1, column 8 (byte 7): Expecting value (schema id 3)",
        b'{"note": "\xff"}': "not UTF-8 at byte 10: 0xff (schema id 3)",
        b"5": "value: expected type object, found number 5 (schema id 3)",
        b"{}": (
            "field id: expected by the schema, found no such field; "
            "field note: expected by the schema, found no such field (schema id 3)"
        ),
        b'{"id": 0, "note": "older", "lines": [{"sku": 1}, {}]}': (
            "field id: expected minimum 1, found number 0; "
            "field lines[1].sku: expected by the schema, found no such field; "
            'field note: expected enum ["new", "old"], found string "older" (schema id 3)'
        ),
        b'{"id": 3000000000, "note": "new"}': (
            "field id: expected INT, found number 3000000000 (out of range) (schema id 3)"
        ),
    }
    by_value = {framed(3, payload): reason for payload, reason in refused.items()}
    fits = framed(3, b'{"id": 1, "note": "new", "lines": [{"sku": "a"}], "size": 2}')
    rows, why = parsed(spark, values_of, ORDER_DDL, *by_value, fits)
    assert [tuple(row) for row in rows] == [(1, 2.0, None, "new")]
    assert why == by_value


KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}


def test_keys_of_changes_are_framed_or_not(spark: SparkSession, tmp_path: Path) -> None:
    values_of = ValueFormat(AVRO, schemas(tmp_path, avro_1=V1, avro_2=KEY))
    form = ChangeFormat(schema=StructType.fromDDL("id INT, note STRING"), keys=("id",), values=values_of)
    records = [
        (None, avro(1, V1, {"id": 1, "note": "first"})),
        (avro(2, KEY, {"id": 1}), None),
        (b"2", None),
        (framed(99, b"\x02"), None),
    ]
    found = parse_changes(frame_of(spark, records), form).orderBy("kafka_offset").collect()
    assert [(row.id, row.note, row["_deleted"], row.dead_letter_reason) for row in found] == [
        (1, "first", False, None),
        (1, None, True, None),
        (2, None, True, None),
        (None, None, True, "key id is missing or null"),
    ]
    assert [row.kafka_key for row in found] == [key for key, _ in records]


def test_debezium_events_in_avro(spark: SparkSession, tmp_path: Path) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}, V2["fields"][2]]}
    source = {
        "type": "record",
        "name": "Source",
        "fields": [{"name": "lsn", "type": "long"}, {"name": "ts_ms", "type": "long"}],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }  # fmt: skip
    event = {
        "before": None,
        "after": {"id": 1, "price": Decimal("9.90")},
        "source": {"lsn": 7, "ts_ms": 5},
        "op": "c",
        "ts_ms": 9,
    }
    values_of = ValueFormat(AVRO, schemas(tmp_path, avro_1=envelope))
    schema = StructType.fromDDL("id INT, price DECIMAL(9, 2)")
    form = ChangeFormat(schema=schema, keys=("id",), envelope="debezium", values=values_of)
    gone = {**event, "op": "d", "before": event["after"], "after": None}
    frame = frame_of(spark, [(None, avro(1, envelope, event)), (None, avro(1, envelope, gone))])
    found = parse_changes(frame, form).orderBy("kafka_offset").collect()
    assert [(row.id, row.price, row["_deleted"], row["_sequence"].lsn, row.dead_letter_reason) for row in found] == [
        (1, Decimal("9.90"), False, 7, None),
        (1, Decimal("9.90"), True, 7, None),
    ]
