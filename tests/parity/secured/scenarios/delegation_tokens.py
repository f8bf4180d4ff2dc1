"""Rights to create tokens for others, and to see others' tokens (KIP-373)."""

from __future__ import annotations

from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from tests.parity.secured.subject import SecuredSubject, acl, secured_scenario
from tests.parity.security.token_clients import TokenClients, creation

TOKEN, USER = ResourceType.DELEGATION_TOKEN, ResourceType.USER
CREATE, DESCRIBE, DESCRIBE_TOKENS = AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE, AclOperation.DESCRIBE_TOKENS


@secured_scenario
def tokens_of_oneself(b: SecuredSubject) -> None:
    users = TokenClients(b, b.connection_of)
    token = users.make("alice", creation("one0"))
    users.make("alice", creation(owner="alice"))
    for user in ("alice", "one0", "one1"):
        users.describe(user)
        users.renew(user, token)
    for user in ("one1", "one0"):
        users.expire(user, token)


@secured_scenario
def tokens_for_others(b: SecuredSubject) -> None:
    users = TokenClients(b, b.connection_of)
    users.make("alice", creation(owner="one0"))
    users.make("alice", creation("Group:x", owner="one0"))
    users.make("alice", creation("Group:x"))
    b.grant(acl(USER, "User:one0", CREATE))
    token = users.make("alice", creation("one1", owner="one0"))
    users.make("alice", creation(owner="one0", owner_type="Group"))
    users.make("alice", creation(owner="one2"))
    for user in ("alice", "one0", "one1", "one2"):
        users.describe(user)
        users.renew(user, token)
    b.grant(acl(USER, "User:", CREATE, resource_pattern_type=PatternType.PREFIXED))
    users.make("alice", creation(owner="one2"))
    b.grant(acl(USER, "User:one2", CREATE, permission_type=AclPermissionType.DENY))
    users.make("alice", creation(owner="one2"))


@secured_scenario
def tokens_that_one_may_see(b: SecuredSubject) -> None:
    users = TokenClients(b, b.connection_of)
    first, second = users.make("one0", creation("one1")), users.make("one0", creation())
    users.make("one2", creation())
    for owners in (None, ["one0"], ["one1"], ["one2"], []):
        users.describe("alice", owners)
    b.grant(acl(TOKEN, first.token_id, DESCRIBE))
    for owners in (None, ["one0"], ["one1"], ["one2"]):
        users.describe("alice", owners)
    users.renew("alice", first)
    b.grant(acl(USER, "User:one0", DESCRIBE_TOKENS))
    for owners in (None, ["one0"], ["one1"], ["one2"]):
        users.describe("alice", owners)
    b.grant(acl(TOKEN, second.token_id, DESCRIBE, permission_type=AclPermissionType.DENY))
    users.describe("alice")
    b.grant(acl(USER, "*", DESCRIBE_TOKENS))
    users.describe("alice")
    b.grant(acl(TOKEN, "*", AclOperation.ALL, principal="User:one3"))
    users.describe("one3")
