"""Administration of delegation tokens (Kafka class `KafkaAdminClient`). Every function takes the client first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from client.errors import raise_for
from client.kafka_client import KafkaClient
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


class Principal(NamedTuple):
    """A user."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Token(NamedTuple):
    """A delegation token. Times are in milliseconds since 1970; `hmac` is its password."""

    token_id: str
    hmac: bytes
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    def __repr__(self) -> str:
        return f"Token({self.token_id}, owner={self.owner})"


async def create_token(
    client: KafkaClient, renewers: Iterable[Principal], max_lifetime_ms: int, owner: Principal | None = None
) -> Token:
    """A new token of `owner`, or of who asks; the broker chooses its longest life for -1. Raises ApiError."""
    renewing = tuple(renewers)
    request = CreateDelegationTokenRequest(
        renewers=[
            CreateDelegationTokenRequest.CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in renewing
        ],
        max_lifetime_ms=max_lifetime_ms,
    )
    if owner is not None:
        request.owner_principal_type, request.owner_principal_name = owner
    answer = await client.ask_any("createDelegationToken", request, CreateDelegationTokenResponse)
    raise_for(answer.error_code, None)
    owner = Principal(answer.principal_type, answer.principal_name)
    return Token(
        answer.token_id,
        bytes(answer.hmac),
        owner,
        _requester(answer.token_requester_principal_type, answer.token_requester_principal_name, owner),
        renewing,
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
    )


async def renew_token(client: KafkaClient, hmac: bytes, period_ms: int) -> int:
    """Have a token end after a period, or the brokers' usual one for -1. Gives its end. Raises ApiError."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer = await client.ask_any("renewDelegationToken", request, RenewDelegationTokenResponse)
    raise_for(answer.error_code, None)
    return answer.expiry_timestamp_ms


async def expire_token(client: KafkaClient, hmac: bytes, period_ms: int) -> int:
    """Have a token end after a period, or at once for -1. Gives its end. Raises ApiError."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = await client.ask_any("expireDelegationToken", request, ExpireDelegationTokenResponse)
    raise_for(answer.error_code, None)
    return answer.expiry_timestamp_ms


async def describe_tokens(client: KafkaClient, owners: Iterable[Principal] | None) -> list[Token]:
    """The tokens of these owners, or of all, that one may see. Raises ApiError."""
    asked = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    request = DescribeDelegationTokenRequest(
        owners=None if owners is None else [asked(principal_type=kind, principal_name=name) for kind, name in owners]
    )
    answer = await client.ask_any("describeDelegationToken", request, DescribeDelegationTokenResponse)
    raise_for(answer.error_code, None)
    return [_token(each) for each in answer.tokens]


def _token(each: DescribeDelegationTokenResponse.DescribedDelegationToken) -> Token:
    owner = Principal(each.principal_type, each.principal_name)
    return Token(
        each.token_id,
        bytes(each.hmac),
        owner,
        _requester(each.token_requester_principal_type, each.token_requester_principal_name, owner),
        tuple(Principal(renewer.principal_type, renewer.principal_name) for renewer in each.renewers),
        each.issue_timestamp,
        each.expiry_timestamp,
        each.max_timestamp,
    )


def _requester(kind: str, name: str, owner: Principal) -> Principal:
    """Brokers before 3.3 do not tell it: there it is always the owner."""
    return Principal(kind, name) if name else owner
