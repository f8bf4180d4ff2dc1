"""Requests about the connection itself: ApiVersions (KIP-35, KIP-511), which lists what the handler registry serves,
and SASL requests where none are due.

SASL requests come here on connections that are already authenticated or whose listener does not use SASL (Kafka class
`KafkaApis`); `broker.security.sasl_session` answers all others.
"""

from __future__ import annotations

import re

from broker.network.registry import HandlerRegistry, RequestContext, api
from broker.security.rights import EVERYBODY
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""KIP-511's pattern for client software names and versions. Matches in linear time: its repetitions are not nested."""

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
UNKNOWN_EPOCH = -1


class ApiVersionsHandlers:
    """Answers from `registry`, which also holds this handler."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self._registry = registry

    @api(ApiKey.API_VERSIONS, versions=(0, 4), right=EVERYBODY, reads_only=True)
    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """List the served APIs. An empty or malformed client software name or version gets INVALID_REQUEST.

        Newer request versions never get here: the dispatcher answers them in version 0 (KIP-511).
        """
        error_code = ErrorCode.NONE
        if context.api_version >= FIRST_VERSION_WITH_SOFTWARE_NAME and not (
            _SOFTWARE_NAME.fullmatch(request.client_software_name)
            and _SOFTWARE_NAME.fullmatch(request.client_software_version)
        ):
            error_code = ErrorCode.INVALID_REQUEST
        served = [
            ApiVersionsResponse.ApiVersion(
                api_key=int(route.api_key), min_version=route.advertised_from, max_version=route.max_version
            )
            for route in self._registry
        ]
        return ApiVersionsResponse(
            error_code=error_code,
            api_keys=[] if error_code else served,
            # The version of the unchanged /feature node. No features are finalized, but clients read a negative epoch
            # as unknown, and choose their kind of transactions by it (KIP-890).
            finalized_features_epoch=UNKNOWN_EPOCH if error_code else 0,
        )


class SaslHandlers:
    """Rejects SASL requests with ILLEGAL_SASL_STATE."""

    @api(ApiKey.SASL_HANDSHAKE, versions=(0, 1), right=EVERYBODY, reads_only=True)
    def sasl_handshake(
        self,
        context: RequestContext,  # noqa: ARG002
        request: SaslHandshakeRequest,  # noqa: ARG002
    ) -> SaslHandshakeResponse:
        """Reject a handshake. As in Kafka, the response lists no mechanisms."""
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    @api(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), right=EVERYBODY, reads_only=True)
    def sasl_authenticate(
        self,
        context: RequestContext,  # noqa: ARG002
        request: SaslAuthenticateRequest,  # noqa: ARG002
    ) -> SaslAuthenticateResponse:
        """Reject a token, with Kafka's message."""
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
            auth_bytes=b"",
        )
