"""Reads the JSON files that tools are given, with the words of Kafka's class `DecodeJson` for what does not fit."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from tools.support.common import ToolError, read_text

T = TypeVar("T", int, str)

_JAVA_NAMES = {int: "Integer", str: "String"}


def read_file(path: str) -> str:
    """The text of a file. Raises ToolError naming it."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"Unable to read file {path}") from error


def json_object(value: Any) -> dict[str, Any]:
    """`value`, which has to be an object. Raises ToolError."""
    if not isinstance(value, dict):
        raise ToolError(f"Expected JSON object, received {_shown(value)}")
    return value


def json_array(value: Any) -> list[Any]:
    """`value`, which has to be an array. Raises ToolError."""
    if not isinstance(value, list):
        raise ToolError(f"Expected JSON array, received {_shown(value)}")
    return value


def scalar(value: Any, kind: type[T], java_name: str | None = None) -> T:
    """`value`, which has to be of that kind; `java_name` is the type in the message. Raises ToolError."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ToolError(f"Expected `{java_name or _JAVA_NAMES[kind]}` value, received {_shown(value)}")
    return value


def member(entry: dict[str, Any], name: str) -> Any:
    """A member that has to be there. Raises ToolError."""
    if name not in entry:
        raise ToolError(f"No such field exists: `{name}`")
    return entry[name]


def check_version(root: dict[str, Any]) -> None:
    """Refuse every version of a file but the first, which is the default. Raises ToolError."""
    version = scalar(root.get("version", 1), int)
    if version != 1:
        raise ToolError(f"Not supported version field value {version}")


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
