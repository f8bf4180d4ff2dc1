"""A naive form of Kafka's rules for access control lists: each decision scans all of them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from protocol.acl_types import (
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

PRINCIPALS = ("User:alice", "User:bob", "Group:alice", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*", "*", "*")
NAMES = ("a", "ab", "abc", "abd", "b", "ba", "*", "é")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
ASKED = (
    AclOperation.READ,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
LISTED = (AclOperation.ALL, AclOperation.ALL, AclOperation.ALL, *ASKED, AclOperation.WRITE, AclOperation.DELETE)
"""Few, and often ALL, so that many decisions have contradictory lists."""
IMPLYING = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


def draw_binding(draw: random.Random) -> AclBinding:
    """A plausible list."""
    pattern_type = draw.choice((PatternType.LITERAL, PatternType.PREFIXED))
    return AclBinding(
        ResourcePattern(draw.choice(TYPES), draw.choice(NAMES), pattern_type),
        AccessControlEntry(
            draw.choice(PRINCIPALS),
            draw.choice(HOSTS),
            draw.choice(LISTED),
            draw.choice((AclPermissionType.ALLOW, AclPermissionType.ALLOW, AclPermissionType.DENY)),
        ),
    )


class NaiveRules:
    """Answers the same questions as `AclRules`."""

    def __init__(self, super_users: Iterable[str], *, allows_unmentioned: bool) -> None:
        self.bindings: dict[AclBinding, None] = {}
        self._super_users = super_users
        self._allows_unmentioned = allows_unmentioned

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """`AclAuthorizer.authorize`."""
        if principal in self._super_users:
            return True
        about = [entry for pattern, entry in self.bindings if is_about(pattern, resource_type, name)]
        if not about:
            return self._allows_unmentioned

        def has(permission: AclPermissionType, what: AclOperation) -> bool:
            return any(
                entry.permission is permission
                and entry.principal in (principal, "User:*")
                and entry.host in (host, "*")
                and entry.operation in (what, AclOperation.ALL)
                for entry in about
            )

        if has(AclPermissionType.DENY, operation):
            return False
        return any(has(AclPermissionType.ALLOW, what) for what in (operation, *IMPLYING.get(operation, ())))

    def allows_somewhere(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """`AclAuthorizer.authorizeByResourceType`."""
        if principal in self._super_users:
            return True
        mine = [
            (pattern, entry.permission)
            for pattern, entry in self.bindings
            if pattern.resource_type is resource_type
            and entry.principal in (principal, "User:*")
            and entry.host in (host, "*")
            and entry.operation in (operation, AclOperation.ALL)
        ]
        denied = [pattern for pattern, permission in mine if permission is AclPermissionType.DENY]
        if any(pattern.name == "*" and pattern.pattern_type is PatternType.LITERAL for pattern in denied):
            return False
        if self._allows_unmentioned:
            return True
        for pattern, permission in mine:
            if permission is not AclPermissionType.ALLOW:
                continue
            if pattern.name == "*" and pattern.pattern_type is PatternType.LITERAL:
                return True
            is_prefix = pattern.pattern_type is PatternType.PREFIXED
            if not any(
                pattern.name.startswith(each.name)
                if each.pattern_type is PatternType.PREFIXED
                else each.name == pattern.name and not is_prefix
                for each in denied
            ):
                return True
        return False


def is_about(pattern: ResourcePattern, resource_type: ResourceType, name: str) -> bool:
    """Whether a pattern matches a resource."""
    if pattern.resource_type is not resource_type:
        return False
    if pattern.pattern_type is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, "*")
