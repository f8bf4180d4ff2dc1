"""CreateAcls, DescribeAcls and DeleteAcls of an authorized client, with valid and invalid input."""

from __future__ import annotations

from typing import Any

from protocol.acl_types import CLUSTER_NAME, AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError
from protocol.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tests.parity.secured.subject import Creation, SecuredSubject, acl, secured_scenario, secured_scenario_for_each

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
LONG = "x" * 300


def code(number: int) -> Any:
    """A number outside every enumeration."""
    return number


GOOD: dict[str, list[Creation]] = {
    "one": [acl(TOPIC, "t", READ)],
    "prefixed": [acl(TOPIC, "t-", ALL, resource_pattern_type=PREFIXED)],
    "wildcards": [acl(TOPIC, "*", READ, principal="User:*"), acl(GROUP, "*", ALL, permission_type=DENY)],
    "the_cluster": [acl(CLUSTER, CLUSTER_NAME, AclOperation.ALTER)],
    "of_every_type": [acl(each, CLUSTER_NAME, ALL) for each in ResourceType if each > ResourceType.ANY],
    "twice_the_same": [acl(TOPIC, "t", READ), acl(TOPIC, "t", READ)],
    "several_of_a_pattern": [acl(TOPIC, "t", READ), acl(TOPIC, "t", WRITE, host="10.0.0.1"), acl(GROUP, "g", READ)],
    "an_operation_of_another_type": [acl(TOPIC, "t", AclOperation.CLUSTER_ACTION), acl(GROUP, "g", WRITE)],
    "every_operation": [acl(TOPIC, "t", each) for each in AclOperation if each > AclOperation.ANY],
    "hosts_that_are_none": [acl(TOPIC, "t", READ, host=""), acl(TOPIC, "u", READ, host="somewhere")],
    "other_kinds_of_principals": [acl(TOPIC, "t", READ, principal=each) for each in ("Group:x", "User:a:b", "x:", ":")],
    "names_that_no_topic_has": [acl(TOPIC, each, READ) for each in (LONG, "a b", "é", "a:b", "%2F", "#")],
    "prefix_of_all": [acl(TOPIC, "*", READ, resource_pattern_type=PREFIXED)],
}
BAD: dict[str, list[Creation]] = {
    "no_name": [acl(TOPIC, "", READ), acl(TOPIC, "t", READ)],
    "another_cluster": [acl(CLUSTER, "other", READ), acl(TOPIC, "t", READ)],
    "slash": [acl(TOPIC, "a/b", READ), acl(TOPIC, "t", READ)],
    "any_type": [acl(ResourceType.ANY, "t", READ), acl(TOPIC, "t", READ)],
    "any_operation": [acl(TOPIC, "t", AclOperation.ANY), acl(TOPIC, "t", READ)],
    "any_permission": [acl(TOPIC, "t", READ, permission_type=AclPermissionType.ANY), acl(TOPIC, "t", READ)],
    "any_pattern": [acl(TOPIC, "t", READ, resource_pattern_type=PatternType.ANY), acl(TOPIC, "t", READ)],
    "match": [acl(TOPIC, "t", READ, resource_pattern_type=PatternType.MATCH)],
    "unknown_type": [acl(ResourceType.UNKNOWN, "t", READ)],
    "unknown_operation": [acl(TOPIC, "t", AclOperation.UNKNOWN)],
    "unknown_permission": [acl(TOPIC, "t", READ, permission_type=AclPermissionType.UNKNOWN)],
    "unknown_pattern": [acl(TOPIC, "t", READ, resource_pattern_type=PatternType.UNKNOWN)],
    "type_without_meaning": [acl(code(99), "t", READ), acl(TOPIC, "t", READ)],
    "operation_without_meaning": [acl(TOPIC, "t", code(99)), acl(TOPIC, "t", READ)],
    "no_principal": [acl(TOPIC, "t", READ, principal="alice"), acl(TOPIC, "u", READ)],
    "empty_principal": [acl(TOPIC, "t", READ, principal=""), acl(TOPIC, "u", READ)],
    "nothing": [],
}


def wanted(
    resource_type: int = ResourceType.ANY, name: str | None = None, pattern: int = PatternType.ANY, **fields: Any
) -> dict[str, Any]:
    """A filter that matches everything, except for the given fields."""
    values = {
        "resource_type_filter": resource_type,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermissionType.ANY,
    }
    return {**values, **fields}


