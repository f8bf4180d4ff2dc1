"""Messages as typed classes, each declared once with its versions; the codec is compiled from the declaration.

    class HeartbeatRequest(Request, api_key=ApiKey.HEARTBEAT, versions="0-4"):
        group_id: string
        generation_id: int32
        member_id: string
        group_instance_id: nullable_string = field("3+", default=None)

Instances are mutable, slotted, compared by value and created with keyword arguments. Fields without a default are
required. Functions are compiled per message and version on first use, so a declaration costs almost nothing until then.
"""

from __future__ import annotations

import functools
import struct
import typing
from collections.abc import Callable, Generator
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, ParamSpec, Self, TypeVar, dataclass_transform

from protocol.api_keys import NEVER_FLEXIBLE, ApiKey
from protocol.errors import ApiError, DecodeError, ErrorCode
from protocol.uuids import Uuid
from protocol.value import REQUIRED, compile_constructor
from protocol.wire.decode_compiler import DecodeCompiler, has_records
from protocol.wire.encode_compiler import EncodeCompiler
from protocol.wire.wire_types import (
    MAX_ARRAY,
    MAX_ELEMENTS,
    UUID_TYPE,
    ArrayOf,
    Blob,
    FieldSpec,
    Fixed,
    RecordsBlob,
    StructOf,
    Text,
    Versions,
    WireType,
    zero_of,
)

int8 = Annotated[int, Fixed("int8", "b", 1, 0)]
int16 = Annotated[int, Fixed("int16", "h", 2, 0)]
int32 = Annotated[int, Fixed("int32", "i", 4, 0)]
int64 = Annotated[int, Fixed("int64", "q", 8, 0)]
uint16 = Annotated[int, Fixed("uint16", "H", 2, 0)]
uint32 = Annotated[int, Fixed("uint32", "I", 4, 0)]
float64 = Annotated[float, Fixed("float64", "d", 8, 0.0)]
boolean = Annotated[bool, Fixed("bool", "?", 1, False)]
uuid = Annotated[Uuid, UUID_TYPE]
string = Annotated[str, Text()]
nullable_string = Annotated[str | None, Text(nullable=True)]
bytes_ = Annotated[bytes, Blob()]
nullable_bytes = Annotated[bytes | None, Blob(nullable=True)]
records = Annotated[bytes | memoryview, RecordsBlob()]
nullable_records = Annotated[bytes | memoryview | None, RecordsBlob(nullable=True)]

Buffer = bytes | memoryview
Parts = list[bytes | bytearray | memoryview]
"""The parts of an encoded message, to be written in order."""

P = ParamSpec("P")
S = TypeVar("S")

_ALL: Final = Versions.parse("0+")


class _FieldOptions:
    """The arguments of `field()`."""

    __slots__ = ("always_classic", "default", "ignorable", "nullable", "tag", "versions")
    init = True
    """The constructor takes every field."""

    def __init__(
        self, versions: str, nullable: str, default: Any, tag: int | None, ignorable: bool, always_classic: bool
    ) -> None:
        self.versions = Versions.parse(versions)
        self.nullable = Versions.parse(nullable)
        self.default = default
        self.tag = tag
        self.ignorable = ignorable
        self.always_classic = always_classic

    @property
    def default_factory(self) -> type[list[Any]] | None:
        """Creates the default of a list, because each instance needs a separate one."""
        return list if isinstance(self.default, list) else None


def field(
    versions: str = "0+",
    *,
    default: Any = REQUIRED,
    nullable: str = "0+",
    tag: int | None = None,
    ignorable: bool = False,
    always_classic: bool = False,
) -> Any:
    """Options of a field besides its annotation.

    `versions` are the versions that have the field. `default` is the value of an instance without an argument, and of a
    decoded message without the field; `[]` means a new list. `nullable` restricts the versions that allow null on the
    wire, for a field whose annotation allows None. A tagged field has a `tag` and is sent only if it differs from its
    default (a struct: if it is neither None nor all defaults). An `ignorable` field is silently dropped in versions
    without it; any other must have its default there. `always_classic` keeps the old form of the length in flexible
    versions.
    """
    return _FieldOptions(versions, nullable, default, tag, ignorable, always_classic)


