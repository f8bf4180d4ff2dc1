"""The wire types and version ranges of message fields, used by both compilers.

`protocol.wire.schema` has the annotations (`int32`, `nullable_string`, ...) for these types in declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value

MAX_ARRAY: Final = 1_000_000
"""Most elements of one array (Kafka 4.4)."""
MAX_ELEMENTS: Final = 2 * MAX_ARRAY
"""Most array elements and tagged fields of one message; see `Message.max_elements`. As a Python object an element takes
up to a hundred times its encoded size.
"""
MAX_TAGS: Final = 10_000
"""Most tagged fields of one struct (Kafka 4.4)."""
SMALL_ELEMENTS: Final = 1_000
"""Most array elements and tagged fields of a request that is decoded in one step: up to two milliseconds of work."""
MAX_STRING_BYTES: Final = 0x7FFF
"""Longest string in any encoding: compact lengths could be larger, but Kafka refuses them."""


class Malformed(ValueError):
    """Raised inside a compiled decoder, which does not know field names; its caller converts it to a DecodeError."""


class NotSmall(Exception):
    """Raised by a decode function for a message with more elements than its caller accepts; the rest was not read."""


class Versions(NamedTuple):
    """A range of versions, both ends included; empty when `low > high`."""

    low: int
    high: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Versions:
        """Read Kafka's notation: `3+`, `0-11` or `7`; an empty string is the empty range."""
        if not text:
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), 0x7FFF)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def has(self, version: int) -> bool:
        """Whether `version` lies in the range."""
        return self.low <= version <= self.high


class Fixed(Value):
    """A value of fixed width: `code` is its letter in the `struct` module, `zero` its default."""

    name: str
    code: str
    size: int
    zero: int | float | bool | Uuid


class Text(Value):
    """UTF-8 after an int16 length, or a varint of length + 1 in flexible versions."""

    nullable: bool = False


class Blob(Value):
    """Bytes after an int32 length, or a varint of length + 1 in flexible versions."""

    nullable: bool = False


class RecordsBlob(Value):
    """Bytes that are never copied: decoded to a slice of the input, encoded as a separate part when large."""

    nullable: bool = False


class ArrayOf(Value):
    """Elements after an int32 count, or a varint of count + 1 in flexible versions."""

    element: WireType
    nullable: bool = False


class StructOf(Value):
    """A nested struct; preceded by one byte (-1 for null) when it is nullable and not tagged."""

    struct: Any
    nullable: bool = False


WireType = Fixed | Text | Blob | RecordsBlob | ArrayOf | StructOf

UUID_TYPE: Final = Fixed("uuid", "16s", 16, ZERO_UUID)


class FieldSpec(Value):
    """One declared field with its resolved type.

    `default` is its value in versions without the field: a value, or for arrays a callable that creates one.
    """

    name: str
    type: WireType
    versions: Versions
    nullable_versions: Versions
    default: Any
    tag: int | None
    ignorable: bool
    always_classic: bool

    def nullable_in(self, version: int) -> bool:
        """Whether null is legal on the wire in `version`."""
        return not isinstance(self.type, Fixed) and self.type.nullable and self.nullable_versions.has(version)

    def is_array_default(self) -> bool:
        """Whether the default is a new list."""
        return isinstance(self.type, ArrayOf) and self.default is list


def zero_of(wire_type: WireType) -> Any:
    """The default of a field without a declared one: Kafka's rule, except that nullable fields default to null."""
    match wire_type:
        case Fixed():
            return wire_type.zero
        case StructOf():
            return None
        case _ if wire_type.nullable:
            return None
        case Text():
            return ""
        case ArrayOf():
            return list
        case _:
            return b""


def minimum_size(wire_type: WireType, version: int, flexible: bool, fields_of: Callable[[Any], list[FieldSpec]]) -> int:
    """The fewest bytes that a value takes, which bounds the count of an array."""
    match wire_type:
        case Fixed():
            return wire_type.size
        case Text():
            return 1 if flexible else 2
        case StructOf(nullable=True):
            return 1
        case StructOf():
            present = [spec for spec in fields_of(wire_type.struct) if spec.versions.has(version) and spec.tag is None]
            sizes = (minimum_size(spec.type, version, flexible, fields_of) for spec in present)
            return max(1, sum(sizes) + (1 if flexible else 0))
        case _:
            return 1 if flexible else 4
