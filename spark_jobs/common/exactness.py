"""Checks that a JSON value became a row unchanged: nothing after it, no number rounded, no character replaced.

Spark's `from_json` stops after the first value of a text, parses a number for a STRING as a double, rounds decimals to
their scale, turns a number that is too large into infinity, and replaces half a surrogate pair by a question mark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_END = "_odradek_end"
_FLAT = r"\A\s*+\{[^{}]*+\}\s*+\z"
"""An object without nested objects or braces in strings: no other value can follow it unnoticed."""
_PAIR = r"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"(?<!\\)(?:\\\\)*+\\u[dD][89a-fA-F]"
_INEXACT = r"\d[.eE]|\d{39}"
"""A number that may change as a double, or exceed a FLOAT."""
_TIME_ALONE = r'"\s*+T?\d{1,2}:'
"""A time without a date. Spark adds the date on which it parses the value."""
_TEXTS = r'"(?:[^"\\]|\\.)*+"'
_FROM_NUMBER = r'^-?\d+\.\d+(?:E-?\d+)?$|^"-?Infinity"$|^[\[{].*\d[.eE]'
"""Strings that Spark makes of such numbers, and of objects and arrays that may hold them."""
_DIGITS = 38
"""The largest precision of a DECIMAL."""

FIRST_TIME, AFTER_LAST_TIME = "0001-01-01", "10000-01-01"
"""Bounds of the timestamps that readers other than Spark know."""

Check = Callable[..., Column | None]
"""A check of a scalar type and its values. It returns None if it does not apply to the type."""


def one_object(text: Column) -> Column:
    """Whether `text` is one JSON object and white space around it, given that `from_json` finds an object in it."""
    # Put the text in an array before a second element. The text cannot forge that one: it contains the text's hash.
    digest = sql.xxhash64(text).cast("string")
    listed = sql.concat(sql.lit("["), text, sql.lit(f',{{"{_END}":"'), digest, sql.lit('"}]'))
    parsed = sql.from_json(listed, f"array<struct<{_END}: string>>")

    def ends(elements: Column) -> Column:
        return (sql.size(elements) == 2) & (elements[1].getField(_END) == digest)

    # CASE and a lambda, because Spark parses for both sides of an OR, and once for each use of the parsed value.
    found = text.rlike(r"\A\s*+\{") & sql.coalesce(sql.exists(sql.array(parsed), ends), sql.lit(False))
    return sql.when(text.rlike(_FLAT), True).otherwise(found)


def has_half_a_pair(text: Column) -> Column:
    """Whether a JSON escape encodes half a surrogate pair, which UTF-8 cannot represent."""
    escaped = text.rlike(r"\\u[dD][89a-fA-F]")
    return escaped & sql.regexp_replace(text, _PAIR, "").rlike(_HALF)


def altered(text: Column, parsed: Column, schema: StructType) -> Column:
    """Whether a field of `parsed`, a struct of `schema`, differs from the JSON `text`."""
    beyond = _somewhere(_is_beyond, schema, parsed)
    verdict = sql.lit(False) if beyond is None else beyond
    told_as = _told_as(schema)
    looks = [(_INEXACT, _may_differ), (_TIME_ALONE, _may_lack_a_day)]
    found = [(pattern, _somewhere(check, schema, parsed)) for pattern, check in looks]
    suspect = _any([text.rlike(pattern) & fields for pattern, fields in found if fields is not None])
    if not isinstance(told_as, StructType) or suspect is None:
        return verdict
    told = sql.array(sql.from_json(text, told_as))

    def differs(other: Column) -> Column:
        found = _somewhere(lambda kind, value, told: _differs(text, kind, value, told), schema, parsed, other)
        return sql.lit(False) if found is None else found

    # Parse a second time only if the text and a field both look as if they could differ.
    return verdict | sql.when(suspect, sql.exists(told, differs)).otherwise(sql.lit(False))


def _any(verdicts: list[Column | None]) -> Column | None:
    known = [sql.coalesce(verdict, sql.lit(False)) for verdict in verdicts if verdict is not None]
    return reduce(operator.or_, known) if known else None


def _somewhere(check: Check, kind: DataType, *values: Column) -> Column | None:
    """Whether `check` holds anywhere in `values`, which share a structure; `kind` is the type of the first."""
    if isinstance(kind, StructType):
        return _any(
            [
                _somewhere(check, field.dataType, *(value.getField(field.name) for value in values))
                for field in kind.fields
                if len(values) == 1 or _told_as(field.dataType) is not None
            ]
        )
    if isinstance(kind, ArrayType):
        return _in_elements(check, kind.elementType, *values)
    if isinstance(kind, MapType):
        within = _in_elements(check, kind.valueType, *(sql.map_values(value) for value in values))
        if check is not _is_beyond:
            return within
        names = sql.map_keys(values[0])
        return _any([sql.size(sql.array_distinct(names)) < sql.size(names), within])
    return check(kind, *values)


def _in_elements(check: Check, kind: DataType, *arrays: Column) -> Column | None:
    if _somewhere(check, kind, *(sql.lit(None) for _ in arrays)) is None:
        return None
    if len(arrays) == 1:
        return sql.exists(arrays[0], lambda element: _certainly(_somewhere(check, kind, element)))
    # Spark makes the whole array null when one element has another type.
    told = sql.coalesce(arrays[1], sql.array().cast(ArrayType(_told_as(kind) or kind)))
    zipped = sql.zip_with(arrays[0], told, lambda one, other: _certainly(_somewhere(check, kind, one, other)))
    return sql.exists(zipped, lambda verdict: verdict)


def _certainly(verdict: Column | None) -> Column:
    return sql.lit(False) if verdict is None else sql.coalesce(verdict, sql.lit(False))


def _is_beyond(kind: DataType, value: Column) -> Column | None:
    if not isinstance(kind, TimestampType | TimestampNTZType):
        return None
    bounds = [sql.lit(bound).cast(kind) for bound in (FIRST_TIME, AFTER_LAST_TIME)]
    return (value < bounds[0]) | (value >= bounds[1])


def _may_differ(kind: DataType, value: Column) -> Column | None:
    if isinstance(kind, StringType):
        return value.rlike(_FROM_NUMBER)
    if isinstance(kind, DoubleType | FloatType):
        return sql.abs(value) == float("inf")
    return value.isNotNull() if isinstance(kind, DecimalType) else None


def _may_lack_a_day(kind: DataType, value: Column) -> Column | None:
    return value.isNotNull() if isinstance(kind, TimestampType) else None


def _told_as(kind: DataType) -> DataType | None:
    """The type to parse as again to detect a change, or None if no type can. Parts that cannot change are left out."""
    if isinstance(kind, StringType):
        return DoubleType()  # null for a JSON string
    if isinstance(kind, DoubleType | FloatType | TimestampType):
        return StringType()
    if isinstance(kind, DecimalType):
        return DecimalType(_DIGITS, _DIGITS - (kind.precision - kind.scale))
    if isinstance(kind, ArrayType):
        elements = _told_as(kind.elementType)
        return None if elements is None else ArrayType(elements)
    if isinstance(kind, MapType):
        values = _told_as(kind.valueType)
        return None if values is None else MapType(kind.keyType, values)
    if not isinstance(kind, StructType):
        return None
    fields = [(field.name, _told_as(field.dataType)) for field in kind.fields]
    kept = [StructField(name, inner) for name, inner in fields if inner is not None]
    return StructType(kept) if kept else None


def _differs(text: Column, kind: DataType, value: Column, told: Column) -> Column | None:
    if isinstance(kind, StringType):
        number = sql.concat(sql.lit(r"(?<![\w.+-])\Q"), value, sql.lit(r"\E(?![\w.+-])"))
        is_number = told.isNotNull() | ~sql.contains(text, sql.concat(sql.lit('"'), value, sql.lit('"')))
        squeezed = (sql.regexp_replace(each, r"[\s\\]", "") for each in (text, value))
        nested = value.rlike(r"^[\[{]")
        return value.rlike(_FROM_NUMBER) & sql.when(nested, ~sql.contains(*squeezed)).otherwise(
            is_number & (~sql.regexp_like(text, number) | _is_spelled_otherwise(text, value))
        )
    if isinstance(kind, TimestampType):
        return sql.concat(sql.lit('"'), told).rlike(_TIME_ALONE)
    if isinstance(kind, DoubleType | FloatType):
        # A number, or the quoted text that Spark writes for one that is too large for a double; not the string
        # Infinity.
        return (sql.abs(value) == float("inf")) & told.rlike(r'^"|^-?\d')
    if isinstance(kind, DecimalType):
        if kind.precision == _DIGITS:
            # No wider type exists: look for a number with more decimal places, while this one does not occur as
            # written.
            written = value.cast("string")
            digits = sql.when(sql.contains(written, sql.lit(".")), sql.regexp_replace(written, r"\.?0+$", ""))
            digits = sql.coalesce(digits, written)
            zeros = sql.when(sql.contains(digits, sql.lit(".")), "0*").otherwise(r"(?:\.0*)?")
            number = sql.concat(sql.lit(r"(?<![\w.+-])\Q"), digits, sql.lit(r"\E"), zeros, sql.lit(r"(?![\w.])"))
            longer = text.rlike(rf"\.\d{{{kind.scale}}}\d*[1-9]")
            return longer & ~sql.contains(written, sql.lit("E")) & ~sql.regexp_like(text, number)
        return told.isNotNull() & (told != value)
    return None


def _is_spelled_otherwise(text: Column, value: Column) -> Column:
    """Whether the JSON text spells the number `value` in other digits; the parser may have read that number."""
    outside = sql.regexp_replace(text, _TEXTS, '""')
    numbers = sql.regexp_extract_all(outside, sql.lit(r"(-?\d[\d.eE+-]*+)"), sql.lit(1))
    return sql.exists(numbers, lambda each: (each != value) & (each.try_cast("double") == value.try_cast("double")))
