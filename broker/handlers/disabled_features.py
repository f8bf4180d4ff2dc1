"""Read-only requests about features that this broker does not have, answered as by a Kafka that is not set up for them.

User interfaces send them to every broker and take an error that is not expected for a broken cluster. The answers are
those of Apache Kafka 3.9.1 in ZooKeeper mode without tokens.
"""

from __future__ import annotations

from broker.network.registry import RequestContext, api
from cluster.security.principal import ANONYMOUS
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)


class DisabledFeatureHandlers:
    """Describes tokens, of which there are none."""

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
