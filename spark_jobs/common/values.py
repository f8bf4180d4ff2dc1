"""Parses values by a schema, and explains why a value does not parse.

Spark's own `from_json` parses, and decides which values fail: wrong types, bad JSON, missing NOT NULL fields. The
reason is found in Python, by a second look at the value. Put it behind a filter on `failed`, so that it costs nothing
for the values that parse.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from pyspark.sql import Column, types
from pyspark.sql import functions as sql

from spark_jobs.common import exactness

CORRUPT = "_corrupt_record"
"""The field of a parsed value that holds the text of an invalid one; no schema may have a field of this name."""

SHOWN = 40
"""How many characters of a value a reason quotes."""

TWICE = " are one number as a DOUBLE: the digits of the one that becomes text cannot be told"

MOST_FIELDS = 3
"""How many wrong fields a reason names; it counts the rest."""

LONG_EXPONENT = r"[eE][+-]?\d{5,}"
"""Exponent of a number that Spark must not parse as a DECIMAL: it writes out all digits before it sees that they do not
fit. That takes 10 s for 1e9999999, and minutes for 1e99999999.
"""

_BITS: dict[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
JSON_SPACE = " \t\r\n"
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999 in seconds since 1970, the range of TIMESTAMP that readers other than Spark know."""
_LARGEST_FLOAT = 3.4028234663852886e38
_ANY_DIGITS = Context(prec=1_000)
_NON_FINITE = {"NaN", "+INF", "INF", "+Infinity", "Infinity", "-INF", "-Infinity"}


def parse(value: Column, schema: types.StructType) -> Column:
    """The struct that JSON values (binary or text) parse to, with one more field, `CORRUPT`."""
    return _from_json(without_long_exponents(value.cast("string"), schema), schema)


def _from_json(text: Column, schema: types.StructType) -> Column:
    with_corrupt = types.StructType([*schema.fields, types.StructField(CORRUPT, types.StringType())])
    # Strict, so that Spark and `reason_of` accept the same JSON.
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}
    return sql.from_json(text, with_corrupt, options)


def without_long_exponents(text: Column, schema: types.StructType) -> Column:
    """The JSON text, or null if the exponent of a number, or of the text of a DECIMAL field of `schema`, is too long
    for Spark to parse.
    """
    decimals = _decimals_as_text(schema)
    if decimals is None:
        return text
    found = f"(?U){LONG_EXPONENT}"
    # Remove the strings; escapes go first, so that an escaped quote does not end one.
    outside = sql.regexp_replace(sql.regexp_replace(text, r"\\.", ""), '"[^"]*+"', "")
    parsed = _from_json(text, decimals)
    # Texts that are not JSON are kept from Spark, too: it would parse the number before it finds the mistake.
    texts = sql.when(parsed.getField(CORRUPT).isNull(), sql.to_json(parsed.dropFields(CORRUPT)))
    within = sql.coalesce(texts.rlike(f'{found}"(?!:)'), sql.lit(True))
    # Few texts contain such a number, or an escaped character of one; hexadecimal digests can look like it.
    suspect = text.rlike(rf"(?U)(?<![\w.])[\d.]++{LONG_EXPONENT}|\\u")
    return sql.when(~suspect, text).when(~(outside.rlike(found) | within), text)


def _decimals_as_text(kind: types.DataType) -> Any:
    """The parts of a type that are or hold DECIMAL, with STRING replacing it, or None without such parts."""
    if isinstance(kind, types.DecimalType):
        return types.StringType()
    if isinstance(kind, types.ArrayType):
        elements = _decimals_as_text(kind.elementType)
        return None if elements is None else types.ArrayType(elements)
    if isinstance(kind, types.MapType):
        values = _decimals_as_text(kind.valueType)
        return None if values is None else types.MapType(types.StringType(), values)
    if not isinstance(kind, types.StructType):
        return None
    fields = [(field.name, _decimals_as_text(field.dataType)) for field in kind.fields]
    kept = [types.StructField(name, inner) for name, inner in fields if inner is not None]
    return types.StructType(kept) if kept else None


