"""Creates, renews, expires and describes delegation tokens (KIP-48, KIP-373; Kafka class `KafkaApis`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.network.registry import RequestContext, api
from broker.security.access import Access
from broker.security.rights import CHECKED_BY_HANDLER
from cluster.security.principal import ANONYMOUS, Principal
from environment.contract import Clock
from environment.slices import in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from broker.security.delegation_token_manager import DelegationTokenManager, SignedToken
    from cluster.security.delegation_token import DelegationToken

REQUESTERS_FROM: Final = 3
"""The first response version that includes the requester of a token."""
NOBODY: Final = Principal("", "")
NO_TIME: Final = -1
"""The timestamps in an error response."""


class DelegationTokenHandlers:
    """Handles delegation tokens. Replies DELEGATION_TOKEN_AUTH_DISABLED without a secret key, and
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED to clients that are unauthenticated or used a token themselves: otherwise a
    token could prolong itself forever.
    """

    def __init__(self, tokens: DelegationTokenManager | None, access: Access, clock: Clock) -> None:
        """`tokens` is None if the secret key is not configured."""
        self._tokens = tokens
        self._access = access
        self._clock = clock

    @api(
        ApiKey.CREATE_DELEGATION_TOKEN,
        versions=(0, 3),
        right=CHECKED_BY_HANDLER,
        whole="a token has one list of renewers",
    )
    async def create_delegation_token(
        self, context: RequestContext, request: CreateDelegationTokenRequest
    ) -> CreateDelegationTokenResponse:
        """Create a token for the client or, with CREATE_TOKENS, for another user."""
        owner = requester = context.principal
        shown_requester = requester if context.api_version >= REQUESTERS_FROM else NOBODY
        if request.owner_principal_name:
            if request.owner_principal_type is None:  # Kafka fails on it
                return _refused(ErrorCode.UNKNOWN_SERVER_ERROR, ANONYMOUS, ANONYMOUS)
            owner = Principal(request.owner_principal_type, request.owner_principal_name)
        try:
            _check_sender(context)
            self._check_creation(context, owner)
            renewers = await self._renewers(request)
            token, hmac = await self._enabled().create(owner, requester, renewers, request.max_lifetime_ms)
        except ApiError as error:
            return _refused(error.error_code, owner, shown_requester)
        return CreateDelegationTokenResponse(
            error_code=ErrorCode.NONE,
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=shown_requester.kind,
            token_requester_principal_name=shown_requester.name,
            issue_timestamp_ms=token.issue_ms,
            expiry_timestamp_ms=token.expiry_ms,
            max_timestamp_ms=token.max_ms,
            token_id=token.token_id,
            hmac=hmac,
            throttle_time_ms=0,
        )

    def _check_creation(self, context: RequestContext, owner: Principal) -> None:
        if owner != context.principal:
            client = self._access.client(context, "CreateDelegationToken")
            if not client.may(AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)):
                raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "")

    async def _renewers(self, request: CreateDelegationTokenRequest) -> tuple[Principal, ...]:
        """Read the renewers. Raises INVALID_PRINCIPAL_TYPE for a principal that is not a user."""
        renewers = []
        async for each in in_slices(request.renewers, self._clock):
            if each.principal_type != "User":
                raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE, "")
            renewers.append(Principal(each.principal_type, each.principal_name))
        return tuple(renewers)

    @api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(0, 2), right=CHECKED_BY_HANDLER)
    async def renew_delegation_token(
        self, context: RequestContext, request: RenewDelegationTokenRequest
    ) -> RenewDelegationTokenResponse:
        """Extend a token, for its owner or one of its renewers."""
        code, end_ms = ErrorCode.NONE, NO_TIME
        try:
            _check_sender(context)
            end_ms = await self._enabled().renew(context.principal, bytes(request.hmac), request.renew_period_ms)
        except ApiError as error:
            code = error.error_code
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=end_ms, throttle_time_ms=0)

    @api(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(0, 2), right=CHECKED_BY_HANDLER)
    async def expire_delegation_token(
        self, context: RequestContext, request: ExpireDelegationTokenRequest
    ) -> ExpireDelegationTokenResponse:
        """Shorten the life of a token, for its owner or one of its renewers."""
        code, end_ms = ErrorCode.NONE, NO_TIME
        try:
            _check_sender(context)
            end_ms = await self._enabled().expire(context.principal, bytes(request.hmac), request.expiry_time_period_ms)
        except ApiError as error:
            code = error.error_code
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=end_ms, throttle_time_ms=0)

    @api(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        versions=(0, 3),
        right=CHECKED_BY_HANDLER,
        reads_only=True,
        whole="its array is a filter",
    )
    async def describe_delegation_token(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> DescribeDelegationTokenResponse:
        """Describe the tokens of these owners, or all, as far as the client may see them."""
        owners: set[Principal] | None = None
        if request.owners is not None:
            owners = set()
            async for each in in_slices(request.owners, self._clock):
                owners.add(Principal(each.principal_type, each.principal_name))
        client = self._access.client(context, "DescribeDelegationToken")

        def is_wanted(token: DelegationToken) -> bool:
            if owners is not None and owners.isdisjoint(token.known_to()):
                return False
            return (
                token.is_known_to(context.principal)
                or client.may(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
                or client.may(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner))
            )

        code: ErrorCode = ErrorCode.NONE
        found: list[SignedToken] = []
        try:
            _check_sender(context)
            tokens = self._enabled()
            if owners is None or owners:
                found = await tokens.find(is_wanted)
        except ApiError as error:
            code = error.error_code
        return DescribeDelegationTokenResponse(
            error_code=code, tokens=[_described(context.api_version, *each) for each in found], throttle_time_ms=0
        )

    def _enabled(self) -> DelegationTokenManager:
        if self._tokens is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "")
        return self._tokens


def _check_sender(context: RequestContext) -> None:
    """Raise ApiError unless the client authenticated by something stronger than a token."""
    protocol, principal = context.security_protocol, context.principal
    if principal.has_token or protocol == "PLAINTEXT" or (protocol == "SSL" and principal == ANONYMOUS):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "")


def _refused(code: ErrorCode, owner: Principal, requester: Principal) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
        token_id="",
        hmac=b"",
        throttle_time_ms=0,
    )


def _described(
    version: int, token: DelegationToken, hmac: bytes
) -> DescribeDelegationTokenResponse.DescribedDelegationToken:
    shown_requester = token.requester if version >= REQUESTERS_FROM else NOBODY
    renewer = DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer
    return DescribeDelegationTokenResponse.DescribedDelegationToken(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=shown_requester.kind,
        token_requester_principal_name=shown_requester.name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[renewer(principal_type=each.kind, principal_name=each.name) for each in token.renewers],
    )
