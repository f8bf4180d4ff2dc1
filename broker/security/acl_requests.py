"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290; Kafka class `AclApis`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.network.registry import CloseConnection, RequestContext, api
from broker.network.shares import Split
from broker.security.rights import DENIAL_MESSAGES, ClientRequest, OnCluster
from protocol.acl_types import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    EntryFilter,
    PatternType,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    code_of,
)
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from broker.security.acl_authorizer import AclAuthorizer

UNKNOWN: Final = 0
"""The number of UNKNOWN in every enumeration of ACLs."""

_Created = CreateAclsResponse.AclCreationResult
_Resource = DescribeAclsResponse.DescribeAclsResource
_Described = DescribeAclsResponse.AclDescription
_FilterResult = DeleteAclsResponse.DeleteAclsFilterResult
_Deleted = DeleteAclsResponse.DeleteAclsMatchingAcl


def _refuse_to_create(asked: ClientRequest[CreateAclsRequest], code: ErrorCode) -> CreateAclsResponse:
    """Every creation gets the error."""
    refusal = _Created(error_code=code, error_message=DENIAL_MESSAGES[code])
    return CreateAclsResponse(throttle_time_ms=0, results=[refusal for _ in asked.request.creations])


def _refuse_to_delete(asked: ClientRequest[DeleteAclsRequest], code: ErrorCode) -> DeleteAclsResponse:
    """Every filter gets the error."""
    refusal = _FilterResult(error_code=code, error_message=DENIAL_MESSAGES[code], matching_acls=[])
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[refusal for _ in asked.request.filters])


