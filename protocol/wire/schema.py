"""Messages as typed classes, each declared once with its versions; the codec is compiled from the declaration.

    class HeartbeatRequest(Request, api_key=ApiKey.HEARTBEAT, versions="0-4", flexible="4+"):
        group_id: string
        generation_id: int32
        member_id: string
        group_instance_id: nullable_string = field("3+", default=None)

Instances are mutable, slotted, compared by value and made with keyword arguments. What has no default must be given.
Functions are compiled per message and version on first use, so a declaration costs next to nothing until then.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, ParamSpec, Self, TypeVar, dataclass_transform
from uuid import UUID

from protocol.api_keys import NEVER_FLEXIBLE, ApiKey
from protocol.errors import ApiError, DecodeError, EncodeError, ErrorCode
from protocol.wire.decode_compiler import DecodeCompiler, has_records
from protocol.wire.encode_compiler import EncodeCompiler
from protocol.wire.wire_types import (
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
uuid = Annotated[UUID, UUID_TYPE]
string = Annotated[str, Text()]
nullable_string = Annotated[str | None, Text(nullable=True)]
bytes_ = Annotated[bytes, Blob()]
nullable_bytes = Annotated[bytes | None, Blob(nullable=True)]
records = Annotated[bytes | memoryview, RecordsBlob()]
nullable_records = Annotated[bytes | memoryview | None, RecordsBlob(nullable=True)]

P = ParamSpec("P")
S = TypeVar("S")

_REQUIRED: Final = object()
_ALL: Final = Versions.parse("0+")


class _FieldOptions:
    """What `field()` was given."""

    __slots__ = ("always_classic", "default", "ignorable", "nullable", "tag", "versions")

    def __init__(
        self, versions: str, nullable: str, default: Any, tag: int | None, ignorable: bool, always_classic: bool
    ) -> None:
        self.versions = Versions.parse(versions)
        self.nullable = Versions.parse(nullable)
        self.default = default
        self.tag = tag
        self.ignorable = ignorable
        self.always_classic = always_classic


def field(
    versions: str = "0+",
    *,
    default: Any = _REQUIRED,
    nullable: str = "0+",
    tag: int | None = None,
    ignorable: bool = False,
    always_classic: bool = False,
) -> Any:
    """Say about a field what its annotation does not.

    `versions` are those that carry it. `default` is what an instance has when nothing is given, and what is decoded
    where the field is absent; `[]` means a fresh list. `nullable` narrows the versions in which null is legal on the
    wire, for a field whose annotation allows None. A tagged field has a `tag` and is sent only when it is not at its
    default (a struct: when it is neither None nor all defaults). An `ignorable` field is silently dropped in versions
    without it; any other must be at its default there. `always_classic` keeps the length in its old form in flexible
    versions.
    """
    return _FieldOptions(versions, nullable, default, tag, ignorable, always_classic)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class StructType(type):
    """Turns annotated class bodies into slotted structs."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> StructType:
        declared: dict[str, _FieldOptions] = {}
        for attribute, annotation in namespace.get("__annotations__", {}).items():
            if str(annotation).startswith("ClassVar"):
                continue
            given = namespace.pop(attribute, _REQUIRED)
            declared[attribute] = given if isinstance(given, _FieldOptions) else field(default=given)
        namespace["__slots__"] = tuple(declared)
        namespace["declared_fields"] = declared
        return super().__new__(mcs, name, bases, namespace, **options)


class Struct(metaclass=StructType):
    """Base of every message and of the structs nested in messages."""

    declared_fields: ClassVar[dict[str, _FieldOptions]]

    def __init__(self, **values: Any) -> None:
        # Only the first instance of a class comes here: its real constructor is made now and takes over.
        struct_class = type(self)
        constructor = _make_constructor(struct_class)
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


def _make_constructor(struct_class: type[Struct]) -> Any:
    """An `__init__` with the struct's fields as keyword arguments."""
    return _function_of_fields(struct_class, "__init__", ["self"], "", "")


def maker(struct_class: Callable[P, S]) -> Callable[P, S]:
    """A function that makes instances as the struct's constructor does, for what is made in every request: a class is
    called in twice the time.
    """
    make: Callable[P, S] = _function_of_fields(
        struct_class, "make", [], "    self = new(struct_class)\n", "    return self\n"
    )
    return make


