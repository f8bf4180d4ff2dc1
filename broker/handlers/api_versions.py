"""ApiVersions (KIP-35, KIP-511): what this broker serves, straight from the handler registry; and SASL requests where
none are due.

SASL requests come here on connections that are authenticated already, or whose listener has no SASL (Kafka's
`KafkaApis`); `broker.security.sasl_session` answers all others.
"""

from __future__ import annotations

import re

from broker.network.registry import HandlerRegistry, RequestContext, api
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
"""KIP-511's pattern of client software names and versions. Linear: no nested repetition."""

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
UNKNOWN_EPOCH = -1


class ApiVersionsHandlers:
    """Answers from `registry`, which also holds this handler."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self._registry = registry

    @api(ApiKey.API_VERSIONS, versions=(0, 4), reads_only=True)
    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """The served APIs; INVALID_REQUEST for a client software name or version that is empty or malformed.

        A version above ours never gets here: the dispatcher answers it in version 0 (KIP-511).
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
            # The version of the /feature node, which nobody has changed; there are no finalized features: clients take
            # an epoch below zero for not known, and choose their kind of transactions by it (KIP-890).
            finalized_features_epoch=UNKNOWN_EPOCH if error_code else 0,
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
