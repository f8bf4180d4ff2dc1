"""The server's side of OAUTHBEARER (RFC 7628), without sockets: one token that says who the client is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from cluster.security.sasl_exchange import AuthenticationError

MAX_TOKEN_BYTES: Final = 1 << 15
"""Larger ones are refused unread; those of real issuers have some kilobytes."""
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x02-+\--<>-\x7f]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[!-~ \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.A-Za-z0-9]+)", re.ASCII)
_WRONG: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"


class TokenError(Exception):
    """A token that does not count; the message is for the log and never has the token.

    `scope` is what it lacks, in the form of the answer, where that is what is wrong.
    """

    def __init__(self, message: str, scope: str | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class BearerToken(NamedTuple):
    """Whose a token is, and until when (milliseconds since 1970)."""

    user: str
    expires_ms: int


class ValidateToken(Protocol):
    """Says what a token means."""

    async def __call__(self, token: str, /) -> BearerToken:
        """Raises TokenError."""
        ...


class FirstMessage(NamedTuple):
    """The message of a client. `extensions` (KIP-342) are of no use here."""

    token: str
    authzid: str
    extensions: dict[str, str]


class BearerExchange:
    """One message when the token counts. Otherwise the client is told why in JSON, and the exchange ends with its next
    message, whatever that is (Kafka class `OAuthBearerSaslServer`).
    """

    def __init__(self, validate: ValidateToken, on_refusal: Callable[[str], None]) -> None:
        """`on_refusal` is told why a token does not count."""
        self._validate = validate
        self._on_refusal = on_refusal
        self._error: str | None = None
        self.user: str | None = None
        self.credential_expiry_ms: int | None = None
        self.has_token = False

    async def respond(self, token: bytes) -> bytes:
        """See `cluster.security.sasl_exchange.Exchange`."""
        if self._error is not None:
            raise AuthenticationError(self._error if token == b"\x01" else _WRONG)
        if self.user is not None:
            raise AuthenticationError(_WRONG)
        message = parse_first_message(token)
        try:
            valid = await self._validate(message.token)
        except TokenError as error:
            self._on_refusal(str(error))
            self._error = _refusal(error)
            return self._error.encode()
        if message.authzid and message.authzid != valid.user:
            different = "that is different from the token's principal name"
            reason = f"Client requested an authorization id ({message.authzid}) {different} ({valid.user})"
            raise AuthenticationError(f"Authentication failed: {reason}")
        self.user, self.credential_expiry_ms = valid.user, valid.expires_ms
        return b""


def parse_first_message(message: bytes) -> FirstMessage:
    """Raises AuthenticationError (Kafka class `OAuthBearerClientInitialResponse`)."""
    if len(message) > 2 * MAX_TOKEN_BYTES:
        raise AuthenticationError(_WRONG, f"the client's message has {len(message)} bytes")
    try:
        found = _FIRST.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError as error:
        raise AuthenticationError(_WRONG, "the client's message is not ASCII") from error
    if found is None:
        raise AuthenticationError(_WRONG, "the client's message is not that of OAUTHBEARER")
    pairs: dict[str, str] = {}
    for pair in found["pairs"].split("\x01")[:-1]:
        name, _, value = pair.partition("=")
        if name in pairs:
            raise AuthenticationError(_WRONG, f"the client's message has {name} twice")
        pairs[name] = value
    auth = _AUTH.fullmatch(pairs.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise AuthenticationError(_WRONG, "the client's message has no bearer token")
    return FirstMessage(auth["token"], found["authzid"] or "", pairs)


def _refusal(error: TokenError) -> str:
    """Kafka's JSON, blanks and all."""
    if error.scope is None:
        return '{"status":"invalid_token"}'
    return f'{{"status":"insufficient_scope", "scope":"{error.scope}"}}'
