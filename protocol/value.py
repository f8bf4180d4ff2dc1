"""Classes declared by their fields, like dataclasses, that cost almost nothing to define.

    class Endpoint(Value):
        host: str
        port: int = 9092

The broker has more than a hundred. A frozen dataclass with slots takes a millisecond to define, because it compiles
seven functions and creates the class twice, and every start of a broker pays for all of them. Here comparison, hash and
representation are shared, and the constructor is compiled for the first instance.

A class takes 2.3 kB, a NamedTuple 5.4 kB (CPython 3.11). Use a NamedTuple only for objects that are unpacked, sorted,
or created in great numbers.

Class arguments: `frozen=False` allows fields to be set later and removes the hash; `eq=False` compares by identity;
`kw_only=True` makes the constructor keyword-only. Only the type checker enforces frozen instances: without a check at
run time, instances are created in half the time. The constructor calls `__post_init__` at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Final, ParamSpec, Self, TypeVar, dataclass_transform

P = ParamSpec("P")
V = TypeVar("V")

REQUIRED: Final = object()
"""Marks a field without a default."""


class _Field:
    """The arguments of `field`."""

    __slots__ = ("compare", "default", "default_factory", "init")

    def __init__(self, default: Any, default_factory: Callable[[], Any] | None, init: bool, compare: bool) -> None:
        self.default = default
        self.default_factory = default_factory
        self.init = init
        self.compare = compare


def field(
    *,
    default: Any = REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    init: bool = True,
    compare: bool = True,
) -> Any:
    """As `dataclasses.field`: `default_factory` creates a default for each instance; `init=False` is a field that
    `__post_init__` sets instead of the constructor; `compare=False` excludes it from comparison.
    """
    return _Field(default, default_factory, init, compare)


_PLAIN: Final[_Field] = field()
"""The shared options of fields without `field()`."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class ValueType(type):
    """Turns annotated class bodies into slotted classes."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        frozen: bool = True,
        eq: bool = True,
        kw_only: bool = False,
    ) -> ValueType:
        own: dict[str, _Field] = {}
        # The annotations are not needed any more, and would keep a dictionary for each class.
        for attribute, annotation in namespace.pop("__annotations__", {}).items():
            if not str(annotation).startswith("ClassVar"):
                given = namespace.pop(attribute, _PLAIN)
                own[attribute] = given if isinstance(given, _Field) else field(default=given)
        fields = own
        for base in bases:
            inherited = getattr(base, "declared_fields", None)
            fields = inherited | fields if inherited else fields
        namespace["__slots__"] = slots = tuple(own)
        namespace["__match_args__"] = slots if fields is own else tuple(fields)
        namespace["declared_fields"] = fields
        namespace["takes_keywords_only"] = kw_only
        # Each class defines its own; otherwise it would inherit the constructor that a first instance compiled for its
        # base.
        namespace.setdefault("__init__", _make_constructor_and_call_it)
        if not eq:
            namespace |= {"__eq__": object.__eq__, "__hash__": object.__hash__}
            return super().__new__(mcs, name, bases, namespace)
        compared = [attribute for attribute, options in fields.items() if options.compare]
        namespace["_compared"] = attrgetter(*compared) if compared else type
        if not frozen:
            namespace["__hash__"] = None
        return super().__new__(mcs, name, bases, namespace)


def _make_constructor_and_call_it(self: Any, *arguments: Any, **values: Any) -> None:
    """`__init__` of a class without instances."""
    value_type = type(self)
    value_type.__init__ = constructor = compile_constructor(value_type)
    constructor(self, *arguments, **values)


def compile_constructor(value_type: Any) -> Callable[..., None]:
    """Compile an `__init__` that sets the fields."""
    constructor: Callable[..., None] = _function_of_fields(value_type, "__init__", ["self"], "", "    return")
    return constructor


def maker(value_type: Callable[P, V]) -> Callable[P, V]:
    """A function that creates instances like the constructor of a `Value` or `Struct`, for objects that every request
    creates: calling the class takes twice as long.
    """
    make: Callable[P, V] = _function_of_fields(
        value_type, "make", [], "    self = new(value_type)\n", "    return self"
    )
    return make


def _function_of_fields(value_type: Any, function: str, arguments: list[str], begin: str, end: str) -> Any:
    """A function that takes the fields as arguments and sets them in `self`."""
    parameters, body = [], []
    names: dict[str, Any] = {"fresh": REQUIRED, "new": object.__new__, "value_type": value_type}
    for name, options in value_type.declared_fields.items():
        if not options.init:
            continue
        value = name
        if options.default_factory is not None:
            names[f"new_{name}"] = options.default_factory
            parameters.append(f"{name}=fresh")
            value = f"new_{name}() if {name} is fresh else {name}"
        elif options.default is not REQUIRED:
            names[f"default_{name}"] = options.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        body.append(f"    self.{name} = {value}\n")
    if hasattr(value_type, "__post_init__"):
        body.append("    self.__post_init__()\n")
    if parameters and value_type.takes_keywords_only:
        parameters.insert(0, "*")
    signature = ", ".join([*arguments, *parameters])
    exec(f"def {function}({signature}):\n{begin}{''.join(body)}{end}", names)  # noqa: S102  source is our own
    return names[function]


class Value(metaclass=ValueType):
    """Base of classes declared by their fields."""

    declared_fields: ClassVar[dict[str, _Field]]
    takes_keywords_only: ClassVar[bool]
    _compared: ClassVar[Callable[[Any], Any]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        compared = type(self)._compared
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        return hash(type(self)._compared(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.declared_fields)
        return f"{type(self).__qualname__}({values})"

    def fields(self) -> dict[str, Any]:
        """The fields that the constructor takes, with their values, in the order of the declaration."""
        return {name: getattr(self, name) for name, options in self.declared_fields.items() if options.init}

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields replaced. Raises TypeError for unknown fields."""
        return type(self)(**self.fields() | changes)