def failed(value: Column, parsed: Column, schema: types.StructType) -> Column:
    """Whether `value`, which `parse` turned into `parsed`, does not fit `schema`; never null."""
    # Spark's parser silently replaces invalid UTF-8 by replacement characters.
    text = value.cast("string")
    verdict = ~sql.is_valid_utf8(text) | parsed.isNull() | parsed.getField(CORRUPT).isNotNull()
    verdict |= ~exactness.one_object(text) | exactness.has_half_a_pair(text) | exactness.altered(text, parsed, schema)
    for missing in _missing(parsed, schema):
        verdict |= missing
    return sql.coalesce(verdict, sql.lit(True))


def _missing(struct: Column, schema: types.StructType) -> Iterator[Column]:
    """For each NOT NULL field of the schema, at any depth, whether it is null. Spark itself does not check."""
    for field in schema.fields:
        inner = struct.getField(field.name)
        if not field.nullable:
            yield struct.isNotNull() & inner.isNull()
        yield from _missing_within(inner, field.dataType)


def _missing_within(value: Column, kind: types.DataType) -> Iterator[Column]:
    if isinstance(kind, types.StructType):
        yield from _missing(value, kind)
    elif isinstance(kind, types.ArrayType):
        yield from _missing_elements(value, kind.elementType, may_be_null=kind.containsNull)
    elif isinstance(kind, types.MapType):
        yield from _missing_elements(sql.map_values(value), kind.valueType, may_be_null=kind.valueContainsNull)


def _missing_elements(array: Column, kind: types.DataType, *, may_be_null: bool) -> Iterator[Column]:
    def wrong(element: Column) -> Column:
        verdict = sql.lit(False) if may_be_null else element.isNull()
        for missing in _missing_within(element, kind):
            verdict |= missing
        return verdict

    if not may_be_null or _has_not_null(kind):
        yield sql.coalesce(sql.exists(array, wrong), sql.lit(False))


def _has_not_null(kind: types.DataType) -> bool:
    if isinstance(kind, types.StructType):
        return any(not field.nullable or _has_not_null(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return not kind.containsNull or _has_not_null(kind.elementType)
    return isinstance(kind, types.MapType) and (not kind.valueContainsNull or _has_not_null(kind.valueType))


def reason(value: Column, schema: types.StructType) -> Column:
    """Why `value` does not fit `schema`, as text. Only for values that `failed`: it runs Python for each row."""

    def explain(raw: bytes | None) -> str:
        # The value's text may hold half a surrogate pair, which UTF-8 cannot represent.
        return reason_of(None if raw is None else bytes(raw), schema).encode(errors="replace").decode()

    return sql.udf(explain, types.StringType())(value.cast("binary"))


def reason_of(raw: bytes | None, schema: types.StructType) -> str:
    """Why a value does not fit `schema`: where its JSON breaks off, or what each wrong field is and should be.

    For example `field a.b: expected INT, found string "x"`; `not JSON at line 1, column 7 (byte 6): Expecting value`.
    """
    if raw is None:
        return "value is null"
    if not raw.strip():
        return "value is empty"
    try:
        text = raw.decode()
    except UnicodeDecodeError as failure:
        return f"not UTF-8 at byte {failure.start}: 0x{raw[failure.start]:02x}"
    start = len(text) - len(text.lstrip(JSON_SPACE))
    read_number = Decimal if _decimals_as_text(schema) is None else _number
    try:
        decoder = json.JSONDecoder(parse_float=read_number, object_pairs_hook=_Object)
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as failure:
        at = len(text[: failure.pos].encode())
        return f"not JSON at line {failure.lineno}, column {failure.colno} (byte {at}): {failure.msg}"
    except (RecursionError, ArithmeticError, ValueError) as failure:
        return f"not JSON that can be read: {failure}"
    if not isinstance(value, dict):
        return f"expected an object, found {found(value)}"
    if behind := text[end:].lstrip(JSON_SPACE):
        at = len(text[: len(text) - len(behind)].encode())
        return f"byte {at}: expected the end of the value, found {shortened(behind)}"
    wrong = list(_wrong_fields(value, schema, ""))
    half = re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False, default=str))
    if half and not wrong:
        return f"a text holds half a surrogate pair, \\u{ord(half[0]):04x}, which is not a character"
    if not wrong:
        spelled = _spelled_twice(value)
        return " and ".join(spelled) + TWICE if spelled else "Spark's JSON parser refuses it for the schema"
    return first_of(wrong)


