"""Claims of tokens, and whether they hold (RFC 7519); the same for tokens with a signature and without."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from cluster.security.bearer_exchange import MAX_TOKEN_BYTES, BearerToken, TokenError
from config.security.oauthbearer.token_rules import UnsecuredRules

_MAX_SECONDS: Final = 1 << 40
_ENCODED: Final = re.compile(r"[-_A-Za-z0-9]*")

Claims = Mapping[str, Any]
"""Members of a JSON object, whatever they are."""


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
    """A JSON object without a name that is there twice. Raises TokenError."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
        if b"\\u" in text:
            # A user whose name has half of a surrogate pair could be neither logged nor described.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise TokenError(f"its {title} is not JSON") from error
    if not isinstance(found, dict):
        raise TokenError(f"its {title} is not a JSON object")
    return found


def check_times(claims: Claims, now_ms: int, skew_ms: int, *, needs_issue: bool) -> int:
    """When the token ends, in milliseconds since 1970. Raises TokenError when it has ended or not begun, `skew_ms`
    apart; with `needs_issue` also when it does not say when it was issued.
    """
    expires_ms = _time_ms(claims, "exp")
    issued_ms, begins_ms = _time_ms(claims, "iat"), _time_ms(claims, "nbf")
    if expires_ms is None:
        raise TokenError("it has no claim exp")
    if needs_issue and issued_ms is None:
        raise TokenError("it has no claim iat")
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
        raise TokenError(f"it has no claim {name} with a name")
    return value.strip()


def scope_of(claims: Claims, name: str) -> list[str]:
    """The scopes; none where the claim lacks. As in Kafka a text is one, blanks and all. Raises TokenError."""
    value = claims.get(name)
    words = [value] if isinstance(value, str) else value
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(each, str) and each.strip() for each in words):
        raise TokenError(f"its claim {name} is no scope")
    found = [word.strip() for word in words]
    if len(set(found)) < len(found):
        raise TokenError(f"its claim {name} has a scope twice")
    return found


def check_audience(claims: Claims, expected: tuple[str, ...]) -> None:
    """Raise TokenError unless the token is for one of those `expected`; for nobody in particular, where none is."""
    value = claims.get("aud")
    audiences = [value] if isinstance(value, str) else value
    if not expected:
        if audiences is not None:
            raise TokenError("it has an audience, and sasl.oauthbearer.expected.audience has none")
        return
    if not isinstance(audiences, list) or not any(each in expected for each in audiences if isinstance(each, str)):
        raise TokenError("its audience is not one of sasl.oauthbearer.expected.audience")


def unsecured_token(token: str, now_ms: int, rules: UnsecuredRules) -> BearerToken:
    """The meaning of an unsigned token (Kafka class `OAuthBearerUnsecuredValidatorCallbackHandler`).

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
        raise TokenError(f"its claim {name} is no time")
    return round(value * 1000)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