_PLAIN: Final[_FieldOptions] = field()
"""The shared options of fields without `field()`."""


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class StructType(type):
    """Turns annotated class bodies into slotted structs."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> StructType:
        declared: dict[str, _FieldOptions] = {}
        for attribute, annotation in namespace.get("__annotations__", {}).items():
            if str(annotation).startswith("ClassVar"):
                continue
            given = namespace.pop(attribute, _PLAIN)
            declared[attribute] = given if isinstance(given, _FieldOptions) else field(default=given)
        namespace["__slots__"] = tuple(declared)
        namespace["declared_fields"] = declared
        return super().__new__(mcs, name, bases, namespace, **options)


class Struct(metaclass=StructType):
    """Base of every message and of the structs nested in messages."""

    declared_fields: ClassVar[dict[str, _FieldOptions]]
    takes_keywords_only: ClassVar[bool] = True

    def __init__(self, **values: Any) -> None:
        # Only the first instance of a class gets here: this compiles the real constructor, which replaces this one.
        struct_class = type(self)
        constructor = compile_constructor(struct_class)
        struct_class.__init__ = constructor  # type: ignore[method-assign]
        constructor(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.declared_fields)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.declared_fields)
        return f"{type(self).__qualname__}({values})"

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields replaced. Raises TypeError for unknown fields."""
        return type(self)(**{name: getattr(self, name) for name in self.declared_fields} | changes)


@functools.cache
def fields_of(struct_class: type[Struct]) -> list[FieldSpec]:
    """The fields of `struct_class` in order, with resolved annotations. Raises TypeError for an invalid declaration."""
    hints = typing.get_type_hints(struct_class, localns=dict(vars(struct_class)), include_extras=True)
    return [
        _specify(f"{struct_class.__qualname__}.{name}", name, hints[name], options)
        for name, options in struct_class.declared_fields.items()
    ]


def _specify(where: str, name: str, hint: Any, options: _FieldOptions) -> FieldSpec:
    wire_type = _wire_type(hint, where)
    default = options.default_factory or options.default
    if default is REQUIRED:
        if options.versions != _ALL or options.tag is not None:
            raise TypeError(f"{where} is not in every message and needs a default")
        default = zero_of(wire_type)
    return FieldSpec(
        name, wire_type, options.versions, options.nullable, default, options.tag, options.ignorable,
        options.always_classic,
    )  # fmt: skip


def _wire_type(hint: Any, where: str) -> WireType:
    """The wire type of an annotation. Raises TypeError for other annotations."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and isinstance(arguments[1], Fixed | Text | Blob | RecordsBlob):
        return arguments[1]
    if origin is list:
        return ArrayOf(_wire_type(arguments[0], where))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return StructOf(hint)
    if origin in {typing.Union, UnionType} and len(arguments) == 2 and arguments[1] is type(None):
        inner = _wire_type(arguments[0], where)
        if isinstance(inner, ArrayOf):
            return ArrayOf(inner.element, nullable=True)
        if isinstance(inner, StructOf):
            return StructOf(inner.struct, nullable=True)
    raise TypeError(f"{where}: {hint!r} is not a type of the wire")


class Message(Struct):
    """A struct that is encoded by itself, in its declared versions. Nested structs are only encoded inside one."""

    min_version: ClassVar[int]
    max_version: ClassVar[int]
    flexible_version: ClassVar[int]
    may_be_followed: ClassVar[bool] = False
    max_elements: ClassVar[int] = MAX_ELEMENTS
    """Most array elements and tagged fields, counted together."""

    def __init_subclass__(cls, *, versions: str = "", flexible: str = "") -> None:
        cls.min_version, cls.max_version = Versions.parse(versions)
        cls.flexible_version = Versions.parse(flexible).low if flexible else NEVER_FLEXIBLE

    @classmethod
    def decoder(cls, version: int) -> Callable[..., Self]:
        """The function that reads a message of `version` from a position of a buffer to its end; see `decode`. With a
        third argument it raises NotSmall for a message with that many elements or more.
        """
        function: Callable[..., Self] = _decoder(cls, version)
        return function

    @classmethod
    def decoder_in_slices(
        cls, version: int, *, lazy: frozenset[str] = frozenset()
    ) -> Callable[..., Generator[None, None, Self]]:
        """As `decoder`, for large messages: a generator that returns the message. It yields when its third argument, a
        function, says so. Large arrays whose paths are in `lazy`, such as `topics.partitions`, become `LazyArray`. The
        buffer must not change meanwhile, nor while lazy arrays are used. The caller then clears the dictionary given as
        fourth argument, which breaks the message's reference cycle.
        """
        function: Callable[..., Generator[None, None, Self]]
        function = _decoder(cls, version, in_slices=True, lazy=lazy)
        return function

    @classmethod
    def decode(cls, buffer: Buffer, version: int) -> Self:
        """Decode the whole `buffer`. Raises DecodeError unless it is exactly one message of `version`.

        Bytes after the message are ignored if it `may_be_followed`.

        Fields of type `records` are slices of `buffer` (give a memoryview to avoid a copy); nothing else refers to it.
        Raises ApiError UNSUPPORTED_VERSION when `version` is not declared.
        """
        return cls.decoder(version)(buffer, 0)

    @classmethod
    def decode_prefix(cls, buffer: Buffer, version: int) -> tuple[Self, int]:
        """Decode a message from the start of `buffer`; returns it and its size in bytes. Raises as `decode`.

        Bytes after the message are not read, however many they are.
        """
        result: tuple[Self, int] = _prefix_decoder(cls, version)(buffer, 0)
        return result

    @classmethod
    def encoder(cls, version: int) -> Callable[[Self, bytearray], Parts]:
        """The function that encodes messages in `version`; see `encode_after`."""
        function: Callable[[Self, bytearray], Parts] = _encoder(cls, version)
        return function

    @classmethod
    def encoder_in_slices(
        cls, version: int
    ) -> Callable[[Self, bytearray, Callable[[], bool]], Generator[None, None, Parts]]:
        """As `encoder`, for large messages: a generator that returns the parts. It yields when its third argument, a
        function, says so.
        """
        function: Callable[[Self, bytearray, Callable[[], bool]], Generator[None, None, Parts]]
        function = _encoder_in_slices(cls, version)
        return function

    def encode(self, version: int) -> Parts:
        """The message as parts to be written in order.

        Large `records` are separate parts, not copied. So is, at any size, an object with a length that is not bytes,
        which the writer of the parts must support.

        Raises ApiError UNSUPPORTED_VERSION when `version` is not declared or lacks a field that is set, and EncodeError
        when a value does not fit its field.
        """
        return self.encoder(version)(self, bytearray())

    def encode_after(self, head: bytearray, version: int) -> Parts:
        """As `encode`, with `head` (which is changed) in front: a frame's length and header."""
        return self.encoder(version)(self, head)

    def to_bytes(self, version: int) -> bytes:
        """The message as a single piece. Raises as `encode`."""
        return b"".join(self.encode(version))


