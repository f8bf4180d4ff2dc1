"""Compiles a message declaration into a flat encode function for one version.

The counterpart of `protocol.wire.decode_compiler`: one `struct` call writes adjacent fields of fixed width and the
length after them. In the generated code `w` is the bytearray being written and `parts` the finished parts. Records
above `OWN_PART_BYTES` become separate parts, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as struct_error
from struct import pack
from typing import Any, Final, NoReturn

from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.wire.source_writer import SMALL_ARRAY, SourceWriter
from protocol.wire.wire_types import (
    MAX_STRING_BYTES,
    UUID_TYPE,
    ArrayOf,
    Blob,
    FieldSpec,
    Fixed,
    RecordsBlob,
    StructOf,
    Text,
    WireType,
)

OWN_PART_BYTES: Final = 2048
"""From this size on a separate part costs less than a copy."""

IN_MEMORY: Final = (bytes, bytearray, memoryview)
"""Types whose bytes can be copied into a part. Other values with a length, such as slices of a file, become parts."""

FieldsOf = Callable[[Any], list[FieldSpec]]

_MISTAKES = (struct_error, TypeError, AttributeError, ValueError)
"""Raised by an encode function for values that do not fit."""


class EncodedItems(list[Any]):
    """The items of an array of structs, already encoded in the version of the message (`protocol.wire.encoded_items`).

    It subclasses list only to pass as one: it has a length, but its items are not accessible.
    """

    __slots__ = ("_count", "is_small", "parts")

    def __init__(self, count: int, parts: list[Any]) -> None:
        super().__init__()
        self._count = count
        self.parts = parts
        size = sum(map(len, parts))
        self.is_small = size < OWN_PART_BYTES and all(isinstance(part, IN_MEMORY) for part in parts)
        """Whether copying the parts costs less."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0


