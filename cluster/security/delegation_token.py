"""Delegation tokens: rights, lifetimes, and their format in the coordination tree (KIP-48, KIP-373).

Kafka's classes are `DelegationTokenManagerZk` and `TokenInformation`.

A token's HMAC is its password. It is computed from the token id and the brokers' secret key, and never stored.
"""

from __future__ import annotations

import hmac
import json
import re
from typing import Any, Final

from cluster.security.principal import Principal
from cluster.security.sanitizer import desanitized, sanitized
from cluster.znodes import ZnodeFormatError, parse_json
from protocol.errors import ApiError, ErrorCode
from protocol.value import Value

ROOT: Final = "/delegation_token"
TOKENS: Final = f"{ROOT}/tokens"
CHANGES: Final = f"{ROOT}/token_changes"
PERSISTENT_PATHS: Final = (ROOT, TOKENS, CHANGES)
"""Nodes that a broker with a secret key creates at its start, parents first, all without data."""
CHANGE_NOTICE: Final = f"{CHANGES}/token_change_"
"""The path of a token's change notification, without its number; its data are the token id."""
_VERSION: Final = 3
_LATEST_MS: Final = 2**63 - 1
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class DelegationToken(Value):
    """A token. Times are in milliseconds since 1970; renewals cannot exceed `max_ms`."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int

    def is_known_to(self, principal: Principal) -> bool:
        """Whether this principal may describe it without further rights."""
        return principal in self.known_to()

    def known_to(self) -> tuple[Principal, ...]:
        """The principals that may describe it without further rights."""
        return (self.owner, self.requester, *self.renewers)

    def has_expired(self, now_ms: int) -> bool:
        """Whether it is past its expiry."""
        return min(self.max_ms, self.expiry_ms) < now_ms

    def check_renewer(self, principal: Principal) -> None:
        """Raise ApiError unless the principal may renew and expire it."""
        if principal != self.owner and principal not in self.renewers:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, f"{principal} neither owns nor renews the token")

    def ending(self, now_ms: int, period_ms: int) -> DelegationToken:
        """The same token with an expiry `period_ms` from now. Raises ApiError if it has expired."""
        if self.has_expired(now_ms):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has expired")
        return self.replace(expiry_ms=min(self.max_ms, now_ms + period_ms))

    def encode(self) -> bytes:
        """The payload of its node. The keys are in Kafka's order, that of Scala's hash maps."""
        value = {
            "issueTimestamp": self.issue_ms,
            "renewers": [sanitized(str(each)) for each in self.renewers],
            "tokenRequester": sanitized(str(self.requester)),
            "tokenId": self.token_id,
            "owner": sanitized(str(self.owner)),
            "expiryTimestamp": self.expiry_ms,
            "maxTimestamp": self.max_ms,
            "version": _VERSION,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, token_id: str, data: bytes) -> DelegationToken:
        """Parse the payload of its node, version 1, 2 or 3. Raises ZnodeFormatError."""
        try:
            value = parse_json(data)
            if not 1 <= value["version"] <= _VERSION:
                raise ValueError(f"version {value['version']}")
            owner = _principal(value["owner"])
            return cls(
                token_id=token_id,
                owner=owner,
                requester=_principal(value["tokenRequester"]) if value["version"] >= _VERSION else owner,
                renewers=tuple(_principal(each) for each in value["renewers"]),
                issue_ms=int(value["issueTimestamp"]),
                max_ms=int(value["maxTimestamp"]),
                expiry_ms=int(value["expiryTimestamp"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ZnodeFormatError(token_path(token_id), error) from error


def new_token(
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: tuple[Principal, ...],
    now_ms: int,
    lifetime_ms: int,
    first_period_ms: int,
) -> DelegationToken:
    """A token that expires after `first_period_ms`, and can be renewed until `lifetime_ms` from now."""
    max_ms = min(now_ms + lifetime_ms, _LATEST_MS)
    return DelegationToken(token_id, owner, requester, renewers, now_ms, max_ms, min(max_ms, now_ms + first_period_ms))


def token_path(token_id: str) -> str:
    """The node of a token."""
    return f"{TOKENS}/{token_id}"


def is_token_id(text: str) -> bool:
    """Whether this is a valid token id; a client's text may not even be a valid node name."""
    return _ID.fullmatch(text) is not None


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """The HMAC of a token."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def _principal(text: Any) -> Principal:
    """The principal in a node. Raises ValueError, AttributeError."""
    kind, colon, name = desanitized(text).partition(":")
    if not colon:
        raise ValueError(f"expected a string in format principalType:principalName but got {text}")
    return Principal(kind, name)
