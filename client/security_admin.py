"""Administration of ACLs, quotas (KIP-546), SCRAM users (KIP-554) and delegation tokens (Kafka class
`KafkaAdminClient`).

Every function takes the client first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from client.errors import raise_for, refusal
from client.kafka_client import KafkaClient
from protocol.acl_types import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
    code_of,
)
from protocol.errors import ApiError
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
from protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from protocol.scram_mechanisms import HASHES, MECHANISMS

_NUMBERS = {name: number for number, name in MECHANISMS.items()}


class SaltedPassword(NamedTuple):
    """The credential that is sent to a broker instead of a password."""

    mechanism: str
    iterations: int
    salt: bytes
    salted: bytes

    @classmethod
    def of(cls, mechanism: str, iterations: int, salt: bytes, password: str) -> SaltedPassword:
        """Salt and hash a password. It takes some milliseconds, or longer with many iterations."""
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
        return cls(mechanism, iterations, salt, salted)


async def describe_scram_users(
    client: KafkaClient, users: Iterable[str] = ()
) -> dict[str, Mapping[str, int] | ApiError]:
    """The iterations of each mechanism of these users, or of all users with credentials; or the error of a user.

    Raises ApiError.
    """
    user = DescribeUserScramCredentialsRequest.UserName
    request = DescribeUserScramCredentialsRequest(users=[user(name=name) for name in users])
    response = await client.ask_any("describeUserScramCredentials", request, DescribeUserScramCredentialsResponse)
    raise_for(response.error_code, response.error_message)
    return {
        each.user: refusal(each.error_code, each.error_message)
        or {MECHANISMS.get(info.mechanism, "UNKNOWN"): info.iterations for info in each.credential_infos}
        for each in response.results
    }


async def alter_scram_user(
    client: KafkaClient, user: str, passwords: Iterable[SaltedPassword], removed: Iterable[str]
) -> None:
    """Set passwords of a user, and remove those for the mechanisms `removed`. Raises ApiError."""
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    request = AlterUserScramCredentialsRequest(
        deletions=[deletion(name=user, mechanism=_NUMBERS[mechanism]) for mechanism in removed],
        upsertions=[
            upsertion(
                name=user,
                mechanism=_NUMBERS[each.mechanism],
                iterations=each.iterations,
                salt=each.salt,
                salted_password=each.salted,
            )
            for each in passwords
        ],
    )

    def error_codes(response: AlterUserScramCredentialsResponse) -> list[int]:
        return [each.error_code for each in response.results]

    response = await client.ask_controller(
        "alterUserScramCredentials", request, AlterUserScramCredentialsResponse, error_codes
    )
    for each in response.results:
        raise_for(each.error_code, each.error_message)


class TokenPrincipal(NamedTuple):
    """A user."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Token(NamedTuple):
    """A delegation token. Times are in milliseconds since 1970; `hmac` is its password."""

    token_id: str
    hmac: bytes
    owner: TokenPrincipal
    requester: TokenPrincipal
    renewers: tuple[TokenPrincipal, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    def __repr__(self) -> str:
        return f"Token({self.token_id}, owner={self.owner})"


async def create_token(
    client: KafkaClient, renewers: Iterable[TokenPrincipal], max_lifetime_ms: int, owner: TokenPrincipal | None = None
) -> Token:
    """Create a token of `owner`, or of the requester; -1 leaves the maximum lifetime to the broker. Raises ApiError."""
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
    owner = TokenPrincipal(answer.principal_type, answer.principal_name)
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
    """Renew a token for a period, or for the brokers' default with -1. Returns its new expiry. Raises ApiError."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer = await client.ask_any("renewDelegationToken", request, RenewDelegationTokenResponse)
    raise_for(answer.error_code, None)
    return answer.expiry_timestamp_ms


async def expire_token(client: KafkaClient, hmac: bytes, period_ms: int) -> int:
    """Expire a token after a period, or at once with -1. Returns its expiry. Raises ApiError."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = await client.ask_any("expireDelegationToken", request, ExpireDelegationTokenResponse)
    raise_for(answer.error_code, None)
    return answer.expiry_timestamp_ms


async def describe_tokens(client: KafkaClient, owners: Iterable[TokenPrincipal] | None) -> list[Token]:
    """The visible tokens of these owners, or of all. Raises ApiError."""
    asked = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    request = DescribeDelegationTokenRequest(
        owners=None if owners is None else [asked(principal_type=kind, principal_name=name) for kind, name in owners]
    )
    answer = await client.ask_any("describeDelegationToken", request, DescribeDelegationTokenResponse)
    raise_for(answer.error_code, None)
    return [_token(each) for each in answer.tokens]


def _token(each: DescribeDelegationTokenResponse.DescribedDelegationToken) -> Token:
    owner = TokenPrincipal(each.principal_type, each.principal_name)
    return Token(
        each.token_id,
        bytes(each.hmac),
        owner,
        _requester(each.token_requester_principal_type, each.token_requester_principal_name, owner),
        tuple(TokenPrincipal(renewer.principal_type, renewer.principal_name) for renewer in each.renewers),
        each.issue_timestamp,
        each.expiry_timestamp,
        each.max_timestamp,
    )


def _requester(kind: str, name: str, owner: TokenPrincipal) -> TokenPrincipal:
    """Brokers before 3.3 do not send it: there it is always the owner."""
    return TokenPrincipal(kind, name) if name else owner


async def describe_acls(client: KafkaClient, wanted: AclFilter) -> list[AclBinding]:
    """The bindings that match a filter. Raises ApiError."""
    request = DescribeAclsRequest(**_fields(wanted))
    response = await client.ask_any("describeAcls", request, DescribeAclsResponse)
    raise_for(response.error_code, response.error_message)
    return [
        AclBinding(
            ResourcePattern(
                code_of(ResourceType, resource.resource_type),
                resource.resource_name,
                code_of(PatternType, resource.pattern_type),
            ),
            AccessControlEntry(
                each.principal,
                each.host,
                code_of(AclOperation, each.operation),
                code_of(AclPermissionType, each.permission_type),
            ),
        )
        for resource in response.resources
        for each in resource.acls
    ]


async def create_acls(client: KafkaClient, bindings: Iterable[AclBinding]) -> None:
    """Add bindings. Raises the first ApiError; others may have been added."""
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.pattern_type,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for pattern, entry in bindings
    ]
    response = await client.ask_any("createAcls", CreateAclsRequest(creations=creations), CreateAclsResponse)
    for each in response.results:
        raise_for(each.error_code, each.error_message)


