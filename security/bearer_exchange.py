"""The server side of SASL/OAUTHBEARER, without sockets: the exchange (RFC 7628), a listener's rules for tokens, and
their claims (RFC 7519; Kafka classes `OAuthBearerValidatorCallbackHandler`,
`OAuthBearerUnsecuredValidatorCallbackHandler`).

Kafka accepts unsigned tokens by default. Here a callback handler class is required, so a missing line lets no client
in.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from security.oauth import UnsecuredRules
from security.sasl_exchange import SaslAuthenticationError

MAX_TOKEN_BYTES: Final = 1 << 15
"""Larger tokens are rejected unread; real issuers' tokens have a few kilobytes."""
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x02-+\--<>-\x7f]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[!-~ \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.A-Za-z0-9]+)", re.ASCII)
_WRONG: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"


class TokenError(Exception):
    """An invalid token. The message is for the log and never contains the token.

    `scope` is the missing scope in the form of the response, if that is the reason.
    """

    def __init__(self, message: str, scope: str | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class BearerToken(NamedTuple):
    """The user of a token, and its expiry (milliseconds since 1970)."""

    user: str
    expires_ms: int


class ValidateToken(Protocol):
    """Validates a token."""

    async def __call__(self, token: str, /) -> BearerToken:
        """Raises TokenError."""
        ...


class FirstMessage(NamedTuple):
    """The client's first message. `extensions` (KIP-342) are not used."""

    token: str
    authzid: str
    extensions: dict[str, str]


class BearerExchange:
    """A single message if the token is valid. Otherwise the server responds with the error in JSON, and the next
    message of the client, whatever it is, ends the exchange (Kafka class `OAuthBearerSaslServer`).
    """

    def __init__(self, validate: ValidateToken, on_refusal: Callable[[str], None]) -> None:
        """`on_refusal` is called with the reason why a token is invalid."""
        self._validate = validate
        self._on_refusal = on_refusal
        self._error: str | None = None
        self.user: str | None = None
        self.credential_expiry_ms: int | None = None
        self.has_token = False

    async def respond(self, token: bytes) -> bytes:
        """See `security.sasl_exchange.Exchange`."""
        if self._error is not None:
            raise SaslAuthenticationError(self._error if token == b"\x01" else _WRONG)
        if self.user is not None:
            raise SaslAuthenticationError(_WRONG)
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
            raise SaslAuthenticationError(f"Authentication failed: {reason}")
        self.user, self.credential_expiry_ms = valid.user, valid.expires_ms
        return b""


def parse_first_message(message: bytes) -> FirstMessage:
    """Raises SaslAuthenticationError (Kafka class `OAuthBearerClientInitialResponse`)."""
    if len(message) > 2 * MAX_TOKEN_BYTES:
        raise SaslAuthenticationError(_WRONG, f"the client's message has {len(message)} bytes")
    try:
        found = _FIRST.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError as error:
        raise SaslAuthenticationError(_WRONG, "the client's message is not ASCII") from error
    if found is None:
        raise SaslAuthenticationError(_WRONG, "the client's message is not that of OAUTHBEARER")
    pairs: dict[str, str] = {}
    for pair in found["pairs"].split("\x01")[:-1]:
        name, _, value = pair.partition("=")
        if name in pairs:
            raise SaslAuthenticationError(_WRONG, f"the client's message has {name} twice")
        pairs[name] = value
    auth = _AUTH.fullmatch(pairs.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise SaslAuthenticationError(_WRONG, "the client's message has no bearer token")
    return FirstMessage(auth["token"], found["authzid"] or "", pairs)


def _refusal(error: TokenError) -> str:
    """Kafka's JSON, including its spaces."""
    if error.scope is None:
        return '{"status":"invalid_token"}'
    return f'{{"status":"insufficient_scope", "scope":"{error.scope}"}}'


_MAX_SECONDS: Final = 1 << 40
_ENCODED: Final = re.compile(r"[-_A-Za-z0-9]*")

Claims = Mapping[str, Any]
"""The members of a JSON object, not validated."""


def parts_of(token: str) -> list[str]:
    """Header, claims and signature, still encoded. Raises TokenError."""
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenError(f"it has {len(token)} letters, more than {MAX_TOKEN_BYTES}")
    parts = token.split(".")
    if len(parts) != 3 or not parts[0] or not parts[1]:
        raise TokenError("it does not have three parts")
    return parts


def decoded_object(part: str, title: str) -> dict[str, Any]:
    """The JSON object in a part of a token. Raises TokenError."""
    try:
        if not _ENCODED.fullmatch(part):
            raise TokenError(f"its {title} is not in base64url")
        return json_object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), title)
    except binascii.Error as error:
        raise TokenError(f"its {title} is not in base64url") from error


