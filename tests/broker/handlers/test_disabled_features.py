"""Read-only requests about features that are off; `tests/parity` compares the answers with Kafka's."""

from __future__ import annotations

import pytest

from broker.handlers.disabled_features import DisabledFeatureHandlers, check_quota_filter
from broker.network.registry import CloseConnection, RequestContext
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
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


def test_named_scram_users_do_not_exist() -> None:
    user = DescribeUserScramCredentialsRequest.UserName
    request = DescribeUserScramCredentialsRequest(users=[user(name=name) for name in ("b", "a", "b", "")])
    response = HANDLERS.describe_user_scram_credentials(CONTEXT, request)
    assert [(each.user, each.error_code) for each in response.results] == [
        ("", ErrorCode.RESOURCE_NOT_FOUND),
        ("a", ErrorCode.RESOURCE_NOT_FOUND),
        ("b", ErrorCode.DUPLICATE_RESOURCE),
    ]
    everyone = HANDLERS.describe_user_scram_credentials(CONTEXT, DescribeUserScramCredentialsRequest(users=None))
    assert everyone.results == []


@pytest.mark.parametrize(
    ("components", "error_code"),
    [
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([("planet", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("client-id", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([("user", 0, None)], ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_bad_quota_filters(components: list[tuple[str, int, str | None]], error_code: ErrorCode) -> None:
    parts = [Component(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    with pytest.raises(ApiError) as caught:
        check_quota_filter(parts)
    assert caught.value.error_code == error_code
    response = HANDLERS.describe_client_quotas(CONTEXT, DescribeClientQuotasRequest(components=parts, strict=False))
    assert (response.error_code, response.entries) == (error_code, None)


def test_there_are_no_quotas() -> None:
    parts = [Component(entity_type="user", match_type=1, match=None)]
    response = HANDLERS.describe_client_quotas(CONTEXT, DescribeClientQuotasRequest(components=parts, strict=True))
    assert (response.error_code, response.entries) == (ErrorCode.NONE, [])
