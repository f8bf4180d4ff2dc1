"""Requests about SASL, ACLs and SCRAM credentials (KIP-43, KIP-152, KIP-140, KIP-554).

The numbers of ACLs are those of `protocol.acl_types`.
"""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import (
    Request,
    Response,
    Struct,
    bytes_,
    field,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    string,
)

LITERAL_PATTERN = 3


class DescribeAclsRequest(Request, api_key=ApiKey.DESCRIBE_ACLS, versions="0-3"):
    """A filter for ACLs; null matches any name, principal or host.

    - v1: the type of the resource's pattern (KIP-290)
    - v2: flexible
    """

    resource_type_filter: int8
    resource_name_filter: nullable_string
    pattern_type_filter: int8 = field("1+", default=LITERAL_PATTERN)
    principal_filter: nullable_string
    host_filter: nullable_string
    operation: int8
    permission_type: int8


class DescribeAclsResponse(Response, api_key=ApiKey.DESCRIBE_ACLS, versions="0-3"):
    """The ACLs that match, by resource.

    - v1: the type of the resource's pattern
    - v2: flexible
    """

    class AclDescription(Struct):
        """One ACL."""

        principal: string
        host: string
        operation: int8
        permission_type: int8

    class DescribeAclsResource(Struct):
        """The ACLs of one resource."""

        resource_type: int8
        resource_name: string
        pattern_type: int8 = field("1+", default=LITERAL_PATTERN)
        acls: list[DescribeAclsResponse.AclDescription]

    throttle_time_ms: int32
    error_code: int16
    error_message: nullable_string
    resources: list[DescribeAclsResource]


class CreateAclsRequest(Request, api_key=ApiKey.CREATE_ACLS, versions="0-3"):
    """ACLs to create.

    - v1: the type of the resource's pattern
    - v2: flexible
    - v3: resources of the type USER (KIP-373)
    """

    class AclCreation(Struct):
        """One ACL."""

        resource_type: int8
        resource_name: string
        resource_pattern_type: int8 = field("1+", default=LITERAL_PATTERN)
        principal: string
        host: string
        operation: int8
        permission_type: int8

    creations: list[AclCreation]


class CreateAclsResponse(Response, api_key=ApiKey.CREATE_ACLS, versions="0-3"):
    """The outcome of each creation, in the order of the request.

    - v2: flexible
    """

    class AclCreationResult(Struct):
        """One outcome."""

        error_code: int16
        error_message: nullable_string

    throttle_time_ms: int32
    results: list[AclCreationResult]


class DeleteAclsRequest(Request, api_key=ApiKey.DELETE_ACLS, versions="0-3"):
    """Filters for the ACLs to delete; null matches any name, principal or host.

    - v1: the type of the resource's pattern
    - v2: flexible
    - v3: resources of the type USER (KIP-373)
    """

    class DeleteAclsFilter(Struct):
        """One filter."""

        resource_type_filter: int8
        resource_name_filter: nullable_string
        pattern_type_filter: int8 = field("1+", default=LITERAL_PATTERN)
        principal_filter: nullable_string
        host_filter: nullable_string
        operation: int8
        permission_type: int8

    filters: list[DeleteAclsFilter]


class DeleteAclsResponse(Response, api_key=ApiKey.DELETE_ACLS, versions="0-3"):
    """The deleted ACLs by filter, in the order of the request.

    - v1: the type of the resource's pattern
    - v2: flexible
    """

    class DeleteAclsMatchingAcl(Struct):
        """One ACL that matched, and whether it was deleted."""

        error_code: int16
        error_message: nullable_string
        resource_type: int8
        resource_name: string
        pattern_type: int8 = field("1+", default=LITERAL_PATTERN)
        principal: string
        host: string
        operation: int8
        permission_type: int8

    class DeleteAclsFilterResult(Struct):
        """One filter."""

        error_code: int16
        error_message: nullable_string
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl]

    throttle_time_ms: int32
    filter_results: list[DeleteAclsFilterResult]


class DescribeUserScramCredentialsRequest(Request, api_key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0"):
    """The users whose credentials to describe; null or empty for all."""

    class UserName(Struct):
        """One user."""

        name: string

    users: list[UserName] | None


class DescribeUserScramCredentialsResponse(Response, api_key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions="0"):
    """Mechanisms and iterations of each user, never the secrets."""

    class CredentialInfo(Struct):
        """One mechanism of a user."""

        mechanism: int8
        iterations: int32

    class DescribeUserScramCredentialsResult(Struct):
        """One user."""

        user: string
        error_code: int16
        error_message: nullable_string
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo]

    throttle_time_ms: int32
    error_code: int16
    error_message: nullable_string
    results: list[DescribeUserScramCredentialsResult]


class AlterUserScramCredentialsRequest(Request, api_key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0"):
    """Credentials of users to set and to remove. The client salts passwords and never sends them (KIP-554)."""

    class ScramCredentialDeletion(Struct):
        """One mechanism of a user."""

        name: string
        mechanism: int8

    class ScramCredentialUpsertion(Struct):
        """One mechanism of a user with the salted password."""

        name: string
        mechanism: int8
        iterations: int32
        salt: bytes_
        salted_password: bytes_

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResponse(Response, api_key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions="0"):
    """The outcome for each user."""

    class AlterUserScramCredentialsResult(Struct):
        """One user."""

        user: string
        error_code: int16
        error_message: nullable_string

    throttle_time_ms: int32
    results: list[AlterUserScramCredentialsResult]


class SaslHandshakeRequest(Request, api_key=ApiKey.SASL_HANDSHAKE, versions="0-1"):
    """The mechanism chosen by the client.

    - v0: tokens follow without a header
    - v1: tokens follow in SaslAuthenticate (KIP-152)
    """

    mechanism: string


class SaslHandshakeResponse(Response, api_key=ApiKey.SASL_HANDSHAKE, versions="0-1"):
    """The mechanisms of the listener."""

    error_code: int16
    mechanisms: list[string]


class SaslAuthenticateRequest(Request, api_key=ApiKey.SASL_AUTHENTICATE, versions="0-2"):
    """A token of the mechanism.

    - v2: flexible
    """

    auth_bytes: bytes_


class SaslAuthenticateResponse(Response, api_key=ApiKey.SASL_AUTHENTICATE, versions="0-2"):
    """The mechanism's response to a token.

    - v1: the lifetime of the authentication, 0 for unlimited (KIP-368)
    - v2: flexible
    """

    error_code: int16
    error_message: nullable_string
    auth_bytes: bytes_
    session_lifetime_ms: int64 = field("1+", default=0, ignorable=True)