class _Object(dict[str, Any]):
    """A JSON object that remembers a duplicate name."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = next((name for name in names if names.count(name) > 1), None) if len(self) < len(names) else None


def _number(text: str) -> Decimal:
    if re.search(LONG_EXPONENT, text):
        raise ValueError(f"number {shortened(text)}: its exponent is too long beside a DECIMAL")
    return Decimal(text)


def first_of(wrong: list[str]) -> str:
    """The first `MOST_FIELDS` messages of `wrong`, and the number of the others."""
    more = f"; and {len(wrong) - MOST_FIELDS} more" if len(wrong) > MOST_FIELDS else ""
    return "; ".join(wrong[:MOST_FIELDS]) + more


def shortened(text: str) -> str:
    """The beginning of a text, as much as a reason quotes."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _wrong_fields(value: dict[str, Any], schema: types.StructType, prefix: str) -> Iterator[str]:
    for field in schema.fields:
        path = f"{prefix}{field.name}"
        if value.get(field.name) is not None:
            yield from _wrong(value[field.name], field.dataType, path)
        elif not field.nullable:
            there = "null" if field.name in value else "no such field"
            yield f"field {path}: expected {_expected(field.dataType)}, found {there}"


def _wrong(value: Any, kind: types.DataType, path: str) -> Iterator[str]:
    if isinstance(kind, types.StructType) and isinstance(value, dict):
        yield from _wrong_fields(value, kind, f"{path}.")
    elif isinstance(kind, types.ArrayType) and isinstance(value, list):
        yield from _wrong_elements(
            [(f"{path}[{index}]", element) for index, element in enumerate(value)], kind.elementType, kind.containsNull
        )
    elif isinstance(kind, types.MapType) and isinstance(value, dict):
        if isinstance(value, _Object) and value.twice is not None:
            yield f"field {path}: the key {json.dumps(value.twice)} is there twice"
        yield from _wrong_elements(
            [(f"{path}[{json.dumps(key)}]", element) for key, element in value.items()],
            kind.valueType,
            kind.valueContainsNull,
        )
    elif not _fits(value, kind):
        yield f"field {path}: expected {_expected(kind)}, found {found(value)}{_why_not(value, kind)}"


