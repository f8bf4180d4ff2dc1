"""Messages as JSON text, as Kafka's generated JsonConverter classes and Jackson write it. Also dates in those patterns
of Java's `SimpleDateFormat` that command lines need.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime
from typing import Any

from protocol.wire.schema import Message, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, FieldSpec, Fixed, StructOf, Text, WireType
from tools.support.common import ToolError

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


_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def format_date(moment: datetime, pattern: str) -> str:
    """`moment`, which has a time zone, in a pattern. Raises ToolError for an unsupported letter."""
    parts = []
    for match in _TOKEN.finditer(pattern):
        quoted, letter = match[1], match[2]
        if quoted is not None:
            parts.append(quoted.replace("''", "'") or "'")
        elif letter is None:
            parts.append(match[0])
        else:
            parts.append(_field(moment, letter, len(match[0])))
    return "".join(parts)


def _field(moment: datetime, letter: str, width: int) -> str:
    numbers = {
        "d": moment.day,
        "D": moment.timetuple().tm_yday,
        "H": moment.hour,
        "k": moment.hour or 24,
        "h": moment.hour % 12 or 12,
        "K": moment.hour % 12,
        "m": moment.minute,
        "s": moment.second,
        "S": moment.microsecond // 1000,
        "u": moment.isoweekday(),
    }
    if letter in numbers:
        return f"{numbers[letter]:0{width}}"
    if letter == "y":
        return f"{moment.year % 100:02}" if width == 2 else f"{moment.year:0{width}}"
    if letter == "M":
        return f"{moment.month:0{width}}" if width < 3 else _MONTHS[moment.month - 1][: 3 if width == 3 else None]
    if letter == "E":
        return _DAYS[moment.weekday()][: None if width > 3 else 3]
    if letter == "a":
        return "AM" if moment.hour < 12 else "PM"
    offset = moment.strftime("%z")
    if letter == "Z":
        return offset
    if letter == "X":
        return "Z" if offset == "+0000" else {1: offset[:3], 2: offset}.get(width, f"{offset[:3]}:{offset[3:]}")
    if letter == "z":
        return moment.tzname() or offset
    raise ToolError(f"Illegal pattern character '{letter}'")
