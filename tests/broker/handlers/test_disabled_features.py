"""Read-only requests about features that are off; `tests/parity` compares the answers with Kafka's."""

from __future__ import annotations

from broker.handlers.disabled_features import DisabledFeatureHandlers
from broker.network.registry import RequestContext
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeDelegationTokenRequest,
)

CONTEXT = RequestContext(0, None, "127.0.0.1", "PLAINTEXT")
HANDLERS = DisabledFeatureHandlers()


def test_tokens() -> None:
    tokens = HANDLERS.describe_delegation_token(CONTEXT, DescribeDelegationTokenRequest(owners=None))
    assert tokens.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
