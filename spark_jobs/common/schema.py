"""The schema of values, read from a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import types

from spark_jobs.common.errors import one_line

_TOKEN = re.compile(r"\s*(?:([A-Za-z0-9_]+)|`([^`]+)`|([<>(),:]))\s*")
_PLAIN_TYPES: dict[str, types.DataType] = {
    name: kind
    for kind, names in (
        (types.BooleanType(), "boolean"),
        (types.ByteType(), "tinyint byte"),
        (types.ShortType(), "smallint short"),
        (types.IntegerType(), "int integer"),
        (types.LongType(), "bigint long"),
        (types.FloatType(), "float real"),
        (types.DoubleType(), "double"),
        (types.DateType(), "date"),
        (types.TimestampType(), "timestamp timestamp_ltz"),
        (types.TimestampNTZType(), "timestamp_ntz"),
        (types.StringType(), "string"),
        (types.BinaryType(), "binary"),
    )
    for name in names.split()
}


class SessionNeededError(Exception):
    """A schema contains words that only Spark understands, but no session exists yet."""


class _Ddl:
    """A parser of common DDL that works without a JVM, unlike Spark's own.

    Raises LookupError for everything that it does not know, valid or not: Spark then decides.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise LookupError(text[at:])
            self._tokens.append((found[2], True) if found[2] is not None else (found[1] or found[3], False))
            at = found.end()
        self._tokens.append(("", False))
        self._at = 0

    def schema(self) -> types.StructType:
        fields = self._fields()
        if self._next() != "":
            raise LookupError
        return fields

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _is_next(self, *words: str) -> bool:
        """Whether these words come next; if so, consume them."""
        found = self._tokens[self._at : self._at + len(words)]
        if [word.lower() for word, quoted in found if not quoted] != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, sign: str) -> None:
        if not self._is_next(sign):
            raise LookupError(sign)

    def _fields(self) -> types.StructType:
        fields = []
        while True:
            name, quoted = self._tokens[self._at]
            if not quoted and not re.fullmatch(r"\w+", name):
                raise LookupError(name)
            self._at += 1
            self._is_next(":")
            kind = self._type()
            fields.append(types.StructField(name, kind, nullable=not self._is_next("not", "null")))
            if not self._is_next(","):
                return types.StructType(fields)

    def _type(self) -> types.DataType:
        word = self._next().lower()
        if word in _PLAIN_TYPES:
            return _PLAIN_TYPES[word]
        if word in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if word not in {"array", "map", "struct"}:
            raise LookupError(word)
        self._expect("<")
        kind: types.DataType
        if word == "array":
            kind = types.ArrayType(self._type())
        elif word == "map":
            key = self._type()
            self._expect(",")
            kind = types.MapType(key, self._type())
        else:
            kind = self._fields()
        self._expect(">")
        return kind

    def _decimal(self) -> types.DecimalType:
        if not self._is_next("("):
            return types.DecimalType()
        precision, scale = self._number(), 0
        if self._is_next(","):
            scale = self._number()
        self._expect(")")
        if not 0 < precision <= 38 or scale > precision:
            raise LookupError
        return types.DecimalType(precision, scale)

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal():
            raise LookupError(word)
        return int(word)


def _of_ddl(text: str) -> types.DataType:
    """The type that DDL describes; raises SessionNeededError, or PySparkException if `text` is not DDL."""
    try:
        return _Ddl(text).schema()
    except LookupError:
        if SparkContext._active_spark_context is None:
            raise SessionNeededError from None
        return types.StructType.fromDDL(text)


def read_schema(path: str) -> types.StructType:
    """A struct from a file: Spark's JSON when it begins with `{`, else DDL (`carrier STRING NOT NULL, flight INT`).

    Lines that begin with `--` are comments. Raises OSError, ValueError naming the file and the mistake, or
    SessionNeededError if only Spark can parse the schema and no session exists.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip()
    if not text:
        raise ValueError(f"--schema {path}: empty")
    if text.startswith("{"):
        try:
            return types.StructType.fromJson(json.loads(text))
        except (KeyError, TypeError, json.JSONDecodeError) as failure:
            raise ValueError(f"--schema {path}: not a Spark schema in JSON: {failure!r}") from None
    try:
        schema = _of_ddl(text)
    except PySparkException as failure:
        raise ValueError(f"--schema {path}: {one_line(failure)}") from None
    if not isinstance(schema, types.StructType):
        raise ValueError(f"--schema {path}: a type, not a list of fields: {text}")  # noqa: TRY004
    return schema
