"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: rights on topics, or on the cluster for brokers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from broker.network.registry import RequestContext
from broker.security.access import Client
from broker.security.replies import Outcome, Proceed, then
from protocol.acl_types import AclOperation, ResourceType
from protocol.config_resources import ConfigResourceType
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.wire.encoded_items import with_items

_TOLD: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}
_KNOWN: Final = frozenset(ConfigResourceType)

_Described = DescribeConfigsResponse.DescribeConfigsResult


def _error(client: Client, operation: AclOperation, resource_type: int, name: str) -> ErrorCode | None:
    """The error if the client may not perform the operation on a resource with a configuration."""
    if resource_type == ConfigResourceType.TOPIC:
        allowed = client.may(operation, ResourceType.TOPIC, name)
        return None if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None if client.may_in_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def guard_describe(
    client: Client, context: RequestContext, request: DescribeConfigsRequest, proceed: Proceed
) -> Outcome:
    """DESCRIBE_CONFIGS on each resource."""
    if any(each.resource_type not in _KNOWN for each in request.resources):
        return proceed(request)  # fails as a whole
    refused = []
    allowed = []
    for each in request.resources:
        error = _error(client, AclOperation.DESCRIBE_CONFIGS, each.resource_type, each.resource_name)
        if error is None:
            allowed.append(each)
            continue
        refused.append(
            _Described(
                error_code=error,
                error_message=_TOLD[error],
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=[],
            )
        )
    if not refused:
        return proceed(request)
    request.resources = allowed

    def add(response: DescribeConfigsResponse) -> DescribeConfigsResponse:
        response.results = with_items(
            response.results, _Described, DescribeConfigsResponse, context.api_version, refused
        )
        return response

    return then(proceed(request), add)


def guard_alter(client: Client, context: RequestContext, request: AlterConfigsRequest, proceed: Proceed) -> Outcome:
    """ALTER_CONFIGS on each resource."""
    del context
    return _guard_change(client, request, proceed, AlterConfigsResponse.AlterConfigsResourceResponse)


def guard_incremental_alter(
    client: Client, context: RequestContext, request: IncrementalAlterConfigsRequest, proceed: Proceed
) -> Outcome:
    """ALTER_CONFIGS on each resource."""
    del context
    return _guard_change(client, request, proceed, IncrementalAlterConfigsResponse.AlterConfigsResourceResponse)


def _guard_change(client: Client, request: Any, proceed: Proceed, result: Any) -> Outcome:
    refused = {}
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    for at, each in enumerate(request.resources):
        # Unknown types and repeated names are refused anyway.
        if each.resource_type in _KNOWN and times[each.resource_type, each.resource_name] == 1:
            error = _error(client, AclOperation.ALTER_CONFIGS, each.resource_type, each.resource_name)
            if error is not None:
                refused[at] = result(
                    error_code=error,
                    error_message=None,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
    if not refused:
        return proceed(request)
    count = len(request.resources)
    request.resources = [each for at, each in enumerate(request.resources) if at not in refused]

    def merge(response: Any) -> Any:
        results = iter(response.responses)
        response.responses = [refused[at] if at in refused else next(results) for at in range(count)]
        return response

    return then(proceed(request), merge)
