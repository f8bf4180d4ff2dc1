"""Compiles a message declaration into a flat decode function for one version.

One `struct` call reads adjacent fields of fixed width together with the length after them; arrays become inline loops,
so that a single Python function decodes a message of any shape. In the generated code `b` is the buffer, `e` its
length, `p` the position, and `m` the maximum number of elements plus one. `g` is the number still allowed plus one, or
0 if the message is too small to exceed the limit. Tagged fields count as elements.

A length alone never causes an allocation: strings and bytes must be complete, arrays must fit into the remaining bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from struct import error as struct_error
from struct import unpack_from
from typing import Any, Final

from protocol.errors import DecodeError
from protocol.uuids import Uuid
from protocol.wire.source_writer import SMALL_ARRAY, SourceWriter
from protocol.wire.wire_types import (
    MAX_ARRAY,
    MAX_STRING_BYTES,
    MAX_TAGS,
    UUID_TYPE,
    ArrayOf,
    Blob,
    FieldSpec,
    Fixed,
    Malformed,
    NotSmall,
    RecordsBlob,
    StructOf,
    Text,
    WireType,
    minimum_size,
)

FieldsOf = Callable[[Any], list[FieldSpec]]

LAZY_BYTES: Final = 4 * 1024
"""A larger array becomes a `LazyArray`, if requested."""

_MISTAKES = (struct_error, IndexError, ValueError)
"""Raised by a decode function for bytes that are not a message."""


def read_varint(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint with more bytes after the first, at `position`: (value, position of the last
    byte).
    """
    value = first & 0x7F
    shift = 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise Malformed("varint of more than 5 bytes")


def _null(length: int) -> None:
    raise Malformed("null is not allowed" if length == -1 else f"negative length {length}")


def _short(length: int, left: int) -> None:
    raise Malformed(f"length {length} exceeds the {left} bytes left")


def _too_long(length: int) -> None:
    raise Malformed(f"string of {length} bytes; {MAX_STRING_BYTES} are allowed")


def _count(count: int, left: int) -> None:
    if count > MAX_ARRAY:
        raise Malformed(f"array of {count} elements; {MAX_ARRAY} are allowed")
    raise Malformed(f"{count} elements do not fit into the {left} bytes left")


def _elements(limit: int, allowed: int) -> None:
    if limit <= allowed:
        raise NotSmall
    raise Malformed(f"more than {limit - 1} array elements and tagged fields")


def _tags(count: int) -> None:
    raise Malformed(f"{count} tagged fields; {MAX_TAGS} are allowed")


def _tag_size(tag: int) -> None:
    raise Malformed(f"size of tagged field {tag} is not that of its value")


def _left_over(size: int) -> None:
    raise Malformed(f"{size} bytes left over")


def has_records(struct: Any, fields_of: FieldsOf) -> bool:
    """Whether `struct` contains records anywhere: then its bytes are never copied as a whole."""
    for spec in fields_of(struct):
        wire_type = spec.type.element if isinstance(spec.type, ArrayOf) else spec.type
        if isinstance(wire_type, RecordsBlob):
            return True
        if isinstance(wire_type, StructOf) and has_records(wire_type.struct, fields_of):
            return True
    return False


class LazyArray:
    """A large array of a decoded message, whose elements every iteration decodes again. Treat it as immutable.

    A million elements of 26 bytes each would take 160 MB, and nearly all requests read each of them once. Large arrays
    inside the elements are lazy too, so that each element is decoded quickly.
    """

    __slots__ = ("_buffer", "_count", "_decode", "_found", "_start", "end")

    def __init__(
        self,
        buffer: bytes | memoryview,
        start: int,
        end: int,
        count: int,
        decode: Callable[..., tuple[Any, int]],
        found: dict[int, Any],
    ) -> None:
        """`found` maps start positions to the lazy arrays of the message, and the complements of start positions to
        large elements and their ends: an element may contain an array that is not lazy.
        """
        self._buffer = buffer
        self._start = start
        self.end = end
        self._count = count
        self._decode = decode
        self._found = found

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        buffer, position, decode, found = self._buffer, self._start, self._decode, self._found
        for _ in range(self._count):
            item, position = found.get(~position) or decode(buffer, position, found)
            yield item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | LazyArray) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # as for lists

    def __repr__(self) -> str:
        return f"<{self._count} elements>" if self._count > 10 else repr(list(self))


