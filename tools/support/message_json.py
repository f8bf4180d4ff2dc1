"""JSON of the tools: messages as text, as Kafka's generated JsonConverter classes and Jackson write it; and JSON
files, read with the error messages of Kafka's class `DecodeJson`.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, TypeVar

from protocol.wire.schema import Message, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, FieldSpec, Fixed, StructOf, Text, WireType
from tools.support.common import ToolError, read_text

_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def message_to_json(message: Message, version: int) -> dict[str, Any]:
    """The JSON form of `message` in `version`: fields in order, names in camel case, bytes in base64."""
    return _struct_to_json(message, version)


def json_text(value: Any) -> str:
    """Compact JSON, byte for byte like Jackson's: no spaces, few escapes, hexadecimal digits in capitals."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPE.sub(_capital_digits, text)


def _capital_digits(escape: re.Match[str]) -> str:
    found = escape[0]
    return f"\\u{found[2:].upper()}" if found[1] == "u" else found


def _struct_to_json(struct: Struct, version: int) -> dict[str, Any]:
    return {
        _camel_case(spec.name): _value_to_json(spec.type, value, version)
        for spec in fields_of(type(struct))
        if spec.versions.has(version) and _is_written(spec, value := getattr(struct, spec.name))
    }


def _is_written(spec: FieldSpec, value: Any) -> bool:
    return spec.tag is None or value != ([] if spec.is_array_default() else spec.default)


def _value_to_json(wire_type: WireType, value: Any, version: int) -> Any:
    if value is None:
        return None
    match wire_type:
        case Fixed(name="uuid"):
            return str(value)
        case Fixed() | Text():
            return value
        case ArrayOf():
            return [_value_to_json(wire_type.element, item, version) for item in value]
        case StructOf():
            return _struct_to_json(value, version)
        case _:
            return base64.b64encode(value).decode()


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


T = TypeVar("T", int, str)

_JAVA_NAMES = {int: "Integer", str: "String"}


def read_file(path: str) -> str:
    """The text of a file. Raises ToolError naming it."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"Unable to read file {path}") from error


def json_object(value: Any) -> dict[str, Any]:
    """Check that `value` is an object. Raises ToolError."""
    if not isinstance(value, dict):
        raise ToolError(f"Expected JSON object, received {_shown(value)}")
    return value


def json_array(value: Any) -> list[Any]:
    """Check that `value` is an array. Raises ToolError."""
    if not isinstance(value, list):
        raise ToolError(f"Expected JSON array, received {_shown(value)}")
    return value


def scalar(value: Any, kind: type[T], java_name: str | None = None) -> T:
    """Check that `value` is a `kind`; `java_name` is the type in the message. Raises ToolError."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ToolError(f"Expected `{java_name or _JAVA_NAMES[kind]}` value, received {_shown(value)}")
    return value


def member(entry: dict[str, Any], name: str) -> Any:
    """A required member. Raises ToolError."""
    if name not in entry:
        raise ToolError(f"No such field exists: `{name}`")
    return entry[name]


def check_version(root: dict[str, Any]) -> None:
    """Reject every file version but the first, which is the default. Raises ToolError."""
    version = scalar(root.get("version", 1), int)
    if version != 1:
        raise ToolError(f"Not supported version field value {version}")


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