@functools.cache
def _decoder(
    message: type[Message], version: int, *, in_slices: bool = False, lazy: frozenset[str] = frozenset()
) -> Any:
    return DecodeCompiler(
        message,
        version,
        _is_flexible(message, version),
        fields_of,
        from_bytes=not in_slices and not has_records(message, fields_of),
        may_be_followed=message.may_be_followed,
        in_slices=in_slices,
        lazy=lazy,
    ).function


@functools.cache
def _prefix_decoder(message: type[Message], version: int) -> Any:
    return DecodeCompiler(message, version, _is_flexible(message, version), fields_of, is_prefix=True).function


@functools.cache
def _encoder(message: type[Message], version: int) -> Any:
    return EncodeCompiler(message, version, _is_flexible(message, version), fields_of).function


@functools.cache
def _encoder_in_slices(message: type[Message], version: int) -> Any:
    return EncodeCompiler(message, version, _is_flexible(message, version), fields_of, in_slices=True).function


def _is_flexible(message: type[Message], version: int) -> bool:
    """Whether that version is flexible. Raises ApiError UNSUPPORTED_VERSION when it is not declared."""
    if not message.min_version <= version <= message.max_version:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{message.__name__} v{version} does not exist; v{message.min_version} to v{message.max_version} do",
        )
    return version >= message.flexible_version


class Request(Message):
    """A request of one API. Bytes after it in its frame are ignored, as in Kafka: librdkafka depends on it."""

    api_key: ClassVar[ApiKey]
    may_be_followed: ClassVar[bool] = True
    max_elements: ClassVar[int] = MAX_ARRAY

    def __init_subclass__(cls, *, api_key: ApiKey, versions: str = "") -> None:
        super().__init_subclass__(versions=versions)
        cls.flexible_version = api_key.flexible_version
        cls.api_key = api_key
        REQUEST_TYPES[api_key] = cls


class Response(Message):
    """A response of one API."""

    api_key: ClassVar[ApiKey]

    def __init_subclass__(cls, *, api_key: ApiKey, versions: str = "") -> None:
        super().__init_subclass__(versions=versions)
        cls.flexible_version = api_key.flexible_version
        cls.api_key = api_key
        RESPONSE_TYPES[api_key] = cls


REQUEST_TYPES: Final[dict[ApiKey, type[Request]]] = {}
"""The declared request of each API; complete once `protocol.messages` is imported."""
RESPONSE_TYPES: Final[dict[ApiKey, type[Response]]] = {}
"""The declared response of each API."""

M = TypeVar("M", bound=Message)
_VERSION: Final = struct.Struct(">h")


def encode_versioned(message: Message, version: int) -> bytes:
    """`message` prefixed with its version as int16: the format of keys and values in internal topics, and of group
    metadata.
    """
    return b"".join(message.encode_after(bytearray(_VERSION.pack(version)), version))


def decode_versioned(message_type: type[M], buffer: bytes | memoryview) -> tuple[M, int]:
    """Decode the output of `encode_versioned`: returns the message and its version.

    Raises DecodeError when it is malformed, and ApiError UNSUPPORTED_VERSION when its version is not declared.
    """
    if len(buffer) < _VERSION.size:
        raise DecodeError(message_type.__name__, -1, "version", f"{len(buffer)} bytes left, {_VERSION.size} needed")
    (version,) = _VERSION.unpack_from(buffer)
    return message_type.decode(buffer[_VERSION.size :], version), version