class DecodeCompiler:
    """Compiles `struct` for `version`. `function(buffer, position)` returns an instance read from `position` to the end
    of the buffer, or raises DecodeError; with `is_prefix` it returns the instance and its end.

    The function for `from_bytes` is faster, but copies a buffer that is not `bytes`; the other reads any buffer in
    place. With `function(buffer, position, n)` it raises NotSmall for a message of `n` elements or more.

    With `in_slices` it is a generator that returns the instance. Its third argument is a function that says whether it
    should yield now; the buffer must not change meanwhile. Large arrays whose paths are in `lazy` become `LazyArray`,
    and the buffer must not change while these are used. The optional fourth argument is a dictionary: the message and
    its lazy arrays are in a cycle until it is cleared.
    """

    def __init__(
        self,
        struct: Any,
        version: int,
        flexible: bool,
        fields_of: FieldsOf,
        *,
        from_bytes: bool = False,
        may_be_followed: bool = False,
        is_prefix: bool = False,
        in_slices: bool = False,
        lazy: frozenset[str] = frozenset(),
        element: tuple[WireType, FieldSpec, str] | None = None,
    ) -> None:
        """With `element`, the type, field and path of an array in `struct`, `function(buffer, position, found)` returns
        an element of it, and where that ends; the whole message was decoded before.
        """
        self._of = struct
        self._name = struct.__name__
        self._version = version
        self._flexible = flexible
        self._fields_of = fields_of
        self._from_bytes = from_bytes
        self._in_slices = in_slices
        self._lazy = lazy
        self._is_element = element is not None
        self._run: list[tuple[Fixed, str, str]] = []
        self._classes: dict[Any, str] = {}
        self._writer = writer = SourceWriter(
            new=object.__new__, varint=read_varint, uuid=Uuid, null=_null, short=_short, count=_count,
            too_long=_too_long, unpack_from=unpack_from, elements=_elements, tags=_tags, tag_size=_tag_size,
            left_over=_left_over, mistakes=_MISTAKES, failure_of_this=self._failure, lazy=LazyArray,
        )  # fmt: skip
        self._limit = struct.max_elements + 1
        if element is not None:
            with writer.block("def decode(b, p, z):"):
                writer.line("e = len(b)")
                self._element(element[0], "o", element[2], element[1])
                writer.line("return o, p")
        else:
            with writer.block(f"def decode(b, p, {'s, z=None' if in_slices else f'm={self._limit}'}):"):
                self._message(struct, is_prefix=is_prefix, may_be_followed=may_be_followed or is_prefix)
        self.function = writer.compile("decode", f"<decode {struct.__name__} v{version}>")

    def _message(self, struct: Any, *, is_prefix: bool, may_be_followed: bool) -> None:
        """Write the body of the function that decodes a message."""
        writer = self._writer
        if self._from_bytes:
            writer.line("b = bytes(b[p:])")
            writer.line("p = 0")
        if self._in_slices:
            writer.line(f"m = {self._limit}")
            writer.line("if s(): yield")
        writer.line("e = len(b)")
        if self._lazy:
            writer.line("if z is None: z = {}")
        # An element takes at least a byte: a small message cannot have too many.
        writer.line("g = m if e >= m else 0")
        with writer.block("try:"):
            self._struct(struct, "o", "")
            self._flush()
            if not may_be_followed:
                writer.line("if p != e: left_over(e - p)")
            writer.line("return o, p" if is_prefix else "return o")
        with writer.block("except mistakes:"):
            writer.line("failure = failure_of_this()")
        # Outside the handler: a chained traceback would keep views of the receive buffer alive.
        with writer.block("try:"):
            writer.line("raise failure")
        # The traceback refers to the frame: a variable there would keep message and buffer alive in a cycle.
        writer.line("finally: del failure")

    def _failure(self) -> DecodeError:
        """The error to raise for the current exception."""
        error = sys.exception()
        assert error is not None
        if isinstance(error, UnicodeDecodeError):
            reason = f"not UTF-8: {error.reason}"
        else:
            reason = str(error) if isinstance(error, ValueError) else "the bytes end too early"
        field = self._writer.field_at(error.__traceback__, self.function)
        return DecodeError(self._name, self._version, field, reason)

    def _flush(self) -> None:
        """Read the pending run of fixed-width fields with one call."""
        if not self._run:
            return
        writer, run = self._writer, self._run
        self._run = []
        unpack = writer.struct_method("unpack_from", "".join(fixed.code for fixed, _, _ in run))
        targets = [writer.fresh("u") if fixed is UUID_TYPE else target for fixed, target, _ in run]
        ends: list[tuple[int, str]] = []
        for fixed, _, path in run:
            ends.append(((ends[-1][0] if ends else 0) + fixed.size, path))
        writer.line(f"{', '.join(targets)}{',' if len(run) == 1 else ''} = {unpack}(b, p)", ends)
        writer.line(f"p += {ends[-1][0]}")
        for (fixed, target, _), local in zip(run, targets, strict=True):
            if fixed is UUID_TYPE:
                writer.line(f"{target} = uuid({local})")

    def _struct(self, struct: Any, variable: str, path: str) -> None:
        """Create an instance in `variable` and read its fields."""
        if struct not in self._classes:
            self._classes[struct] = self._writer.constant("C", struct)
        self._writer.line(f"{variable} = new({self._classes[struct]})")
        tagged: list[FieldSpec] = []
        for spec in self._fields_of(struct):
            target = f"{variable}.{spec.name}"
            if spec.tag is None and spec.versions.has(self._version):
                self._value(spec.type, target, f"{path}{spec.name}", spec)
                continue
            self._writer.line(f"{target} = {self._default(spec)}")
            if spec.versions.has(self._version):
                tagged.append(spec)
        if self._flexible:
            self._flush()
            self._tag_section(tagged, variable, path)

    def _default(self, spec: FieldSpec) -> str:
        if spec.is_array_default():
            return "[]"
        if spec.default is None or isinstance(spec.default, int | str):
            return repr(spec.default)
        return self._writer.constant("D", spec.default)

    def _value(self, wire_type: WireType, target: str, path: str, spec: FieldSpec) -> None:
        """Read one value into `target`. `spec` says whether the field may be null; array elements never may."""
        nullable = wire_type is spec.type and spec.nullable_in(self._version)
        match wire_type:
            case Fixed():
                self._run.append((wire_type, target, path))
            case StructOf():
                if nullable and spec.tag is None:
                    self._nullable_struct(wire_type, target, path)
                else:
                    variable = self._writer.fresh("o")
                    self._struct(wire_type.struct, variable, f"{path}.")
                    self._writer.line(f"{target} = {variable}")
            case ArrayOf():
                self._array(wire_type, target, path, spec, nullable)
            case _:
                self._bytes(wire_type, target, path, spec, nullable)

    def _is_compact(self, spec: FieldSpec) -> bool:
        """Whether lengths of the field are varints, one more than the length, and 0 for null."""
        return self._flexible and not spec.always_classic

    def _length(self, code: str, size: int, path: str, spec: FieldSpec, most: int | None = None) -> str:
        """Read a length (or count) and return its variable, which holds the value on the wire. A compact one is at most
        `most`, and `p` stays at its last byte.
        """
        length = self._writer.fresh("n")
        if self._is_compact(spec):
            self._flush()
            self._varint(length, path, most)
        else:
            self._run.append((Fixed("length", code, size, 0), length, path))
            self._flush()
        return length

    def _varint(self, variable: str, path: str, most: int | None = None) -> None:
        """Read a varint, up to its last byte."""
        writer = self._writer
        writer.line(f"{variable} = b[p]", path)
        with writer.block(f"if {variable} > 127:"):
            writer.line(f"{variable}, p = varint(b, p, {variable})", path)
            if most is not None:
                with writer.block(f"if {variable} > {most + 1}:"):
                    writer.line(f"too_long({variable} - 1)", path)

    def _or_null(self, length: str, target: str, path: str, spec: FieldSpec, nullable: bool) -> None:
        """Write the branch of a null."""
        writer = self._writer
        is_compact = self._is_compact(spec)
        with writer.block(f"if not {length}:" if is_compact else f"if {length} < 0:"):
            if not nullable:
                writer.line("null(-1)" if is_compact else f"null({length})", path)
                return
            if is_compact:
                writer.line("p += 1")
            else:
                with writer.block(f"if {length} != -1:"):
                    writer.line(f"null({length})", path)
            writer.line(f"{target} = None")

    def _bytes(
        self, wire_type: Text | Blob | RecordsBlob, target: str, path: str, spec: FieldSpec, nullable: bool
    ) -> None:
        writer = self._writer
        text = isinstance(wire_type, Text)
        if text:
            length = self._length("h", 2, path, spec, MAX_STRING_BYTES)
        else:
            length = self._length("i", 4, path, spec)
        self._or_null(length, target, path, spec, nullable)
        with writer.block("else:"):
            # A compact length is one more than that of the content, but `p` is one byte before the content.
            writer.line("q = p + 1" if self._is_compact(spec) else "q = p")
            writer.line(f"p += {length}")
            with writer.block("if p > e:"):
                writer.line("short(p - q, e - q)", path)
            if text:
                source = "b[q:p].decode()" if self._from_bytes else "str(b[q:p], 'utf-8')"
            else:
                copied = isinstance(wire_type, RecordsBlob) or self._from_bytes
                source = "b[q:p]" if copied else "bytes(b[q:p])"
            writer.line(f"{target} = {source}", path)

    def _array(self, wire_type: ArrayOf, target: str, path: str, spec: FieldSpec, nullable: bool) -> None:
        writer = self._writer
        count = self._length("i", 4, path, spec)
        element = wire_type.element
        self._or_null(count, target, path, spec, nullable)
        with writer.block("else:"):
            if self._is_compact(spec):
                writer.line("p += 1")
                writer.line(f"{count} -= 1")
            least = minimum_size(element, self._version, self._flexible, self._fields_of)
            with writer.block(f"if {count} > {'e - p' if least == 1 else f'(e - p) // {least}'}:"):
                writer.line(f"count({count}, e - p)", path)
            if self._is_element and path in self._lazy:
                lazy = writer.fresh("z")
                writer.line(f"{lazy} = z.get(p)")
                with writer.block(f"if {lazy} is not None:"):
                    writer.line(f"{target} = {lazy}")
                    writer.line(f"p = {lazy}.end")
                with writer.block("else:"):
                    self._elements(element, count, target, path, spec)
                return
            self._count_elements(count, path)
            self._elements(element, count, target, path, spec)

    def _elements(self, element: WireType, count: str, target: str, path: str, spec: FieldSpec) -> None:
        """Read the elements of an array after their count."""
        writer = self._writer
        start, most, begin = writer.fresh("p"), writer.fresh("p"), writer.fresh("p")
        is_lazy = path in self._lazy and not self._is_element
        if is_lazy:
            writer.line(f"{start} = p")
        if isinstance(element, Fixed) and element is not UUID_TYPE:
            if is_lazy:
                with writer.block(f"if {count} > {LAZY_BYTES // element.size}:"):
                    writer.line(f"p += {count} * {element.size}")
                    self._make_lazy(element, count, start, target, path, spec)
                header = "elif"
            else:
                header = "if"
            small = writer.small_array_methods("unpack_from", element.code)
            with writer.block(f"{header} {count} < {SMALL_ARRAY}:"):
                writer.line(f"{target} = list({small}[{count}](b, p))", path)
                writer.line(f"p += {count} * {element.size}")
            with writer.block("else:"):
                writer.line(f"{target} = list(unpack_from(f'>{{{count}}}{element.code}', b, p))", path)
                writer.line(f"p += {count} * {element.size}")
            return
        items, item = writer.fresh("a"), writer.fresh("i")
        writer.line(f"{target} = {items} = []")
        if is_lazy:
            writer.line(f"{most} = p + {LAZY_BYTES}")
        with writer.block(f"for _ in range({count}):"):
            if is_lazy:
                writer.line(f"{begin} = p")
            self._element(element, item, path, spec)
            if is_lazy:
                writer.line(f"if p - {begin} > {LAZY_BYTES}: z[~{begin}] = ({item}, p)")
            writer.line(f"if p <= {most}: {items}.append({item})" if is_lazy else f"{items}.append({item})")
            if self._in_slices:
                writer.line("if s(): yield")
        if is_lazy:
            with writer.block(f"if p > {most}:"):
                self._make_lazy(element, count, start, target, path, spec)

    def _element(self, element: WireType, item: str, path: str, spec: FieldSpec) -> None:
        """Read one element of an array into a variable."""
        if isinstance(element, StructOf):
            self._struct(element.struct, item, f"{path}.")
        else:
            self._value(element, item, path, spec)
        self._flush()

    def _make_lazy(self, element: WireType, count: str, start: str, target: str, path: str, spec: FieldSpec) -> None:
        writer = self._writer
        compiler = DecodeCompiler(
            self._of, self._version, self._flexible, self._fields_of, lazy=self._lazy, element=(element, spec, path)
        )
        decode = writer.constant("L", compiler.function)
        writer.line(f"z[{start}] = {target} = lazy(b, {start}, p, {count}, {decode}, z)")

    def _count_elements(self, count: str, path: str) -> None:
        """Refuse more elements than are still allowed, before reading any."""
        if self._is_element:  # they were counted already
            return
        writer = self._writer
        with writer.block("if g:"):
            with writer.block(f"if {count} > {MAX_ARRAY}:"):
                writer.line(f"count({count}, e - p)", path)
            writer.line(f"g -= {count}")
            with writer.block("if g <= 0:"):
                writer.line(f"elements(m, {self._limit - 1})", path)

    def _nullable_struct(self, wire_type: StructOf, target: str, path: str) -> None:
        writer = self._writer
        mark = writer.fresh("n")
        self._run.append((Fixed("mark", "b", 1, 0), mark, path))
        self._flush()
        with writer.block(f"if {mark} < 0:"):
            writer.line(f"{target} = None")
        with writer.block("else:"):
            variable = writer.fresh("o")
            self._struct(wire_type.struct, variable, f"{path}.")
            self._flush()
            writer.line(f"{target} = {variable}")

    def _tag_section(self, tagged: list[FieldSpec], variable: str, path: str) -> None:
        """Read the tagged fields of the version and skip unknown ones (KIP-482)."""
        writer = self._writer
        count, tag, size, end = (writer.fresh(prefix) for prefix in "ntse")
        where = f"{path}tags"
        self._flush()
        writer.line(f"{count} = b[p]", where)
        writer.line("p += 1")
        with writer.block(f"if {count}:"):
            with writer.block(f"if {count} > 127:"):
                writer.line(f"{count}, p = varint(b, p - 1, {count})", where)
                writer.line("p += 1")
            with writer.block(f"if {count} > {MAX_TAGS}:"):
                writer.line(f"tags({count})", where)
            self._count_elements(count, where)
            with writer.block(f"for _ in range({count}):"):
                self._varint(tag, where)
                writer.line("p += 1")
                self._varint(size, where)
                writer.line("p += 1")
                writer.line(f"{end} = p + {size}")
                with writer.block(f"if {end} > e:"):
                    writer.line(f"short({size}, e - p)", where)
                keyword = "if"
                for spec in tagged:
                    with writer.block(f"{keyword} {tag} == {spec.tag}:"):
                        self._value(spec.type, f"{variable}.{spec.name}", f"{path}{spec.name}", spec)
                        self._flush()
                        with writer.block(f"if p != {end}:"):
                            writer.line(f"tag_size({tag})", f"{path}{spec.name}")
                    keyword = "elif"
                if tagged:
                    with writer.block("else:"):
                        writer.line(f"p = {end}")
                else:
                    writer.line(f"p = {end}")