async def delete_acls(client: KafkaClient, filters: Iterable[AclFilter]) -> None:
    """Remove the bindings that match the filters. Raises the first ApiError; others may have been removed."""
    asked = [DeleteAclsRequest.DeleteAclsFilter(**_fields(each)) for each in filters]
    response = await client.ask_any("deleteAcls", DeleteAclsRequest(filters=asked), DeleteAclsResponse)
    for result in response.filter_results:
        raise_for(result.error_code, result.error_message)
        for each in result.matching_acls:
            raise_for(each.error_code, each.error_message)


def _fields(wanted: AclFilter) -> dict[str, Any]:
    """The fields of a filter, which are the same in both requests."""
    return {
        "resource_type_filter": wanted.resource.resource_type,
        "resource_name_filter": wanted.resource.name,
        "pattern_type_filter": wanted.resource.pattern_type,
        "principal_filter": wanted.entry.principal,
        "host_filter": wanted.entry.host,
        "operation": wanted.entry.operation,
        "permission_type": wanted.entry.permission,
    }


EXACT, DEFAULT, ANY_NAME = range(3)

Parts = Mapping[str, str | None]
"""An entity: a name for one or more of the types `user`, `client-id` and `ip`; None is the default."""


class QuotaEntry(NamedTuple):
    """The quotas of one entity."""

    parts: Parts
    quotas: Mapping[str, float]


async def describe_client_quotas(client: KafkaClient, parts: Parts, any_name: Iterable[str] = ()) -> list[QuotaEntry]:
    """The quotas of entities with these names, and with any name for the types in `any_name`, without those that
    have other types, too. Raises ApiError.
    """
    component = DescribeClientQuotasRequest.ComponentData
    components = [
        component(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in parts.items()
    ]
    components += [component(entity_type=kind, match_type=ANY_NAME, match=None) for kind in any_name]
    request = DescribeClientQuotasRequest(components=components, strict=True)
    response = await client.ask_any("describeClientQuotas", request, DescribeClientQuotasResponse)
    raise_for(response.error_code, response.error_message)
    return [
        QuotaEntry(
            {part.entity_type: part.entity_name for part in entry.entity},
            {quota.key: quota.value for quota in entry.values},
        )
        for entry in response.entries or ()
    ]


async def alter_client_quotas(client: KafkaClient, parts: Parts, changes: Mapping[str, float | None]) -> None:
    """Set quotas of one entity; None removes a quota. Raises ApiError."""
    entity, change = AlterClientQuotasRequest.EntityData, AlterClientQuotasRequest.OpData
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[entity(entity_type=kind, entity_name=name) for kind, name in parts.items()],
                ops=[
                    change(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=False,
    )
    response = await client.ask_any("alterClientQuotas", request, AlterClientQuotasResponse)
    for entry in response.entries:
        raise_for(entry.error_code, entry.error_message)
