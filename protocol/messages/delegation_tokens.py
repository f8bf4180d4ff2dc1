"""Requests about delegation tokens (KIP-48, KIP-373). Times are in milliseconds since 1970.

An HMAC is a token's password: never log or display it.
"""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, bytes_, field, int16, int32, int64, nullable_string, string


class CreateDelegationTokenRequest(Request, api_key=ApiKey.CREATE_DELEGATION_TOKEN, versions="0-3"):
    """A token to create. The owner is the requester unless another principal is named.

    - v2: flexible
    - v3: the owner (KIP-373)
    """

    class CreatableRenewers(Struct):
        """A principal that may renew the token."""

        principal_type: string
        principal_name: string

    owner_principal_type: nullable_string = field("3+", default="")
    owner_principal_name: nullable_string = field("3+", default="")
    renewers: list[CreatableRenewers]
    max_lifetime_ms: int64


class CreateDelegationTokenResponse(Response, api_key=ApiKey.CREATE_DELEGATION_TOKEN, versions="0-3"):
    """The token.

    - v2: flexible
    - v3: the principal that requested it (KIP-373)
    """

    error_code: int16
    principal_type: string
    principal_name: string
    token_requester_principal_type: string = field("3+", default="")
    token_requester_principal_name: string = field("3+", default="")
    issue_timestamp_ms: int64
    expiry_timestamp_ms: int64
    max_timestamp_ms: int64
    token_id: string
    hmac: bytes_
    throttle_time_ms: int32


class RenewDelegationTokenRequest(Request, api_key=ApiKey.RENEW_DELEGATION_TOKEN, versions="0-2"):
    """The token to renew.

    - v2: flexible
    """

    hmac: bytes_
    renew_period_ms: int64


class RenewDelegationTokenResponse(Response, api_key=ApiKey.RENEW_DELEGATION_TOKEN, versions="0-2"):
    """The new expiry time of the token, -1 with an error.

    - v2: flexible
    """

    error_code: int16
    expiry_timestamp_ms: int64
    throttle_time_ms: int32


class ExpireDelegationTokenRequest(Request, api_key=ApiKey.EXPIRE_DELEGATION_TOKEN, versions="0-2"):
    """The token to expire, after a period, or at once if that is negative.

    - v2: flexible
    """

    hmac: bytes_
    expiry_time_period_ms: int64


class ExpireDelegationTokenResponse(Response, api_key=ApiKey.EXPIRE_DELEGATION_TOKEN, versions="0-2"):
    """The expiry time of the token, -1 with an error.

    - v2: flexible
    """

    error_code: int16
    expiry_timestamp_ms: int64
    throttle_time_ms: int32


class DescribeDelegationTokenRequest(Request, api_key=ApiKey.DESCRIBE_DELEGATION_TOKEN, versions="0-3"):
    """The owners whose tokens to describe; null for all.

    - v2: flexible
    """

    class DescribeDelegationTokenOwner(Struct):
        """One principal."""

        principal_type: string
        principal_name: string

    owners: list[DescribeDelegationTokenOwner] | None


class DescribeDelegationTokenResponse(Response, api_key=ApiKey.DESCRIBE_DELEGATION_TOKEN, versions="0-3"):
    """The tokens.

    - v2: flexible
    - v3: the principal that requested a token (KIP-373)
    """

    class DescribedDelegationTokenRenewer(Struct):
        """A principal that may renew a token."""

        principal_type: string
        principal_name: string

    class DescribedDelegationToken(Struct):
        """One token."""

        principal_type: string
        principal_name: string
        token_requester_principal_type: string = field("3+", default="")
        token_requester_principal_name: string = field("3+", default="")
        issue_timestamp: int64
        expiry_timestamp: int64
        max_timestamp: int64
        token_id: string
        hmac: bytes_
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer]

    error_code: int16
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: int32
