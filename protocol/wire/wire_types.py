"""The wire types of message fields, and the versions that have a field. Both compilers read them.

`protocol.wire.schema` has the annotations (`int32`, `nullable_string`, ...) that stand for these types in declarations.
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
"""Most array elements and tagged fields of one message; see `Message.max_elements`. An element costs up to a hundred
times its bytes once it is a Python object.
"""
MAX_TAGS: Final = 10_000
"""Most tagged fields of one struct (Kafka 4.4)."""
SMALL_ELEMENTS: Final = 1_000
"""Array elements and tagged fields that a request may have to be decoded in one go: up to two milliseconds of work."""
MAX_STRING_BYTES: Final = 0x7FFF
"""Longest string in any encoding: compact lengths could say more, Kafka refuses it."""


class Malformed(ValueError):
    """Raised inside a compiled decoder, which does not know the names; its caller makes a DecodeError of it."""


class NotSmall(Exception):
    """Raised by a decode function for a message with more elements than its caller takes; the rest was not read."""


class Versions(NamedTuple):
    """A range of versions, both ends included; empty when `low > high`."""

    low: int
    high: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Versions:
        """Read Kafka's notation: `3+`, `0-11` or `7`; an empty text is the empty range."""
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
    """UTF-8 behind an int16 length, or a varint of length + 1 in flexible versions."""

    nullable: bool = False


class Blob(Value):
    """Bytes behind an int32 length, or a varint of length + 1 in flexible versions."""

    nullable: bool = False


class RecordsBlob(Value):
    """Bytes that are never copied: decoded to a slice of the input, encoded as a part of their own when large."""

    nullable: bool = False


class ArrayOf(Value):
    """Elements behind an int32 count, or a varint of count + 1 in flexible versions."""

    element: WireType
    nullable: bool = False


class StructOf(Value):
    """A nested struct; behind one byte (-1 for null) when it is nullable and not tagged."""

    struct: Any
    nullable: bool = False


WireType = Fixed | Text | Blob | RecordsBlob | ArrayOf | StructOf

UUID_TYPE: Final = Fixed("uuid", "16s", 16, ZERO_UUID)


class FieldSpec(Value):
    """One declared field, its type resolved.

    `default` is what it holds where a version does not carry it: a value, or for arrays a callable that makes one.
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
        """Whether the default is a fresh list."""
        return isinstance(self.type, ArrayOf) and self.default is list


def zero_of(wire_type: WireType) -> Any:
    """The default of a field that declares none (Kafka's rule), save that what can be null is null."""
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
    """Fewest bytes that a value takes: what a count in an array may be divided by."""
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