def varint(value: int) -> bytes:
    """An unsigned varint (protobuf's, KIP-482)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _null() -> NoReturn:
    raise ValueError("null is not allowed")


def _too_long(length: int) -> NoReturn:
    raise ValueError(f"string of {length} bytes; {MAX_STRING_BYTES} are allowed")


def _blank(struct: Any, fields_of: FieldsOf) -> Any:
    """An instance with every field at its default: a tagged struct equal to it is not sent."""
    instance = object.__new__(struct)
    for spec in fields_of(struct):
        setattr(instance, spec.name, [] if spec.is_array_default() else spec.default)
    return instance


class EncodeCompiler:
    """Compiles `struct` for `version`. `function(instance, bytearray)` appends to the bytearray, and returns the parts,
    which begin with it. Raises EncodeError when a value does not fit its field, and ApiError UNSUPPORTED_VERSION when a
    field is set that the version lacks.

    With `in_slices` it is a generator that returns the parts. Its third argument is a function that says whether it
    should yield now; the instance must not change meanwhile.
    """

    def __init__(
        self, struct: Any, version: int, flexible: bool, fields_of: FieldsOf, *, in_slices: bool = False
    ) -> None:
        self._name = f"{struct.__name__} v{version}"
        self._version = version
        self._flexible = flexible
        self._fields_of = fields_of
        self._in_slices = in_slices
        self._run: list[tuple[str, str, str]] = []
        self._writer = writer = SourceWriter(
            varint=varint, pack=pack, null=_null, too_long=_too_long, in_memory=IN_MEMORY, encoded_items=EncodedItems,
            mistakes=_MISTAKES, failure=self._failure,
        )  # fmt: skip
        with writer.block("def encode(o, w, s):" if in_slices else "def encode(o, w):"):
            with writer.block("try:"):
                writer.line("parts = []")
                if in_slices:
                    writer.line("if s(): yield")
                self._struct(struct, "o", "")
                self._flush()
            with writer.block("except mistakes as mistake:"):
                writer.line("raise failure(mistake) from mistake")
            writer.line("if w: parts.append(w)")
            writer.line("return parts")
        self.function = writer.compile("encode", f"<encode {self._name}>")

    def _failure(self, error: Exception) -> EncodeError:
        where = self._writer.field_at(error.__traceback__, self.function)
        return EncodeError(f"{self._name}, field {where}: {error}")

    def _add(self, code: str, expression: str, path: str) -> None:
        """Add one value of fixed width to the pending run."""
        self._run.append((code, expression, path))

    def _flush(self) -> None:
        """Write the pending run of fixed-width values with one call."""
        if not self._run:
            return
        run, self._run = self._run, []
        if run[0][:2] == ("B", "0") and len(run) == 1:  # no tagged fields
            self._writer.line("w.append(0)")
            return
        method = self._writer.struct_method("pack", "".join(code for code, _, _ in run))
        names = dict.fromkeys(path for _, _, path in run if path)
        self._writer.line(f"w += {method}({', '.join(value for _, value, _ in run)})", " or ".join(names))

    def _struct(self, struct: Any, variable: str, path: str) -> None:
        tagged: list[FieldSpec] = []
        for spec in self._fields_of(struct):
            if not spec.versions.has(self._version):
                if not spec.ignorable:
                    self._refuse_unless_default(spec, variable, path)
            elif spec.tag is None:
                self._value(spec.type, f"{variable}.{spec.name}", f"{path}{spec.name}", spec)
            else:
                tagged.append(spec)
        if not self._flexible:
            return
        if tagged:
            self._tag_section(sorted(tagged, key=lambda spec: spec.tag or 0), variable, path)
        else:
            self._add("B", "0", f"{path}tags")

    def _differs(self, spec: FieldSpec, value: str) -> str:
        """The condition under which a field is not at its default."""
        if spec.is_array_default():
            return f"{value} is None or {value}" if isinstance(spec.type, ArrayOf) and spec.type.nullable else value
        if spec.default is None:
            return f"{value} is not None"
        return f"{value} != {self._writer.constant('D', spec.default)}"

    def _refuse_unless_default(self, spec: FieldSpec, variable: str, path: str) -> None:
        """Kafka's rule: a field that the version lacks may be dropped only if it has its default or is ignorable."""
        message = f"{self._name} cannot carry {path}{spec.name}"

        def refuse() -> NoReturn:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)

        with self._writer.block(f"if {self._differs(spec, f'{variable}.{spec.name}')}:"):
            self._writer.line(f"{self._writer.constant('R', refuse)}()")

    def _value(self, wire_type: WireType, value: str, path: str, spec: FieldSpec) -> None:
        nullable = wire_type is spec.type and spec.nullable_in(self._version)
        match wire_type:
            case Fixed():
                self._add(wire_type.code, value, path)
            case StructOf():
                self._nested(wire_type, value, path, nullable and spec.tag is None)
            case ArrayOf():
                self._array(wire_type, value, path, spec, nullable)
            case _:
                self._bytes(wire_type, value, path, spec, nullable)

    def _nested(self, wire_type: StructOf, value: str, path: str, nullable: bool) -> None:
        variable = self._writer.fresh("o")
        self._writer.line(f"{variable} = {value}")
        if not nullable:
            self._struct(wire_type.struct, variable, f"{path}.")
            return
        self._flush()
        with self._writer.block(f"if {variable} is None:"):
            self._writer.line("w.append(255)")
        with self._writer.block("else:"):
            self._writer.line("w.append(1)")
            self._struct(wire_type.struct, variable, f"{path}.")
            self._flush()

    def _check_length(self, wire_type: WireType, length: str, path: str) -> None:
        if isinstance(wire_type, Text):
            with self._writer.block(f"if {length} > {MAX_STRING_BYTES}:"):
                self._writer.line(f"too_long({length})", path)

    def _compact_length(self, wire_type: WireType, length: str, path: str) -> None:
        """Write a compact length, a varint of length + 1. A short one is not checked."""
        writer = self._writer
        writer.line(f"if {length} < 127: w.append({length} + 1)")
        with writer.block("else:"):
            self._check_length(wire_type, length, path)
            writer.line(f"w += varint({length} + 1)")

    def _null(self, path: str, nullable: bool) -> None:
        """Write a compact null."""
        if nullable:
            self._writer.line("w.append(0)")
        else:
            self._writer.line("null()", path)

    def _bytes(
        self, wire_type: Text | Blob | RecordsBlob, value: str, path: str, spec: FieldSpec, nullable: bool
    ) -> None:
        writer = self._writer
        data, length = writer.fresh("s"), writer.fresh("n")
        if self._flexible and not spec.always_classic:
            self._flush()
            writer.line(f"{data} = {value}", path)
            with writer.block(f"if {data} is None:"):
                self._null(path, nullable)
            with writer.block("else:"):
                self._measure(wire_type, data, length, path)
                self._compact_length(wire_type, length, path)
                self._content(wire_type, data, length, path)
            return
        writer.line(f"{data} = {value}", path)
        with writer.block(f"if {data} is None:"):
            if nullable:
                writer.line(f"{data} = b''")
                writer.line(f"{length} = -1")
            else:
                writer.line("null()", path)
        with writer.block("else:"):
            self._measure(wire_type, data, length, path)
            self._check_length(wire_type, length, path)
        self._add("h" if isinstance(wire_type, Text) else "i", length, path)
        self._flush()
        self._content(wire_type, data, length, path)

    def _measure(self, wire_type: WireType, data: str, length: str, path: str) -> None:
        """Encode text into bytes, and set the variable of their length."""
        if isinstance(wire_type, Text):
            self._writer.line(f"{data} = {data}.encode()", path)
        self._writer.line(f"{length} = len({data})", path)

    def _content(self, wire_type: WireType, data: str, length: str, path: str) -> None:
        """Write bytes after their length."""
        writer = self._writer
        if not isinstance(wire_type, RecordsBlob):
            writer.line(f"w += {data}", path)
            return
        with writer.block(f"if {length} < {OWN_PART_BYTES} and isinstance({data}, in_memory):"):
            writer.line(f"w += {data}", path)
        with writer.block("else:"):
            writer.line(f"parts += (w, {data})")
            writer.line("w = bytearray()")

    def _array(self, wire_type: ArrayOf, value: str, path: str, spec: FieldSpec, nullable: bool) -> None:
        writer = self._writer
        items, count, item = writer.fresh("a"), writer.fresh("n"), writer.fresh("i")
        if self._flexible:
            self._flush()
            writer.line(f"{items} = {value}", path)
            with writer.block(f"if {items}:", path):
                writer.line(f"{count} = len({items})", path)
                self._compact_length(wire_type, count, path)
                self._items(wire_type.element, items, count, item, path, spec)
            with writer.block(f"elif {items} is None:"):
                self._null(path, nullable)
            with writer.block("else:"):
                writer.line("w.append(1)")
            return
        writer.line(f"{items} = {value}", path)
        if nullable:
            with writer.block(f"if {items} is None:"):
                writer.line(f"{count} = -1")
                writer.line(f"{items} = ()")
            with writer.block("else:"):
                writer.line(f"{count} = len({items})", path)
        else:
            with writer.block(f"if {items} is None:"):
                writer.line("null()", path)
            writer.line(f"{count} = len({items})", path)
        self._add("i", count, path)
        self._flush()
        self._items(wire_type.element, items, count, item, path, spec)

    def _items(self, element: WireType, items: str, count: str, item: str, path: str, spec: FieldSpec) -> None:
        """Write the elements of an array after their count."""
        writer = self._writer
        if isinstance(element, Fixed) and element is not UUID_TYPE:
            small = writer.small_array_methods("pack", element.code)
            with writer.block(f"if {count} < {SMALL_ARRAY}:"):
                writer.line(f"if {count} > 0: w += {small}[{count}](*{items})", path)
            with writer.block("else:"):
                writer.line(f"w += pack(f'>{{{count}}}{element.code}', *{items})", path)
            return
        if isinstance(element, StructOf):
            with writer.block(f"if {items}.__class__ is encoded_items:"):
                with writer.block(f"if {items}.is_small:"):
                    writer.line(f"w += b''.join({items}.parts)")
                with writer.block("else:"):
                    writer.line(f"parts += (w, *{items}.parts)")
                    writer.line("w = bytearray()")
        with writer.block(f"for {item} in {items}:", path):
            if isinstance(element, StructOf):
                self._struct(element.struct, item, f"{path}.")
            else:
                self._value(element, item, path, spec)
            self._flush()
            if self._in_slices:
                writer.line("if s(): yield")

    def _tag_section(self, tagged: list[FieldSpec], variable: str, path: str) -> None:
        """Write the tagged fields that differ from their defaults, in the order of their tags."""
        writer = self._writer
        self._flush()
        count, outer = writer.fresh("c"), writer.fresh("w")
        present = {}
        for spec in tagged:
            value = f"{variable}.{spec.name}"
            condition = self._differs(spec, value)
            if isinstance(spec.type, StructOf) and spec.default is None:
                blank = writer.constant("D", _blank(spec.type.struct, self._fields_of))
                condition = f"{value} is not None and {value} != {blank}"
            elif spec.default is not None and isinstance(spec.type, ArrayOf | Text | Blob) and spec.type.nullable:
                condition = f"{value} is None or {condition}"
            present[spec.name] = condition
        writer.line(f"{count} = {' + '.join(f'(1 if {condition} else 0)' for condition in present.values())}")
        writer.line(f"w.append({count})")
        with writer.block(f"if {count}:"):
            for spec in tagged:
                with writer.block(f"if {present[spec.name]}:"):
                    writer.line(f"{outer} = w")
                    writer.line("w = bytearray()")
                    self._value(spec.type, f"{variable}.{spec.name}", f"{path}{spec.name}", spec)
                    self._flush()
                    writer.line(f"{outer} += varint({spec.tag})")
                    writer.line(f"{outer} += varint(len(w))")
                    writer.line(f"{outer} += w")
                    writer.line(f"w = {outer}")
