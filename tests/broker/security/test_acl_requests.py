"""CreateAcls, DescribeAcls and DeleteAcls, and the nodes that they write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.network.registry import CloseConnection, RequestContext
from broker.security.acl_requests import AclHandlers
from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.errors import ErrorCode
from protocol.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tests.broker.security.secured import ADMIN, ALICE, SecuredBroker, acl, play
from zookeeper.coordination import Coordination

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE = AclOperation.READ, AclOperation.WRITE
ANY, LITERAL, PREFIXED = PatternType.ANY, PatternType.LITERAL, PatternType.PREFIXED
ONLY_CLUSTER = "The only valid name for the CLUSTER resource is kafka-cluster"
Filter = DeleteAclsRequest.DeleteAclsFilter


def wanted(
    resource_type: int = ResourceType.ANY, name: str | None = None, pattern: int = ANY, operation: int = 1
) -> dict[str, Any]:
    return {
        "resource_type_filter": resource_type,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": None,
        "host_filter": None,
        "operation": operation,
        "permission_type": AclPermissionType.ANY,
    }


async def described(broker: SecuredBroker, **fields: Any) -> list[tuple[str, int, str]]:
    answer: Any = await broker.wire(ADMIN).ask(DescribeAclsRequest(**wanted(**fields)), 3)
    assert answer.error_code == ErrorCode.NONE
    return [(each.resource_name, each.pattern_type, one.principal) for each in answer.resources for one in each.acls]


def tree(broker: SecuredBroker) -> Coordination:
    return broker.server.serving.coordination.membership.coordination


def test_what_is_created_is_shown_and_kept_as_kafka_keeps_it() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        results = await broker.allow(
            acl(TOPIC, "t", READ),
            acl(TOPIC, "t", WRITE, principal="User:bob"),
            acl(GROUP, "g-", READ, pattern=PREFIXED),
            acl(TOPIC, "t", READ),
        )
        assert [each.error_code for each in results] == [ErrorCode.NONE] * 4
        assert await described(broker) == [("t", LITERAL, ALICE), ("t", LITERAL, "User:bob"), ("g-", PREFIXED, ALICE)]
        assert await described(broker, resource_type=GROUP, name="g-1", pattern=PatternType.MATCH) == [
            ("g-", PREFIXED, ALICE)
        ]
        assert await described(broker, operation=AclOperation.DELETE) == []
        data, stat = await tree(broker).get("/kafka-acl/Topic/t")
        assert data == (
            b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"Read"},'
            b'{"principal":"User:bob","permissionType":"Allow","host":"*","operation":"Write"}],"version":1}'
        )
        assert stat.version == 0
        assert (await tree(broker).get("/kafka-acl-changes/acl_changes_0000000000"))[0] == b"TOPIC:t"
        assert (await tree(broker).get("/kafka-acl-extended-changes/acl_changes_0000000000"))[0] == (
            b'{"version":1,"resourceType":"GROUP","name":"g-","patternType":"PREFIXED"}'
        )

    play(scenario)


def test_what_is_there_already_is_not_written_again() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        for _ in range(2):
            await broker.allow(acl(TOPIC, "t", READ))
        assert (await tree(broker).get("/kafka-acl/Topic/t"))[1].version == 0
        assert (await tree(broker).children("/kafka-acl-changes"))[0] == ["acl_changes_0000000000"]

    play(scenario)


@pytest.mark.parametrize(
    ("creation", "error_code", "message"),
    [
        (acl(CLUSTER, "c", READ), ErrorCode.INVALID_REQUEST, ONLY_CLUSTER),
        (acl(TOPIC, "", READ), ErrorCode.INVALID_REQUEST, "Invalid empty resource name"),
        (acl(TOPIC, "a/b", READ), ErrorCode.INVALID_REQUEST, "Failed to create ACL"),
        (acl(TOPIC, "t", 99), ErrorCode.INVALID_REQUEST, "Failed to create ACL"),  # type: ignore[arg-type]
        (acl(99, "t", READ), ErrorCode.INVALID_REQUEST, "Failed to create ACL"),  # type: ignore[arg-type]
        (acl(TOPIC, "t", READ, principal="alice"), ErrorCode.UNKNOWN_SERVER_ERROR, None),
        (acl(TOPIC, ".", READ), ErrorCode.UNKNOWN_SERVER_ERROR, None),
    ],
)  # fmt: skip
def test_creations_that_are_refused(
    creation: CreateAclsRequest.AclCreation, error_code: ErrorCode, message: str | None
) -> None:
    async def scenario(broker: SecuredBroker) -> None:
        bad, good = await broker.allow(creation, acl(GROUP, "g", READ))
        assert (bad.error_code, bad.error_message) == (error_code, message)
        assert good.error_code == ErrorCode.NONE
        assert await described(broker) == [("g", LITERAL, ALICE)]

    play(scenario)


def test_what_only_filters_may_have_fails_all() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        results = await broker.allow(acl(TOPIC, "t", READ, pattern=PatternType.MATCH), acl(GROUP, "g", READ))
        assert [each.error_code for each in results] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
        assert await described(broker) == []

    play(scenario)


def test_deletions() -> None:
    async def scenario(broker: SecuredBroker) -> None:
        await broker.allow(
            acl(TOPIC, "t", READ),
            acl(TOPIC, "t", WRITE),
            acl(TOPIC, "t", READ, pattern=PREFIXED),
            acl(GROUP, "g", READ),
        )
        filters = [
            Filter(**wanted(TOPIC, "t", LITERAL, READ)),
            Filter(**wanted(TOPIC, "t", ANY, READ)),
            Filter(**wanted(TOPIC, "none", LITERAL)),
        ]
        answer: Any = await broker.wire(ADMIN).ask(DeleteAclsRequest(filters=filters), 3)
        gone = [
            [(each.pattern_type, each.operation) for each in result.matching_acls] for result in answer.filter_results
        ]
        assert gone == [[(LITERAL, READ)], [(PREFIXED, READ)], []]
        assert sorted(await described(broker)) == [("g", LITERAL, ALICE), ("t", LITERAL, ALICE)]
        await broker.wire(ADMIN).ask(DeleteAclsRequest(filters=[Filter(**wanted())]), 3)
        assert await described(broker) == []
        assert await tree(broker).exists("/kafka-acl/Topic/t") is None

    play(scenario)


def test_unknown_elements_hang_up() -> None:
    requests: list[Any] = [
        DescribeAclsRequest(**wanted(resource_type=0)),
        CreateAclsRequest(creations=[acl(TOPIC, "t", READ, pattern=PatternType.UNKNOWN)]),
        DeleteAclsRequest(filters=[Filter(**wanted(operation=0))]),
    ]

    async def scenario(broker: SecuredBroker) -> None:
        for request in requests:
            with pytest.raises(ConnectionError):
                await broker.wire(ADMIN).ask(request, 3)

    play(scenario)


def test_acls_need_an_authorizer() -> None:
    handlers, context = AclHandlers(None), RequestContext(3, None, "127.0.0.1", "PLAINTEXT")
    answer = handlers.describe_acls(context, DescribeAclsRequest(**wanted()))
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, [])
    with pytest.raises(CloseConnection):
        handlers.describe_acls(context, DescribeAclsRequest(**wanted(resource_type=0)))
    created = asyncio.run(handlers.create_acls(context, CreateAclsRequest(creations=[acl(TOPIC, "t", READ)] * 2)))
    assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deleted = asyncio.run(handlers.delete_acls(context, DeleteAclsRequest(filters=[Filter(**wanted())])))
    assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]