def _function_of_fields(struct_class: Any, function: str, arguments: list[str], begin: str, end: str) -> Any:
    """A function that has the struct's fields as keyword arguments and sets them in `self`."""
    parameters, body = [], []
    names: dict[str, Any] = {"fresh": _REQUIRED, "new": object.__new__, "struct_class": struct_class}
    for name, options in struct_class.declared_fields.items():
        value = name
        if options.default is _REQUIRED:
            parameters.append(name)
        elif isinstance(options.default, list):
            parameters.append(f"{name}=fresh")
            value = f"[] if {name} is fresh else {name}"
        else:
            names[f"default_{name}"] = options.default
            parameters.append(f"{name}=default_{name}")
        body.append(f"    self.{name} = {value}\n")
    signature = ", ".join([*arguments, "*", *parameters] if parameters else arguments)
    source = f"def {function}({signature}):\n{begin}{''.join(body)}{end}"
    exec(source if body or end else f"{source}    return", names)  # noqa: S102  source is our own
    return names[function]


_specs: dict[type[Struct], list[FieldSpec]] = {}


def fields_of(struct_class: type[Struct]) -> list[FieldSpec]:
    """The fields of `struct_class` in order, their annotations resolved. Raises TypeError for a faulty declaration."""
    known = _specs.get(struct_class)
    if known is None:
        hints = typing.get_type_hints(struct_class, localns=dict(vars(struct_class)), include_extras=True)
        known = [
            _specify(f"{struct_class.__qualname__}.{name}", name, hints[name], options)
            for name, options in struct_class.declared_fields.items()
        ]
        _specs[struct_class] = known
    return known


def _specify(where: str, name: str, hint: Any, options: _FieldOptions) -> FieldSpec:
    wire_type = _wire_type(hint, where)
    default = list if isinstance(options.default, list) else options.default
    if default is _REQUIRED:
        if options.versions != _ALL or options.tag is not None:
            raise TypeError(f"{where} is not in every message and needs a default")
        default = zero_of(wire_type)
    return FieldSpec(
        name, wire_type, options.versions, options.nullable, default, options.tag, options.ignorable,
        options.always_classic,
    )  # fmt: skip


