"""Messages as JSON text, as Kafka's generated JsonConverter classes and Jackson write them."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from protocol.wire.schema import Message, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, FieldSpec, Fixed, StructOf, Text, WireType

_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def message_to_json(message: Message, version: int) -> dict[str, Any]:
    """The JSON form of `message` in `version`: its fields in their order, names in camel case, bytes in base64."""
    return _struct_to_json(message, version)


def json_text(value: Any) -> str:
    """Compact JSON, byte for byte Jackson's: no spaces, few escapes, their digits in capitals."""
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
