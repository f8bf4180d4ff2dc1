"""Confluent's framing: a byte 0, the schema's id in four bytes (big-endian), then the value itself."""

from __future__ import annotations

import functools
import struct
import time

from spark_jobs.schemas.decoders import HEADER_SIZE, Decode, MisfitError, decoder_of
from spark_jobs.schemas.sources import SchemaFiles, SchemaRegistry, UnknownSchemaError

MAGIC = 0
_ID = struct.Struct(">I")

UNKNOWN_S = 60.0
"""How long an unknown id is cached before the source is asked again."""


def schema_id(value: bytes) -> int:
    """The schema id in a value with a complete header."""
    number: int = _ID.unpack_from(value, 1)[0]
    return number


class Decoders:
    """Decoders for the schemas of one source, each created once, when its id is first seen."""

    def __init__(self, kind: str, source: SchemaFiles | SchemaRegistry) -> None:
        self._kind = kind
        self._source = source
        self._known: dict[int, Decode | MisfitError] = {}
        self._unknown: dict[int, tuple[float, MisfitError]] = {}

    def text(self, value: bytes | None) -> str:
        """The JSON text of a framed value; raises MisfitError, or OSError if the registry cannot be reached."""
        if value is None:
            raise MisfitError("value is null")
        if not value:
            raise MisfitError("value is empty")
        if value[0] != MAGIC:
            raise MisfitError(f"byte 0: expected 0x00, the first byte of a framed value, found 0x{value[0]:02x}")
        if len(value) < HEADER_SIZE:
            raise MisfitError(f"byte {len(value)}: expected a schema id of 4 bytes, found the end of the value")
        number = schema_id(value)
        decode = self._known.get(number)
        if decode is None:
            decode = self._find(number)
        if isinstance(decode, MisfitError):
            raise MisfitError(str(decode))
        try:
            return decode(value[HEADER_SIZE:])
        except MisfitError as misfit:
            raise MisfitError(f"{misfit} (schema id {number})") from None

    def text_or_none(self, value: bytes | None) -> str | None:
        """The JSON text, or None for a value that does not decode; raises OSError as `text` does."""
        try:
            return self.text(value)
        except MisfitError:
            return None

    def _find(self, number: int) -> Decode | MisfitError:
        asked, misfit = self._unknown.get(number, (None, None))
        if asked is not None and misfit is not None and time.monotonic() - asked < UNKNOWN_S:
            return misfit
        try:
            schema = self._source.schema(number)
        except UnknownSchemaError as failure:
            misfit = MisfitError(str(failure))
            self._unknown[number] = time.monotonic(), misfit
            return misfit
        found: Decode | MisfitError
        try:
            found = decoder_of(schema, self._kind)
        except MisfitError as failure:
            found = MisfitError(f"schema id {number} {failure}")
        self._known[number] = found
        return found


@functools.cache
def decoders(kind: str, source: SchemaFiles | SchemaRegistry) -> Decoders:
    """The decoders of this process: it looks up each id once, however many tasks and batches it runs."""
    return Decoders(kind, source)
