"""Who may do what: Kafka's rules over access control lists (Kafka class `AclAuthorizer`, KIP-11, KIP-679)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from cluster.security.acl_index import EVERY_OPERATION, AclIndex
from protocol.acl_types import WILDCARD, AclOperation, AclPermissionType, PatternType, ResourceType

MOST_REMEMBERED: Final = 20_000
"""Resources of which is remembered what a principal may do there."""


class AclRules:
    """Decisions. A super user may do everything; an entry that denies outweighs all that allow; what nobody has said
    anything about is denied, or with `allows_unmentioned` allowed.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allows_unmentioned: bool = False) -> None:
        """`super_users` are principals, such as `User:admin`."""
        self.super_users = frozenset(super_users)
        self._allows_unmentioned = allows_unmentioned
        self.index = AclIndex()
        self._remembered: dict[tuple[str, str, ResourceType, str], int] = {}

    def changed(self) -> None:
        """To be called when the index has been changed."""
        self._remembered.clear()

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Bits of the operations that the principal may do with a resource."""
        asked = (principal, host, resource_type, name)
        known = self._remembered.get(asked)
        if known is None:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            known = self._remembered[asked] = self._operations(*asked)
        return known

    def _operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        if principal in self.super_users:
            return EVERY_OPERATION
        matching = self.index.matching(resource_type, name)
        if matching.is_empty:
            return EVERY_OPERATION if self._allows_unmentioned else 0
        return matching.operations(principal, host)

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether the principal may do it."""
        known = self._remembered.get((principal, host, resource_type, name))
        if known is None:
            known = self.operations(principal, host, resource_type, name)
        return known >> operation & 1 == 1

    def allows_somewhere(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there could be a resource with which the principal may do it (`authorizeByResourceType`)."""
        if principal in self.super_users:
            return True

        def names(permission: AclPermissionType, pattern_type: PatternType) -> list[Collection[str]]:
            return self.index.names(principal, host, operation, permission, resource_type, pattern_type)

        denied = names(AclPermissionType.DENY, PatternType.LITERAL)
        if any(WILDCARD in each for each in denied):
            return False
        if self._allows_unmentioned:
            return True
        denied_prefixes = names(AclPermissionType.DENY, PatternType.PREFIXED)

        def has_denied_prefix(name: str) -> bool:
            return any(name[:length] in each for each in denied_prefixes for length in range(len(name) + 1))

        return any(
            not has_denied_prefix(prefix)
            for each in names(AclPermissionType.ALLOW, PatternType.PREFIXED)
            for prefix in each
        ) or any(
            name == WILDCARD or not (any(name in denials for denials in denied) or has_denied_prefix(name))
            for each in names(AclPermissionType.ALLOW, PatternType.LITERAL)
            for name in each
        )


def check_principal(text: str) -> None:
    """Raise ValueError unless the text is a principal (Kafka's `SecurityUtils.parseKafkaPrincipal`)."""
    if not text or ":" not in text:
        raise ValueError(f"expected a string in format principalType:principalName but got {text}")
