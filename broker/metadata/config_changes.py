"""Applies the changes that requests ask for to the existing overrides of a configuration (Kafka class
`ConfigAdminManager`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from config.definitions import ConfigKey, ConfigType, value_to_text
from protocol.config_resources import AlterConfigOp
from protocol.errors import ApiError, ErrorCode
from protocol.value import Value


class Change(Value):
    """One key of a request; `operation` is unchecked."""

    name: str
    operation: int
    value: str | None


class Resource(Value):
    """One resource of a request, with its changes. `replaces`: all other keys are reset to their defaults."""

    resource_type: int
    name: str
    changes: Sequence[Change]
    replaces: bool = False


class _Lookup(Protocol):
    def __call__(self, name: str, /) -> ConfigKey | None: ...


def apply(change: Change, overrides: dict[str, str], declared: _Lookup) -> None:
    """Apply a change to `overrides` (Kafka's `ConfigAdminManager.prepareIncrementalConfigs`)."""
    operation = operation_of(change)
    if operation is AlterConfigOp.DELETE or change.value is None:
        overrides.pop(change.name, None)
    elif operation is AlterConfigOp.SET:
        overrides[change.name] = change.value
    else:
        key = declared(change.name)
        if key is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{change.name} is not a known key, so it cannot be a list")
        if key.type is not ConfigType.LIST:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Config value {operation.name.lower()} is not allowed for config key: {change.name}",
            )
        before = overrides.get(change.name, value_to_text(key.default) or "")
        overrides[change.name] = _list_after(operation, before, change.value)


def _list_after(operation: AlterConfigOp, before: str, given: str) -> str:
    elements = [element for element in before.split(",") if element]
    if operation is AlterConfigOp.APPEND:
        elements.extend(element for element in given.split(",") if element not in elements)
    else:
        for element in given.split(","):
            if element in elements:
                elements.remove(element)
    return ",".join(elements)


def operation_of(change: Change) -> AlterConfigOp:
    """Convert the operation. As in Kafka, an unknown one raises ApiError(UNKNOWN_SERVER_ERROR)."""
    try:
        return AlterConfigOp(change.operation)
    except ValueError:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no operation has the number {change.operation}") from None


def parse_id(text: str, what: str) -> int:
    """Parse a broker id like `Integer.parseInt`."""
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits.isascii() or not digits.isdigit():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {text}")
    return int(sign + digits)
