"""Arrays of a response that are encoded piece by piece before the response, so that a response of a hundred thousand
entries can be built in slices; and arrays that occur many times in a response but are encoded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

from protocol.wire.encode_compiler import EncodeCompiler, EncodedItems
from protocol.wire.schema import Message, Struct, fields_of

S = TypeVar("S", bound=Struct)

PART_BYTES: Final = 64 * 1024
"""Size at which a part is complete."""

_compiled: dict[tuple[type[Struct], int, bool], EncodeCompiler] = {}


class ItemEncoder(Generic[S]):
    """Encodes the items of an array of `struct` in `version` of `message`."""

    def __init__(self, struct: type[S], message: type[Message], version: int, items: Iterable[S] = ()) -> None:
        key = (struct, version, version >= message.flexible_version)
        compiled = _compiled.get(key)
        if compiled is None:
            compiled = _compiled[key] = EncodeCompiler(*key, fields_of)
        self._function = compiled.function
        self._count = 0
        self._parts: list[Any] = []
        self._last = bytearray()
        for item in items:
            self.add(item)

    def add(self, item: S) -> None:
        """Encode one more item."""
        self._count += 1
        parts = self._function(item, self._last)
        if len(parts) > 1 or len(self._last) >= PART_BYTES:
            self._parts += parts
            self._last = bytearray()

    def extend(self, other: ItemEncoder[S]) -> None:
        """Append the items of another object for the same array, which must not be used any more."""
        self._count += other._count
        if self._last:
            self._parts.append(self._last)
        self._parts += other._parts
        self._last, other._parts, other._last, other._count = other._last, [], bytearray(), 0

    def array(self) -> list[S]:
        """The encoded items, as the value of the message's field."""
        if self._last:
            self._parts.append(self._last)
            self._last = bytearray()
        return EncodedItems(self._count, self._parts)


def with_items(array: list[S], struct: type[S], message: type[Message], version: int, more: Iterable[S]) -> list[S]:
    """The array with more items appended; the array may be encoded already."""
    if not isinstance(array, EncodedItems):
        return [*array, *more]
    behind = ItemEncoder(struct, message, version, more).array()
    assert isinstance(behind, EncodedItems)
    return EncodedItems(len(array) + len(behind), [*array.parts, *behind.parts])
