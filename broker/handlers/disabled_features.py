"""Read-only requests about features that this broker does not have, answered as by a Kafka that is not set up for them.

User interfaces send them to every broker and take an error that is not expected for a broken cluster. The answers are
those of Apache Kafka 3.9.1 in ZooKeeper mode without quotas or tokens.
"""

from __future__ import annotations

from typing import Final

from broker.network.registry import RequestContext, api
from cluster.security.principal import ANONYMOUS
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

EXACT, DEFAULT, ANY_NAME = range(3)
"""How a component of a quota filter matches."""

QUOTA_ENTITY_NAMES: Final = {"user": "user", "client-id": "client", "ip": "ip"}
"""The entity types, with their names in Kafka's messages."""


class DisabledFeatureHandlers:
    """Describes tokens and quotas, of which there are none."""

    @api(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(0, 3), reads_only=True)
    def describe_delegation_token(
        self,
        context: RequestContext,
        request: DescribeDelegationTokenRequest,  # noqa: ARG002
    ) -> DescribeDelegationTokenResponse:
        """DELEGATION_TOKEN_AUTH_DISABLED, or DELEGATION_TOKEN_REQUEST_NOT_ALLOWED where nobody knows who asks."""
        is_known = context.security_protocol != "PLAINTEXT" and context.principal != ANONYMOUS
        code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED if is_known else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return DescribeDelegationTokenResponse(error_code=code, tokens=[], throttle_time_ms=0)

    @api(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), reads_only=True)
    def describe_client_quotas(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeClientQuotasRequest,
    ) -> DescribeClientQuotasResponse:
        """No quotas; a filter that makes no sense is still an error."""
        try:
            check_quota_filter(request.components)
        except ApiError as error:
            return DescribeClientQuotasResponse(
                throttle_time_ms=0, error_code=error.error_code, error_message=error.message or None, entries=None
            )
        return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, error_message="", entries=[])


def check_quota_filter(components: list[DescribeClientQuotasRequest.ComponentData]) -> None:
    """Raise ApiError for a filter that Kafka refuses (`ZkAdminManager.describeClientQuotas`)."""
    for component in components:
        if component.match_type not in {EXACT, DEFAULT, ANY_NAME} or (
            component.match_type == EXACT and component.match is None
        ):
            # Kafka fails on these with an exception that it does not explain.
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "")
    kinds: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        if kind not in QUOTA_ENTITY_NAMES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kind in kinds:
            name = QUOTA_ENTITY_NAMES[kind]
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate {name} filter component entity type")
        kinds.add(kind)
    if "ip" in kinds and len(kinds) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be used with user or "
            "clientId filter component.",
        )
