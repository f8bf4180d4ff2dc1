"""Values parsed by a schema: those that Spark refuses, and the reason in their dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.common import values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DDL = (
    "i INT, l BIGINT, s SMALLINT, d DOUBLE, b BOOLEAN, n DECIMAL(5,2), day DATE, at TIMESTAMP, raw BINARY, t STRING, "
    "o STRUCT<x: INT, y: STRUCT<z: STRING NOT NULL>>, a ARRAY<INT>, m MAP<STRING, BOOLEAN>, r ARRAY<STRUCT<k: INT>>, "
    "f FLOAT, wide DECIMAL(38,18), texts ARRAY<STRING>"
)
ROUNDED = " (which would be rounded: take DECIMAL or DOUBLE for the field, or send text)"
REFUSED = {
    None: "value is null",
    b"": "value is empty",
    b" \n": "value is empty",
    b"garbage": "not JSON at line 1, column 1 (byte 0): Expecting value",
    b'{"i": 1': "not JSON at line 1, column 8 (byte 7): Expecting ',' delimiter",
    '{"t": "é",\n "i": }'.encode(): "not JSON at line 2, column 7 (byte 18): Expecting value",
    b"{'i': 1}": "not JSON at line 1, column 2 (byte 1): Expecting property name enclosed in double quotes",
    b'{"t": "\xff"}': "not UTF-8 at byte 7: 0xff",
    b"5": "expected an object, found number 5",
    b"[1]": "expected an object, found an array",
    b'{"i": "x"}': 'field i: expected INT, found string "x"',
    b'{"i": ""}': 'field i: expected INT, found string ""',
    b'{"i": 1.5}': "field i: expected INT, found number 1.5",
    b'{"i": true}': "field i: expected INT, found boolean true",
    b'{"i": {}}': "field i: expected INT, found an object",
    b'{"i": 3000000000}': "field i: expected INT, found number 3000000000 (out of range)",
    b'{"l": 9223372036854775808}': "field l: expected BIGINT, found number 9223372036854775808 (out of range)",
    b'{"s": 40000}': "field s: expected SMALLINT, found number 40000 (out of range)",
    b'{"d": "1.5x"}': 'field d: expected DOUBLE, found string "1.5x"',
    b'{"b": "true"}': 'field b: expected BOOLEAN, found string "true"',
    b'{"n": "ten"}': 'field n: expected DECIMAL(5,2), found string "ten"',
    b'{"day": "2026-02-30"}': 'field day: expected DATE, found string "2026-02-30"',
    b'{"at": "noon"}': 'field at: expected TIMESTAMP, found string "noon"',
    b'{"raw": "%%"}': 'field raw: expected BINARY, found string "%%"',
    b'{"o": 1}': "field o: expected an object (STRUCT), found number 1",
    b'{"o": {"x": "1"}}': 'field o.x: expected INT, found string "1"',
    b'{"o": {"y": {}}}': "field o.y.z: expected STRING, found no such field",
    b'{"o": {"y": {"z": null}}}': "field o.y.z: expected STRING, found null",
    b'{"a": [1, "2"]}': 'field a[1]: expected INT, found string "2"',
    b'{"a": {}}': "field a: expected an array (ARRAY), found an object",
    b'{"m": {"k": 1}}': 'field m["k"]: expected BOOLEAN, found number 1',
    b'{"r": [{"k": 1}, {"k": []}]}': "field r[1].k: expected INT, found an array",
    b'{"i": "x", "b": 0, "l": "y", "o": 7}': (
        'field i: expected INT, found string "x"; field l: expected BIGINT, found string "y"; '
        "field b: expected BOOLEAN, found number 0; and 1 more"
    ),
    b'{"i": "\\ud800"}': 'field i: expected INT, found string "?"',
    b'{"i": 1e99999999999999999999}': (
        "not JSON that can be read: number 1e99999999999999999999: its exponent is too long beside a DECIMAL"
    ),
    b'{"i": 1}{"i": 2}': 'byte 8: expected the end of the value, found {"i": 2}',
    b'{"i": 3} {"i": 4}': 'byte 9: expected the end of the value, found {"i": 4}',
    '{"t": "é"} garbage'.encode(): "byte 12: expected the end of the value, found garbage",
    b'{"o": {"x": 1}}] x': "byte 15: expected the end of the value, found ] x",
    b'{"o": {"x": 1}},{"_odradek_end":"0"}]': ('byte 15: expected the end of the value, found ,{"_odradek_end":"0"}]'),
    b'{"i": 1}\0': "byte 8: expected the end of the value, found \0",
    b'{"t": 12.50}': f"field t: expected STRING, found number 12.50{ROUNDED}",
    b'{"t": 12345678901234567890.123}': f"field t: expected STRING, found number 12345678901234567890.123{ROUNDED}",
    b'{"t": 1e400}': f"field t: expected STRING, found number 1E+400{ROUNDED}",
    b'{"t": {"x": [12.50]}}': f"field t: expected STRING, found an object{ROUNDED}",
    b'{"texts": ["12.50", 12.50]}': f"field texts[1]: expected STRING, found number 12.50{ROUNDED}",
    b'{"t": 12.50, "d": 12.5}': f"field t: expected STRING, found number 12.50{ROUNDED}",
    b'{"t": 12.5, "d": 1.250e1}': f"12.5 and 12.50{values.TWICE}",
    b'{"t": "\\ud800 \\ud83d\\ude00"}': "a text holds half a surrogate pair, \\ud800, which is not a character",
    b'{"d": 1e400}': "field d: expected DOUBLE, found number 1E+400 (out of range)",
    b'{"f": -1e39}': "field f: expected FLOAT, found number -1E+39 (out of range)",
    b'{"n": 1.005}': "field n: expected DECIMAL(5,2), found number 1.005 (more than 2 decimal places)",
    b'{"wide": 0.1234567890123456789}': (
        "field wide: expected DECIMAL(38,18), found number 0.1234567890123456789 (more than 18 decimal places)"
    ),
    b'{"at": 1772366400000}': (
        "field at: expected TIMESTAMP, found number 1772366400000 "
        "(a number is seconds since 1970: take BIGINT for milliseconds)"
    ),
    b'{"at": "T12:00:00"}': 'field at: expected TIMESTAMP, found string "T12:00:00"',
    b'{"at": "12:00"}': 'field at: expected TIMESTAMP, found string "12:00"',
    b'{"m": {"k": true, "k": false}}': 'field m: the key "k" is there twice',
    b'{"i": "%s"}' % (b"x" * 99): f'field i: expected INT, found string "{"x" * (values.SHOWN - 1)}…',
}
ACCEPTED = [
    b"{}",
    b'{"other": 1}',
    b'{"i": null}',
    b'{"i": -2147483648, "l": 9223372036854775807, "s": 1, "d": 1, "b": false, "n": "123.45", "t": {"any": 1}}',
    b'{"d": "NaN", "n": 1.5, "day": "2026-02-28", "at": "2026-02-28T12:00:00Z", "raw": "AAE=", "a": [], "m": {}}',
    b'{"o": {"x": null, "y": {"z": ""}}, "a": [null], "r": [null, {}]}',
    b' {"o": {"x": 1}} \n',
    b'{"t": "}{", "texts": ["{", 12.5]}',
    b'{"t": 12.5, "texts": [1e3, "1000.0", 12345678901234567890123, "12.50"]}'.replace(b"1e3", b"1000.0"),
    b'{"t": {"x": [ 12.5 ]}, "d": "-INF", "f": 16777216.0, "n": 1.50, "wide": 12345678901234567890.5}',
    b'{"wide": 0.123456789012345678, "d": 0.00012345678901234567}',
    b'{"wide": 100, "d": 0.00012345678901234567}',
    b'{"wide": 0, "d": 0.00012345678901234567}',
    b'{"wide": "-12345678901234567890.50", "d": 0.00012345678901234567}',
    b'{"t": "\\ud83d\\ude00 \\\\ud800", "at": 1772366400}',
    b'{"at": "2026-02-28 12:00", "t": "12:30", "day": "2026-02-28"}',
    b'{"t": 12.5, "texts": ["say \\"12.50\\" 12.50"]}',
    b'{"at": "0001-01-01T00:00:00Z", "m": {"j": true, "k": true}}',
]


LONG_EXPONENTS = {
    b'{"n": 1e99999999}': "not JSON that can be read: number 1e99999999: its exponent is too long beside a DECIMAL",
    b'{"t": "e1", "x": [-1.5E-99999999]}': (
        "not JSON that can be read: number -1.5E-99999999: its exponent is too long beside a DECIMAL"
    ),
    b'{"n": "1e99999999"}': 'field n: expected DECIMAL(5,2), found string "1e99999999"',
    b'{"n": "1\\u00659999999\\u0039"}': 'field n: expected DECIMAL(5,2), found string "1e99999999"',
    '{"n": "1e٩٩٩٩٩٩٩٩"}'.encode(): ('field n: expected DECIMAL(5,2), found string "1e٩٩٩٩٩٩٩٩"'),
    b'{"deep": {"n": "1e-99999999"}}': 'field deep.n: expected DECIMAL(9,0), found string "1e-99999999"',
    b'{"many": [null, "1", "1e99999999"]}': 'field many[2]: expected DECIMAL(9,0), found string "1e99999999"',
    b'{"by": {"3e12345": "1e99999999"}}': 'field by["3e12345"]: expected DECIMAL(9,0), found string "1e99999999"',
    b'{"n": "1e99999999"': "not JSON at line 1, column 19 (byte 18): Expecting ',' delimiter",
}
NO_LONG_EXPONENTS = [
    b'{"n": 1e2, "t": "3e12345678"}',
    b'{"n": "1e-9999", "t": "3e12345678 \\" 1e99999999", "by": {"3e12345": 1}}',
    b'{"t": "1e99999999", "deep": {"x": "1e99999999"}, "many": ["15"]}',
]


def test_numbers_that_spark_would_write_out_are_refused(spark: SparkSession) -> None:
    ddl = "n DECIMAL(5,2), t STRING, deep STRUCT<n: DECIMAL(9,0), x: STRING>, many ARRAY<DECIMAL(9,0)>"
    schema = StructType.fromDDL(f"{ddl}, by MAP<STRING, DECIMAL(9,0)>")
    assert reasons(spark, schema, [*LONG_EXPONENTS, *NO_LONG_EXPONENTS]) == LONG_EXPONENTS


@pytest.fixture(scope="module")
def schema(spark: SparkSession) -> StructType:
    assert spark.version  # the JVM parses the text
    return StructType.fromDDL(DDL)


def test_each_kind_of_failure_has_its_reason(spark: SparkSession, schema: StructType) -> None:
    assert reasons(spark, schema, [*REFUSED, *ACCEPTED]) == REFUSED


def reasons(spark: SparkSession, schema: StructType, records: list[bytes | None]) -> dict[bytes | None, str]:
    """The records that do not match the schema, and why."""
    rows = list(enumerate(records))
    frame = spark.createDataFrame(rows, "number INT, value BINARY")
    parsed = frame.withColumn("parsed", values.parse(sql.col("value"), schema))
    failures = parsed.where(values.failed(sql.col("value"), sql.col("parsed"), schema))
    explained = failures.select("number", values.reason(sql.col("value"), schema).alias("reason"))
    return {rows[number][1]: text for number, text in explained.collect()}


def test_values_that_parse_run_no_python(spark: SparkSession, schema: StructType) -> None:
    frame = spark.createDataFrame([(b'{"i": 1}',)], "value BINARY")
    parsed = frame.withColumn("parsed", values.parse(sql.col("value"), schema))
    failures = parsed.where(values.failed(sql.col("value"), sql.col("parsed"), schema))
    plan = failures.select(values.reason(sql.col("value"), schema))._jdf.queryExecution().executedPlan().toString()
    assert plan.index("BatchEvalPython") < plan.index("Filter"), plan