def _wrong_elements(elements: list[tuple[str, Any]], kind: types.DataType, may_be_null: bool) -> Iterator[str]:
    for path, element in elements:
        if element is not None:
            yield from _wrong(element, kind, path)
        elif not may_be_null:
            yield f"field {path}: expected {_expected(kind)}, found null"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _fits(value: Any, kind: types.DataType) -> bool:
    """Whether Spark reads this non-null JSON value as a `kind` that is not a struct, array or map."""
    if isinstance(kind, types.StringType):
        return all(repr(float(number)) == str(number) for number in _fractions(value))
    if isinstance(kind, types.BooleanType):
        return isinstance(value, bool)
    if type(kind) in _BITS:
        limit = 1 << (_BITS[type(kind)] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if isinstance(kind, types.DoubleType | types.FloatType):
        return value in _NON_FINITE if isinstance(value, str) else _is_number(value) and _is_within(value, kind)
    if isinstance(kind, types.TimestampType) and isinstance(value, int):
        return not isinstance(value, bool) and FIRST_SECOND <= value <= LAST_SECOND
    if isinstance(kind, types.DecimalType):
        return _fits_decimal(value, kind)
    read = _TEXT_READERS.get(type(kind))
    return read is not None and isinstance(value, str) and _reads(read, value)


def _fits_decimal(value: Any, kind: types.DecimalType) -> bool:
    number = _decimal(value)
    if number is None or not _has_room(number, kind):
        return False
    return number == number.quantize(Decimal(1).scaleb(-kind.scale), context=_ANY_DIGITS)


def _decimal(value: Any) -> Decimal | None:
    """The number that Spark reads for a DECIMAL, exactly as written, or None if it reads none."""
    if not (_is_number(value) or isinstance(value, str)) or re.search(LONG_EXPONENT, str(value)):
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _has_room(number: Decimal, kind: types.DecimalType) -> bool:
    return number.copy_abs() < Decimal(10) ** (kind.precision - kind.scale)


def _is_within(value: float | Decimal, kind: types.DoubleType | types.FloatType) -> bool:
    largest = sys.float_info.max if isinstance(kind, types.DoubleType) else _LARGEST_FLOAT
    number = Decimal(value)
    return not number.is_finite() or number.copy_abs() <= Decimal(largest)


def _fractions(value: Any) -> Iterator[Decimal]:
    """The numbers with a fraction or an exponent in a value: Spark converts them to text through a double."""
    if isinstance(value, Decimal):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _fractions(inner)


def _spelled_twice(value: Any) -> list[str]:
    """Numbers with a fraction or an exponent that are equal as doubles, but written in different digits."""
    texts: dict[float, set[str]] = {}
    for number in _fractions(value):
        texts.setdefault(float(number), set()).add(str(number))
    return sorted(next((spelled for spelled in texts.values() if len(spelled) > 1), ()))


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except (ValueError, binascii.Error):
        return False
    return True


_TEXT_READERS: dict[type[types.DataType], Callable[[str], object]] = {
    types.DateType: dt.date.fromisoformat,
    types.TimestampType: dt.datetime.fromisoformat,
    types.TimestampNTZType: dt.datetime.fromisoformat,
    types.BinaryType: lambda text: base64.b64decode(text, validate=True),
}


def _expected(kind: types.DataType) -> str:
    """The type as in the schema's DDL; only the outermost part of a nested type."""
    if isinstance(kind, types.StructType | types.ArrayType | types.MapType):
        return {
            types.StructType: "an object (STRUCT)",
            types.ArrayType: "an array (ARRAY)",
            types.MapType: "an object (MAP)",
        }[type(kind)]
    return kind.simpleString().upper()


def _why_not(value: Any, kind: types.DataType) -> str:
    if isinstance(kind, types.StringType):
        return " (which would be rounded: take DECIMAL or DOUBLE for the field, or send text)"
    if isinstance(kind, types.TimestampType) and isinstance(value, int):
        return " (a number is seconds since 1970: take BIGINT for milliseconds)"
    if isinstance(kind, types.DecimalType) and not isinstance(value, bool | int):
        number = _decimal(value)
        return f" (more than {kind.scale} decimal places)" if number is not None and _has_room(number, kind) else ""
    whole = isinstance(value, int) and not isinstance(value, bool)
    ranged = type(kind) in _BITS or isinstance(kind, types.DecimalType)
    return (
        " (out of range)"
        if (whole and ranged) or (_is_number(value) and isinstance(kind, types.DoubleType | types.FloatType))
        else ""
    )


def found(value: Any) -> str:
    """A JSON value as a reason shows it: its type, and the beginning of a scalar."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if value is None:
        return "null"
    kind = "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
    return f"{kind} {shortened(text)}"
