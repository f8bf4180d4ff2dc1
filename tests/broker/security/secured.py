"""An in-memory broker with an authorizer, and clients of several principals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cluster.security.principal import Principal
from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.messages.security import CreateAclsRequest
from protocol.wire.schema import Struct
from security.authorization import ACL_AUTHORIZER
from tests.kit.in_process import InProcessBroker, Wire

ADMIN = "User:admin"
ALICE = "User:alice"
ALLOW = AclPermissionType.ALLOW

Creation = CreateAclsRequest.AclCreation


class SecuredBroker(InProcessBroker):
    """`User:admin` is a super user."""

    def __init__(self, **settings: str) -> None:
        own = {"authorizer_class_name": ACL_AUTHORIZER, "super_users": ADMIN}
        super().__init__(**{**own, **settings})

    def wire(self, principal: str = ALICE) -> Wire:
        """A connection of this principal."""
        wire = self.connect()
        kind, _, name = principal.partition(":")
        wire.connection.principal = Principal(kind, name)
        return wire

    async def allow(self, *creations: Creation) -> list[Any]:
        """Create ACLs; returns the results."""
        answer: Any = await self.wire(ADMIN).ask(CreateAclsRequest(creations=list(creations)), 3)
        results: list[Any] = answer.results
        return results


def acl(
    resource_type: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    principal: str = ALICE,
    host: str = "*",
    permission: AclPermissionType = ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> Creation:
    """An ACL, which allows by default."""
    return Creation(
        resource_type=resource_type,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def codes_in(value: object) -> list[int]:
    """Every error code of an answer."""
    if isinstance(value, list):
        return [code for each in value for code in codes_in(each)]
    if not isinstance(value, Struct):
        return []
    found = [code for name in value.declared_fields for code in codes_in(getattr(value, name))]
    names = ("error_code", "partition_error_code")
    return found + [getattr(value, name) for name in names if name in value.declared_fields]


def play(scenario: Callable[[SecuredBroker], Awaitable[None]], **settings: str) -> None:
    """Run a scenario on a new broker."""

    async def run() -> None:
        async with SecuredBroker(**settings) as broker:
            await scenario(broker)

    asyncio.run(run())