FILTERS: dict[str, dict[str, Any]] = {
    "everything": wanted(),
    "of_a_type": wanted(TOPIC),
    "of_a_name": wanted(TOPIC, "t", LITERAL),
    "of_a_name_of_any_type": wanted(name="t", pattern=LITERAL),
    "literal": wanted(pattern=LITERAL),
    "prefixed": wanted(pattern=PREFIXED),
    "a_prefix": wanted(TOPIC, "t", PREFIXED),
    "matching": wanted(TOPIC, "t-1", PatternType.MATCH),
    "matching_every_name": wanted(TOPIC, "*", PatternType.MATCH),
    "matching_without_a_name": wanted(TOPIC, None, PatternType.MATCH),
    "any_pattern": wanted(TOPIC, "t", PatternType.ANY),
    "the_wildcard": wanted(TOPIC, "*", LITERAL),
    "of_a_principal": wanted(principal_filter="User:bob"),
    "of_every_principal": wanted(principal_filter="User:*"),
    "of_what_is_no_principal": wanted(principal_filter="bob"),
    "of_a_host": wanted(host_filter="10.0.0.1"),
    "of_every_host": wanted(host_filter="*"),
    "of_an_operation": wanted(operation=READ),
    "of_all_operations": wanted(operation=ALL),
    "denials": wanted(permission_type=DENY),
    "an_empty_name": wanted(TOPIC, "", LITERAL),
    "a_name_with_a_slash": wanted(TOPIC, "a/b", LITERAL),
    "unknown_type": wanted(ResourceType.UNKNOWN),
    "unknown_pattern": wanted(pattern=PatternType.UNKNOWN),
    "unknown_operation": wanted(operation=AclOperation.UNKNOWN),
    "unknown_permission": wanted(permission_type=AclPermissionType.UNKNOWN),
    "a_type_without_meaning": wanted(99),
    "an_operation_without_meaning": wanted(operation=99),
}
SOME = (
    acl(TOPIC, "t", READ),
    acl(TOPIC, "t", WRITE, principal="User:bob", host="10.0.0.1"),
    acl(TOPIC, "t", ALL, resource_pattern_type=PREFIXED, permission_type=DENY),
    acl(TOPIC, "*", READ, principal="User:*"),
    acl(GROUP, "t", READ, principal="User:bob"),
    acl(GROUP, "*", READ, resource_pattern_type=PREFIXED),
    acl(CLUSTER, CLUSTER_NAME, AclOperation.CREATE),
)
EVERYTHING = DescribeAclsRequest(**wanted())


@secured_scenario_for_each({**GOOD, **BAD})
def created(b: SecuredSubject, creations: list[Creation]) -> None:
    for version in b.range_of(ApiKey.CREATE_ACLS):
        try:
            b.ask(CreateAclsRequest(creations=creations), version)
        except ApiError:
            b.note("cannot be said", version)
        b.ask(EVERYTHING, 3)


@secured_scenario_for_each(FILTERS)
def described(b: SecuredSubject, fields: dict[str, Any]) -> None:
    b.grant(*SOME)
    for version in b.range_of(ApiKey.DESCRIBE_ACLS):
        if version or fields["pattern_type_filter"] == LITERAL:
            b.ask(DescribeAclsRequest(**fields), version)


@secured_scenario_for_each(FILTERS)
def deleted(b: SecuredSubject, fields: dict[str, Any]) -> None:
    for version in b.range_of(ApiKey.DELETE_ACLS):
        if version or fields["pattern_type_filter"] == LITERAL:
            b.grant(*SOME)
            b.ask(DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**fields)]), version)
            b.ask(EVERYTHING, 3)


@secured_scenario
def old_version_of_a_prefix(b: SecuredSubject) -> None:
    b.grant(*SOME)
    b.ask(DescribeAclsRequest(**wanted(GROUP, pattern=LITERAL)), 0)


@secured_scenario
def filters_that_choose_the_same(b: SecuredSubject) -> None:
    b.grant(*SOME)
    filters = [
        DeleteAclsRequest.DeleteAclsFilter(**fields)
        for fields in (wanted(TOPIC, "t", LITERAL, operation=READ), wanted(TOPIC, "t", LITERAL), wanted(TOPIC))
    ]
    b.ask(DeleteAclsRequest(filters=filters), 3)
    b.ask(DeleteAclsRequest(filters=[]), 3)
    b.ask(EVERYTHING, 3)