def _wire_type(hint: Any, where: str) -> WireType:
    """What an annotation means on the wire."""
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
    """A struct that is encoded by itself, in the versions it declares. Nested structs are coded inside it only."""

    min_version: ClassVar[int]
    max_version: ClassVar[int]
    flexible_version: ClassVar[int]
    may_be_followed: ClassVar[bool] = False
    _decoders: ClassVar[dict[int, DecodeCompiler]]
    _prefix_decoders: ClassVar[dict[int, DecodeCompiler]]
    _encoders: ClassVar[dict[int, EncodeCompiler]]

    def __init_subclass__(cls, *, versions: str = "", flexible: str = "") -> None:
        cls.min_version, cls.max_version = Versions.parse(versions)
        cls.flexible_version = Versions.parse(flexible).low if flexible else NEVER_FLEXIBLE
        cls._decoders = {}
        cls._prefix_decoders = {}
        cls._encoders = {}

    @classmethod
    def decode(cls, buffer: bytes | memoryview, version: int) -> Self:
        """Decode the whole of `buffer`. Raises DecodeError for anything but exactly one message of `version`.

        Bytes behind the message are ignored where it `may_be_followed`.

        Fields of type `records` are slices of `buffer` (give a memoryview to avoid a copy); nothing else refers to it.
        Raises ApiError UNSUPPORTED_VERSION when `version` is not declared.
        """
        compiled = cls._decoders.get(version) or cls._compile_decoder(version)
        message: Self
        try:
            message, size = compiled.function(bytes(buffer) if compiled.from_bytes else buffer)
        except (struct.error, IndexError, ValueError) as error:
            failure = cls._failure(compiled, error, version)
        else:
            if size != len(buffer) and not cls.may_be_followed:
                raise DecodeError(cls.__name__, version, "", f"{len(buffer) - size} bytes left over")
            return message
        # Raised outside the handler: a chained traceback would keep views of the receive buffer alive.
        raise failure

    @classmethod
    def decode_prefix(cls, buffer: bytes | memoryview, version: int) -> tuple[Self, int]:
        """Decode a message from the start of `buffer`; gives it and the bytes it took. Raises as `decode`.

        What follows the message is not touched, however much it is.
        """
        compiled = cls._prefix_decoders.get(version) or cls._compile_prefix_decoder(version)
        try:
            result: tuple[Self, int] = compiled.function(buffer)
        except (struct.error, IndexError, ValueError) as error:
            failure = cls._failure(compiled, error, version)
        else:
            return result
        raise failure

    @classmethod
    def _failure(cls, compiled: DecodeCompiler, error: Exception, version: int) -> DecodeError:
        if isinstance(error, UnicodeDecodeError):
            reason = f"not UTF-8: {error.reason}"
        else:
            reason = str(error) if isinstance(error, ValueError) else "the bytes end too early"
        field = compiled.writer.field_at(error.__traceback__, compiled.function)
        return DecodeError(cls.__name__, version, field, reason)

    def encode(self, version: int) -> list[bytes | bytearray | memoryview]:
        """The message as parts to be written one after the other.

        Large `records` are parts of their own, uncopied; so is, at any size, an object that is no bytes but has a
        length, which the writer of the parts has to know.

        Raises ApiError UNSUPPORTED_VERSION when `version` is not declared or cannot carry a field that is set, and
        EncodeError when a value does not fit its field.
        """
        return self.encode_after(bytearray(), version)

    def encode_after(self, head: bytearray, version: int) -> list[bytes | bytearray | memoryview]:
        """As `encode`, with `head` (which is changed) in front: a frame's length and header."""
        compiled = self._encoders.get(version) or self._compile_encoder(version)
        parts: list[bytes | bytearray | memoryview] = []
        try:
            compiled.function(self, head, parts)
        except (struct.error, TypeError, AttributeError, ValueError) as error:
            where = compiled.writer.field_at(error.__traceback__, compiled.function)
            raise EncodeError(f"{type(self).__name__} v{version}, field {where}: {error}") from error
        return parts

    def to_bytes(self, version: int) -> bytes:
        """The message as one piece. Raises as `encode`."""
        return b"".join(self.encode(version))

    @classmethod
    def _check_version(cls, version: int) -> None:
        if not cls.min_version <= version <= cls.max_version:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{cls.__name__} v{version} does not exist; v{cls.min_version} to v{cls.max_version} do",
            )

    @classmethod
    def _compile_decoder(cls, version: int) -> DecodeCompiler:
        cls._check_version(version)
        from_bytes = not has_records(cls, fields_of)
        compiled = DecodeCompiler(cls, version, version >= cls.flexible_version, fields_of, from_bytes)
        cls._decoders[version] = compiled
        return compiled

    @classmethod
    def _compile_prefix_decoder(cls, version: int) -> DecodeCompiler:
        cls._check_version(version)
        compiled = DecodeCompiler(cls, version, version >= cls.flexible_version, fields_of, from_bytes=False)
        cls._prefix_decoders[version] = compiled
        return compiled

    @classmethod
    def _compile_encoder(cls, version: int) -> EncodeCompiler:
        cls._check_version(version)
        compiled = EncodeCompiler(cls, version, version >= cls.flexible_version, fields_of)
        cls._encoders[version] = compiled
        return compiled


class Request(Message):
    """A request of one API. What follows it in its frame is ignored, as Kafka does: librdkafka depends on it."""

    api_key: ClassVar[ApiKey]
    may_be_followed: ClassVar[bool] = True

    def __init_subclass__(cls, *, api_key: ApiKey, versions: str = "", flexible: str = "") -> None:
        super().__init_subclass__(versions=versions, flexible=flexible)
        cls.api_key = api_key


class Response(Message):
    """A response of one API."""

    api_key: ClassVar[ApiKey]

    def __init_subclass__(cls, *, api_key: ApiKey, versions: str = "", flexible: str = "") -> None:
        super().__init_subclass__(versions=versions, flexible=flexible)
        cls.api_key = api_key


M = TypeVar("M", bound=Message)
_VERSION: Final = struct.Struct(">h")


def encode_versioned(message: Message, version: int) -> bytes:
    """`message` behind its version as int16: how keys and values of internal topics, and group metadata, are kept."""
    return b"".join(message.encode_after(bytearray(_VERSION.pack(version)), version))


def decode_versioned(message_type: type[M], buffer: bytes | memoryview) -> tuple[M, int]:
    """Read what `encode_versioned` wrote: the message and its version.

    Raises DecodeError when it is malformed, and ApiError UNSUPPORTED_VERSION when its version is not declared.
    """
    if len(buffer) < _VERSION.size:
        raise DecodeError(message_type.__name__, -1, "version", f"{len(buffer)} bytes left, {_VERSION.size} needed")
    (version,) = _VERSION.unpack_from(buffer)
    return message_type.decode(buffer[_VERSION.size :], version), version
