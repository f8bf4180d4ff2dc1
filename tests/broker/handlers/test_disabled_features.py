"""Read-only requests about features that are off; `tests/parity` compares the answers with Kafka's."""

from __future__ import annotations

import pytest

from broker.handlers.disabled_features import DisabledFeatureHandlers
from broker.network.registry import CloseConnection, RequestContext
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeDelegationTokenRequest,
)

CONTEXT = RequestContext(0, None, "127.0.0.1", "PLAINTEXT")
HANDLERS = DisabledFeatureHandlers()
Component = DescribeClientQuotasRequest.ComponentData


def acls(resource_type: int) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=resource_type,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def test_acls_need_an_authorizer() -> None:
    response = HANDLERS.describe_acls(CONTEXT, acls(1))
    assert (response.error_code, response.resources) == (ErrorCode.SECURITY_DISABLED, [])
    with pytest.raises(CloseConnection):
        HANDLERS.describe_acls(CONTEXT, acls(0))


def test_tokens() -> None:
    tokens = HANDLERS.describe_delegation_token(CONTEXT, DescribeDelegationTokenRequest(owners=None))
    assert tokens.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_there_are_no_quotas() -> None:
    parts = [Component(entity_type="user", match_type=1, match=None)]
    response = HANDLERS.describe_client_quotas(CONTEXT, DescribeClientQuotasRequest(components=parts, strict=True))
    assert (response.error_code, response.entries) == (ErrorCode.NONE, [])