class AclHandlers:
    """Shows and changes ACLs. Without an authorizer, replies SECURITY_DISABLED."""

    def __init__(self, authorizer: AclAuthorizer | None) -> None:
        self._authorizer = authorizer

    @api(
        ApiKey.DESCRIBE_ACLS,
        versions=(0, 3),
        right=OnCluster(AclOperation.DESCRIBE, refusal=lambda _, code: _not_described(code, DENIAL_MESSAGES[code])),
        reads_only=True,
    )
    def describe_acls(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeAclsRequest,
    ) -> DescribeAclsResponse:
        """List the ACLs that match the filter."""
        _refuse_unknown([request], "DescribeAclsRequest contains UNKNOWN elements")
        if self._authorizer is None:
            return _not_described(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
        resources: dict[ResourcePattern, list[_Described]] = {}
        for pattern, entry in self._authorizer.find(_filter(request)):
            resources.setdefault(pattern, []).append(
                _Described(
                    principal=entry.principal,
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
            )
        return DescribeAclsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            error_message="",
            resources=[
                _Resource(
                    resource_type=pattern.resource_type,
                    resource_name=pattern.name,
                    pattern_type=pattern.pattern_type,
                    acls=acls,
                )
                for pattern, acls in resources.items()
            ],
        )

    @api(
        ApiKey.CREATE_ACLS,
        versions=(0, 3),
        right=OnCluster(AclOperation.ALTER, refusal=_refuse_to_create),
        splits=[Split("creations")],
    )
    async def create_acls(
        self,
        context: RequestContext,  # noqa: ARG002
        request: CreateAclsRequest,
    ) -> CreateAclsResponse:
        """Create ACLs. Creations fail independently. On this broker they are in effect immediately."""
        for each in request.creations:
            codes = (each.resource_type, each.resource_pattern_type, each.operation, each.permission_type)
            if UNKNOWN in codes:
                raise CloseConnection("CreatableAcls contain unknown elements")
        if self._authorizer is None:
            disabled = _Created(error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
            return CreateAclsResponse(throttle_time_ms=0, results=[disabled for _ in request.creations])
        bindings = [_binding(each) for each in request.creations]
        if any(_is_indefinite(each) for each in bindings):
            # Kafka fails on it, without an explanation.
            failed = _Created(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=None)
            return CreateAclsResponse(throttle_time_ms=0, results=[failed for _ in bindings])
        errors = [_name_error(each.pattern) for each in bindings]
        valid = [each for each, error in zip(bindings, errors, strict=True) if error is None]
        outcomes = dict(zip(valid, await self._authorizer.create(valid), strict=True))
        results = [error or outcomes[each] for each, error in zip(bindings, errors, strict=True)]
        return CreateAclsResponse(
            throttle_time_ms=0,
            results=[
                _Created(error_code=_code(error), error_message="" if error is None else _error_message(error))
                for error in results
            ],
        )

    @api(
        ApiKey.DELETE_ACLS,
        versions=(0, 3),
        right=OnCluster(AclOperation.ALTER, refusal=_refuse_to_delete),
        splits=[Split("filters")],
        at_once=10,
    )
    async def delete_acls(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DeleteAclsRequest,
    ) -> DeleteAclsResponse:
        """List the ACLs that each filter removed."""
        _refuse_unknown(request.filters, "Filters contain UNKNOWN elements")
        if self._authorizer is None:
            disabled = _FilterResult(
                error_code=ErrorCode.SECURITY_DISABLED,
                error_message="No Authorizer is configured.",
                matching_acls=[],
            )
            return DeleteAclsResponse(throttle_time_ms=0, filter_results=[disabled for _ in request.filters])
        outcomes = await self._authorizer.delete([_filter(each) for each in request.filters])
        return DeleteAclsResponse(
            throttle_time_ms=0,
            filter_results=[
                _FilterResult(
                    error_code=ErrorCode.NONE,
                    error_message=None,
                    matching_acls=[_deleted(binding, error) for binding, error in matched.items()],
                )
                for matched in outcomes
            ],
        )


def _not_described(error_code: ErrorCode, message: str) -> DescribeAclsResponse:
    return DescribeAclsResponse(throttle_time_ms=0, error_code=error_code, error_message=message, resources=[])


def _refuse_unknown(filters: Sequence[Any], reason: str) -> None:
    for each in filters:
        if UNKNOWN in (each.resource_type_filter, each.pattern_type_filter, each.operation, each.permission_type):
            raise CloseConnection(reason)


def _filter(asked: Any) -> AclFilter:
    """Build the filter of a request; the fields are the same in both APIs."""
    return AclFilter(
        ResourceFilter(
            code_of(ResourceType, asked.resource_type_filter),
            asked.resource_name_filter,
            code_of(PatternType, asked.pattern_type_filter),
        ),
        EntryFilter(
            asked.principal_filter,
            asked.host_filter,
            code_of(AclOperation, asked.operation),
            code_of(AclPermissionType, asked.permission_type),
        ),
    )


def _binding(asked: CreateAclsRequest.AclCreation) -> AclBinding:
    return AclBinding(
        ResourcePattern(
            code_of(ResourceType, asked.resource_type),
            asked.resource_name,
            code_of(PatternType, asked.resource_pattern_type),
        ),
        AccessControlEntry(
            asked.principal,
            asked.host,
            code_of(AclOperation, asked.operation),
            code_of(AclPermissionType, asked.permission_type),
        ),
    )


def _is_indefinite(binding: AclBinding) -> bool:
    """Whether the binding uses values that are valid only in filters."""
    pattern, entry = binding
    return (
        pattern.resource_type is ResourceType.ANY
        or pattern.pattern_type in (PatternType.ANY, PatternType.MATCH)
        or entry.operation is AclOperation.ANY
        or entry.permission is AclPermissionType.ANY
    )


def _name_error(pattern: ResourcePattern) -> ApiError | None:
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        message = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        return ApiError(ErrorCode.INVALID_REQUEST, message)
    if not pattern.name:
        return ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    return None


def _code(error: ApiError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.error_code


def _error_message(error: ApiError | None) -> str | None:
    # Kafka omits the message of an unexpected error.
    return None if error is None or error.error_code is ErrorCode.UNKNOWN_SERVER_ERROR else error.message


def _deleted(binding: AclBinding, error: ApiError | None) -> _Deleted:
    pattern, entry = binding
    return _Deleted(
        error_code=_code(error),
        error_message=_error_message(error),
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
