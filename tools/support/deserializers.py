"""Kafka's deserializers by class name, as far as their values have a text: what the console consumer prints."""

from __future__ import annotations

import struct
from collections.abc import Callable

Deserializer = Callable[[bytes], bytes]
"""From the bytes of a field to the UTF-8 text shown. Raises ValueError for other bytes."""

_PACKAGE = "org.apache.kafka.common.serialization."


def _number(name: str, layout: str) -> Deserializer:
    number = struct.Struct(layout)

    def deserialize(data: bytes) -> bytes:
        if len(data) != number.size:
            raise ValueError(f"Size of data received by {name} is not {number.size}")
        return str(number.unpack(data)[0]).encode()

    return deserialize


def _boolean(data: bytes) -> bytes:
    if data not in {b"\0", b"\1"}:
        raise ValueError("Unexpected byte received by BooleanDeserializer")
    return b"true" if data == b"\1" else b"false"


DESERIALIZERS: dict[str, Deserializer] = {
    _PACKAGE + "StringDeserializer": lambda data: data.decode("utf-8", "replace").encode(),
    _PACKAGE + "UUIDDeserializer": lambda data: data,
    _PACKAGE + "ShortDeserializer": _number("ShortDeserializer", ">h"),
    _PACKAGE + "IntegerDeserializer": _number("IntegerDeserializer", ">i"),
    _PACKAGE + "LongDeserializer": _number("LongDeserializer", ">q"),
    _PACKAGE + "FloatDeserializer": _number("FloatDeserializer", ">f"),
    _PACKAGE + "DoubleDeserializer": _number("DoubleDeserializer", ">d"),
    _PACKAGE + "BooleanDeserializer": _boolean,
    # Java shows the address of these; their contents say more.
    _PACKAGE + "ByteArrayDeserializer": lambda data: data,
    _PACKAGE + "BytesDeserializer": lambda data: data,
    _PACKAGE + "ByteBufferDeserializer": lambda data: data,
}
