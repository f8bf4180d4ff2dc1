"""Administration of access control lists (Kafka class `KafkaAdminClient`). Every function takes the client first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from client.errors import raise_for
from client.kafka_client import KafkaClient
from protocol.acl_types import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
    code_of,
)
from protocol.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)


async def describe_acls(client: KafkaClient, wanted: AclFilter) -> list[AclBinding]:
    """The bindings that a filter chooses. Raises ApiError."""
    request = DescribeAclsRequest(**_fields(wanted))
    response = await client.ask_any("describeAcls", request, DescribeAclsResponse)
    raise_for(response.error_code, response.error_message)
    return [
        AclBinding(
            ResourcePattern(
                code_of(ResourceType, resource.resource_type),
                resource.resource_name,
                code_of(PatternType, resource.pattern_type),
            ),
            AccessControlEntry(
                each.principal,
                each.host,
                code_of(AclOperation, each.operation),
                code_of(AclPermissionType, each.permission_type),
            ),
        )
        for resource in response.resources
        for each in resource.acls
    ]


async def create_acls(client: KafkaClient, bindings: Iterable[AclBinding]) -> None:
    """Add bindings. Raises the first ApiError; others may have been added."""
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.pattern_type,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for pattern, entry in bindings
    ]
    response = await client.ask_any("createAcls", CreateAclsRequest(creations=creations), CreateAclsResponse)
    for each in response.results:
        raise_for(each.error_code, each.error_message)


async def delete_acls(client: KafkaClient, filters: Iterable[AclFilter]) -> None:
    """Remove what the filters choose. Raises the first ApiError; others may have been removed."""
    asked = [DeleteAclsRequest.DeleteAclsFilter(**_fields(each)) for each in filters]
    response = await client.ask_any("deleteAcls", DeleteAclsRequest(filters=asked), DeleteAclsResponse)
    for result in response.filter_results:
        raise_for(result.error_code, result.error_message)
        for each in result.matching_acls:
            raise_for(each.error_code, each.error_message)


def _fields(wanted: AclFilter) -> dict[str, Any]:
    """The fields of a filter, which are the same in both requests."""
    return {
        "resource_type_filter": wanted.resource.resource_type,
        "resource_name_filter": wanted.resource.name,
        "pattern_type_filter": wanted.resource.pattern_type,
        "principal_filter": wanted.entry.principal,
        "host_filter": wanted.entry.host,
        "operation": wanted.entry.operation,
        "permission_type": wanted.entry.permission,
    }
