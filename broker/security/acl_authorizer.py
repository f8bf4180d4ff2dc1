"""The authorizer: access control lists kept in the coordination tree and shared by all brokers (Kafka class
`AclAuthorizer`).

Each change of the lists leaves a notice, which every broker watches. Until this broker has read another broker's
change, or while the tree is unreachable, it uses the last known lists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

from broker.controller.cluster_membership import ClusterMembership
from broker.metadata.dynamic_configs import Refreshing
from broker.security.acl_tree import AclTree, Entries
from cluster.metadata_image import BrokerImage
from cluster.security.acl_rules import AclRules, check_principal
from cluster.security.acl_znodes import CHANGES, acl_path
from cluster.znodes import ZnodeFormatError
from environment.contract import Random
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
)
from protocol.errors import ApiError, ErrorCode
from security.authorization import Authorization
from zookeeper.coordination import CoordinationError

logger = logging.getLogger("kafka.security.authorizer.AclAuthorizer")

Deleted = dict[AclBinding, ApiError | None]
"""Matched bindings, each with the error if it could not be deleted."""

_DENIED = AccessControlEntry(WILDCARD_PRINCIPAL, WILDCARD, AclOperation.ALL, AclPermissionType.DENY)


class AclAuthorizer:
    """Owns the lists. `rules` decide by the lists known to this broker."""

    def __init__(self, membership: ClusterMembership, random: Random, settings: Authorization) -> None:
        self.rules = AclRules(settings.super_users, allows_unmentioned=settings.allows_unmentioned)
        self._membership = membership
        self._tree = AclTree(membership, random)
        self._last_notices = dict.fromkeys(CHANGES, "")
        self._outdated: dict[ResourcePattern, None] = {}
        """Patterns whose ACLs in the tree may differ from `rules`."""
        self._is_complete = False
        self._applying = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._refreshing = Refreshing("access-control-lists", self._apply)
        membership.on_session_change(lambda: None, self._session_began)

    async def start(self) -> None:
        """Read all lists, and watch for changes. Raises CoordinationError."""
        await self._tree.prepare()
        await self._apply()

    async def close(self) -> None:
        """Stop following changes."""
        await self._refreshing.close()

    # -- following changes ---------------------------------------------------------------------------------------------

    async def _apply(self) -> None:
        async with self._applying:
            for kind, last in self._last_notices.items():
                notices = await self._tree.notices(kind, self._refreshing.watch, last)
                for _, pattern in notices:
                    if pattern is None:
                        self._is_complete = False
                    else:
                        self._outdated[pattern] = None
                if notices:
                    self._last_notices[kind] = notices[-1][0]
            # The watches are set, so later changes cannot be missed.
            if self._is_complete:
                outdated = list(self._outdated)
                self._take(dict(zip(outdated, await self._tree.read_each(outdated), strict=True)))
            else:
                found = await self._tree.read_all()
                gone = [pattern for pattern in self.rules.index.patterns() if pattern not in found]
                self._take({**dict.fromkeys(gone, ()), **found})
                self._is_complete = True

    def _take(self, found: Mapping[ResourcePattern, Entries | ZnodeFormatError]) -> None:
        """Apply these lists. An unreadable list keeps its old content. If that is unknown, everything is denied,
        because the list may contain a denial.
        """
        damaged = self._membership.zk_client.damaged
        for pattern, entries in found.items():
            if not isinstance(entries, ZnodeFormatError):
                self.rules.index.replace(pattern, entries)
                damaged.is_readable(acl_path(pattern))
            elif self.rules.index.entries(pattern):
                damaged.report(entries, "its ACLs stay as they were")
            else:
                damaged.report(entries, "only super users may use the resources of its ACLs")
                self.rules.index.replace(pattern, [_DENIED])
            self._outdated.pop(pattern, None)
        self.rules.changed()

    async def _session_began(self, _broker: BrokerImage) -> None:
        await self._tree.prepare()
        async with self._applying:  # a running read would set `_is_complete`
            self._is_complete = False
        await self._apply()

    # -- administration ------------------------------------------------------------------------------------------------

    def find(self, wanted: AclFilter) -> Iterator[AclBinding]:
        """The bindings that match the filter, according to this broker."""
        return self.rules.index.find(wanted)

    async def create(self, bindings: Sequence[AclBinding]) -> list[ApiError | None]:
        """Add bindings, and return the error of each. They are in effect on this broker when this returns. Bindings of
        one pattern are added together.
        """
        outcomes: list[ApiError | None] = [_refusal(each) for each in bindings]
        patterns: dict[ResourcePattern, list[int]] = {}
        for number, (binding, refusal) in enumerate(zip(bindings, outcomes, strict=True)):
            if refusal is None:
                patterns.setdefault(binding.pattern, []).append(number)
        async with self._changing:
            for pattern, numbers in patterns.items():
                added = [bindings[number].entry for number in numbers]
                error = await self._change(pattern, added, None, {})
                for number in numbers:
                    outcomes[number] = error
            await self._apply_changes()
        return outcomes

    async def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        """Remove the bindings that match each filter. If several filters match one, it is listed under the first.
        Filters that name a pattern also find bindings that this broker does not know yet.
        """
        outcomes: list[Deleted] = [{} for _ in filters]
        async with self._changing:
            patterns = dict.fromkeys(self.rules.index.patterns())
            patterns |= dict.fromkeys(pattern for each in filters for pattern in each.resource.patterns)
            for pattern in patterns:
                choosing = [number for number, each in enumerate(filters) if each.resource.matches(pattern)]
                if choosing and pattern.name and "/" not in pattern.name:
                    matched: dict[AccessControlEntry, int] = {}
                    error = await self._change(pattern, (), [(number, filters[number]) for number in choosing], matched)
                    for entry, number in matched.items():
                        outcomes[number][AclBinding(pattern, entry)] = error
            await self._apply_changes()
        return outcomes

    async def _change(
        self,
        pattern: ResourcePattern,
        added: Sequence[AccessControlEntry],
        removing: Sequence[tuple[int, AclFilter]] | None,
        matched: dict[AccessControlEntry, int],
    ) -> ApiError | None:
        """Add entries, or remove the matching ones; these are put into `matched`, with the number of the filter."""

        def changed(entries: Entries) -> Entries:
            if removing is None:
                return dict.fromkeys((*entries, *added))
            for entry in entries:
                chosen = next((number for number, each in removing if each.entry.matches(entry)), None)
                if chosen is not None:
                    matched.setdefault(entry, chosen)
            return [entry for entry in entries if entry not in matched]

        try:
            if pattern.name in {".", ".."}:
                raise ValueError("no node can have that name")
            for entry in added:
                check_principal(entry.principal)
            self._outdated[pattern] = None
            await self._tree.change(pattern, changed)
        except (ApiError, CoordinationError, ZnodeFormatError, ValueError) as error:
            logger.error("The ACLs of %s were not changed: %s", pattern, error)
            return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return None

    async def _apply_changes(self) -> None:
        """Put the changes into effect on this broker."""
        try:
            await self._apply()
            await self._tree.remove_expired_notices()
        except CoordinationError as error:
            logger.warning("The ACLs are read again: %s", error)
            self._refreshing.begin()


def _refusal(binding: AclBinding) -> ApiError | None:
    pattern, entry = binding
    codes = (pattern.resource_type, pattern.pattern_type, entry.operation, entry.permission)
    if 0 in codes or "/" in pattern.name or pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return ApiError(ErrorCode.INVALID_REQUEST, "Failed to create ACL")
    return None
