"""Decodes values of one schema to JSON text, which the jobs then parse by the fields that the user wants.

JSON fits the existing code: Spark's parser finds fields by name, and the reasons of dead letters name the field and the
expected and actual type.
"""

from __future__ import annotations

import base64
import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import jsonschema
import referencing
import referencing.jsonschema
from pyspark.sql.types import StructType

from spark_jobs.common import values
from spark_jobs.schemas.sources import AVRO, JSON_SCHEMA, Schema

HEADER_SIZE = 5
"""Bytes before the payload. The positions in Avro's reasons count from the beginning of the value."""

Decode = Callable[[bytes], str]
"""The JSON text of a payload; raises MisfitError."""


class MisfitError(ValueError):
    """A value that does not match its schema; the text is the reason in the dead letter."""


def decoder_of(schema: Schema, kind: str) -> Decode:
    """The decoder for values of `schema`, which must be of `kind`; raises MisfitError for an unusable schema."""
    if schema.kind != kind:
        raise MisfitError(f"is of the kind {schema.kind}: expected {kind}")
    makers: dict[str, Callable[[Schema], Decode]] = {AVRO: _AvroDecoder, JSON_SCHEMA: _json_schema_decoder}
    try:
        return makers[kind](schema)
    except Exception as failure:  # noqa: BLE001 - a wrong schema makes both libraries raise anything
        text = " ".join(str(failure).split()) or type(failure).__name__
        raise MisfitError(f"is not a schema of the kind {kind}: {values.shortened(text)}") from None


def _as_json(value: Any) -> str:
    """Text for types that JSON lacks, as Spark reads it from JSON: times in ISO 8601, bytes in base 64."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    text: str = value.isoformat()
    return text


_encode = json.JSONEncoder(default=_as_json, ensure_ascii=False, check_circular=False).encode


class _AvroDecoder:
    """Decoder of the Avro records of one writer's schema."""

    def __init__(self, schema: Schema) -> None:
        self._referenced: dict[str, dict[str, Any]] = {}
        self._add(schema.references)
        self._schema = json.loads(schema.text)
        self._parsed = self._parse(self._schema)

    def _add(self, references: Iterable[tuple[str, Schema]]) -> None:
        for _name, schema in references:
            self._add(schema.references)
            document = json.loads(schema.text)
            names = dict(self._referenced)
            fastavro.parse_schema(document, named_schemas=names)
            self._referenced = names

    def _parse(self, schema: Any) -> Any:
        return fastavro.parse_schema(schema, named_schemas=dict(self._referenced))

    def __call__(self, payload: bytes) -> str:
        stream = io.BytesIO(payload)
        try:
            text = _encode(fastavro.schemaless_reader(stream, self._parsed))
        except Exception as failure:  # noqa: BLE001 - unexpected bytes end in EOFError, IndexError, ...
            raise MisfitError(self._where(payload, failure)) from None
        end, more = HEADER_SIZE + stream.tell(), len(payload) - stream.tell()
        if more:
            raise MisfitError(f"byte {end}: expected the end of the value, found {more} more byte{'s'[: more > 1]}")
        return text

    @functools.cached_property
    def _beginnings(self) -> list[Any]:
        """The schema with only its first field, then with two, and so on; empty for a schema that is not a record."""
        fields = self._schema.get("fields", []) if isinstance(self._schema, dict) else []
        return [self._parse({**self._schema, "fields": fields[: count + 1]}) for count in range(len(fields))]

    def _where(self, payload: bytes, failure: Exception) -> str:
        """The first unreadable field, and the byte where it begins."""
        begin = HEADER_SIZE
        for number, beginning in enumerate(self._beginnings):
            stream = io.BytesIO(payload)
            try:
                _encode(fastavro.schemaless_reader(stream, beginning))
            except Exception as stopped:  # noqa: BLE001
                field = self._schema["fields"][number]
                expected = values.shortened(json.dumps(field["type"], ensure_ascii=False))
                return (
                    f"field {field['name']}: expected Avro {expected} at byte {begin}, found {_found(stopped, stream)}"
                )
            begin = HEADER_SIZE + stream.tell()
        return f"not of its Avro schema: {_found(failure, io.BytesIO())}"


def _found(failure: Exception, stream: io.BytesIO) -> str:
    if isinstance(failure, EOFError | IndexError) and not stream.read(1):
        return "the end of the value"
    text = " ".join(str(failure).split())
    return f"what cannot be read: {values.shortened(text or type(failure).__name__)}"


def _resources(references: Iterable[tuple[str, Schema]]) -> Iterator[tuple[str, referencing.Resource[Any]]]:
    for name, schema in references:
        yield from _resources(schema.references)
        yield (
            name,
            referencing.Resource.from_contents(
                json.loads(schema.text), default_specification=referencing.jsonschema.DRAFT7
            ),
        )


def _json_schema_decoder(schema: Schema) -> Decode:
    document = json.loads(schema.text)
    # Only the references that the registry lists: nothing is fetched from URLs in a schema.
    known: referencing.Registry[Any] = referencing.Registry().with_resources(_resources(schema.references))
    draft = jsonschema.validators.validator_for(document, default=jsonschema.Draft7Validator)
    draft.check_schema(document)
    validator = draft(document, registry=known)

    def decode(payload: bytes) -> str:
        try:
            text = payload.decode()
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise MisfitError(values.reason_of(payload, StructType())) from None
        try:
            errors = sorted(validator.iter_errors(value), key=lambda error: str(error.json_path))
        except referencing.exceptions.Unresolvable as failure:
            raise MisfitError(f"its JSON Schema refers to what the registry does not give: {failure.ref}") from None
        if errors:
            raise MisfitError(
                values.first_of(list(dict.fromkeys(wrong for error in errors for wrong in _wrong(error))))
            )
        return text

    return decode


def _wrong(error: jsonschema.ValidationError) -> Iterator[str]:
    """Texts of the errors, worded like the reasons of JSON values."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path).lstrip(".")
    if error.validator == "required":
        prefix = f"{place}." if place else ""
        for name in error.validator_value:
            if name not in error.instance:
                yield f"field {prefix}{name}: expected by the schema, found no such field"
        return
    wanted = error.validator_value
    text = wanted if isinstance(wanted, str) else json.dumps(wanted, ensure_ascii=False)
    named = f"field {place}" if place else "value"
    yield f"{named}: expected {error.validator} {values.shortened(text)}, found {values.found(error.instance)}"
