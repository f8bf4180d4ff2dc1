"""SASL requests on connections that are authenticated already, or whose listener has no SASL (Kafka's `KafkaApis`).

`broker.security.sasl_session` answers all others.
"""

from __future__ import annotations

from broker.network.registry import RequestContext, api
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


class SaslHandlers:
    """Refuses SASL requests with ILLEGAL_SASL_STATE."""

    @api(ApiKey.SASL_HANDSHAKE, versions=(0, 1), reads_only=True)
    def sasl_handshake(
        self,
        context: RequestContext,  # noqa: ARG002
        request: SaslHandshakeRequest,  # noqa: ARG002
    ) -> SaslHandshakeResponse:
        """Refuse a handshake; as in Kafka, the answer lists no mechanisms."""
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    @api(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), reads_only=True)
    def sasl_authenticate(
        self,
        context: RequestContext,  # noqa: ARG002
        request: SaslAuthenticateRequest,  # noqa: ARG002
    ) -> SaslAuthenticateResponse:
        """Refuse a token, with Kafka's message."""
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
            auth_bytes=b"",
        )
