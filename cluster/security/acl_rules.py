"""Authorization: Kafka's rules for access control lists (Kafka class `AclAuthorizer`, KIP-11, KIP-679).

The entries for a resource are those of its literal pattern, of the wildcard, and of the prefixes of its name. Each
pattern has a table from principal and host to bit sets of allowed and denied operations, so a decision takes a handful
of look-ups, regardless of the number of entries. Only prefixes with the length of an existing prefixed pattern are
looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from protocol.acl_types import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

EVERY_OPERATION: Final = sum(1 << each for each in AclOperation if each > AclOperation.ALL)
"""The bits of all operations; each bit position is the operation's number in the protocol."""

_ALSO_ALLOWED: Final = {
    AclOperation.ALL: EVERY_OPERATION,
    **dict.fromkeys(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER), 1 << AclOperation.DESCRIBE
    ),
    AclOperation.ALTER_CONFIGS: 1 << AclOperation.DESCRIBE_CONFIGS,
}
"""Operations implied by an allowed one. A denied operation implies others only if it is ALL."""

_Masks = dict[tuple[str, str], tuple[int, int]]
"""Allowed and denied operations, by principal and host."""
_Scope = tuple[str, str, AclOperation, AclPermissionType, ResourceType, PatternType]


class MatchingAcls:
    """The entries for one resource."""

    __slots__ = ("_tables",)

    def __init__(self, tables: list[_Masks]) -> None:
        self._tables = tables

    @property
    def is_empty(self) -> bool:
        """Whether the resource lacks entries."""
        return not self._tables

    def operations(self, principal: str, host: str) -> int:
        """The bits of the operations that are allowed and not denied."""
        allowed = denied = 0
        for table in self._tables:
            for who in (principal, WILDCARD_PRINCIPAL):
                for where in (host, WILDCARD):
                    found = table.get((who, where))
                    if found is not None:
                        allowed |= found[0]
                        denied |= found[1]
        return allowed & ~denied


class AclIndex:
    """The entries of each pattern."""

    def __init__(self) -> None:
        self._entries: dict[ResourcePattern, Collection[AccessControlEntry]] = {}
        self._tables: dict[PatternType, dict[tuple[ResourceType, str], _Masks]] = {
            PatternType.LITERAL: {},
            PatternType.PREFIXED: {},
        }
        self._lengths: dict[ResourceType, Counter[int]] = {}
        """The number of prefixed patterns by name length."""
        self._names: dict[_Scope, dict[str, None]] = {}
        """The names of the patterns with an entry."""

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self, pattern: ResourcePattern) -> Collection[AccessControlEntry]:
        """The entries of one pattern."""
        return self._entries.get(pattern, ())

    def replace(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """Replace the entries of the pattern; without any, the pattern is removed."""
        new = dict.fromkeys(entries)
        resource_type, name, pattern_type = pattern
        old = self._entries.pop(pattern, ())
        for entry in old:
            scope = (*entry, resource_type, pattern_type)
            del self._names[scope][name]
            if not self._names[scope]:
                del self._names[scope]
        lengths = self._lengths.setdefault(resource_type, Counter())
        if old and pattern_type is PatternType.PREFIXED:
            lengths[len(name)] -= 1
            if not lengths[len(name)]:
                del lengths[len(name)]
        self._tables[pattern_type].pop((resource_type, name), None)
        if not new:
            return
        self._entries[pattern] = new.keys()
        for entry in new:
            self._names.setdefault((*entry, resource_type, pattern_type), {})[name] = None
        if pattern_type is PatternType.PREFIXED:
            lengths[len(name)] += 1
        self._tables[pattern_type][resource_type, name] = _masks(new)

    def matching(self, resource_type: ResourceType, name: str) -> MatchingAcls:
        """The entries for the resource with this name."""
        literal, prefixed = self._tables[PatternType.LITERAL], self._tables[PatternType.PREFIXED]
        found = [literal.get((resource_type, WILDCARD))]
        if name != WILDCARD:
            found.append(literal.get((resource_type, name)))
        lengths = (each for each in self._lengths.get(resource_type, ()) if each <= len(name))
        found.extend(prefixed.get((resource_type, name[:length])) for length in lengths)
        return MatchingAcls([table for table in found if table is not None])

    def find(self, wanted: AclFilter) -> Iterator[AclBinding]:
        """The bindings that match a filter."""
        for pattern, entries in self._entries.items():
            if wanted.resource.matches(pattern):
                for entry in entries:
                    if wanted.entry.matches(entry):
                        yield AclBinding(pattern, entry)

    def patterns(self) -> Iterable[ResourcePattern]:
        """All patterns with entries."""
        return self._entries

    def names(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        permission: AclPermissionType,
        resource_type: ResourceType,
        pattern_type: PatternType,
    ) -> list[Collection[str]]:
        """The names of patterns with an entry for exactly this operation, or for ALL, without implied ones."""
        scopes = (
            (who, where, what, permission, resource_type, pattern_type)
            for who in (principal, WILDCARD_PRINCIPAL)
            for where in (host, WILDCARD)
            for what in (operation, AclOperation.ALL)
        )
        return [self._names[scope].keys() for scope in scopes if scope in self._names]


def _masks(entries: Iterable[AccessControlEntry]) -> _Masks:
    masks: _Masks = {}
    for principal, host, operation, permission in entries:
        allowed, denied = masks.get((principal, host), (0, 0))
        bits = 1 << operation
        if permission is AclPermissionType.ALLOW:
            allowed |= bits | _ALSO_ALLOWED.get(operation, 0)
        else:
            denied |= bits | (EVERY_OPERATION if operation is AclOperation.ALL else 0)
        masks[principal, host] = allowed, denied
    return masks


MOST_REMEMBERED: Final = 20_000
"""Maximum of cached decisions, by principal, host and resource."""


class AclRules:
    """Authorization decisions. Super users may do everything; a denying entry outweighs allowing ones; a resource
    without entries is denied, or allowed with `allows_unmentioned`.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allows_unmentioned: bool = False) -> None:
        """`super_users` are principals, such as `User:admin`."""
        self.super_users = frozenset(super_users)
        self._allows_unmentioned = allows_unmentioned
        self.index = AclIndex()
        self._remembered: dict[tuple[str, str, ResourceType, str], int] = {}

    def changed(self) -> None:
        """Call it after changing the index."""
        self._remembered.clear()

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Bits of the operations that the principal may perform on a resource."""
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
        """Whether the principal may perform the operation on the resource."""
        known = self._remembered.get((principal, host, resource_type, name))
        if known is None:
            known = self.operations(principal, host, resource_type, name)
        return known >> operation & 1 == 1

    def allows_somewhere(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the principal may perform the operation on some resource, existing or not
        (`authorizeByResourceType`).
        """
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
