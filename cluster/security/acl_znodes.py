"""Access control lists in the coordination tree, in Kafka's format (Kafka classes `ZkAclStore`, `AclEntry`).

Literal patterns are below /kafka-acl, others below /kafka-acl-extended. Each change also writes a notification.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, TypeVar

from cluster.security.acl_rules import check_principal
from cluster.znodes import ZnodeFormatError, parse_json
from protocol.acl_types import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
    title,
)

ROOTS: Final = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
"""The parents of patterns by type; their children are resource types."""
CHANGES: Final = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
CHANGE_PREFIX: Final = "acl_changes_"
_VERSION: Final = 1

_E = TypeVar("_E", ResourceType, AclOperation, AclPermissionType)


def _by_title(codes: type[_E]) -> dict[str, _E]:
    return {title(each): each for each in codes if each > 1}


RESOURCE_TYPES: Final = _by_title(ResourceType)
"""Resource types by the names of their nodes."""
_OPERATIONS: Final = _by_title(AclOperation)
_PERMISSIONS: Final = _by_title(AclPermissionType)

PERSISTENT_PATHS: Final = (
    ROOTS[PatternType.LITERAL],
    *(f"{ROOTS[PatternType.LITERAL]}/{name}" for name in RESOURCE_TYPES),
    "/kafka-acl-extended",
    ROOTS[PatternType.PREFIXED],
    *(f"{ROOTS[PatternType.PREFIXED]}/{name}" for name in RESOURCE_TYPES),
    *CHANGES.values(),
)
"""Nodes that a broker with an authorizer creates at its first start, parents first, all without data."""


def acl_path(pattern: ResourcePattern) -> str:
    """The node of a pattern, which contains its entries."""
    return f"{ROOTS[pattern.pattern_type]}/{title(pattern.resource_type)}/{pattern.name}"


def encode_acls(entries: Iterable[AccessControlEntry]) -> bytes:
    """The payload of a pattern's node. The keys are in Kafka's order, that of Java's hash maps."""
    acls = [
        {
            "principal": each.principal,
            "permissionType": title(each.permission),
            "host": each.host,
            "operation": title(each.operation),
        }
        for each in entries
    ]
    return _dump({"acls": acls, "version": _VERSION})


def decode_acls(path: str, data: bytes | None) -> list[AccessControlEntry]:
    """Parse the payload of a pattern's node; empty without data. Raises ZnodeFormatError."""
    if not data:
        return []
    try:
        value = parse_json(data)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']}")
        entries = [
            AccessControlEntry(
                _text(each["principal"]),
                _text(each["host"]),
                _OPERATIONS[each["operation"]],
                _PERMISSIONS[each["permissionType"]],
            )
            for each in value["acls"]
        ]
        for entry in entries:
            check_principal(entry.principal)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ZnodeFormatError(path, error, data) from error
    return entries


def encode_change(pattern: ResourcePattern) -> bytes:
    """The notification that a pattern's entries have changed."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    return _dump(
        {
            "version": _VERSION,
            "resourceType": pattern.resource_type.name,
            "name": pattern.name,
            "patternType": pattern.pattern_type.name,
        }
    )


def decode_change(kind: PatternType, path: str, data: bytes | None) -> ResourcePattern:
    """The pattern in a notification for patterns of this `kind`. Raises ZnodeFormatError."""
    try:
        if kind is PatternType.LITERAL:
            type_name, colon, name = (data or b"").decode().partition(":")
            if not colon:
                raise ValueError("not in format ResourceType:ResourceName")
            return ResourcePattern(_member(ResourceType, type_name), name)
        value = parse_json(data or b"")
        if value["version"] > _VERSION:
            raise ValueError(f"version {value['version']}")
        pattern_type = _member(PatternType, value["patternType"])
        if pattern_type not in ROOTS:
            raise ValueError(f"pattern type {pattern_type.name}")
        return ResourcePattern(_member(ResourceType, value["resourceType"]), _text(value["name"]), pattern_type)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ZnodeFormatError(path, error, data) from error


_M = TypeVar("_M", bound=IntEnum)


def _member(codes: type[_M], name: str) -> _M:
    code = codes[name.upper()]
    if code < 2:
        raise ValueError(f"{name} is nothing that an entry can be about")
    return code


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
