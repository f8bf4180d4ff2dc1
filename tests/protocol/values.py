"""Values for every declared message, from a seed or from Hypothesis, and their form in Kafka's JSON."""

from __future__ import annotations

import base64
import random
from types import ModuleType
from typing import Any, Protocol

from hypothesis import strategies as st

import protocol.messages
from protocol.wire.schema import Message, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, Blob, FieldSpec, Fixed, StructOf, Text, WireType
from tests.kit.environment import uuid_of

MESSAGES: dict[str, type[Message]] = {
    name: value
    for family in sorted(vars(protocol.messages).values(), key=str)
    if isinstance(family, ModuleType)
    for name, value in vars(family).items()
    if isinstance(value, type) and issubclass(value, Message) and value.__module__ == family.__name__
}
EVERY_VERSION = [
    (message, version)
    for message in MESSAGES.values()
    for version in range(message.min_version, message.max_version + 1)
]
OWN_TAG = 966
"""The tag of fields that Odradek's brokers exchange, and Kafka does not have."""
BOUNDS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}


class Source(Protocol):
    """The source of choices."""

    def integer(self, low: int, high: int) -> int: ...

    def text(self) -> str: ...

    def binary(self) -> bytes: ...

    def count(self) -> int: ...

    def chance(self) -> bool: ...


class SeededSource:
    """Choices from a seed, biased to limits and to the lengths where encodings change."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        kind = self._random.random()
        if kind < 0.3:
            return self._random.choice([low, high, 0, max(low, -1)])
        return self._random.randint(low, high) if kind < 0.6 else self._random.randint(max(low, -100), min(high, 100))

    def _length(self) -> int:
        return self._random.choice([0, 1, 2, 5, 5, 12, 12, 126, 127, 128, 300])

    def text(self) -> str:
        alphabet = "abcXYZ-_.019" if self._random.random() < 0.8 else "aé漢😀\u0000"
        return "".join(self._random.choices(alphabet, k=self._length()))

    def binary(self) -> bytes:
        return self._random.randbytes(self._random.choice([self._length(), self._length(), 5000]))

    def count(self) -> int:
        return self._random.choice([0, 1, 1, 1, 2, 2, 3]) if self._random.random() < 0.99 else 130

    def chance(self) -> bool:
        return self._random.random() < 0.5


class DrawnSource:
    """Choices from Hypothesis."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))

    def text(self) -> str:
        return str(self._draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=200)))

    def binary(self) -> bytes:
        return bytes(self._draw(st.binary(max_size=200)))

    def count(self) -> int:
        return self.integer(0, 3)

    def chance(self) -> bool:
        return bool(self._draw(st.booleans()))


def build(struct: type[Struct], version: int, source: Source) -> Any:
    """An instance of `struct` with random values that `version` can carry."""
    values = {
        spec.name: _value(spec.type, version, source, spec)
        for spec in fields_of(struct)
        if spec.versions.has(version) and spec.tag != OWN_TAG
    }
    required = {
        spec.name: spec.default() if spec.is_array_default() else spec.default
        for spec in fields_of(struct)
        if spec.name not in values
    }
    return struct(**required, **values)


def _value(wire_type: WireType, version: int, source: Source, spec: FieldSpec) -> Any:
    is_field = wire_type is spec.type
    if is_field and spec.nullable_in(version) and source.chance():
        return None
    match wire_type:
        case Fixed(name="uuid"):
            return uuid_of(source.integer(0, 2**128 - 1))
        case Fixed(name="bool"):
            return source.chance()
        case Fixed(name="float64"):
            return source.integer(-(2**60), 2**60) / 1024
        case Fixed(name=name):
            return source.integer(*BOUNDS[name])
        case Text():
            return source.text()
        case ArrayOf():
            return [_value(wire_type.element, version, source, spec) for _ in range(source.count())]
        case StructOf():
            nested = build(wire_type.struct, version, source)
            # A tagged struct at its defaults equals None, and decoding gives None.
            return None if spec.tag is not None and is_field and nested == type(nested)() else nested
        case _:
            return source.binary()


def to_json(value: Any, version: int) -> dict[str, Any]:
    """`value` in the form that Kafka's `<Message>JsonConverter` reads."""
    return {
        _camel(spec.name): _json_of(spec.type, getattr(value, spec.name), version)
        for spec in fields_of(type(value))
        if spec.versions.has(version)
        and spec.tag != OWN_TAG
        and not (spec.tag is not None and isinstance(spec.type, StructOf) and getattr(value, spec.name) is None)
    }


def _json_of(wire_type: WireType, value: Any, version: int) -> Any:
    if value is None:
        return None
    match wire_type:
        case Fixed(name="uuid"):
            return str(value)
        case Fixed() | Text():
            return value
        case ArrayOf():
            return [_json_of(wire_type.element, item, version) for item in value]
        case StructOf():
            return to_json(value, version)
        case Blob() | _:
            return base64.b64encode(value).decode()


def _camel(name: str) -> str:
    first, *others = name.replace("kraft", "k_raft").split("_")
    return first + "".join(other.capitalize() for other in others)
