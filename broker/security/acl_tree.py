"""Access control lists in the coordination tree (Kafka classes `KafkaZkClient`, `AclAuthorizer.updateResourceAcls`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from broker.controller.cluster_membership import ClusterMembership
from broker.zookeeper.topic_reader import each_of
from cluster.security.acl_znodes import (
    CHANGE_PREFIX,
    CHANGES,
    PERSISTENT_PATHS,
    RESOURCE_TYPES,
    ROOTS,
    acl_path,
    decode_acls,
    decode_change,
    encode_acls,
    encode_change,
)
from cluster.znodes import ZnodeFormatError
from environment.contract import Random
from protocol.acl_types import AccessControlEntry, PatternType, ResourcePattern
from protocol.errors import ApiError, ErrorCode, detached
from zookeeper.coordination import (
    BadVersionError,
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    Watch,
)

logger = logging.getLogger("kafka.security.authorizer.AclAuthorizer")

MOST_ATTEMPTS: Final = 11
"""Maximum attempts when other writers come first, as in Kafka."""
_BACKOFF_MS: Final = 100
_BACKOFF_JITTER_MS: Final = 50

Entries = Collection[AccessControlEntry]


class AclTree:
    """Reads and writes the ACL nodes, in the broker's current session. Raises CoordinationError."""

    def __init__(self, membership: ClusterMembership, random: Random) -> None:
        self._membership = membership
        self._random = random

    async def prepare(self) -> None:
        """Create the parents of all nodes."""
        await self._membership.zk_client.create_missing(PERSISTENT_PATHS)

    async def read_all(self) -> dict[ResourcePattern, Entries | ZnodeFormatError]:
        """The entries of every pattern, or why they are unreadable."""
        coordination = self._membership.coordination
        patterns: list[ResourcePattern] = []
        for pattern_type, root in ROOTS.items():
            for name in (await coordination.children(root))[0]:
                resource_type = RESOURCE_TYPES.get(name)
                if resource_type is None:
                    logger.warning("Ignoring unknown ResourceType: %s", name)
                    continue
                resources, _ = await coordination.children(f"{root}/{name}")
                patterns.extend(ResourcePattern(resource_type, each, pattern_type) for each in resources)
        return dict(zip(patterns, await self.read_each(patterns), strict=True))

    async def read_each(self, patterns: Sequence[ResourcePattern]) -> list[Entries | ZnodeFormatError]:
        """The entries of each of these patterns, or why they are unreadable."""

        async def entries_of(pattern: ResourcePattern) -> Entries | ZnodeFormatError:
            try:
                return (await self.read(pattern))[0]
            except ZnodeFormatError as error:
                return detached(error)

        return await each_of(patterns, entries_of)

    async def read(self, pattern: ResourcePattern) -> tuple[Entries, int | None]:
        """The entries of one pattern, and the version of its node, or None without a node. Raises ZnodeFormatError."""
        path = acl_path(pattern)
        try:
            data, stat = await self._membership.coordination.get(path)
        except NoNodeError:
            return (), None
        return decode_acls(path, data), stat.version

    async def notices(self, kind: PatternType, watch: Watch, behind: str) -> list[tuple[str, ResourcePattern | None]]:
        """The notices after the one named `behind`, in order, each with its pattern, or None if unreadable. `watch`
        fires on new notices.
        """
        coordination, parent = self._membership.coordination, CHANGES[kind]
        names = (await coordination.children(parent, watch))[0]
        names = [name for name in names if name.startswith(CHANGE_PREFIX) and name > behind]

        async def pattern_of(name: str) -> ResourcePattern | None:
            path = f"{parent}/{name}"
            try:
                return decode_change(kind, path, (await coordination.get(path))[0])
            except NoNodeError:
                return None
            except ZnodeFormatError as error:
                logger.error("A notice of an ACL is not understood, so all are read: %s", error)
                return None

        return list(zip(names, await each_of(names, pattern_of), strict=True))

    async def change(self, pattern: ResourcePattern, changed: Callable[[Entries], Entries]) -> None:
        """Replace the entries of a pattern with the result of `changed`. If another writer comes first, `changed` is
        called again. Raises ApiError, ZnodeFormatError.
        """
        for _ in range(MOST_ATTEMPTS):
            entries, version = await self.read(pattern)
            wanted = changed(entries)
            if set(wanted) == set(entries):
                return
            try:
                await self._membership.coordination.multi(_replacement(pattern, wanted, version))
            except ConnectionLossError as error:  # the write may have taken effect
                logger.info("Whether the ACLs of %s have changed is not known: %s", pattern, error)
            except MultiError as error:
                if not isinstance(error.__cause__, BadVersionError | NodeExistsError | NoNodeError):
                    raise
            else:
                logger.info("Updated ACLs for %s to %s", pattern, ", ".join(map(str, wanted)))
                return
            await asyncio.sleep((_BACKOFF_MS + self._random.randrange(_BACKOFF_JITTER_MS)) / 1000)
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Failed to update ACLs for {pattern} after trying a maximum of {MOST_ATTEMPTS} times",
        )

    async def remove_expired_notices(self) -> None:
        """Remove old notices, which all brokers have seen."""
        for parent in CHANGES.values():
            expired = await self._membership.zk_client.expired_notices(parent)
            if expired:
                await self._membership.coordination.multi(expired)


def _replacement(pattern: ResourcePattern, wanted: Entries, version: int | None) -> list[Operation]:
    """Write the entries and the notice in one transaction. In Kafka, a crash between the two loses the notice."""
    path = acl_path(pattern)
    write: Operation
    if version is None:
        write = Create(path, encode_acls(wanted))
    elif wanted:
        write = SetData(path, encode_acls(wanted), version)
    else:
        write = Delete(path, version)
    notice = Create(f"{CHANGES[pattern.pattern_type]}/{CHANGE_PREFIX}", encode_change(pattern), sequential=True)
    return [write, notice]