def json_object(text: bytes, title: str) -> dict[str, Any]:
    """A JSON object without duplicate names. Raises TokenError."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
        if b"\\u" in text:
            # A user name with a lone surrogate could be neither logged nor described.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise TokenError(f"its {title} is not JSON") from error
    if not isinstance(found, dict):
        raise TokenError(f"its {title} is not a JSON object")
    return found


def check_times(claims: Claims, now_ms: int, skew_ms: int, *, needs_issue: bool) -> int:
    """The token's expiry in milliseconds since 1970. Raises TokenError if it has expired or is not valid yet, with a
    tolerance of `skew_ms`; with `needs_issue` also if `iat` is missing.
    """
    expires_ms = _time_ms(claims, "exp")
    issued_ms, begins_ms = _time_ms(claims, "iat"), _time_ms(claims, "nbf")
    if expires_ms is None:
        raise TokenError("claim exp is missing")
    if needs_issue and issued_ms is None:
        raise TokenError("claim iat is missing")
    if now_ms - skew_ms >= expires_ms:
        raise TokenError(f"it has expired {(now_ms - expires_ms) // 1000} s ago")
    for name, time_ms in (("iat", issued_ms), ("nbf", begins_ms)):
        if time_ms is not None and time_ms > now_ms + skew_ms:
            raise TokenError(f"its time {name} is {(time_ms - now_ms) // 1000} s ahead")
        if time_ms is not None and time_ms >= expires_ms:
            raise TokenError(f"its time {name} is not before exp")
    return expires_ms


def subject_of(claims: Claims, name: str) -> str:
    """The user. Raises TokenError."""
    value = claims.get(name)
    if not isinstance(value, str) or not value.strip():
        raise TokenError(f"claim {name} does not contain a name")
    return value.strip()


def scope_of(claims: Claims, name: str) -> list[str]:
    """The scopes; empty if the claim is missing. As in Kafka, a string is a single scope, including its spaces. Raises
    TokenError.
    """
    value = claims.get(name)
    words = [value] if isinstance(value, str) else value
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(each, str) and each.strip() for each in words):
        raise TokenError(f"claim {name} is not a scope")
    found = [word.strip() for word in words]
    if len(set(found)) < len(found):
        raise TokenError(f"its claim {name} has a scope twice")
    return found


def check_audience(claims: Claims, expected: tuple[str, ...]) -> None:
    """Raise TokenError unless the token's audience is one of `expected`, or both are empty."""
    value = claims.get("aud")
    audiences = [value] if isinstance(value, str) else value
    if not expected:
        if audiences is not None:
            raise TokenError("it has an audience, and sasl.oauthbearer.expected.audience has none")
        return
    if not isinstance(audiences, list) or not any(each in expected for each in audiences if isinstance(each, str)):
        raise TokenError("its audience is not one of sasl.oauthbearer.expected.audience")


def unsecured_token(token: str, now_ms: int, rules: UnsecuredRules) -> BearerToken:
    """Validate an unsigned token (Kafka class `OAuthBearerUnsecuredValidatorCallbackHandler`).

    Raises TokenError.
    """
    header, body, signature = parts_of(token)
    if decoded_object(header, "header").get("alg") != "none" or signature:
        raise TokenError("it is signed, and tokens of this listener are not")
    claims = decoded_object(body, "claims")
    user = subject_of(claims, rules.sub_claim)
    expires_ms = check_times(claims, now_ms, rules.skew_ms, needs_issue=False)
    if not set(rules.required_scope) <= set(scope_of(claims, rules.scope_claim)):
        needed = ", ".join(rules.required_scope)
        raise TokenError(f"its scope lacks some of {needed}", f"[{needed}]")
    return BearerToken(user, expires_ms)


def _time_ms(claims: Claims, name: str) -> int | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_SECONDS:
        raise TokenError(f"claim {name} is not a time")
    return round(value * 1000)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
